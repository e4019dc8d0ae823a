"""Runs `stand_in/host_side.py` in a process that loads the stand-in driver as CUDA's.

Tests of: cuda.index_programs, cuda.movements, cuda.queues, cuda.streaming, kernels.cuda.device, cuda.relayouts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.stand_in import driver

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    driver.missing() is not None and "ptx" not in os.environ.get("FASTINDEX_REQUIRE", ""), reason=driver.missing() or ""
)
def test_the_host_side_with_a_stand_in_driver(tmp_path: Path) -> None:
    folder = driver.build(tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml"]
    command.append(ROOT / "tests" / "cuda" / "stand_in" / "host_side.py")
    result = subprocess.run(
        command, env=driver.environment(folder), capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None
    assert int(passed[1]) >= 10
