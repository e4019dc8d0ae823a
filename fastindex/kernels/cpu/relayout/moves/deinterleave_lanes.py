"""Relayouts that deinterleave one stream into any few rows, an element to each in turn, whatever their width.

A piece of each row is collected in scratch memory, behind the part of a line that the piece before left. So rows that
begin anywhere are written by whole lines, several neighbouring lines at a time, and the source is read once, in order.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.memory import copy_vector, entry, fence, prefetch, stream_line
from fastindex.kernels.cpu.relayout.lines.lanes import deinterleave_lanes
from fastindex.kernels.cpu.relayout.lines.lines import copy_run, copy_short, prefetch_bytes, prefetch_ends
from fastindex.kernels.cpu.relayout.passes.table import start_of_block
from fastindex.tables.passes import FIRST, GEOMETRY, SECOND
from fastindex.tables.streams import MOST_COLUMN_BYTES, MOST_LANE_ROWS, STREAM

# How much of all rows is collected at a time, at most and at least of one. Reading and writing alternate: 40 rows of
# bytes 29 GB/s with 6 KiB, 20 with 12 KiB; 25 with 4 KiB (one thread, AMD EPYC, 2026-11-22).
_COLLECTED_BYTES = 6144
_MOST_PIECE_BYTES = 512
_LEAST_PIECE_BYTES = 128

_STAGE = _COLLECTED_BYTES + MOST_LANE_ROWS * (_LEAST_PIECE_BYTES + 128) + 16 * 128

#: Bytes of scratch memory that this kernel needs: collected pieces, and a staged line's worth of columns.
SCRATCH_BYTES = _STAGE + 64 * MOST_COLUMN_BYTES + 64

# How far ahead the source is prefetched. 1 KiB: 38 and 26 GB/s for 3 and 12 channels of bytes; 4 KiB: 43 and 38;
# 8 KiB and more: 42 to 44 (one thread, AMD EPYC, 2026-11-22).
_AHEAD_BYTES = 12288


@njit(nogil=True)
def _write_piece(target, column, size, is_first, is_last, streamed):  # type: ignore[no-untyped-def]
    """Write the lines that a piece of a row completes, and keep what is left of the last one.

    The piece is at ``column + 64``; the 64 bytes in front of it are the end of the piece before, if there is one.
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


@njit(nogil=True)
def _deinterleave_run(target, rows, source, numbers, lanes, streamed, ends, scratch):  # type: ignore[no-untyped-def]
    """Deinterleave a stream; `numbers` is (rows, elements of each, bytes of one), `lanes` (unit, mask).

    `ends` is (end of what may be read, the next stream, which is prefetched where this one ends; 0 where that has been
    done).
    """
    end, upcoming = ends
    (count, run, width), (unit, mask) = numbers, lanes
    per_line, column_bytes, columns = 64 // width, count * width, 16 // unit
    stride = unit // width * column_bytes
    line_bytes = per_line * column_bytes
    reach = line_bytes - stride + max(16, column_bytes)
    piece = max(min(_COLLECTED_BYTES // max(count, columns), _MOST_PIECE_BYTES), _LEAST_PIECE_BYTES) & ~63
    # An odd number of lines, so that rows do not meet in few sets of the cache.
    pitch = piece + 64 | 64
    row_bytes, total = run * width, run * width * count
    for first in range(0, row_bytes, piece):
        size = min(piece, row_bytes - first)
        for at in range(0, size, 64):
            read = source + (first + at) * count
            left = (row_bytes - first - at) * count
            if left < line_bytes or read + reach > end:
                copy_run(scratch + _STAGE, read, min(left, line_bytes), False)
                read = scratch + _STAGE
            elif upcoming:
                later = (first + at) * count + _AHEAD_BYTES
                asked = source + later if later < total else upcoming + later - total
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


@kernel()
def deinterleave_lane_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout that deinterleaves a stream into a few rows.

    Parameters
    ----------
    target, source, table, scratch
        As for `copy_chunks`; `RUN` is in elements of one row, `WAYS` the number of rows. The second table holds the
        byte offsets in the destination of the rows.
    width, ways
        Not used.
    """
    geometry, chunks, rows = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
    run, count = entry(geometry, STREAM.run), entry(geometry, STREAM.ways)
    element, streamed = entry(geometry, STREAM.element_bytes), entry(geometry, STREAM.streamed) != 0
    lanes = entry(geometry, STREAM.unit_bytes), geometry + 8 * STREAM.mask_low
    end = source + entry(geometry, STREAM.readable_bytes)
    ahead, reads_ahead = 1024 // (run * count * element) + 1, entry(geometry, STREAM.chunks_ahead)
    for task in range(first, last):
        at_source, at_target, chunk_count = start_of_block(source, target, table, task)
        for x in range(chunk_count):
            read, place = at_source + entry(chunks, 2 * x), at_target + entry(chunks, 2 * x + 1)
            if reads_ahead >= 0 and x + ahead < chunk_count:
                for i in range(count):
                    prefetch_ends(at_target + entry(chunks, 2 * (x + ahead) + 1) + entry(rows, i), run * element)
            upcoming = at_source + entry(chunks, 2 * min(x + max(reads_ahead, 1), chunk_count - 1))
            if reads_ahead > 0:
                prefetch_bytes(upcoming, run * count * element)
            if reads_ahead:
                upcoming = 0
            numbers, ends = (count, run, element), (end, upcoming)
            _deinterleave_run(place, rows, read, numbers, lanes, streamed, ends, scratch)
    if streamed:
        fence()
