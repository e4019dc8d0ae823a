"""`compiled_once.py`, in a separate process: other tests ask for kernels that no layout needs on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.hangs import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.in_turn(seconds=3)
def test_no_kernel_is_compiled_twice() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    command += ["-c", str(ROOT / "pyproject.toml"), str(Path(__file__).with_name("compiled_once.py"))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 10
