"""Runs `tests/test_gpu.py` on the stand-in driver, whose kernels are PTX in the emulator, and bugs planted in them.

It is the compiled code that runs, instruction by instruction, and the host's code around it; it is no GPU. A run takes
two of the parts, and `.ci/run` others each day. What needs torch, CuPy or JAX on a GPU is left out: these bring a CUDA
runtime of their own, which no stand-in driver serves.

Tests of: cuda.index_programs, cuda.indices, cuda.pages, cuda.kernels.casts, cuda.kernels.memory, cuda.kernels.mlir,
cuda.kernels.tiles.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import cast_cases, strategies
from tests.cases.hangs import HANG_SECONDS
from tests.cuda.stand_in import driver
from tests.kernels.cuda_code import require_the_successor

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    driver.missing() is not None and "ptx" not in os.environ.get("FASTINDEX_REQUIRE", ""), reason=driver.missing() or ""
)

#: What of `test_gpu` runs in one process, and how many tests of it have to pass.
PARTS = {
    "test_relayouts and (f32 or f64 or c128)": 20,
    "test_relayouts and not (f32 or f64 or c128)": 20,
    "random_shapes": 4,
    "random_larger": 4,
    "every_cast": 20,
    # Those that rotate, those of packed elements, and that of arrays.
    "casts_": len([*strategies.rotating(cast_cases.PAIRS)]) + 5 + 1,
    "not test_relayouts and not random and not cast": 20,
}

#: For which compute capability; the other one for what takes the most kernels.
RUNS = [*((part, "90") for part in PARTS), ("random_shapes", "80"), (next(iter(PARTS)), "80")]
TAKEN = [*strategies.rotating(RUNS[::2]), *strategies.rotating(RUNS[1::2])]

#: Of the stand-in's GPU: too few for what moves more than 2**31 bytes, which takes two arrays of 2 GiB.
FREE_BYTES = 4 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return driver.build(tmp_path_factory.mktemp("emulated"))


def run(
    folder: Path,
    *arguments: str,
    free_bytes: int = FREE_BYTES,
    capability: str = "90",
    compiler: str = "numba-cuda",
) -> str:
    """Run pytest on the emulated GPU, and return what it prints."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.cuda.stand_in.emulated",
    ]
    environment = {**driver.environment(folder), "STAND_IN_FREE_BYTES": str(free_bytes), "PYTHONPATH": str(ROOT)}
    environment |= {"STAND_IN_CAPABILITY": capability, "STAND_IN_COMPILER": compiler}
    result = subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, cwd=ROOT
    )
    # A crash begins with the stack, and ends with the names of a hundred modules.
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[:4000]
    return result.stdout


def passed(output: str) -> int:
    found = re.search(r"(\d+) passed", output)
    return int(found[1]) if found else 0


@pytest.mark.parametrize(("part", "capability"), TAKEN)
def test_the_tests_for_a_gpu(part: str, capability: str, folder: Path) -> None:
    output = run(folder, "tests/test_gpu.py", "-k", part, capability=capability)
    assert passed(output) >= PARTS[part]
    skipped = set(re.findall(r"SKIPPED .*?: (.*)", output))
    reasons = (r"needs \d+ bytes of GPU memory", "could not import '(torch|cupy|jax)'", "this JAX has no GPU")
    assert [one for one in skipped if not re.search("|".join(reasons), one)] == []


#: Tests with few kernels each, since numba-cuda-mlir takes seconds for one, and how many tests that is.
BY_THE_SUCCESSOR = {"test_indices": 7, "test_relayouts and 67": 4}


@pytest.mark.parametrize("part", [*strategies.rotating(BY_THE_SUCCESSOR)])
def test_what_numba_cuda_mlir_compiles(part: str, folder: Path) -> None:
    require_the_successor()
    output = run(folder, "tests/test_gpu.py", "-k", part, compiler="numba-cuda-mlir")
    assert passed(output) >= BY_THE_SUCCESSOR[part]


def test_every_test_for_a_gpu_is_in_a_part(folder: Path) -> None:
    def collected(*arguments: str) -> set[str]:
        output = run(folder, "tests/test_gpu.py", "--collect-only", *arguments)
        return {line for line in output.splitlines() if "::" in line}

    parts = [collected("-k", part) for part in PARTS]
    assert set.union(*parts) == collected()
    assert sum(map(len, parts)) == len(collected()) > 100


#: Of the bugs, those planted in the host's code, those that do what belongs to another lane, and the others.
BUGS = {"too_long or 31_bits or does_not_wait or too_many or top_of or cut_short": 16, "lane": 10, "": 11}


@pytest.mark.parametrize("part", [*strategies.rotating(BUGS)])
def test_planted_bugs_are_found(part: str) -> None:
    names = part or f"not ({' or '.join(filter(None, BUGS))})"
    command = [sys.executable, "-m", "tests.cuda.stand_in.plant", "-k", names]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, cwd=ROOT)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    rows = [line.strip("| ").split(" | ") for line in result.stdout.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == BUGS[part]
    assert all(len(row) == 4 and re.fullmatch(r"line [1-9].*", row[3]) for row in rows), rows


def test_blocks_far_apart(folder: Path) -> None:
    """Arrays of more than 2**31 elements, of which a few blocks run."""
    assert passed(run(folder, "tests/cuda/stand_in/far_blocks.py", free_bytes=1 << 40)) >= 27


#: What moves 2 GiB there and back, and how many tests that is. The first two take a minute or two, the last ten.
LARGE = {"65536 and not 128": 1, "65536 and 128": 1, "46341": 2}


@pytest.mark.parametrize("part", [*LARGE] if strategies.PART is None else [[*LARGE][strategies.PART % 2]])
def test_more_than_31_bits(part: str, folder: Path) -> None:
    """8 GiB of memory; one of the first two, and all of them with all seeds."""
    if "ptx" not in os.environ.get("FASTINDEX_REQUIRE", ""):
        pytest.skip("FASTINDEX_REQUIRE does not name ptx")
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 10 << 30:
        pytest.skip("needs 10 GiB of free memory")
    assert passed(run(folder, "tests/test_gpu.py", "-k", f"31_bits and {part}", free_bytes=6 << 30)) == LARGE[part]


def test_sectors_and_banks_are_counted() -> None:
    command = [sys.executable, ROOT / "benchmarks" / "gpu_counts.py", "interleave 8 rows of f32"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-3000:]
    rows = [line.split(" | ") for line in result.stdout.splitlines() if line.startswith("| interleave")]
    assert [row[2:5] for row in rows] == [["4.0 / 4.0", "1.00 / 1.00", "1.00"]] * 2
