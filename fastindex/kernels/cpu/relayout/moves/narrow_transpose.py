"""Transposes of few columns, of rows that lie near each other: the source is one sequential stream.

The columns of a band of rows are collected in scratch memory, behind the part of a line that the band before left. So a
column that begins anywhere is written by whole lines, and no row is read twice.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.memory import copy_vector, entry, fence, literal, prefetch, stream_line
from fastindex.kernels.cpu.relayout.lines.vectors import transpose_rows
from fastindex.kernels.cpu.relayout.moves.transpose import EDGE_BYTES, edge_band, write_pitches
from fastindex.kernels.cpu.relayout.passes.table import outer_place
from fastindex.tables.passes import FIRST, GEOMETRY, SECOND
from fastindex.tables.transposes import MOST_NARROW_COLUMNS, TRANSPOSE

_BAND_BYTES = 128
_PITCH_BYTES = 64 + _BAND_BYTES
# How far ahead the source is prefetched.
_AHEAD_BYTES = 12288

_COLLECTED = EDGE_BYTES + 8 * 64

#: Bytes of scratch memory that these kernels need: that of edges, where collected columns start, and these.
SCRATCH_BYTES = _COLLECTED + MOST_NARROW_COLUMNS * _PITCH_BYTES


@njit(nogil=True, inline="always")
def _square_columns(width, target, source, tables, ahead, new, is_first, places):  # type: ignore[no-untyped-def]
    """Write the lines that a band completes in the `new` columns of a square, a range, and keep what is left.

    `tables` is (rows, columns); `ahead` is where the rows are that are prefetched, and how much further on in the table
    of rows; `places` is (scratch memory, what is collected of the first column).
    """
    (rows, columns), (upcoming, later), (scratch, collected) = tables, ahead, places
    w = literal(width)
    per_line = 64 // w
    for square in range(_BAND_BYTES // 64):
        table, place = rows + 8 * per_line * square, collected + 64 + 64 * square
        for i in range(per_line):
            prefetch(upcoming + entry(table + later, i))
        transpose_rows(width, 1, 0, 0, place, scratch + EDGE_BYTES, source, table, 0, 0)
    for j in range(new[0], new[1]):
        start, column = target + entry(columns, j), collected + j * _PITCH_BYTES
        lead = 64 - (start & 63)
        for at in range(64 if is_first and lead < 64 else 0, _BAND_BYTES, 64):
            stream_line(start + lead - 64 + at, column + lead + at)
        copy_vector(column, column + _BAND_BYTES, 64)


@njit(nogil=True, inline="always")
def _bands(width, target, source, rows, columns, counts, scratch):  # type: ignore[no-untyped-def]
    """Write the rows of whole bands, up to the last line boundary of each column; return how many rows these are."""
    w = literal(width)
    per_line = 64 // w
    band = _BAND_BYTES // w
    row_count, column_count = counts
    done = row_count // band * band
    band_stride = entry(rows, min(band, row_count - 1)) - entry(rows, 0)
    bands_ahead = max(_AHEAD_BYTES // max(abs(band_stride), 1), 1)
    for first in range(0, done, band):
        # Gaps between rows are in the table; beyond the last row, others most likely follow at the first distance.
        in_table = first + bands_ahead * band + band <= row_count
        ahead, later = (0, 8 * band * bands_ahead) if in_table else (bands_ahead * band_stride, 0)
        column = known = 0
        while True:
            read, places = source + column * w, columns + 8 * column
            collected = scratch + _COLLECTED + column * _PITCH_BYTES
            start, table = target + first * w, rows + 8 * first
            new = (known, min(per_line, column_count))
            asked = (read + ahead, later)
            _square_columns(width, start, read, (table, places), asked, new, first == 0, (scratch, collected))
            if column + per_line >= column_count:
                break
            known = column + per_line
            column = min(known, column_count - per_line)
            known -= column
    return done


@kernel()
def narrow_panels(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a transpose of at most `MOST_NARROW_COLUMNS` columns.

    The parameters are those of `transpose_panels`. There is one block of columns, they are not joined, and the
    destination is written past the cache. Of the source, `readable_bytes` may be read: a line of each row is, even
    where all columns are less.
    """
    geometry, rows, columns = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
    write_pitches(scratch + EDGE_BYTES, _PITCH_BYTES)
    row_block, column_count = entry(geometry, TRANSPOSE.row_block), entry(geometry, TRANSPOSE.column_count)
    row_blocks = (entry(geometry, TRANSPOSE.row_count) + row_block - 1) // row_block
    w = literal(width)
    per_line = 64 // w
    reach = 0
    for i in range(min(row_block, entry(geometry, TRANSPOSE.row_count))):
        reach = max(reach, entry(rows, i))
    safe = source + entry(geometry, TRANSPOSE.readable_bytes) - reach - 64
    for task in range(first, last):
        rest, row_index = divmod(task, row_blocks)
        begin = row_index * row_block
        row_count = min(row_block, entry(geometry, TRANSPOSE.row_count) - begin)
        following = max(0, min(per_line, entry(geometry, TRANSPOSE.row_count) - begin - row_block))
        read, place = source + row_index * entry(geometry, TRANSPOSE.row_source_stride), target + begin * w
        read, place = outer_place(table, rest, read, place)
        counts = (row_count + following, column_count)
        if row_index == 0:
            edge_band(width, place, (read, read), (rows, columns), (0, 0, False, True), counts, True, scratch)
        done = 0
        if column_count >= per_line or read <= safe:
            done = _bands(width, place, read, rows, columns, (row_count, column_count), scratch)
        if not (entry(geometry, TRANSPOSE.columns_aligned) and place & 63 == 0):
            # The line that is not complete in every column is written again.
            done = max(done - per_line, 0)
        for at in range(done, row_count, 2 * per_line):
            band = (at, min(at + 2 * per_line, row_count), True, True)
            edge_band(width, place, (read, read), (rows, columns), band, counts, True, scratch)
    fence()
