"""Assemblies whose blocks take a column each of the same rows of the source.

A line of each row is read at once and transposed in squares, so that each column is contiguous in scratch memory; there
the blocks are put together of it. So every line of the source is read once, and every line of the destination written
once, padding included.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.assemble import assemble_block
from fastindex.kernels.cpu.lines import copy_short, transpose_square
from fastindex.kernels.cpu.memory import copy_vector, entry, fence, literal, prefetch
from fastindex.kernels.cpu.pass_table import outer_place, padding_of
from fastindex.kernels.cpu.pending import PENDING_BYTES, drain, restart
from fastindex.tables.assemblies import (
    BLOCK_BEGIN,
    BLOCK_PIECES,
    COLUMN_BLOCK_BYTES,
    COLUMN_GROUP_BYTES,
    COLUMNS_BLOCK_BYTES,
    COLUMNS_BLOCKS,
    COLUMNS_GROUPS,
    COLUMNS_ROW_PITCH,
    COLUMNS_ROWS,
    COLUMNS_STREAMED,
    GROUP_COLUMNS,
    GROUP_FIRST,
    GROUP_SOURCE,
    MOST_BLOCK_BYTES,
    MOST_COLLECTED_BYTES,
    NOWHERE,
)
from fastindex.tables.cache_lines import LINE_BYTES
from fastindex.tables.passes import FIRST, GEOMETRY, SECOND

# Scratch memory: what is pending and a block more, a staged square, collected columns.
_STAGE = PENDING_BYTES + MOST_BLOCK_BYTES + 2 * LINE_BYTES
_COLLECTED = _STAGE + 64 * LINE_BYTES
#: Bytes of scratch memory that this kernel needs.
SCRATCH_BYTES = _COLLECTED + MOST_COLLECTED_BYTES + 2 * LINE_BYTES

# How many rows ahead the source is prefetched, at least.
_ROWS_AHEAD = 32


@njit(nogil=True, inline="always")
def _collect(width, source, rows, counts, pitch, scratch):  # type: ignore[no-untyped-def]
    """Transpose the columns of a group, some lines of each row; `counts` is how many rows and columns there are."""
    w = literal(width)
    per_line = 64 // w
    row_count, count = counts
    stage, collected = scratch + _STAGE, scratch + _COLLECTED
    ahead = max(per_line, _ROWS_AHEAD)
    for first in range(0, row_count, per_line):
        table = rows + 8 * first
        upcoming = table + 8 * ahead if first + ahead < row_count else table
        if count < per_line:
            for i in range(per_line):
                prefetch(source + entry(upcoming, i))
                copy_short(stage + 64 * i, source + entry(table, i), count * w)
            transpose_square(width, collected + first * w, pitch, stage)
        else:
            for begin in range(0, count, per_line):
                # The last line overlaps the one before, so that it is whole.
                column = min(begin, count - per_line)
                if begin + per_line < count:
                    for i in range(per_line):
                        row = source + entry(table, i) + column * w
                        prefetch(row + 64)
                        copy_vector(stage + 64 * i, row, 64)
                else:
                    for i in range(per_line):
                        prefetch(source + entry(upcoming, i))
                        copy_vector(stage + 64 * i, source + entry(table, i) + column * w, 64)
                transpose_square(width, collected + column * pitch + first * w, pitch, stage)


@njit(nogil=True, inline="always")
def _run(width, size, halves, target, source, table, scratch, tasks):  # type: ignore[no-untyped-def]
    geometry, groups, rows = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
    run, streamed = entry(geometry, COLUMNS_BLOCK_BYTES), entry(geometry, COLUMNS_STREAMED) != 0
    pitch = entry(geometry, COLUMNS_ROW_PITCH)
    row_count, group_count = entry(geometry, COLUMNS_ROWS), entry(geometry, COLUMNS_GROUPS)
    block_count = entry(geometry, COLUMNS_BLOCKS)
    places, tables = groups + COLUMN_GROUP_BYTES * group_count, rows + 8 * row_count
    padding, whole_lines = padding_of(scratch), streamed and run & 63 == 0 and literal(size) == 64
    line, fill, skip, position = 0, 0, 0, -1
    for task in range(tasks[0], tasks[1]):
        at_source, at_target = outer_place(table, task, source, target)
        for g in range(group_count):
            group = groups + COLUMN_GROUP_BYTES * g
            begin, count = entry(group, GROUP_FIRST), entry(group, GROUP_COLUMNS)
            _collect(width, at_source + entry(group, GROUP_SOURCE), rows, (row_count, count), pitch, scratch)
            for j in range(count * block_count):
                place = entry(places, begin * block_count + j)
                if place == NOWHERE:
                    continue
                place += at_target
                block = tables + COLUMN_BLOCK_BYTES * (j % block_count)
                numbers, between = rows + entry(block, BLOCK_BEGIN), 8 * entry(block, BLOCK_PIECES)
                column = scratch + _COLLECTED + j // block_count * pitch
                if place != position:
                    position = place
                    line, fill, skip = restart(line, scratch, fill, skip, streamed, position)
                position += run
                if whole_lines and fill == 0:
                    assemble_block(64, halves, 1, line, column, numbers, between, padding)
                    line += run
                    continue
                assemble_block(size, halves, 0, scratch + fill, column, numbers, between, padding)
                fill += run
                if fill >= PENDING_BYTES:
                    line, fill, skip = drain(line, scratch, fill, skip, streamed)
    restart(line, scratch, fill, skip, streamed, 0)
    fence()


@kernel()
def assemble_columns(width, size, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout whose blocks take a column each of the same rows.

    Parameters
    ----------
    width : literal int
        Bytes of a unit: what every row has of a column.
    size : literal int
        Bytes of a vector.
    target, source, table, scratch
        As for `copy_chunks`. The first table has a `ColumnGroup` for each group, then for each column the offsets of
        its blocks in the destination, or `NOWHERE`. The second has the offset of each row in the source; a
        `ColumnBlock` for each block of a column; then for each of these, as for `assemble_chunks`, a `VectorHeader`,
        the runs of vectors, the offset of each piece in a column, and the patterns.
    """
    _run(width, size, 1, target, source, table, scratch, (first, last))


@kernel()
def assemble_half_columns(width, size, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Do the same where halves of bytes move."""
    _run(width, size, 2, target, source, table, scratch, (first, last))
