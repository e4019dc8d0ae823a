"""Run a test in a separate process: libraries that start threads would make every later fork a warning."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_SKIPPED = 77
_PROGRAM = """
import pytest, sys
from {module} import {name} as test
try:
    test.__wrapped__()
except pytest.skip.Exception as skipped:
    print(skipped)
    sys.exit({skipped})
"""


def in_its_own_process(test: Callable[[], None]) -> Callable[[], None]:
    """Run a test without arguments in a child; it is skipped where the child skips it."""

    @functools.wraps(test)
    def run() -> None:
        program = _PROGRAM.format(module=test.__module__, name=test.__name__, skipped=_SKIPPED)
        environment = {**os.environ, "PYTHONPATH": str(_ROOT), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-W", "error", "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == _SKIPPED:
            pytest.skip(done.stdout.strip())
        assert done.returncode == 0, done.stdout + done.stderr

    return run
