"""Time non-temporal stores of lines in another order than memory's: how long one may wait for its neighbour.

    python benchmarks/line_writes.py
    python benchmarks/line_writes.py --threads 1

Within blocks, one line of every few is written, then those after them, until the block is full: with a step of 2,
every second line and then the others. This is the loop of such writes alone, independent of the package, by the best of
nine rounds. Processors that bring lines to memory two by two are slower where the second comes late.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import copy_ceiling, measure  # noqa: E402
from benchmarks.own_lines import clear_line  # noqa: E402

BLOCKS = (1 << 10, 2 << 10, 4 << 10, 8 << 10, 64 << 10)
STEPS = (1, 2, 4, 8, 16)
ROUNDS = 9
ROOM_BYTES = 64 << 20


@cache
def kernel() -> Any:
    @njit("void(u1[::1], intp, intp, intp, intp)", nogil=True)  # type: ignore[untyped-decorator]
    def write_lines(memory: Any, begin: int, end: int, block: int, step: int) -> None:
        for start in range(begin, end, block):
            for first in range(step):
                for offset in range(start + first * 64, min(start + block, end), step * 64):
                    clear_line(memory, offset)

    return write_lines


def check(memory: Any) -> None:
    """Raise unless every order writes every line of its part, and nothing else."""
    part = max(BLOCKS)
    for block in BLOCKS:
        for step in STEPS:
            memory[: 3 * part] = 1
            kernel()(memory, part, 2 * part, block, step)
            assert not memory[part : 2 * part].any()
            assert memory[:part].all()
            assert memory[2 * part : 3 * part].all()


def speed(memory: Any, block: int, step: int, threads: int) -> float:
    """Gigabytes a second."""
    write = kernel()

    def part(begin: int, end: int) -> None:
        write(memory, begin, end, block, step)

    seconds = min(measure.sample(lambda: copy_ceiling.in_threads(part, ROOM_BYTES, threads), 1) for _ in range(ROUNDS))
    return ROOM_BYTES / seconds / 1e9


def markdown(memory: Any, numbers_of_threads: Sequence[int]) -> str:
    """The table: a row for each step and number of threads."""
    lines = [
        "| one line of every, threads | " + " | ".join(f"blocks of {block >> 10} KiB" for block in BLOCKS) + " |",
        "|---|" + "--:|" * len(BLOCKS),
    ]
    for threads in numbers_of_threads:
        for step in STEPS:
            found = [speed(memory, block, step, threads) for block in BLOCKS]
            lines.append(f"| {step}, {threads} | " + " | ".join(f"{one:.1f}" for one in found) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    memory = measure.touched_bytes(ROOM_BYTES)
    check(memory)
    machine, date = measure.machine(), datetime.datetime.now(datetime.UTC).date().isoformat()
    print(f"{date}, {machine['processor']}, {machine['processors']} processors; GB/s of lines written.\n")
    print(markdown(memory, options.threads))


if __name__ == "__main__":
    main()
