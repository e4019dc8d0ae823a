"""Passes that transpose packed elements of four bits in lines, whatever half of a byte rows and columns begin with.

They are for long columns of large arrays: everything else, boxes serve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastindex.lowering.pass_form import Draft, Goal, Tables, iterations
from fastindex.lowering.relayout_loops import Loop, Nest
from fastindex.tables.half_transposes import BAND_ROWS, CHUNK_COLUMNS, MOST_CHUNKS, HalfTransposeGeometry

# Rows of a task: fewer have too many ends of columns that are parts of lines, and a table has to hold those of two.
_BLOCK_ROWS, _MOST_ROWS = 8192, 1 << 16


def half_transpose_passes(nest: Nest, goal: Goal, slots: int, readable: int) -> list[Draft] | None:
    """Return the pass that transposes a nest of packed elements, or None where it is not one of long rows and columns.

    Parameters
    ----------
    nest : Nest
        In elements.
    goal : Goal
    slots, readable : int
        Slots of the destination, and bytes of the source.
    """
    column = next((k for k in nest.loops if k.source_stride == 1), None)
    rows = _rows_of(nest, column)
    if column is None or column.size < CHUNK_COLUMNS or iterations(rows) < BAND_ROWS or not goal.streamed:
        return None
    if any(min(k.source_stride, k.destination_stride) < 0 for k in nest.loops):
        return None
    while (found := _row_blocks(rows)) is None:
        # The places of all rows are too many, and none of a part repeat: rows are what a column has of fewer loops.
        rows.pop()
        if iterations(rows) < BAND_ROWS:
            return None
    block, block_count, stride = found
    others = [k for k in nest.loops if k is not column and k not in rows]
    others.sort(key=lambda k: (k.destination_stride, k.source_stride))
    chunks = -(-column.size // CHUNK_COLUMNS)
    taken = min(MOST_CHUNKS, chunks)
    while taken > 1 and block_count * -(-chunks // taken) * iterations(others) < goal.tuning.least_tasks:
        taken = -(-taken // 2)
    last = iterations(rows) - block * (block_count - 1)
    geometry = HalfTransposeGeometry(
        source_start=nest.source_start,
        target_start=nest.destination_start,
        columns=column.size,
        column_stride=column.destination_stride,
        chunks=taken,
        row_block=block,
        row_blocks=block_count,
        last_rows=last,
        row_source_stride=stride,
        readable_bytes=readable,
        end=slots - 1 if slots % 2 else -1,
    )

    def tables() -> Tables:
        places = _places(rows, last if block_count == 1 else max(last, block + CHUNK_COLUMNS + 1))
        before = places[block - 1] - stride if block_count > 1 else 0
        return (np.concatenate([[before], places]),)

    tasks = block_count * -(-chunks // taken) * iterations(others)
    return [
        Draft(
            "transpose halves",
            1,
            1,
            others,
            geometry,
            tables,
            tasks,
            max(nest.element_count // 2 // tasks, 1),
            0,
            0,
            f"{column.size} packed elements contiguous in the source become {iterations(rows)} in the destination",
        )
    ]


def _rows_of(nest: Nest, column: Loop | None) -> list[Loop]:
    """Return the loops that are contiguous in the destination one after the other, minor first."""
    rows: list[Loop] = []
    while True:
        stride = iterations(rows)
        following = next((k for k in nest.loops if k.destination_stride == stride and k is not column), None)
        if following is None or following in rows:
            return rows
        rows.append(following)


def _row_blocks(rows: Sequence[Loop]) -> tuple[int, int, int] | None:
    """Return the rows of a task, how many tasks there are, and how far apart they begin; None where tables get large.

    Every task begins with the same rows of the inner loops; the last one has what is left.
    """
    count, within = iterations(rows), iterations(rows[:-1])
    step = math.lcm(BAND_ROWS, within)
    number = max(count // max(_BLOCK_ROWS, step), 1)
    block = count // number // step * step if number > 1 else count
    if count - block * (number - 1) > _MOST_ROWS:
        return None
    return block, number, block // within * rows[-1].source_stride


def _places(rows: Sequence[Loop], count: int) -> NDArray[np.int64]:
    """Return where the first rows begin in the source."""
    found = np.zeros(1, np.int64)
    for loop in rows:
        size = min(loop.size, -(-count // len(found)))
        found = (np.arange(size)[:, None] * loop.source_stride + found).reshape(-1)
    return found[:count]
