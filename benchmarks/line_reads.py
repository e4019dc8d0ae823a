"""Time reads of one line of every `stride` bytes, and nothing else, beside a copy: what sparse layouts can reach.

    python benchmarks/line_reads.py
    python benchmarks/line_reads.py --threads 1

A relayout out of padded tiles reads a line here and a line there. This is the loop of such reads alone, independent
from the package: one number of each line is added up, with none and with several ways to prefetch, the best of which
counts, by the best of nine rounds through memory that no cache holds. The copy is that of `copy_ceiling`, in turn with
the reads. Fractions are of the copy's bytes read and written, as in the sweep.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import copy_ceiling, measure  # noqa: E402
from benchmarks.own_lines import prefetch  # noqa: E402

STRIDES = tuple(64 << k for k in range(8))
#: How many lines ahead, and how near to the processor they are wanted: 3 is L1, 2 is L2, 0 leaves caches out.
PREFETCHES = [(0, 3), *itertools.product((16, 48, 96), (3, 2, 0))]
ROUNDS = 9
#: What a round reads of, out of memory many times as large.
SPAN_BYTES, ROOM_BYTES = 64 << 20, 512 << 20
COPY_BYTES = 48 << 20
#: How far a prefetch reaches beyond the last line.
FURTHEST_BYTES = max(STRIDES) * max(ahead for ahead, _ in PREFETCHES)


@cache
def kernel(locality: int) -> Any:
    """The loop, with prefetches of a locality."""

    ask = prefetch(locality)

    @njit("uint64(u1[::1], intp, intp, intp, intp)", nogil=True)  # type: ignore[untyped-decorator]
    def read_lines(memory: Any, begin: int, end: int, stride: int, ahead: int) -> Any:
        total = np.uint64(0)
        if ahead == 0:
            for offset in range(begin, end, stride):
                total += np.uint64(memory[offset])
        else:
            for offset in range(begin, end, stride):
                ask(memory, offset + ahead)
                total += np.uint64(memory[offset])
        return total

    return read_lines


class Reads:
    """Reads of one stride, each round of another part of memory."""

    def __init__(self, memory: Any, stride: int, threads: int) -> None:
        self._memory, self._stride, self._threads = memory, stride, threads
        self._parts = itertools.cycle(range(0, ROOM_BYTES - SPAN_BYTES + 1, SPAN_BYTES))

    def run(self, ahead: int, locality: int) -> None:
        read, first = kernel(locality), next(self._parts)

        def part(begin: int, end: int) -> None:
            read(self._memory, first + begin, first + end, self._stride, ahead * self._stride)

        copy_ceiling.in_threads(part, SPAN_BYTES, self._threads)


def check(memory: Any) -> None:
    expected = int(memory[: 1 << 20 : 512].sum(dtype=np.uint64))
    for ahead, locality in PREFETCHES:
        assert kernel(locality)(memory, 0, 1 << 20, 512, ahead * 512) == expected


def row(memory: Any, stride: int, threads: int, copies: dict[str, Any]) -> tuple[float, float]:
    """Nanoseconds a line, and the fraction of a copy's speed."""
    reads = Reads(memory, stride, threads)
    seconds = copy_seconds = float("inf")
    for _ in range(ROUNDS):
        for ahead, locality in PREFETCHES:
            seconds = min(seconds, measure.sample(lambda a=ahead, k=locality: reads.run(a, k), 1))
        copy_seconds = min(copy_seconds, *(measure.sample(run, 1) for run in copies.values()))
    lines = SPAN_BYTES // stride
    speed = lines * copy_ceiling.LINE_BYTES / seconds
    return seconds / lines * 1e9, speed / (2 * COPY_BYTES / copy_seconds)


def markdown(memory: Any, numbers_of_threads: Sequence[int]) -> str:
    """The table: two rows for each number of threads."""
    lines = [
        "| one line of every | " + " | ".join(f"{stride} B" for stride in STRIDES) + " |",
        "|---|" + "--:|" * len(STRIDES),
    ]
    for threads in numbers_of_threads:
        copies = copy_ceiling.copies(COPY_BYTES, threads)
        found = [row(memory, stride, threads, copies) for stride in STRIDES]
        name = f"{threads} thread{'s' if threads > 1 else ''}"
        lines.append(f"| ns a line, {name} | " + " | ".join(f"{nanoseconds:.1f}" for nanoseconds, _ in found) + " |")
        lines.append(f"| of a copy, {name} | " + " | ".join(f"{fraction:.2f}" for _, fraction in found) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    memory = measure.random_bytes(ROOM_BYTES + FURTHEST_BYTES)
    check(memory)
    machine, date = measure.machine(), datetime.datetime.now(datetime.UTC).date().isoformat()
    print(f"{date}, {machine['processor']}, {machine['processors']} processors; memory of {ROOM_BYTES >> 20} MiB.\n")
    print(markdown(memory, options.threads))


if __name__ == "__main__":
    main()
