"""Interleave a few rows into one sequential stream, one element of each in turn.

In the literature this is a conversion from a structure of arrays to an array of structures (SoA to AoS, `st3` on Arm)::

    row 0       a0 a1 a2 a3 ..
    row 1       b0 b1 b2 b3 ..   --->   stream   a0 b0 c0  a1 b1 c1  a2 b2 c2 ..
    row 2       c0 c1 c2 c3 ..                   a column  a column

For the numbers of rows in `VECTOR_WAYS`, rows are interleaved in registers, and long runs are stored directly as lines
of the destination. Any other number is interleaved by a byte shuffle within lanes of 16 bytes, for every width of
elements, and appended to the pending bytes of the stream.
"""

from __future__ import annotations

from typing import Any

from fastindex.moving.kernels.table import start_of_block
from fastindex.moving.lines.lanes import interleave_lanes
from fastindex.moving.lines.pending import NOTHING_PENDING, PENDING_ROOM, added, finish, go_to
from fastindex.moving.numbers import FIRST, GEOMETRY, SECOND, STREAM
from fastindex.runtime.kernels import kernel, subroutine
from fastindex.runtime.lines.lines import (
    copy_run,
    copy_short,
    interleave_rows,
    place_ahead,
    prefetch_ends,
    prefetch_rows,
)
from fastindex.runtime.lines.memory import copy_vector, entry, fence, literal, prefetch, set_entry

# Scratch memory: pending bytes, a line of each of up to 16 rows, and the addresses of these.
_STAGE = PENDING_ROOM
_PLACES = _STAGE + 64 * 16

#: Bytes of scratch memory that these kernels need.
SCRATCH_BYTES = _PLACES + 8 * 16

# The most bytes that become pending at a time: of all rows together, and of one row.
_PENDING_BYTES = 16384
_MOST_PIECE_BYTES = 256
# Prefetch distance of all rows together, and the least distance of each. 512 bytes of each: 23 GB/s for 3 channels of
# bytes, 2 KiB: 32 to 37 (one thread, AMD EPYC, 2026-11-22).
_ALL_AHEAD_BYTES, _LEAST_AHEAD_BYTES = 8192, 384
# For rows interleaved in vectors: prefetch distance of the destination, and of each row; and the distance in lines at
# which chunks are prefetched if their rows are no longer than that.
_AHEAD_BYTES, _ROW_AHEAD_BYTES, _LINES_AHEAD = 1024, 256, 32


@subroutine("width", "ways", "streamed", inline=True)
def _interleave_run(width, ways, target, sources, rows, run, streamed, scratch):  # type: ignore[no-untyped-def]
    """Write `run` elements of each row, in turn; whole lines are stored directly from registers.

    The first column is chosen so that whole lines of the target are written. The partial lines at both ends come from
    groups of columns that overlap others. `sources` is (base of the rows, base of the next rows to prefetch, 0 if they
    are prefetched already).
    """
    source, upcoming = sources
    w, count = literal(width), literal(ways)
    per_line, column_bytes = 64 // w, count * w
    head = (-target) & 63 if streamed else 0
    if head % column_bytes:
        for column in range(run):
            for i in range(count):
                copy_vector(target + column * column_bytes + i * w, source + entry(rows, i) + column * w, width)
        return
    column = head // column_bytes
    if head:
        interleave_rows(width, ways, 0, scratch, source, rows)
        copy_short(target, scratch, head)
    while column + per_line <= run:
        read, place = source + column * w, target + column * column_bytes
        if upcoming:
            asked = place_ahead(source, upcoming, column * w + min(_ROW_AHEAD_BYTES, run * w), run * w)
            for i in range(count):
                prefetch(asked + entry(rows, i))
        interleave_rows(width, ways, streamed, place, read, rows)
        column += per_line
    if column < run:
        last = run - per_line
        interleave_rows(width, ways, 0, scratch, source + last * w, rows)
        rest = (run - column) * column_bytes
        copy_run(target + column * column_bytes, scratch + (column - last) * column_bytes, rest, streamed)


