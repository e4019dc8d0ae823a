"""Run every kernel on arrays that begin, or end, at a page that may not be touched. A separate program: it may crash.

Usage: fenced_relayouts.py first|last [touch]
"""

from __future__ import annotations

import ctypes
import dataclasses
import sys

import numpy as np

from fastindex.moving.passes import Pass
from fastindex.runtime.machine import this_machine
from fastindex.runtime.tuning import TUNING
from tests.cases import paired_cases, strategies
from tests.cases.assembly_cases import NAMED, passes_of
from tests.cases.assembly_cases import move as move_pair
from tests.cases.cast_cases import cast, every_cast
from tests.cases.guard_pages import guarded_pages
from tests.cases.relayout_cases import (
    BITS,
    WIDTHS,
    Bytes,
    bits_of_a_whole_buffer,
    blocked_transposes,
    every_case,
    few_column_transposes,
    gather,
    in_small_blocks,
    move,
    steps_of,
)


class FencedMemory:
    """Arrays whose first byte follows, or whose last byte is followed by, a page without access."""

    def __init__(self, at_end: bool) -> None:
        self._at_end = at_end

    def __call__(self, size: int, offset: int) -> Bytes:
        pages = guarded_pages(size)
        begin = len(pages) - size if self._at_end else 0
        return pages[begin : begin + size]

    def array(self, array: np.typing.NDArray[np.int64]) -> np.typing.NDArray[np.int64]:
        copied = self(array.nbytes, 0).view(np.int64).reshape(array.shape)
        copied[...] = array
        return copied

    def step(self, step: Pass) -> Pass:
        """The same pass with its tables between fences."""
        tables = tuple(self.array(table) for table in step.tables)
        return dataclasses.replace(
            step, outer=self.array(step.outer), tables=tables, geometry=self.array(step.geometry)
        )


def _touch(memory: FencedMemory, at_end: bool) -> None:
    array = memory(100, 0)
    address = array.__array_interface__["data"][0]
    ctypes.c_uint8.from_address(address + 100 if at_end else address - 1).value  # noqa: B018


def _move_everything(memory: FencedMemory) -> int:
    rng, count = np.random.default_rng(1), 0
    for streamed in (False, True):
        tuning = dataclasses.replace(TUNING, streamed_bytes=0 if streamed else 1 << 60)
        cases = [case for k, case in enumerate(every_case(20)) if k % 5 == streamed or case.width > 4]
        for case in strategies.rotating(cases):
            steps = tuple(memory.step(step) for step in steps_of(case, tuning))
            _expect_nothing(move(case, steps, memory, 1, (0, 0), rng))
            count += 1
    for width in (4, 8, 16):
        for case in strategies.rotating(few_column_transposes(width, 22)):
            steps = tuple(memory.step(step) for step in steps_of(case, tuning))
            _expect_nothing(move(case, steps, memory, 1, (0, 0), rng))
            count += 1
    tuning = in_small_blocks(tuning)
    for width in WIDTHS:
        for case in strategies.rotating(list(blocked_transposes(width, 21))[:: 1 + 4 // width]):
            steps = tuple(memory.step(step) for step in steps_of(case, tuning))
            _expect_nothing(move(case, steps, memory, 1, (0, 0), rng))
            count += 1
    for elements in (1, 7, 64, 65, 127, 200):
        for width in WIDTHS[:5]:
            _expect_nothing(gather(width, memory, rng, elements, 0))
        for bits in BITS:
            for kernel in ("expand", "compress"):
                _expect_nothing(bits_of_a_whole_buffer(kernel, bits, memory, rng, elements, 0))
    for vector_bytes in sorted({16, this_machine().target.vector_bytes}):
        for pair in strategies.rotating(NAMED):
            made = passes_of(*pair, vector_bytes, count % 2 == 0)
            if made is not None:
                _expect_nothing(move_pair(pair, tuple(memory.step(one) for one in made), memory, (0, 0)))
                count += 1
    for pair in paired_cases.NAMED:
        made = paired_cases.passes_of(*pair, count % 2 == 0)
        assert made is not None
        _expect_nothing(move_pair(pair, made, memory, (0, 0)))
        count += 1
    for sides in every_cast():
        _expect_nothing(cast(*sides, memory, memory.step, rng))
        count += 1
    return count


def _expect_nothing(found: str) -> None:
    if found:
        raise AssertionError(found)


def main() -> None:
    at_end = sys.argv[1] == "last"
    memory = FencedMemory(at_end)
    if "touch" in sys.argv[2:]:
        _touch(memory, at_end)
    else:
        print(_move_everything(memory))  # noqa: T201


if __name__ == "__main__":
    main()
