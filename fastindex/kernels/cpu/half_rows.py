"""Rows of packed elements of four bits, put together of pieces of the source and written as one stream.

Pieces and rows begin with either half of a byte. A piece is shifted to where it goes in its byte while it is read;
where it begins within a byte, it leaves the half that is there alone. What is not yet a whole line waits in scratch
memory; lines are written whole, and only the first and the last byte of a thread's share are written half by half.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.halves import put_half
from fastindex.kernels.cpu.lane_columns import copy_halves_line, join_halves_line
from fastindex.kernels.cpu.lines import copy_run, copy_short
from fastindex.kernels.cpu.memory import byte_at, copy_vector, entry, fence, prefetch, set_byte, stream_line
from fastindex.kernels.cpu.pass_table import outer_place
from fastindex.tables.half_rows import (
    HALF_PIECE_BYTES,
    MOST_PIECE_HALVES,
    PIECE_LENGTH,
    PIECE_SOURCE,
    PIECE_STRIDE,
    ROW_END,
    ROW_HALVES,
    ROW_PIECES,
    ROW_READABLE,
    ROW_SOURCE_START,
    ROW_STREAMED,
    ROW_TARGET_START,
)
from fastindex.tables.passes import FIRST, GEOMETRY

# Lines are written when so many elements wait: reading a line back at once would wait for its stores.
_PENDING_HALVES = 2048
_LINE_HALVES = 2 * 64
# What waits, a piece more, and a piece that is read where the source begins or ends.
_STAGE = (_PENDING_HALVES + MOST_PIECE_HALVES) // 2 + 4 * 64
#: Bytes of scratch memory that this kernel needs.
SCRATCH_BYTES = _STAGE + 64 + MOST_PIECE_HALVES + 4 * 64

# How many pieces ahead the lines of the source are asked for, and of how much of a piece.
_PIECES_AHEAD, _MOST_ASKED_HALVES = 128, 1024


@njit(nogil=True)
def _drain(line, pending, fill, skip, streamed):  # type: ignore[no-untyped-def]
    """Write the whole lines of what waits for a line on; `skip` bytes of the first are somebody else's.

    Return the new line, how many halves wait, and the new skip.
    """
    lines = fill // _LINE_HALVES
    if not lines:
        return line, fill, skip
    if skip:
        copy_short(line + skip, pending + skip, 64 - skip)
    begin = 64 if skip else 0
    if streamed:
        for place in range(begin, 64 * lines, 64):
            stream_line(line + place, pending + place)
    else:
        for place in range(begin, 64 * lines, 64):
            copy_vector(line + place, pending + place, 64)
    copy_vector(pending, pending + 64 * lines, 64)
    return line + 64 * lines, fill - _LINE_HALVES * lines, 0


@njit(nogil=True)
def _finish(line, pending, fill, skip, streamed, end):  # type: ignore[no-untyped-def]
    """Write all that waits."""
    line, fill, skip = _drain(line, pending, fill, skip, streamed)
    whole = fill >> 1
    if whole > skip:
        copy_short(line + skip, pending + skip, whole - skip)
    if fill & 1 and whole >= skip:
        value = byte_at(pending + whole) & 15
        if 2 * (line + whole) == end:
            set_byte(line + whole, value)
        else:
            put_half(line + whole, 0, value)


@njit(nogil=True, inline="always")
def _ask(place, piece):  # type: ignore[no-untyped-def]
    """Prefetch the lines of a piece; of long ones, the processor asks for the others itself."""
    at = place + entry(piece, PIECE_SOURCE)
    last = at + (entry(piece, PIECE_LENGTH) - 1) * entry(piece, PIECE_STRIDE)
    end = min(last, at + _MOST_ASKED_HALVES)
    prefetch(last >> 1)
    prefetch(at >> 1)
    at += _LINE_HALVES
    while at < end:
        prefetch(at >> 1)
        at += _LINE_HALVES


@njit(nogil=True, inline="always")
def _append(pending, fill, place, length, stride, ends):  # type: ignore[no-untyped-def]
    """Append elements from a place in the source on to what waits, `fill` halves; `ends` are those of the source."""
    odd = fill & 1
    total, begin = length + odd, place - odd * stride
    whole = (total + _LINE_HALVES - 1) & -_LINE_HALVES
    if begin < 2 * ends[0] or ((begin + whole * stride) >> 1) + 8 > ends[1]:
        stage, first = pending + _STAGE + 64, place >> 1
        copy_run(stage, first, ((place + (length - 1) * stride) >> 1) + 1 - first, False)
        begin = 2 * stage + (place & 1) - odd * stride
    target = pending + (fill >> 1)
    before = byte_at(target)
    if stride == 1:
        for at in range(0, total, _LINE_HALVES):
            copy_halves_line(target + (at >> 1), begin + at)
    else:
        for at in range(0, total, _LINE_HALVES):
            join_halves_line(target + (at >> 1), begin + 2 * at)
    if odd:
        set_byte(target, (before & 15) | (byte_at(target) & 0xF0))


@kernel()
def stream_halves(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout whose boxes of rows are contiguous in the destination.

    Parameters
    ----------
    target, source, table
        As for `copy_chunks`, but that the loops around the tasks count halves of bytes; the kernel's own numbers are a
        `HalfRowsGeometry`. The first table has the rows of a `HalfPiece`, in the order of the destination.
    scratch : int64
        Address of `SCRATCH_BYTES` bytes on a line boundary, for this thread alone.
    width, ways
        Not used.
    """
    geometry, pieces = entry(table, GEOMETRY), entry(table, FIRST)
    count, size = entry(geometry, ROW_PIECES), entry(geometry, ROW_HALVES)
    ends = source, source + entry(geometry, ROW_READABLE)
    begin, start = 2 * source + entry(geometry, ROW_SOURCE_START), 2 * target + entry(geometry, ROW_TARGET_START)
    streamed, end = entry(geometry, ROW_STREAMED) != 0, 2 * target + entry(geometry, ROW_END)
    line, fill, skip, position = 0, 0, 0, -1
    ahead = min(_PIECES_AHEAD, count)
    read, place = outer_place(table, first, begin, start)
    for task in range(first, last):
        following, next_place = outer_place(table, min(task + 1, last - 1), begin, start)
        head = -1
        if place != position:
            _finish(line, scratch, fill, skip, streamed, end)
            line = place >> 1 & ~63
            fill = place - 2 * line
            skip = (fill + 1) >> 1
            head = fill if fill & 1 else -1
        for i in range(count):
            if i + ahead < count:
                _ask(read, pieces + HALF_PIECE_BYTES * (i + ahead))
            else:
                _ask(following, pieces + HALF_PIECE_BYTES * (i + ahead - count))
            piece = pieces + HALF_PIECE_BYTES * i
            length = entry(piece, PIECE_LENGTH)
            _append(scratch, fill, read + entry(piece, PIECE_SOURCE), length, entry(piece, PIECE_STRIDE), ends)
            if head >= 0:
                put_half(line + (head >> 1), 1, byte_at(scratch + (head >> 1)) >> 4)
                head = -1
            fill += length
            if fill >= _PENDING_HALVES:
                line, fill, skip = _drain(line, scratch, fill, skip, streamed)
        position = place + size
        read, place = following, next_place
    _finish(line, scratch, fill, skip, streamed, end)
    fence()