@subroutine("streamed", inline=True)
def _append_run(stream, pending, source, rows, numbers, lanes, upcoming, streamed):  # type: ignore[no-untyped-def]
    """Append a run of each row; return the new stream.

    `numbers` is (number of rows, elements of each, bytes of an element), `lanes` is (unit, mask). `upcoming` is the
    base of the next runs, which are prefetched at the end of these; 0 if they are prefetched already.
    """
    (count, run, width), (unit, mask) = numbers, lanes
    per_line, column_bytes, columns, run_bytes = 64 // width, count * width, 16 // unit, run * width
    stride = unit // width * column_bytes
    ahead = max(_ALL_AHEAD_BYTES // count, _LEAST_AHEAD_BYTES)
    piece = (max(min(_PENDING_BYTES // count, _MOST_PIECE_BYTES), 64) & ~63) // width
    for first in range(0, run, piece):
        size = min(piece, run - first)
        begin, behind = 0, pending + stream[1]
        while True:
            # A few rows at a time, several lines of each.
            places = rows + 8 * begin
            for at in range(0, size, per_line):
                read, target = source + (first + at) * width, behind + at * column_bytes + begin * width
                if size - at < per_line:
                    for i in range(min(columns, count)):
                        copy_short(pending + _STAGE + 64 * i, read + entry(places, i), (size - at) * width)
                    interleave_lanes(unit, target, stride, pending + _STAGE, pending + _PLACES, mask)
                else:
                    if upcoming:
                        asked = place_ahead(source, upcoming, (first + at) * width + ahead, run_bytes)
                        for i in range(min(columns, count)):
                            prefetch(asked + entry(places, i))
                    interleave_lanes(unit, target, stride, read, places, mask)
            if begin + columns >= count:
                break
            begin = min(begin + columns, count - columns)
        stream = added(stream, size * column_bytes, pending, streamed)
    return stream


def _kernel(in_vectors: bool) -> Any:
    """Make one of two kernels; each is compiled without the code that only the other needs."""

    @kernel
    def interleave_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
        """Run the tasks `first` to `last` of a relayout that interleaves a few rows into one stream.

        Parameters
        ----------
        width, ways : literal int
            Bytes of an element, and number of rows: a power of two, at most 32 bytes in all. The kernel in lanes uses
            neither.
        target, source, table, scratch
            As for `copy_chunks`; `run` is in elements of one row, `ways` the number of rows. The second table holds the
            byte offsets in the source of the rows; the last one is repeated until a column has 16 bytes.
        """
        geometry, chunks, rows = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
        run, row_count = entry(geometry, STREAM.run), entry(geometry, STREAM.ways)
        size, streamed = entry(geometry, STREAM.element_bytes), entry(geometry, STREAM.streamed) != 0
        lanes, numbers = (entry(geometry, STREAM.unit_bytes), geometry + 8 * STREAM.mask_low), (row_count, run, size)
        run_bytes = run * size
        for i in range(16):
            set_entry(scratch + _PLACES, i, 64 * i)
        ahead, rows_ahead = _AHEAD_BYTES // (row_count * run_bytes) + 1, entry(geometry, STREAM.chunks_ahead)
        later = max(rows_ahead, 1)
        if in_vectors and rows_ahead == 0 and run_bytes <= _ROW_AHEAD_BYTES:
            later = max(_LINES_AHEAD // (row_count * ((run_bytes + 63) // 64)), 1)
        stream = NOTHING_PENDING
        for task in range(first, last):
            at_source, at_target, count = start_of_block(source, target, table, task)
            for x in range(count):
                read, place = at_source + entry(chunks, 2 * x), at_target + entry(chunks, 2 * x + 1)
                upcoming = at_source + entry(chunks, 2 * min(x + later, count - 1))
                if rows_ahead > 0:
                    prefetch_rows(upcoming, rows, row_count, run_bytes)
                if rows_ahead:
                    upcoming = 0
                if in_vectors:
                    if x + ahead < count:
                        prefetch_ends(at_target + entry(chunks, 2 * (x + ahead) + 1), row_count * run_bytes)
                    _interleave_run(width, ways, place, (read, upcoming), rows, run, streamed, scratch)
                else:
                    stream = go_to(stream, place, scratch, streamed)
                    stream = _append_run(stream, scratch, read, rows, numbers, lanes, upcoming, streamed)
        finish(stream, scratch, streamed)
        if streamed:
            fence()

    return interleave_chunks


#: For any number of rows, and for runs of at least a line of the numbers of rows in `VECTOR_WAYS`.
interleave_lane_chunks, interleave_vectors = _kernel(in_vectors=False), _kernel(in_vectors=True)
