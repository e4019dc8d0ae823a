"""Boxes: how a nest of packed elements is cut into parts that the cache holds, and what is left over between bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fastindex.lowering.relayout.moves.boxes import counts_of_boxes
from fastindex.lowering.relayout.moves.nest_passes import copying_passes
from fastindex.lowering.relayout.moves.stream_passes import copy_passes
from fastindex.lowering.relayout.moves.transpose_passes import transpose_pass
from fastindex.lowering.relayout.passes.blocks import cut, even_steps
from fastindex.lowering.relayout.passes.calibration import cost
from fastindex.lowering.relayout.passes.counts import Counts
from fastindex.lowering.relayout.passes.form import Draft, iterations, no_tables
from fastindex.lowering.relayout.problem.loops import Loop, Nest, rows_and_columns
from fastindex.lowering.relayout.problem.problem import Context
from fastindex.tables.assemblies import NIBBLE_BITS
from fastindex.tables.boxes import BoxGeometry
from fastindex.tables.cache_lines import LINE_BYTES
from fastindex.tables.passes import StridedGeometry

#: Packed elements of a byte.
PER_BYTE = 8 // NIBBLE_BITS
# The most elements of a box, and the fewest: with gaps, a box may have to be smaller to fit scratch memory.
_MOST_ELEMENTS, _LEAST_ELEMENTS = 128 << 10, 8 << 10
# The elements of the shortest run that boxes are grown from, and how many times as long the runs of the destination
# are: their ends are written in part.
_FIRST_RUN, _LONGER = 32, 8
# The most nibbles of a task that copies them one by one.
_MOST_NIBBLES = 4096


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a loop that boxes take: whole parts one after the other, or the end.

    Attributes
    ----------
    part : Loop
        What a box has.
    steps : Loop
        From one box to the next.
    source, destination : int
        Where the first begins.
    is_longer : bool
        Whether a box has a step more than what it writes.
    """

    part: Loop
    steps: Loop
    source: int
    destination: int
    is_longer: bool


def with_largest_boxes(
    loops: Sequence[Loop], passes_of: Callable[[dict[Loop, int]], list[Draft] | None]
) -> list[Draft] | None:
    """Return the passes over the largest boxes for which `passes_of` has any, given how much of each loop a box has."""
    most = _MOST_ELEMENTS
    while most >= _LEAST_ELEMENTS:
        found = passes_of(sizes_of_boxes(loops, most))
        if found is not None:
            return found
        most //= 2
    return None


def sizes_of_boxes(loops: Sequence[Loop], most: int) -> dict[Loop, int]:
    """Choose how much of each loop a box has: the runs of both sides are doubled together while the box has room."""
    sizes, wanted = dict.fromkeys(loops, 1), _FIRST_RUN
    while True:
        ways = (_longer(loops, sizes, wanted, only_adjacent) for only_adjacent in (False, True))
        larger = next((way for way in ways if math.prod(way.values()) <= most), None)
        if larger is None or wanted > most:
            break
        sizes, wanted = larger, 2 * wanted
    # Where there is no room to double both, those of the source alone may be: they are read with the lines beside them.
    read = _longer(loops, sizes, wanted, only_adjacent=False, sides=(0,))
    if math.prod(read.values()) <= most:
        sizes = read
    return {loop: size if size == loop.size else _rounded(size) for loop, size in sizes.items()}


