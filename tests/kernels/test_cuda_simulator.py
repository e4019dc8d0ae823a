"""Runs the files `simulated_*` in a separate process: the simulator is chosen once, before Numba is imported.

Tests of: cuda.index_programs, cuda.indices, cuda.relayouts, cuda.movements, cuda.kernels.casts, cuda.kernels.units,
cuda.launches.casts, cuda.kernels.index_kernel, cuda.kernels.registers, cuda.kernels.geometry, cuda.kernels.memory,
cuda.kernels.granules, cuda.kernels.stages, cuda.kernels.tiles, cuda.streaming.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import strategies
from tests.cases.hangs import HANG_SECONDS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def keep_to_one_processor() -> None:
    """The simulator's threads pass one lock around, which takes twice as long and more between processors."""
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[os.getpid() % len(processors)]})


def run(*choice: str, **environment: str) -> int:
    """Run the simulated tests, or a choice of them; how many passed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "tests.kernels.simulator",
        "-p",
        "no:cacheprovider",
        "-c",
        ROOT / "pyproject.toml",
    ]
    # Sums are modulo 2**64, which NumPy's scalars do and mention.
    command += ["-W", "ignore:overflow encountered:RuntimeWarning"]
    # numba-cuda 0.30 asks for a timedelta without a unit when it is imported, which NumPy 2.5 is about to refuse.
    command += ["-W", "ignore:The 'generic' unit for NumPy timedelta:DeprecationWarning"]
    command += [*sorted(HERE.glob("simulated_*.py")), *choice]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", **environment}
    result = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=ROOT,
        preexec_fn=keep_to_one_processor,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert "skipped" not in result.stdout
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None
    return int(passed[1])


@pytest.mark.in_turn(seconds=32)
@pytest.mark.long
def test_kernels_in_the_simulator() -> None:
    assert run("-k", "not of_jax") > (100 if strategies.PART is None else 60)


@pytest.mark.in_turn(seconds=5)
def test_arrays_of_jax() -> None:
    """Numba's own simulator takes their memory, without numba-cuda."""
    pytest.importorskip("jax")
    assert run("-k", "of_jax") == 1


@pytest.mark.sweep
def test_kernels_with_the_threads_of_a_gpu() -> None:
    """The simulator has one warp to a block elsewhere; here as many as a GPU."""
    passed = run("-k", "test_relayouts", FASTINDEX_SIMULATED_THREADS="256")
    assert passed > (50 if strategies.PART is None else 10)


@pytest.mark.in_turn(seconds=5)
def test_layouts_share_kernels() -> None:
    """Numbers come from tables, so that another layout seldom needs another kernel; a GPU compiles each in a second."""
    command = [sys.executable, "-m", "tests.kernels.cuda_kernel_count", "60"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-2000:]
    names = json.loads(result.stdout.splitlines()[-1])
    assert 30 < len(names) <= 40, names
    # Of slots that are looked up one by one: three, and one for what 32 bits do not count.
    assert len([name for name in names if name.startswith("gather")]) <= 4
