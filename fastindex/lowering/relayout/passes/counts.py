"""What a pass does, counted: the terms of its cost, which is linear in them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.lowering.relayout.passes.distinct import distinct
from fastindex.lowering.relayout.problem.loops import Nest
from fastindex.tables.cache_lines import L2_SETS, L2_WAYS, LINE_BYTES


class Counts(NamedTuple):
    """How often a pass does what takes time, all its tasks together.

    Attributes
    ----------
    lines, filled : float
        Lines of the destination that get elements, and such that are padding alone.
    ends : float
        Ends within a line, of pieces of a destination past the cache: what is beside them, another pass or another task
        writes, so the line goes to memory twice. Nibbles moved alone.
    runs : float
        Runs that both sides keep, and those of a row that is interleaved, deinterleaved, expanded or filled.
    shuffled : float
        Lines that go through a few registers on their way: interleaved, deinterleaved, expanded, wide ones transposed.
    turned : float
        Lines of narrow elements that are transposed, as many rows at a time as a line has elements.
    elements, gathered : float
        Lines of a large source that elements are moved out of one by one, and all elements that are.
    blocks, vectors, pieces : float
        Blocks that are put together, vectors of these, and pieces of the source that vectors are permuted from.
    missed : float
        Lines that have left the cache when they are read or written again.
    rows, slots : float
        Lines of rows that columns are collected from, and slots that their lanes fill.
    scratch : float
        Lines that go by way of scratch memory, or come from L2 again.
    tasks : float
        Panels of transposes, and boxes.
    """

    lines: float = 0
    filled: float = 0
    ends: float = 0
    runs: float = 0
    shuffled: float = 0
    turned: float = 0
    elements: float = 0
    gathered: float = 0
    blocks: float = 0
    vectors: float = 0
    pieces: float = 0
    missed: float = 0
    rows: float = 0
    slots: float = 0
    scratch: float = 0
    tasks: float = 0

    def times(self, number: float) -> Counts:
        """Return what doing it so often counts."""
        return Counts(*[number * value for value in self])


def total(counts: Iterable[Counts]) -> Counts:
    """Return what all count together."""
    rows = list(counts)
    return Counts(*map(sum, zip(*rows, strict=True))) if rows else Counts()


def piece_ends(nest: Nest, nbytes: int, streamed: bool, in_order: bool = True) -> float:
    """Return how many ends of contiguous pieces of the destination lie within lines; none where it stays in the cache.

    Parameters
    ----------
    nest : Nest
        In bytes.
    nbytes : int
        Of what the loops move as one.
    streamed : bool
        Whether the destination is written past the cache.
    in_order : bool
        Whether pieces that continue each other are written after each other, so that no line between them is a part.

    Examples
    --------
    >>> from fastindex.lowering.relayout.problem.loops import Loop, Nest
    >>> piece_ends(Nest((Loop(10, 4, 4), Loop(1000, 512, 512))), 4, True)
    1000.0
    """
    if not streamed:
        return 0
    joined = nest.adjacent(nbytes) if in_order else []
    length, others = nbytes * math.prod(k.size for k in joined), [k for k in nest.loops if k not in joined]
    pieces = math.prod(k.size for k in others)
    apart = math.gcd(LINE_BYTES, *(k.destination_stride for k in others))
    # Where pieces begin, and end, within a line, is as often at one multiple of what lies between them as at another.
    ends = 0.0
    for place in (nest.destination_start, nest.destination_start + length):
        ends += 1 - apart / LINE_BYTES if place % apart == 0 else 1
    return pieces * ends


def overflows(offsets: NDArray[np.int64], sets: int = L2_SETS, ways: int = L2_WAYS) -> bool:
    """Whether more lines of the source meet in a set of a cache, L2, than it keeps; `offsets` are in bytes."""
    lines = distinct(offsets // LINE_BYTES) if len(offsets) > ways else offsets
    return len(lines) > ways and int(np.bincount(lines % sets).max()) > ways
