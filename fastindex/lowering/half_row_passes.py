"""Passes for packed elements of four bits whose rows of the destination are put together of runs of the source.

A row may begin and end within a byte, and where a tile does not divide it, several nests write parts of it. So all of
them become one list of pieces, in the order of the destination, and rows that continue each other one stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fastindex.lowering.blocks import without
from fastindex.lowering.pass_form import Draft, Goal, Tables, iterations
from fastindex.lowering.relayout_loops import Loop, Nest
from fastindex.lowering.row_boxes import Rows, rows_of
from fastindex.tables.cache_lines import LINE_BYTES
from fastindex.tables.half_rows import MOST_PIECE_HALVES, ROW_PIECES, HalfRowsGeometry

# So many elements of a box make a task, if rows continue each other that far.
_BOX_HALVES = 32 << 10
# Halves of bytes of a byte, and of a line.
_PER_BYTE = 2
_LINE_HALVES = _PER_BYTE * LINE_BYTES
# Boxes of at least so many elements follow each other along the loops that share lines of the source, less than so far
# apart, rather than in the order of the destination.
_LEAST_BOX_HALVES, _CLOSE_HALVES = 8 << 10, 8 * _LINE_HALVES
# Shorter pieces, on average, are better moved in other ways.
_LEAST_PIECE = 24
# Of smaller arrays, blocks that are put together within the cache are faster.
_LEAST_SOURCE_BYTES = 8 << 20

Offsets = NDArray[np.int64]


def half_row_passes(
    nests: Sequence[Nest], is_packed: bool, goal: Goal, slots: int, readable: int
) -> list[Draft] | None:
    """Return the passes that write rows of packed elements as streams, or None where rows are not made of runs.

    Parameters
    ----------
    nests : sequence of Nest
        In elements.
    is_packed : bool
        Whether the source is; otherwise an element is the low half of a byte.
    goal : Goal
    slots, readable : int
        Slots of the destination, and bytes of the source.
    """
    per_element = 1 if is_packed else 2
    if readable < _LEAST_SOURCE_BYTES and not goal.streamed:
        return None
    if any(min(k.source_stride, k.destination_stride) < 0 for n in nests for k in n.loops):
        return None
    in_halves = [
        Nest(
            tuple(Loop(k.size, k.source_stride * per_element, k.destination_stride) for k in nest.loops),
            nest.source_start * per_element,
            nest.destination_start,
        )
        for nest in nests
    ]
    if any(_run_of(nest).source_stride not in (1, 2) for nest in in_halves if nest.element_count > 1):
        return None
    lengths = sorted({k.destination_stride for nest in in_halves for k in nest.loops if k.destination_stride > 1})
    for length in reversed(lengths or [slots]):
        found = rows_of(in_halves, length, 1)
        if found is not None:
            break
    else:
        return None
    is_sparse = 2 * sum(nest.element_count for nest in nests) * per_element < _PER_BYTE * readable
    made = [one._replace(is_scattered=is_sparse) for rows in found for one in _passes_of(rows, goal, slots, readable)]
    pieces = sum(one.tasks * one.geometry[ROW_PIECES] for one in made)
    halves = sum(nest.element_count for nest in nests)
    return made if pieces * _LEAST_PIECE <= halves else None


def _run_of(nest: Nest) -> Loop:
    """Return the loop that is contiguous in the destination."""
    return next((k for k in nest.loops if k.destination_stride == 1), Loop(1, 1, 1))


def _passes_of(rows: Rows, goal: Goal, slots: int, readable: int) -> Iterator[Draft]:
    """Yield the pass over boxes of whole numbers of rows, and the one over what is left."""
    following = rows.following
    others = without(rows.outer, (following,))
    size = min(max(_BOX_HALVES // rows.nbytes, 1), following.size)
    count, rest = divmod(following.size, size)
    for first, taken, number in ((0, size, count), (count * size, rest, 1)):
        if not taken or not number:
            continue
        steps = Loop(number, size * following.source_stride, size * rows.nbytes)
        nests = rows.part(taken)
        # Other boxes read lines that this one has read: if these are the next ones, before the lines have left L2.
        close = sorted((k for k in others if _shares_lines(k)), key=lambda k: k.source_stride)
        is_large = taken * rows.nbytes >= _LEAST_BOX_HALVES
        outer = [*close, steps, *without(others, close)] if is_large else [steps, *others]
        geometry = HalfRowsGeometry(
            pieces=sum(_piece_count(nest) for nest in nests),
            halves=taken * rows.nbytes,
            source_start=rows.starts[0] + first * following.source_stride,
            target_start=rows.starts[1] + first * rows.nbytes,
            readable_bytes=readable,
            streamed=goal.streamed,
            end=slots - 1 if slots % 2 else -1,
        )
        yield Draft(
            "stream halves",
            1,
            1,
            [k for k in outer if k.size > 1],
            geometry,
            partial(_tables, nests),
            iterations(outer),
            max(taken * rows.nbytes // 2, 1),
            0,
            0,
            f"rows of {rows.nbytes} packed elements, put together of runs of the source",
            shares_lines=any(_shares_lines(k) for k in (*others, *([following] if taken == 1 else []))),
        )


def _shares_lines(loop: Loop) -> bool:
    """Whether what is a step of a loop apart in the source shares lines, mostly."""
    return loop.source_stride < _CLOSE_HALVES and loop.source_stride % _LINE_HALVES != 0


def _piece_count(nest: Nest) -> int:
    run = _run_of(nest).size
    return nest.element_count // run * -(-run // MOST_PIECE_HALVES)


def _tables(nests: Sequence[Nest]) -> Tables:
    """Return the pieces of some nests, in the order of the destination, as the kernel reads them."""
    found = []
    for nest in nests:
        run = _run_of(nest)
        starts = np.array([[nest.source_start, nest.destination_start]])
        for loop in nest.loops:
            if loop is not run:
                steps = np.arange(loop.size)[:, None, None] * np.array([loop.source_stride, loop.destination_stride])
                starts = (steps + starts).reshape(-1, 2)
        for first in range(0, run.size, MOST_PIECE_HALVES):
            length = min(MOST_PIECE_HALVES, run.size - first)
            places = starts + np.array([first * run.source_stride, first])
            rest = np.broadcast_to([length, run.source_stride], (len(places), 2))
            found.append(np.concatenate([places, rest], 1))
    pieces = np.concatenate(found)
    pieces = pieces[np.argsort(pieces[:, 1], kind="stable")]
    return (np.array(pieces[:, [0, 2, 3]].reshape(-1)),)
