"""`--max-memory` is a limit: the most that the whole process ever has in memory, for sizes that nothing divides.

Tests of: moving.box_jobs, moving.numpy_moves, weights.repack_jobs.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import fastindex as fi
from fastindex.moving.numpy_moves import SCRATCH_BYTES, move_by_numpy
from fastindex.moving.problem import slot_move
from tests.cases import strategies

#: Prints the most that the process has had in memory, in KiB: what the limit promises, however slow a machine is.
MEASURED = """
import atexit, re, sys
from pathlib import Path
atexit.register(lambda: print(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]))
from fastindex.cli.commands import main
main(sys.argv[1:], prog_name="fastindex")
"""
PRIMES = 5, 7, 11, 13, 29, 53, 89, 97, 343, 743, 1511, 5003
#: From, to, and the limit in MiB.
FOUND = [
    ("s16[20,89,97,743]{3,2,1,0:T(8,128)(2,1)}", "s16[20,89,97,743]{1,3,2,0:T(5,3)}", 160),
    ("u8[5003,19989]{1,0:T(8,128)(4,1)}", "u8[5003,19989]{0,1:T(5,7)(2,2)}", 160),
]


def random_case(seed: int) -> tuple[str, str, int]:
    """Return two layouts of about 100 to 200 MiB, of prime sizes, one in odd tiles, and a limit in MiB."""
    chosen = random.Random(seed)
    element_type, nbytes = chosen.choice([("u8", 1), ("s16", 2), ("bf16", 2), ("f32", 4), ("f64", 8), ("c128", 16)])
    wanted = chosen.randint(100, 200) << 20
    sizes = [chosen.choice(PRIMES)]
    while np.prod(sizes) * PRIMES[-1] * nbytes < wanted and len(sizes) < 5:
        sizes.append(chosen.choice(PRIMES))
    sizes.append(max(int(wanted / nbytes / np.prod(sizes)) | 1, 3))
    chosen.shuffle(sizes)
    layouts = []
    for tiles in ("T(8,128)", f"T({chosen.choice((3, 5, 7))},{chosen.choice((3, 5, 9))})"):
        order = [*range(len(sizes))]
        chosen.shuffle(order)
        second = chosen.choice(("", "(2,1)", "(2,2)", "(3,1)"))
        layouts.append(f"{element_type}{sizes}{{{order}:{tiles}{second}}}".replace(" ", "").replace("{[", "{"))
    first, second = (layout.replace("]:", ":") for layout in layouts)
    return first, second, chosen.choice((160, 200, 256, 384, 500))


def peak_of(folder: Path, source: str, target: str, limit: int) -> tuple[int, str]:
    """Return the largest resident memory of a relayout of zeros, in MiB, and its errors."""
    with open(folder / "source", "wb") as file:
        file.truncate(fi.Shape.parse(source).nbytes)
    files = str(folder / "source"), str(folder / "target")
    command = [sys.executable, "-c", MEASURED, "relayout", *files, "--from", source, "--to", target]
    done = subprocess.run([*command, "--max-memory", f"{limit}MiB"], capture_output=True, text=True)
    for path in files:
        Path(path).unlink(missing_ok=True)
    return int(done.stdout) >> 10, done.stderr


@pytest.mark.in_turn(seconds=5)
@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's /proc/self/status")
@pytest.mark.parametrize("case", [*FOUND, *(random_case(seed) for seed in strategies.seeds(3))], ids=str)
def test_the_limit_is_a_limit(tmp_path: Path, case: tuple[str, str, int]) -> None:
    peak, errors = peak_of(tmp_path, *case)
    # Where the smallest box takes more, an error says how much is enough.
    least = re.search(r"allow at least (\d+) MiB", errors)
    assert least is not None or not errors
    assert peak < case[2]
    if least is not None:
        peak, errors = peak_of(tmp_path, *case[:2], int(least[1]) + 1)
        assert (errors, peak < int(least[1])) == ("", True)


#: Formats, bits, and the bytes that each code takes in the source.
FORMATS = [("awq", "marlin", 4, 0.5), ("plain", "gptq", 3, 1), ("plain", "hopper_mx_value", 4, 1)]


@pytest.mark.in_turn(seconds=5)
@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's /proc/self/status")
@pytest.mark.parametrize("case", FORMATS, ids=str)
def test_the_limit_holds_for_formats(tmp_path: Path, case: tuple[str, str, int, float]) -> None:
    source, target, bits, code_bytes = case
    with open(tmp_path / "source", "wb") as file:
        file.truncate(int(4096 * 8192 * code_bytes))
    command = [sys.executable, "-c", MEASURED, "repack", str(tmp_path / "source"), str(tmp_path / "target")]
    command += ["--from", source, "--to", target, "--bits", str(bits), "--shape", "4096x8192"]
    done = subprocess.run([*command, "--max-memory", "160MiB"], capture_output=True, text=True)
    assert done.stderr == ""
    assert int(done.stdout) >> 10 < 160


@pytest.mark.in_turn(seconds=0.2)
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("u8[1503,997]{1,0:T(8,128)(4,1)}", "u8[1503,997]{0,1:T(5,7)(2,2)}"),
        ("f32[20,89,343]{2,1,0:T(8,128)}", "f32[20,89,343]{0,2,1:T(5,3)(2,2)}"),
        ("s4[1503,997]{1,0:E(4)}", "s4[1503,997]{0,1:T(5,3)E(4)}"),
        ("c128[503,997]{1,0:E(256)}", "c128[503,997]{0,1:T(5,3)}"),
    ],
)
def test_what_numpy_takes_beside_its_arrays(source: str, target: str) -> None:
    """As `plan_boxes` counts it: scratch, and the values of both sides where slots hold them packed, or wide."""
    sides = fi.Shape.parse(source), fi.Shape.parse(target)
    read = np.zeros(sides[0].nbytes, np.uint8)
    written = np.zeros(sides[1].nbytes, np.uint8)
    slots = slot_move(*sides)
    for _ in range(2):
        tracemalloc.start()
        move_by_numpy(sides, slots, read.ctypes.data, written.ctypes.data, bytes(16))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # The second time: programs have been made. Values that are unpacked lie in maps, which are not traced.
    assert peak <= SCRATCH_BYTES
