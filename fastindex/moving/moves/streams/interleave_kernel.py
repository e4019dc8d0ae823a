"""Interleave a few rows into one sequential stream, one element of each in turn, or deinterleave a stream into rows.

In the literature these are conversions from a structure of arrays to an array of structures (SoA to AoS, `st3` on Arm),
and back (AoS to SoA, `ld3`)::

    row 0       a0 a1 a2 a3 ..
    row 1       b0 b1 b2 b3 ..   <-->   stream   a0 b0 c0  a1 b1 c1  a2 b2 c2 ..
    row 2       c0 c1 c2 c3 ..                   a column  a column

For the numbers of rows in `VECTOR_WAYS`, this is done in registers. Rows are interleaved to whole lines of the
destination if runs are long. A stream is deinterleaved to whole lines of rows that all have the same offset from a line
boundary; otherwise a piece of each row is staged in scratch memory first.

Any other number is done by a byte shuffle within lanes of 16 bytes, for every width of elements. Interleaved, it is
appended to the pending bytes of the stream. Deinterleaved, a piece of each row is collected after the partial line that
the piece before left. So rows with any alignment are written by whole lines, several neighbouring lines at a time, and
the source is read once, in order.
"""

from __future__ import annotations

from typing import Any

from fastindex.moving.kernels.lanes import deinterleave_lanes, interleave_lanes
from fastindex.moving.kernels.passes import start_of_block
from fastindex.moving.kernels.staging import NOTHING_PENDING, PENDING_CAPACITY, added, finish, go_to
from fastindex.moving.moves.streams import STREAM
from fastindex.moving.numbers import MOST_COLUMN_BYTES, TABLE
from fastindex.runtime.kernels import kernel, subroutine, unrolled_kernel
from fastindex.runtime.lines.lines import (
    copy_run,
    copy_short,
    deinterleave_line,
    interleave_rows,
    place_ahead,
    prefetch_bytes,
    prefetch_ends,
    prefetch_rows,
)
from fastindex.runtime.lines.memory import copy_vector, entry, fence, prefetch, set_entry, stream_line

# Scratch memory of an interleave: pending bytes, a line of each of up to 16 rows, and the addresses of these.
_ROWS_STAGE = PENDING_CAPACITY
_STAGED_ROWS = _ROWS_STAGE + 64 * 16

# The most bytes that become pending at a time: of all rows together, and of one row.
_PENDING_BYTES = 16384
_MOST_PENDING_PIECE_BYTES = 256
# Prefetch distance of all rows together, and the least distance of each. 512 bytes of each: 23 GB/s for 3 channels of
# bytes, 2 KiB: 32 to 37 (one thread, AMD EPYC, 2026-11-22).
_ALL_AHEAD_BYTES, _LEAST_AHEAD_BYTES = 8192, 384
# In vectors: prefetch distance of the destination or of the one stream that is read, and of each row that is read; and
# the distance in lines at which chunks are prefetched if their rows are no longer than that.
_AHEAD_BYTES, _ROW_AHEAD_BYTES, _LINES_AHEAD = 1024, 256, 32

_ROW_BYTES = 64 + 2048 + 64
# Scratch memory of a deinterleave in vectors: up to 64 staged rows, and their addresses.
_STAGED_PLACES = 64 * _ROW_BYTES

# The most rows that are deinterleaved in lanes; their elements have at most `LANE_BYTES` bytes.
_MOST_LANE_ROWS = 128
# Bytes collected at a time in lanes: of all rows together, the most of one row, and the least. Reading and writing
# alternate: 40 rows of bytes 29 GB/s with 6 KiB, 20 with 12 KiB; 25 with 4 KiB (one thread, AMD EPYC, 2026-11-22).
_COLLECTED_BYTES = 6144
_MOST_PIECE_BYTES = 512
_LEAST_PIECE_BYTES = 128
# Scratch memory of a deinterleave in lanes: collected pieces, and a staged line's worth of columns.
_LANE_STAGE = _COLLECTED_BYTES + _MOST_LANE_ROWS * (_LEAST_PIECE_BYTES + 128) + 16 * 128
# Prefetch distance of the source in lanes. 1 KiB: 38 and 26 GB/s for 3 and 12 channels of bytes; 4 KiB: 43 and 38;
# 8 KiB and more: 42 to 44 (one thread, AMD EPYC, 2026-11-22).
_LANES_AHEAD_BYTES = 12288

#: Bytes of scratch memory that these kernels need.
SCRATCH_BYTES = max(_STAGED_ROWS + 8 * 16, _STAGED_PLACES + 64 * 8, _LANE_STAGE + 64 * MOST_COLUMN_BYTES + 64)


