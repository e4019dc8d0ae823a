"""Relayouts box by box (cache blocking): read to scratch memory and written from there, all within the cache.

The steps are separate passes; a box is small enough for data between them to stay in L2. A box that is one run of the
destination is written line by line, and has the same offset from a line boundary in scratch memory as there. The
partial line at its end is carried to the front of the next box, if that continues it; so all lines but two of a
thread's tasks are written once, whole::

    box in scratch memory    |..xxxxxx|xxxxxxxx|xxxx    |
                               written  written  carried to the front of the next box
    next box                 |xxxxyyyy|yyyyyyyy|yy      |
"""

from __future__ import annotations

from fastindex.moving.kernels.passes import call_in_box, outer_place, set_end_of_source
from fastindex.moving.numbers import BOX, BOX_CALL, BOX_CALL_BYTES, LEAST_CARRIED_BYTES, TABLE
from fastindex.runtime.kernels import subroutine, unrolled_kernel
from fastindex.runtime.lines.lines import copy_short
from fastindex.runtime.lines.memory import copy_vector, entry, fence, prefetch, stream_line


@subroutine()
def _write_box(line, box, begin, end, follows, goes_on, upcoming, lines):  # type: ignore[no-untyped-def]
    """Write the bytes from `begin` to `end` of a box, counted from a line boundary, to the destination.

    `follows` says that the front of the first line is in the box too, `goes_on` that the last, partial line is carried
    to the next box. While lines are written, those that the next box reads are prefetched: `lines` is (table of their
    offsets from `upcoming`, number of lines, lines for each line that is written). Prefetching all of them before the
    first line is written takes half as long again.
    """
    at, lines_end, asked = 0, end & ~63, 0
    offsets, count, pace = lines
    if begin and not follows:
        copy_short(line + begin, box + begin, min(end, 64) - begin)
        at = 64
    for place in range(at, lines_end, 64):
        for i in range(asked, min(asked + pace, count)):
            prefetch(upcoming + entry(offsets, i))
        asked += pace
        stream_line(line + place, box + place)
    if goes_on:
        copy_vector(box, box + lines_end, 64)
    elif at <= lines_end:
        copy_short(line + lines_end, box + lines_end, end - lines_end)


@subroutine()
def _run_rows(target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout each of whose boxes is one run of the destination."""
    geometry, calls = entry(table, TABLE.geometry), entry(table, TABLE.first)
    count, size = entry(geometry, BOX.calls), entry(geometry, BOX.row_bytes)
    read_lines = entry(table, TABLE.second_length)
    lines = (entry(table, TABLE.second), read_lines, (read_lines - 1) // (size // 64 + 1) + 1)
    box = scratch + entry(calls, BOX_CALL.target_start)
    for i in range(1, count):
        box = min(box, scratch + entry(calls + BOX_CALL_BYTES * i, BOX_CALL.target_start))
    at_source, at_target = outer_place(table, first, source, target)
    follows = False
    for task in range(first, last):
        next_source, next_target = at_source, 0
        if task + 1 < last:
            next_source, next_target = outer_place(table, task + 1, source, target)
        begin = at_target & 63
        for i in range(count):
            call_in_box(calls + BOX_CALL_BYTES * i, scratch + begin, at_source, scratch)
        goes_on = next_target == at_target + size and size >= LEAST_CARRIED_BYTES
        _write_box(at_target - begin, box, begin, begin + size, follows, goes_on, next_source, lines)
        follows, at_source, at_target = goes_on, next_source, next_target
    fence()


@unrolled_kernel
def run_boxes(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout box by box.

    Parameters
    ----------
    target, source : int64
        Addresses.
    table : int64
        Address of a `PassTable`; the kernel's own numbers are a `BoxGeometry`. The first table has a `BoxCall` in each
        row. If boxes are written as one run, the second has the offsets of the lines of the source that a box reads.
    scratch : int64
        Address of memory for this thread alone: scratch memory of the called kernels, followed by two boxes.
    width, ways
        Not used.
    """
    geometry, calls = entry(table, TABLE.geometry), entry(table, TABLE.first)
    if entry(geometry, BOX.row_bytes):
        _run_rows(target, source, table, scratch, first, last)
        return
    count = entry(geometry, BOX.calls)
    set_end_of_source(scratch, source + entry(geometry, BOX.readable_bytes))
    for task in range(first, last):
        at_source, at_target = outer_place(table, task, source, target)
        for i in range(count):
            call = calls + BOX_CALL_BYTES * i
            read = scratch if entry(call, BOX_CALL.from_scratch) else at_source
            written = scratch if entry(call, BOX_CALL.to_scratch) else at_target
            call_in_box(call, written, read, scratch)
