"""Passes for rows of the destination that several nests write: assembled box by box in the cache.

Where a tile does not divide a row, the rest of the row is a nest of its own. Run one after the other, the nests would
share lines of the destination, which have left the cache when the second one comes to them. A box is a few rows that
are contiguous in the destination: all nests write their part of it to scratch memory, and from there it is written as
one run, while the lines of the source that the next box reads are prefetched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.lowering.relayout.moves.nest_passes import copying_passes
from fastindex.lowering.relayout.passes.calibration import cycles
from fastindex.lowering.relayout.passes.counts import Counts, total
from fastindex.lowering.relayout.passes.distinct import distinct
from fastindex.lowering.relayout.passes.form import Draft, Tables, iterations
from fastindex.lowering.relayout.passes.line_counts import read_lines
from fastindex.lowering.relayout.problem.loops import Loop, Nest, RelayoutLoops, in_bytes
from fastindex.lowering.relayout.problem.problem import Context, Problem
from fastindex.lowering.tuning import TUNING, Tuning
from fastindex.tables.boxes import MOST_ROW_BOX_BYTES, RowBoxGeometry
from fastindex.tables.cache_lines import LINE_BYTES

# How much of the destination a box has. GB/s with one thread and with two, u8[49,1000,1000] out of T(4,128)(2,1), nests
# one after the other: 5 and 12; in boxes of 4 KiB 34 and 43, of 8 KiB 33 and 45, of 16 KiB 33 and 41 (2026-11-22).
_BOX_BYTES = 8 << 10
# Smaller boxes cost more than the lines that they share.
_LEAST_BYTES = 1 << 10
# How often, on average, boxes may read a line of the source.
_MOST_READ = 1.25

Offsets = NDArray[np.int64]


class Rows(NamedTuple):
    """Rows of the destination without gaps, which some nests write together.

    Attributes
    ----------
    nests : tuple of Nest
        Of one row; they begin where they do in the first, on both sides.
    nbytes : int
        Of a row.
    outer : tuple of Loop
        From one row to the next.
    """

    nests: tuple[Nest, ...]
    nbytes: int
    outer: tuple[Loop, ...]

    @property
    def following(self) -> Loop:
        """The loop along which rows continue each other."""
        return next((k for k in self.outer if k.destination_stride == self.nbytes), Loop(1, 0, self.nbytes))

    @property
    def pieces(self) -> int:
        """How many pieces of the destination there are, with bytes of other nests or passes at both ends."""
        return iterations(self.outer) // self.following.size

    def part(self, count: int) -> tuple[Nest, ...]:
        """Return the nests of `count` rows that continue each other, from where the first begins on both sides."""
        along = Loop(count, self.following.source_stride, self.nbytes)
        source, destination = self.starts
        return tuple(
            Nest(
                (*nest.loops, along) if count > 1 else nest.loops,
                nest.source_start - source,
                nest.destination_start - destination,
            )
            for nest in self.nests
        )

    @property
    def starts(self) -> tuple[int, int]:
        """Where the first row begins in the source and in the destination."""
        return min(nest.source_start for nest in self.nests), min(nest.destination_start for nest in self.nests)


def row_boxes(problem: Problem) -> tuple[Draft, ...] | None:
    """Return the passes over boxes of rows, or None where `row_box_drafts` does."""
    slots = problem.slots
    return None if slots.loops is None else row_box_drafts(slots.loops, slots.width, problem.tuning)


def row_box_drafts(loops: RelayoutLoops, width: int, tuning: Tuning = TUNING) -> tuple[Draft, ...] | None:
    """Return the passes that write rows of the destination box by box, or None where that does not pay.

    Parameters
    ----------
    loops : RelayoutLoops
    width : int
        Bytes of an element.
    tuning : Tuning, optional
    """
    total = width * sum(nest.element_count for nest in loops.copies)
    if not loops.copies or loops.fills or total < max(tuning.streamed_bytes, tuning.shifted_bytes):
        return None
    nests = [in_bytes(nest, width) for nest in loops.copies]
    if any(k.source_stride < 0 or k.destination_stride <= 0 for nest in nests for k in nest.loops):
        return None
    lengths = sorted({k.destination_stride for nest in nests for k in nest.loops if k.destination_stride > width})
    ways = [way for way in (rows_of(nests, length, width) for length in lengths) if way is not None]
    shared = [way for way in ways if any(len(rows.nests) > 1 for rows in way)]
    best = min(shared or ways, key=_cost, default=[])
    if not best or not any(_shares_lines(nest, width) for nest in nests):
        return None
    boxes = [(rows, _rows_of_box(rows)) for rows in best]
    counts = [iterations(rows.outer) // size for rows, size in boxes]
    if sum(counts) * _LEAST_BYTES > total:
        return None
    lines, left = [], _MOST_READ * (read_lines(loops, width) + sum(counts))
    for count, (rows, size) in zip(counts, boxes, strict=True):
        lines.append(lines_of(rows.part(size), width))
        left -= count * len(lines[-1])
        if left < 0:
            return None
    context = Context(width, True, tuning)
    of_each = zip(boxes, lines, strict=True)
    return tuple(draft for (rows, size), read in of_each for draft in _passes_of(rows, size, read, context))


def _shares_lines(nest: Nest, width: int) -> bool:
    """Whether some pieces of the destination that a nest writes begin or end within a line."""
    length, steps = width, [nest.destination_start]
    for loop in sorted(nest.loops, key=lambda k: k.destination_stride):
        if loop.destination_stride == length:
            length *= loop.size
        else:
            steps.append(loop.destination_stride)
    return any(number % LINE_BYTES for number in (length, *steps))


def rows_of(nests: Iterable[Nest], length: int, width: int) -> list[Rows] | None:
    """Split nests between the loops within rows of `most` bytes at most and those around them.

    Returns
    -------
    list of Rows or None
        None where rows have gaps, or are too long.
    """
    together: dict[tuple[Loop, ...], list[Nest]] = {}
    for nest in nests:
        inner, outer = _split(nest, length)
        together.setdefault(outer, []).append(Nest(inner, nest.source_start, nest.destination_start))
    found: list[Rows] = []
    for outer, parts in together.items():
        parts.sort(key=lambda nest: nest.destination_start)
        while parts:
            first = parts[0].destination_start
            some = [nest for nest in parts if nest.destination_start < first + length]
            parts = parts[len(some) :]
            nbytes = width * sum(nest.element_count for nest in some)
            if nbytes > MOST_ROW_BOX_BYTES or max(map(_last, some)) + width != first + nbytes:
                return None
            found.append(Rows(tuple(some), nbytes, outer))
    return found


def _last(nest: Nest) -> int:
    """Return where the last element begins in the destination."""
    return nest.destination_start + sum((k.size - 1) * k.destination_stride for k in nest.loops)


def _split(nest: Nest, length: int) -> tuple[tuple[Loop, ...], tuple[Loop, ...]]:
    """Return the loops of a nest that stay within a length of the destination, and the others, minor first."""
    inner: list[Loop] = []
    outer: list[Loop] = []
    for loop in nest.loops:
        size, source, destination = loop
        steps, rest = divmod(length, destination)
        if destination >= length:
            outer.append(loop)
        elif size <= steps or rest or size % steps:
            inner.append(loop)
        else:
            inner.append(Loop(steps, source, destination))
            outer.append(Loop(size // steps, steps * source, steps * destination))
    return tuple(inner), tuple(sorted(outer, key=lambda k: (k.destination_stride, k.source_stride)))


def _rows_of_box(rows: Rows) -> int:
    """Return how many rows a box has: a number that ends on a line boundary, if such boxes are not too large."""
    together = LINE_BYTES // math.gcd(rows.nbytes, LINE_BYTES)
    most = _BOX_BYTES // (together * rows.nbytes) * together or max(_BOX_BYTES // rows.nbytes, 1)
    return min(most, rows.following.size)


def _cost(way: Sequence[Rows]) -> float:
    """Return the cycles that are lost at the ends of pieces, and on boxes that leave L1 before they are written."""
    large = [rows for rows in way if rows.nbytes > 2 * _BOX_BYTES]
    lines = sum(iterations(rows.outer) * rows.nbytes / LINE_BYTES for rows in large)
    return cycles(Counts(ends=sum(2 * rows.pieces for rows in way), scratch=lines))


def _passes_of(rows: Rows, size: int, lines: Offsets, context: Context) -> Iterator[Draft]:
    """Yield the pass over boxes of `size` rows, and the one over what is left of rows that continue each other.

    `lines` are those that a box reads.
    """
    following = rows.following
    others = tuple(k for k in rows.outer if k is not following)
    count, rest = divmod(following.size, size)
    for first, taken, number in ((0, size, count), (count * size, rest, 1)):
        if taken and number:
            steps = Loop(number, size * following.source_stride, size * rows.nbytes)
            outer = [k for k in (steps, *others) if k.size > 1]
            begin = first * following.source_stride, first * rows.nbytes
            yield _box_pass(rows, taken, outer, begin, context, lines if taken == size else None)


def _box_pass(
    rows: Rows, size: int, outer: Sequence[Loop], first: tuple[int, int], context: Context, lines: Offsets | None
) -> Draft:
    """Return the pass over boxes of `size` rows, the first of which begins `first` bytes on from the first row."""
    # In the cache, any order is as good as that of the source.
    tuning = replace(context.tuning, by_source_bytes=1, gathered_chunk_bytes=1)
    nests = rows.part(size)
    moving = [
        one for nest in nests for one in copying_passes(nest, Context(context.width, False, tuning, at_hand=True))
    ]

    def tables() -> Tables:
        return np.zeros(0, np.int64), lines_of(nests, context.width) if lines is None else lines

    return Draft(
        "row boxes",
        context.width,
        1,
        outer,
        RowBoxGeometry(len(moving), size * rows.nbytes),
        tables,
        iterations(outer),
        size * rows.nbytes,
        rows.starts[0] + first[0],
        rows.starts[1] + first[1],
        f"rows of {rows.nbytes} bytes, put together within the cache",
        _counts(moving, size * rows.nbytes).times(iterations(outer))._replace(ends=2 * rows.pieces),
        tuple((one, False, True) for one in moving),
    )


def _counts(moving: Iterable[Draft], nbytes: int) -> Counts:
    """Count what a box of `nbytes` does."""
    return total(one.counts for one in moving)._replace(scratch=nbytes / LINE_BYTES, blocks=1)


def lines_of(nests: Iterable[Nest], width: int) -> Offsets:
    """Return the offsets of the lines that nests read, in a source that begins with a line; the nests are in bytes.

    Examples
    --------
    >>> lines_of([Nest((Loop(30, 4, 4), Loop(3, 512, 120)))], 4)
    array([   0,   64,  512,  576, 1024, 1088])
    """
    found = []
    for nest in nests:
        span, starts = width, np.array([nest.source_start], np.int64)
        for stride, size in sorted((k.source_stride, k.size) for k in nest.loops):
            if stride <= span + LINE_BYTES:
                span += stride * (size - 1)
            else:
                starts = (starts + stride * np.arange(size)[:, None]).reshape(-1)
        first = starts // LINE_BYTES
        found.append(_stretches(first, (starts + span - 1) // LINE_BYTES - first + 1))
    return distinct(np.concatenate(found)) * LINE_BYTES


def _stretches(begins: Offsets, lengths: Offsets) -> Offsets:
    """Return the numbers of stretches one after the other.

    Examples
    --------
    >>> _stretches(np.array([7, 0]), np.array([2, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    ends: Offsets = lengths.cumsum()
    firsts: Offsets = np.repeat(begins - (ends - lengths), lengths)
    return firsts + np.arange(int(ends[-1]))
