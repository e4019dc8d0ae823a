"""Runs `stand_in/host_side.py`, and the benchmark, in processes that load the stand-in driver as CUDA's.

Tests of: cuda.index_programs, cuda.movements, cuda.queues, cuda.streaming, cuda.relayouts, cuda.kernels.compilation,
cuda.kernels.device.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.hangs import HANG_SECONDS
from tests.cuda.stand_in import driver

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.skipif(
    driver.missing() is not None and "ptx" not in os.environ.get("FASTINDEX_REQUIRE", ""), reason=driver.missing() or ""
)


def test_the_host_side_with_a_stand_in_driver(tmp_path: Path) -> None:
    folder = driver.build(tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml"]
    command.append(ROOT / "tests" / "cuda" / "stand_in" / "host_side.py")
    result = subprocess.run(
        command, env=driver.environment(folder), capture_output=True, text=True, timeout=HANG_SECONDS, cwd=ROOT
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None
    assert int(passed[1]) >= 10


def test_threads_that_allocate_while_kernels_run(tmp_path: Path) -> None:
    name = "libtsan.so"
    command = ["gcc", f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=True).stdout.strip()
    if found == name:
        pytest.skip("gcc has no thread sanitizer")
    environment = driver.environment(driver.build(tmp_path, "-fsanitize=thread", "-O1")) | {"LD_PRELOAD": found}
    script = ROOT / "tests" / "cuda" / "stand_in" / "threads.py"
    result = subprocess.run(
        [sys.executable, "-m", "tests.cuda.stand_in.emulated", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=ROOT,
    )
    assert (result.returncode, result.stdout) == (0, "right\n"), result.stderr[:6000]


@pytest.mark.parametrize("executes", [True, False])
def test_the_benchmark_runs_to_its_end(executes: bool, tmp_path: Path) -> None:
    """On the emulator every result is right; on a driver whose kernels move nothing it says so, and takes none."""
    folder = driver.build(tmp_path)
    options = ["--mib", "1", "--count", "1000", "--rounds", "2", "--no-compile", "--output", tmp_path / "results"]
    options += ["--cases", "f32 4096x4096 transpose$|rank 3, powers"]
    command = [sys.executable, *(["-m", "tests.cuda.stand_in.emulated"] if executes else []), "benchmarks/gpu.py"]
    result = subprocess.run(
        [*command, *options],
        env=driver.environment(folder),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=ROOT,
    )
    assert result.returncode == (0 if executes else 1), result.stdout[-3000:] + result.stderr[-3000:]
    assert result.stdout.count("This device executes no kernels") == (0 if executes else 2)
    (found,) = (tmp_path / "results").glob("gpu-stand-in-0-*.json")
    rows = json.loads(found.read_text())["rows"]["relayout"]
    assert [row["correct"] for row in rows] == [True if executes else None] * 3
    assert {path.suffix for path in found.parent.iterdir()} == {".json", ".md", ".svg"}
