"""No move between pages, and no slot mapping, reads or writes outside its arrays."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.hangs import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are fenced by Linux's mprotect")


def ended(where: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.paged.fenced_copies", where]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)


@pytest.mark.in_turn(seconds=3.4)
@pytest.mark.parametrize("where", ["begin", "end"])
def test_nothing_outside_is_touched(where: str) -> None:
    result = ended(where)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[0]) > 80


def test_a_touch_outside_ends_the_process() -> None:
    assert ended("touch").returncode == -signal.SIGSEGV