def _longer(
    loops: Sequence[Loop], sizes: dict[Loop, int], wanted: int, only_adjacent: bool, sides: tuple[int, ...] = (1, 0)
) -> dict[Loop, int]:
    """Return sizes that make runs of `wanted` elements in the source, and of more in the destination.

    Runs may have gaps, unless `only_adjacent`: then a run has only what is contiguous, or in the same line.
    """
    larger = dict(sizes)
    for side in sides:
        least = _LONGER * wanted if side else wanted
        length = span = 1
        for loop in sorted(loops, key=lambda k: (k.source_stride, k.destination_stride)[side]):
            stride = (loop.source_stride, loop.destination_stride)[side]
            if only_adjacent and stride > max(span, LINE_BYTES * PER_BYTE):
                break
            larger[loop] = max(larger[loop], min(loop.size, -(-least // length)))
            length *= larger[loop]
            span += stride * (larger[loop] - 1)
            if larger[loop] < loop.size or length >= least:
                break
    return larger


def _rounded(size: int) -> int:
    """Round a part of a loop down to whole lines, or to whole bytes."""
    unit = LINE_BYTES * PER_BYTE if size >= LINE_BYTES * PER_BYTE else PER_BYTE
    return max(size // unit * unit, 1)


def box_parts(nest: Nest, sizes: dict[Loop, int], longer: Loop | None) -> Iterator[tuple[tuple[Loop, ...], bool, Nest]]:
    """Yield the loops of a box, whether its runs are longer than what it writes, and the nest of such boxes.

    First those of whole boxes, then those at the end of each loop. Where runs of the destination begin within a byte,
    boxes have a step more of the loop `longer` than they write.
    """
    choices: list[list[_Part]] = []
    for loop in nest.loops:
        size, more = sizes[loop], int(loop is longer)
        count, rest = divmod(loop.size - more, size)
        strides = loop.source_stride, loop.destination_stride
        steps = Loop(count, size * loop.source_stride, size * loop.destination_stride)
        ways = [_Part(Loop(size + more, *strides), steps, 0, 0, more > 0)] if count else []
        if rest + more:
            ends = count * size * loop.source_stride, count * size * loop.destination_stride
            ways.append(_Part(Loop(rest + more, *strides), Loop(1, 0, 0), *ends, False))
        choices.append(ways)
    for chosen in itertools.product(*choices):
        outer = Nest(
            tuple(way.steps for way in chosen if way.steps.size > 1),
            nest.source_start + sum(way.source for way in chosen),
            nest.destination_start + sum(way.destination for way in chosen),
        )
        yield tuple(way.part for way in chosen if way.part.size > 1), any(way.is_longer for way in chosen), outer


def by_parity(outer: Nest) -> Iterator[Nest]:
    """Yield the parts of a nest whose boxes all begin with the same nibble of a byte, on each side."""
    for part in even_steps(outer, 0):
        yield from even_steps(part, 1)


@lru_cache(maxsize=16)
def moving_passes(nest: Nest, context: Context) -> tuple[Draft, ...]:
    """Return the passes that move a box: a transpose where its rows are too short for what loops would choose.

    The boxes at the ends of loops often move as others do, so results are cached.
    """
    if any(k.source_stride == k.destination_stride == 1 and k.size >= _FIRST_RUN for k in nest.loops):
        return tuple(copy_passes(nest, context))
    found = tuple(copying_passes(nest, context))
    row = nest.loop_of(destination=1)
    column = next((k for k in nest.loops if k.source_stride == 1 and k is not row), None)
    if row is None or column is None:
        return found
    other = (transpose_pass(nest, *rows_and_columns(nest.loops, row, column, 1), context),)
    return other if cost(other) < cost(found) else found


def pass_over(
    box: tuple[Loop, ...], outer: Nest, inner: tuple[tuple[Draft, bool, bool], ...], readable: int, streamed: bool
) -> Draft:
    """Return the pass that runs others within each box; `readable` is how many bytes the source has.

    `streamed` says whether the destination is too large for the cache.
    """
    loops = [Loop(k.size, k.source_stride // PER_BYTE, k.destination_stride // PER_BYTE) for k in outer.loops]
    ordered = sorted(loops, key=lambda k: (k.destination_stride, k.source_stride))
    return Draft(
        "boxes",
        1,
        1,
        ordered,
        BoxGeometry(len(inner), 0, readable - outer.source_start // PER_BYTE),
        no_tables,
        iterations(ordered),
        max(iterations(box) // PER_BYTE, 1),
        outer.source_start // PER_BYTE,
        outer.destination_start // PER_BYTE,
        f"boxes of {iterations(box)} packed elements, which move as bytes within the cache",
        counts_of_boxes(inner, iterations(ordered), streamed),
        inner,
    )


def single_nibbles(nest: Nest, row: Loop, slots: int) -> Iterator[Draft]:
    """Yield the passes that copy the first or last element of the rows that begin or end within a byte.

    Parameters
    ----------
    nest : Nest
        In elements.
    row : Loop
        The one that is contiguous in the destination.
    slots : int
        Of the destination.
    """
    others = Nest(tuple(k for k in nest.loops if k is not row), nest.source_start, nest.destination_start)
    last = (row.size - 1) * row.source_stride, row.size - 1
    for part in even_steps(others, 1):
        odd = part.destination_start % PER_BYTE
        for source, target in [(0, 0)] * odd + [last] * ((row.size - odd) % PER_BYTE):
            yield from nibble_passes(
                Nest(part.loops, part.source_start + source, part.destination_start + target), slots
            )


def nibble_passes(nest: Nest, slots: int) -> Iterator[Draft]:
    """Yield the passes that copy every element of a nest by itself; the destination has `slots`."""
    longest = max(nest.loops, key=lambda k: k.size, default=Loop(1, 0, 0))
    for piece in cut(nest, longest, _MOST_NIBBLES):
        along = max(piece.loops, key=lambda k: k.size, default=Loop(1, 0, 0))
        outer = [k for k in piece.loops if k is not along]
        geometry = StridedGeometry(
            0,
            *along,
            *Loop(1, 0, 0),
            source_nibble=piece.source_start,
            target_nibble=piece.destination_start,
            last_nibble=slots - 1 if slots % PER_BYTE else -1,
        )
        why = "nibbles: the other one of their byte is another row's"
        counts, tasks = Counts(ends=along.size * iterations(outer)), iterations(outer)
        yield Draft("strided", 1, 1, outer, geometry, no_tables, tasks, along.size, 0, 0, why, counts)
