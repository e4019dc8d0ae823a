"""Rearrangements and named formats neither read nor write outside their buffers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import strategies
from tests.cases.hangs import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.in_turn(seconds=4)
@pytest.mark.skipif(sys.platform != "linux", reason="pages are fenced by Linux's mprotect")
@pytest.mark.parametrize("side", ["first", "last"])
def test_nothing_outside_the_buffers(side: str) -> None:
    command = [sys.executable, "-m", "tests.kernels.fenced_rearrangements", side]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout) > (600 if strategies.PART is None else 140)
