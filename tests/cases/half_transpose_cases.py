"""Nests of packed elements that are transposed by pairs of rows in lines, and moves of them beside NumPy."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from fastindex.arguments.addresses import address_of
from fastindex.cpu.compiled_passes import CompiledPasses
from fastindex.lowering import half_transpose_passes
from fastindex.lowering.pass_form import Goal, Pass, with_tables
from fastindex.lowering.relayout_loops import Loop, Nest
from fastindex.lowering.tuning import TUNING

Bytes = NDArray[np.uint8]
_COLUMNS = (128, 129, 130, 200, 255, 256, 257, 300, 384, 1000, 1024, 1025, 1100)
_ROWS = (256, 257, 258, 383, 384, 385, 500, 511, 512, 513, 640, 767, 768, 769, 1000, 1023, 1025, 1500)


class Case(NamedTuple):
    """A nest in elements, the slots of its destination, the bytes of its source, and how many rows a task has."""

    nest: Nest
    slots: int
    readable: int
    block_rows: int


def passes_of(case: Case) -> tuple[Pass, ...]:
    """The pass of a nest."""
    with mock.patch.object(half_transpose_passes, "_BLOCK_ROWS", case.block_rows):
        goal = Goal(1, True, TUNING)
        made = half_transpose_passes.half_transpose_passes(case.nest, goal, case.slots, case.readable)
        assert made is not None
        return with_tables(made)


def random_cases(seeds: range) -> Iterator[Case]:
    """Rows of one to three loops, columns, and a loop around them, in any order and with gaps, from any half on."""
    for seed in seeds:
        rng = random.Random(seed)
        around = [rng.choice((2, 3))] if rng.random() < 0.4 else []
        total, columns = rng.choice(_ROWS), rng.choice(_COLUMNS)
        while total * columns * math.prod(around) > 500_000:
            total, columns = rng.choice(_ROWS), rng.choice(_COLUMNS)
        inner = rng.choice(((), (), (8,), (3,), (2, 4)))
        rows = [*inner, -(-total // math.prod(inner))]
        sizes = [columns, *rows, *around]
        others = list(range(1, len(sizes)))
        strides = [[0] * len(sizes) for _ in range(2)]
        spans = []
        for side, (taken, order) in enumerate((([0], others), (others[: len(rows)], [0, *others[len(rows) :]]))):
            span, order = 1, rng.sample(order, len(order))
            for k in (*taken, *order):
                gap = 0 if k in taken else rng.choice((0, 0, 0, 1, 2, 5, 128))
                unit = 128 if k not in taken and rng.random() < 0.25 else 1
                strides[side][k] = -(-(span + gap) // unit) * unit
                span += strides[side][k] * (sizes[k] - 1) if k not in taken else span * (sizes[k] - 1)
            spans.append(span)
        starts = rng.choice((0, 0, 1, 2, 127)), rng.choice((0, 0, 1, 2, 64, 127, 128, 129))
        loops = tuple(Loop(size, *both) for size, *both in zip(sizes, *strides, strict=True))
        readable = -(-(starts[0] + spans[0]) // 2) + rng.choice((0, 0, 1, 9))
        slots = starts[1] + spans[1] + rng.choice((0, 0, 1, 3))
        yield Case(Nest(loops, *starts), slots, readable, rng.choice((256, 512, 8192)))


def _halves(packed: Bytes) -> Bytes:
    return np.stack([packed & 15, packed >> 4], -1).reshape(-1)


def _places(nest: Nest) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each element is on both sides."""
    found = [np.full(1, start) for start in (nest.source_start, nest.destination_start)]
    for loop in nest.loops:
        steps = np.arange(loop.size)[:, None]
        found = [(steps * stride + one).reshape(-1) for stride, one in zip(loop[1:], found, strict=True)]
    return found[0], found[1]


def move(
    case: Case, made: tuple[Pass, ...], allocate: Callable[[int, int], Bytes], offset: int, threads: int = 1
) -> str:
    """Run the passes between two pieces of memory; give what is wrong, nothing where all is right."""
    rng = np.random.default_rng(case.slots)
    given, before = (rng.integers(0, 256, size, np.uint8) for size in (case.readable, -(-case.slots // 2)))
    source, target = allocate(len(given), 0), allocate(len(before), offset)
    source[:], target[:] = given, before
    CompiledPasses(made).run(address_of(source), address_of(target), b"\0", threads)
    expected = _halves(before)
    read, written = _places(case.nest)
    expected[written] = _halves(given)[read]
    if case.slots % 2 and (written == case.slots - 1).any():
        expected[case.slots] = 0
    wrong = np.flatnonzero(_halves(target) != expected)
    return f"{len(wrong)} halves, the first {wrong[0]}: {case}" if len(wrong) else ""
