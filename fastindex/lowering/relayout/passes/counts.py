"""What a pass does, counted: the terms of its cost, which is linear in them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Nest
from fastindex.lowering.relayout.passes.distinct import distinct
from fastindex.tables.cache_lines import LINE_BYTES


class Counts(NamedTuple):
    """How often a pass does what takes time, all its tasks together; a line is a cache line.

    Attributes
    ----------
    lines, filled : float
        Lines of the destination that get elements, and lines that get only padding.
    ends : float
        Where the destination is written past the cache: ends of contiguous pieces that lie within a line. Another pass
        or task writes the rest of that line, so it goes to memory twice. Also nibbles that are moved by themselves.
    runs : float
        Runs that are copied, expanded or paired, those of each row in lanes, and blocks of a column gather. Counted
        twice where both ends take time.
    shuffled : float
        Lines that take few shuffles: interleaved or deinterleaved by vectors, or in lanes if elements are narrow;
        expanded, compressed or paired; transposed if elements are wide. Twice where wide elements are deinterleaved in
        lanes.
    turned : float
        Lines that take many: narrow elements transposed, with as many rows at a time as a line has elements; wide ones
        interleaved in lanes, or deinterleaved to runs of less than a line.
    elements, gathered : float
        Lines of a large source whose elements are moved one by one, and runs of less than a line that a transpose
        writes; and the elements, of any source, that are moved one by one.
    blocks, vectors, pieces : float
        Blocks of a block permute, gathered pieces, runs of padding, chunks on pages of their own, chunks in lanes or of
        rows of less than a line, rests of a line that are expanded or compressed. Vectors of blocks, and the pieces of
        the source that vectors are permuted from.
    missed : float
        Lines that have left the cache when they are read or written again.
    rows, slots : float
        Lines of rows that columns are gathered from, and slots that are filled from their lanes.
    scratch : float
        Lines that are written to scratch memory, and that are read from it or come from L2 again.
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
        """Return every count `number` times."""
        return Counts(*[number * value for value in self])


def total(counts: Iterable[Counts]) -> Counts:
    """Return the sums of counts."""
    rows = list(counts)
    return Counts(*map(sum, zip(*rows, strict=True))) if rows else Counts()


def piece_ends(nest: Nest, nbytes: int, streamed: bool, offset: int = 0, in_order: bool = True) -> float:
    """Return how many ends of contiguous pieces of the destination lie within lines; 0 where it stays in the cache.

    Parameters
    ----------
    nest : Nest
        In bytes.
    nbytes : int
        Of what the loops move as one.
    streamed : bool
        Whether the destination is written past the cache.
    offset : int
        Where the destination begins within a line.
    in_order : bool
        Whether pieces that continue each other are written after each other, so that no line between them is a part.

    Examples
    --------
    >>> from fastindex.algebra.loops import Loop, Nest
    >>> piece_ends(Nest((Loop(10, 4, 4), Loop(1000, 512, 512))), 4, True)
    1000.0
    """
    if not streamed:
        return 0
    joined = nest.adjacent(nbytes) if in_order else []
    length, others = nbytes * math.prod(k.size for k in joined), [k for k in nest.loops if k not in joined]
    pieces = math.prod(k.size for k in others)
    apart = math.gcd(LINE_BYTES, *(k.destination_stride for k in others))
    # Begins and ends of pieces are spread evenly over the multiples of `apart` within a line.
    ends = 0.0
    begin = nest.destination_start + offset
    for place in (begin, begin + length):
        ends += 1 - apart / LINE_BYTES if place % apart == 0 else 1
    return pieces * ends


def overflows(offsets: NDArray[np.int64], sets: int, ways: int) -> bool:
    """Whether more lines fall into one set of a cache than it has ways; `offsets` are those of the lines, in bytes."""
    lines = distinct(offsets // LINE_BYTES) if len(offsets) > ways else offsets
    return len(lines) > ways and int(np.bincount(lines % sets).max()) > ways
