"""Relayouts that make one stream of any few rows, an element of each in turn, whatever the width of elements."""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.memory import entry, fence, prefetch, set_entry
from fastindex.kernels.cpu.relayout.lines.lanes import interleave_lanes
from fastindex.kernels.cpu.relayout.lines.lines import copy_short, prefetch_rows
from fastindex.kernels.cpu.relayout.lines.pending import NOTHING_PENDING, PENDING_ROOM, added, finish, go_to
from fastindex.kernels.cpu.relayout.passes.table import start_of_block
from fastindex.tables.passes import FIRST, GEOMETRY, SECOND
from fastindex.tables.streams import STREAM

# Scratch memory: pending bytes, a line of each of a few rows, and the addresses of these.
_STAGE = PENDING_ROOM
_PLACES = _STAGE + 64 * 16

#: Bytes of scratch memory that this kernel needs.
SCRATCH_BYTES = _PLACES + 8 * 16

# How much of all rows becomes pending at a time, and the most of one row.
_PENDING_BYTES = 16384
_MOST_PIECE_BYTES = 256
# How far ahead all rows together are prefetched, and at least how far each is. 512 bytes of each: 23 GB/s for 3
# channels of bytes, 2 KiB: 32 to 37 (one thread, AMD EPYC, 2026-11-22).
_ALL_AHEAD_BYTES, _LEAST_AHEAD_BYTES = 8192, 384


@njit(nogil=True, inline="always")
def _append_run(stream, pending, source, rows, numbers, lanes, upcoming, streamed):  # type: ignore[no-untyped-def]
    """Append a run of each row; return the new stream.

    `numbers` is (rows, elements of each, bytes of one), `lanes` (unit, mask). `upcoming` is where the next runs are,
    which are prefetched when these end; 0 where that has been done.
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
            # A few rows at a time, some lines of each.
            places = rows + 8 * begin
            for at in range(0, size, per_line):
                read, target = source + (first + at) * width, behind + at * column_bytes + begin * width
                if size - at < per_line:
                    for i in range(min(columns, count)):
                        copy_short(pending + _STAGE + 64 * i, read + entry(places, i), (size - at) * width)
                    interleave_lanes(unit, target, stride, pending + _STAGE, pending + _PLACES, mask)
                else:
                    if upcoming:
                        later = (first + at) * width + ahead
                        asked = source + later if later < run_bytes else upcoming + later - run_bytes
                        for i in range(min(columns, count)):
                            prefetch(asked + entry(places, i))
                    interleave_lanes(unit, target, stride, read, places, mask)
            if begin + columns >= count:
                break
            begin = min(begin + columns, count - columns)
        stream = added(stream, size * column_bytes, pending, streamed)
    return stream


@kernel()
def interleave_lane_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout that makes one stream of a few rows, an element of each in turn.

    Parameters
    ----------
    target, source, table, scratch
        As for `copy_chunks`; `RUN` is in elements of one row, `WAYS` the number of rows. The second table holds the
        byte offsets in the source of the rows, the last repeated up to 16 bytes of a column.
    width, ways
        Not used.
    """
    geometry, chunks, rows = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
    run, count = entry(geometry, STREAM.run), entry(geometry, STREAM.ways)
    element, streamed = entry(geometry, STREAM.element_bytes), entry(geometry, STREAM.streamed) != 0
    lanes = entry(geometry, STREAM.unit_bytes), geometry + 8 * STREAM.mask_low
    for i in range(16):
        set_entry(scratch + _PLACES, i, 64 * i)
    ahead = entry(geometry, STREAM.chunks_ahead)
    stream = NOTHING_PENDING
    for task in range(first, last):
        at_source, at_target, chunk_count = start_of_block(source, target, table, task)
        for x in range(chunk_count):
            read, place = at_source + entry(chunks, 2 * x), at_target + entry(chunks, 2 * x + 1)
            upcoming = at_source + entry(chunks, 2 * min(x + max(ahead, 1), chunk_count - 1))
            if ahead > 0:
                prefetch_rows(upcoming, rows, count, run * element)
            if ahead:
                upcoming = 0
            stream, numbers = go_to(stream, place, scratch, streamed), (count, run, element)
            stream = _append_run(stream, scratch, read, rows, numbers, lanes, upcoming, streamed)
    finish(stream, scratch, streamed)
    if streamed:
        fence()