@subroutine("width", "ways", "streamed", inline=True)
def _interleave_run(width, ways, target, sources, rows, run, streamed, scratch):  # type: ignore[no-untyped-def]
    """Write `run` elements of each row, in turn; whole lines are stored directly from registers.

    The first column is chosen so that whole lines of the target are written. The partial lines at both ends come from
    groups of columns that overlap others. `sources` is (base of the rows, base of the next rows to prefetch, 0 if they
    are prefetched already).
    """
    source, upcoming = sources
    w, count = width, ways
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
        remaining = (run - column) * column_bytes
        copy_run(target + column * column_bytes, scratch + (column - last) * column_bytes, remaining, streamed)


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
    piece = (max(min(_PENDING_BYTES // count, _MOST_PENDING_PIECE_BYTES), 64) & ~63) // width
    for first in range(0, run, piece):
        size = min(piece, run - first)
        begin, write_at = 0, pending + stream[1]
        while True:
            # A few rows at a time, several lines of each.
            places = rows + 8 * begin
            for at in range(0, size, per_line):
                read, target = source + (first + at) * width, write_at + at * column_bytes + begin * width
                if size - at < per_line:
                    for i in range(min(columns, count)):
                        copy_short(pending + _ROWS_STAGE + 64 * i, read + entry(places, i), (size - at) * width)
                    interleave_lanes(unit, target, stride, pending + _ROWS_STAGE, pending + _STAGED_ROWS, mask)
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


def _interleave_kernel(in_vectors: bool) -> Any:
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
        geometry, chunks, rows = entry(table, TABLE.geometry), entry(table, TABLE.first), entry(table, TABLE.second)
        run, row_count = entry(geometry, STREAM.run), entry(geometry, STREAM.ways)
        size, streamed = entry(geometry, STREAM.element_bytes), entry(geometry, STREAM.streamed) != 0
        lanes, numbers = (entry(geometry, STREAM.unit_bytes), geometry + 8 * STREAM.mask_low), (row_count, run, size)
        run_bytes = run * size
        for i in range(16):
            set_entry(scratch + _STAGED_ROWS, i, 64 * i)
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
interleave_lane_chunks, interleave_vectors = _interleave_kernel(in_vectors=False), _interleave_kernel(in_vectors=True)


@subroutine("width", "ways", "streamed", inline=True)
def _deinterleave_direct(width, ways, target, rows, sources, run, streamed, scratch):  # type: ignore[no-untyped-def]
    """Deinterleave a stream into rows with equal offsets from a line boundary; store whole lines from registers.

    `sources` is (address of the stream, address of the next one, 0 if that is prefetched already).
    """
    source, upcoming = sources
    w, count = width, ways
    per_line = 64 // w
    head = (-(target + entry(rows, 0))) & 63 if streamed else 0
    places = scratch + _STAGED_PLACES
    column = head // w
    if head:
        deinterleave_line(width, ways, 0, 0, places, source)
        for i in range(count):
            copy_short(target + entry(rows, i), entry(places, i), head)
    while column + per_line <= run:
        here = source + column * count * w
        if upcoming:
            asked = place_ahead(source, upcoming, column * count * w + _AHEAD_BYTES, run * count * w)
            for i in range(count):
                prefetch(asked + 64 * i)
        deinterleave_line(width, ways, streamed, target + column * w, rows, here)
        column += per_line
    if column < run:
        last = run - per_line
        deinterleave_line(width, ways, 0, 0, places, source + last * count * w)
        for i in range(count):
            tail = entry(places, i) + (column - last) * w
            copy_short(target + entry(rows, i) + column * w, tail, (run - column) * w)


@subroutine("width", "ways", "streamed", inline=True)
def _deinterleave_pieces(width, ways, target, rows, source, counts, streamed, scratch):  # type: ignore[no-untyped-def]
    """Deinterleave a stream into rows of any alignment, piece by piece; `counts` is (rows, elements of each)."""
    w, (count, run) = width, counts
    per_line = 64 // w
    places = scratch + _STAGED_PLACES
    for first in range(0, run, 1024 // w):
        piece = min(run - first, 1024 // w)
        start = source + first * count * w
        whole = piece - piece % per_line
        for column in range(0, whole, per_line):
            deinterleave_line(width, ways, 0, column * w, places, start + column * count * w)
        for column in range(whole, piece):
            for i in range(count):
                copy_vector(entry(places, i) + column * w, start + (column * count + i) * w, width)
        for i in range(count):
            copy_run(target + entry(rows, i) + first * w, entry(places, i), piece * w, streamed)


@subroutine("streamed")
def _write_piece(target, column, size, is_first, is_last, streamed):  # type: ignore[no-untyped-def]
    """Write the lines that a piece of a row completes, and keep its last, partial line for the next piece.

    The piece is at ``column + 64``; the 64 bytes before it are the end of the piece before, if there is one.
    """
    lead = 64 - (target & 63)
    at = 0
    if is_first and lead < 64:
        copy_short(target, column + 64, min(lead, size))
        at = 64
    line, place = target + lead - 64, column + lead
    end = size - lead
    if streamed:
        while at <= end:
            stream_line(line + at, place + at)
            at += 64
    else:
        while at <= end:
            copy_vector(line + at, place + at, 64)
            at += 64
    if is_last:
        copy_short(line + at, place + at, end + 64 - at)
    else:
        copy_vector(column, column + size, 64)


@subroutine("streamed")
def _deinterleave_run(target, rows, source, numbers, lanes, streamed, ends, scratch):  # type: ignore[no-untyped-def]
    """Deinterleave a stream in lanes, piece by piece.

    `numbers` is (number of rows, elements of each, bytes of an element), `lanes` is (unit, mask). `ends` is (end of the
    readable source, address of the next stream, which is prefetched at the end of this one; 0 if it is already).
    """
    end, upcoming = ends
    (count, run, width), (unit, mask) = numbers, lanes
    per_line, column_bytes, columns = 64 // width, count * width, 16 // unit
    stride = unit // width * column_bytes
    line_bytes = per_line * column_bytes
    reach = line_bytes - stride + max(16, column_bytes)
    piece = max(min(_COLLECTED_BYTES // max(count, columns), _MOST_PIECE_BYTES), _LEAST_PIECE_BYTES) & ~63
    # An odd number of lines, so that rows do not share few sets of the cache.
    pitch = piece + 64 | 64
    row_bytes, total = run * width, run * width * count
    for first in range(0, row_bytes, piece):
        size = min(piece, row_bytes - first)
        for at in range(0, size, 64):
            read = source + (first + at) * count
            left = (row_bytes - first - at) * count
            if left < line_bytes or read + reach > end:
                copy_run(scratch + _LANE_STAGE, read, min(left, line_bytes), False)
                read = scratch + _LANE_STAGE
            elif upcoming:
                asked = place_ahead(source, upcoming, (first + at) * count + _LANES_AHEAD_BYTES, total)
                for ahead in range(0, line_bytes, 64):
                    prefetch(asked + ahead)
            begin = 0
            while True:
                place = scratch + begin * pitch + 64 + at
                deinterleave_lanes(unit, place, pitch, read + begin * width, stride, mask)
                if begin + columns >= count:
                    break
                begin = min(begin + columns, count - columns)
        for i in range(count):
            place = target + entry(rows, i) + first
            _write_piece(place, scratch + i * pitch, size, first == 0, first + piece >= row_bytes, streamed)


@subroutine(inline=True)
def _are_aligned(rows, count):  # type: ignore[no-untyped-def]
    """Whether all rows have the same offset from a line boundary."""
    aligned = True
    for i in range(count):
        aligned = aligned and (entry(rows, i) - entry(rows, 0)) & 63 == 0
    return aligned


def _deinterleave_kernel(in_vectors: bool) -> Any:
    """Make one of two kernels; each is compiled without the code that only the other needs."""

    @unrolled_kernel
    def deinterleave_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
        """Run the tasks `first` to `last` of a relayout that deinterleaves a stream into a few rows.

        Parameters
        ----------
        width, ways : literal int
            Bytes of an element, and number of rows: a power of two, at most 32 bytes in all. The kernel in lanes uses
            neither.
        target, source, table, scratch
            As for `copy_chunks`; `run` is in elements of one row, `ways` the number of rows. The second table holds the
            byte offsets in the destination of the rows.
        """
        geometry, chunks, rows = entry(table, TABLE.geometry), entry(table, TABLE.first), entry(table, TABLE.second)
        run, count = entry(geometry, STREAM.run), entry(geometry, STREAM.ways)
        size, streamed = entry(geometry, STREAM.element_bytes), entry(geometry, STREAM.streamed) != 0
        lanes, numbers = (entry(geometry, STREAM.unit_bytes), geometry + 8 * STREAM.mask_low), (count, run, size)
        end, aligned = source + entry(geometry, STREAM.readable_bytes), _are_aligned(rows, count)
        if in_vectors:
            for i in range(count):
                set_entry(scratch + _STAGED_PLACES, i, scratch + i * _ROW_BYTES)
        ahead, reads_ahead = _AHEAD_BYTES // (run * count * size) + 1, entry(geometry, STREAM.chunks_ahead)
        for task in range(first, last):
            at_source, at_target, chunk_count = start_of_block(source, target, table, task)
            for x in range(chunk_count):
                read, place = at_source + entry(chunks, 2 * x), at_target + entry(chunks, 2 * x + 1)
                if reads_ahead >= 0 and x + ahead < chunk_count:
                    for i in range(count):
                        prefetch_ends(at_target + entry(chunks, 2 * (x + ahead) + 1) + entry(rows, i), run * size)
                upcoming = at_source + entry(chunks, 2 * min(x + max(reads_ahead, 1), chunk_count - 1))
                if reads_ahead > 0:
                    prefetch_bytes(upcoming, run * count * size)
                if reads_ahead:
                    upcoming = 0
                if not in_vectors:
                    _deinterleave_run(place, rows, read, numbers, lanes, streamed, (end, upcoming), scratch)
                elif run * size >= 64 and (not streamed or (aligned and (place + entry(rows, 0)) % size == 0)):
                    _deinterleave_direct(width, ways, place, rows, (read, upcoming), run, streamed, scratch)
                else:
                    _deinterleave_pieces(width, ways, place, rows, read, (count, run), streamed, scratch)
        if streamed:
            fence()

    return deinterleave_chunks


#: For any number of rows, and for those in `VECTOR_WAYS`.
deinterleave_lane_chunks, deinterleave_vectors = (
    _deinterleave_kernel(in_vectors=False),
    _deinterleave_kernel(in_vectors=True),
)
