"""A destination that is written as one stream: bytes that are not yet a whole line are pending, in scratch memory.

They are pending for the line at an address: `fill` bytes, the first `skip` of which are not this stream's to write.
"""

from __future__ import annotations

from fastindex.kernels.compilation import subroutine
from fastindex.kernels.cpu.memory import copy_vector, prefetch_to_write, stream_line
from fastindex.kernels.cpu.relayout.lines.lines import copy_short
from fastindex.tables.streams import MOST_COLUMN_BYTES

#: Lines are written when this many bytes are pending: reading a line back at once would wait for its stores.
PENDING_BYTES = 1024

#: Room for pending bytes: more than four times 64 of the longest columns.
PENDING_ROOM = 64 * (4 * MOST_COLUMN_BYTES + 128)

# How far ahead lines are prefetched that are written through the cache and may not be in it yet. GB/s read and
# written without and with, from memory: 7.2 and 8.9 for f64[12288,1,12] out of T(4,128)(2,1), 7.5 and 9.6 for
# bf16[24576,1,12] out of T(8,128)(8,1); from the cache, the same (two threads and one, AMD EPYC, 2026-11-22).
_AHEAD_BYTES = 2048


@subroutine()
def drain(line, pending, fill, skip, streamed):  # type: ignore[no-untyped-def]
    """Write the complete lines of what is pending; return the new line, fill and skip."""
    whole = fill & ~63
    if not whole:
        return line, fill, skip
    at = 0
    if skip:
        copy_short(line + skip, pending + skip, 64 - skip)
        at = 64
    if streamed:
        for start in range(at, whole, 64):
            stream_line(line + start, pending + start)
    else:
        for start in range(at, whole, 64):
            prefetch_to_write(line + start + _AHEAD_BYTES)
            copy_vector(line + start, pending + start, 64)
    if fill > whole:
        copy_vector(pending, pending + whole, 64)
    return line + whole, fill - whole, 0


@subroutine()
def restart(line, pending, fill, skip, streamed, target):  # type: ignore[no-untyped-def]
    """Write all that is pending, and go on at another address; return the new line, fill and skip."""
    line, fill, skip = drain(line, pending, fill, skip, streamed)
    copy_short(line + skip, pending + skip, fill - skip)
    return target & ~63, target & 63, target & 63
