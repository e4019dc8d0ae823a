"""Write combining for a destination stream: bytes are pending in scratch memory until they fill whole lines.

The state of a stream is (line, fill, skip): `fill` bytes are pending for the destination from address `line` on; the
first `skip` of them do not belong to the stream and are not written. The stream continues at ``line + fill``.
"""

from __future__ import annotations

from fastindex.moving.numbers import MOST_COLUMN_BYTES
from fastindex.runtime.kernels import subroutine
from fastindex.runtime.lines.lines import copy_short
from fastindex.runtime.lines.memory import copy_vector, prefetch_to_write, stream_line

#: Lines are written when this many bytes are pending: reading a line back at once would wait for its stores.
PENDING_BYTES = 1024

#: Capacity for pending bytes: more than four times 64 of the longest columns.
PENDING_CAPACITY = 64 * (4 * MOST_COLUMN_BYTES + 128)

# Prefetch distance for lines that are written through the cache. GB/s read and written without and with prefetches,
# from memory: 7.2 and 8.9 for f64[12288,1,12] out of T(4,128)(2,1), 7.5 and 9.6 for
# bf16[24576,1,12] out of T(8,128)(8,1); from the cache, the same (two threads and one, AMD EPYC, 2026-11-22).
_AHEAD_BYTES = 2048


#: State of a stream that has not started.
NOTHING_PENDING = 0, 0, 0


@subroutine()
def _drain(line, fill, skip, pending, streamed):  # type: ignore[no-untyped-def]
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


@subroutine("streamed", inline=True)
def drain(stream, pending, streamed):  # type: ignore[no-untyped-def]
    """Write the complete pending lines; return the new state of the stream."""
    line, fill, skip = stream
    return _drain(line, fill, skip, pending, streamed)


@subroutine("size", "streamed", inline=True)
def added(stream, size, pending, streamed):  # type: ignore[no-untyped-def]
    """Account for `size` bytes that were appended to the pending ones; return the new state of the stream."""
    line, fill, skip = stream
    fill += size
    return _drain(line, fill, skip, pending, streamed) if fill >= PENDING_BYTES else (line, fill, skip)


@subroutine()
def _restart(line, fill, skip, pending, streamed, target):  # type: ignore[no-untyped-def]
    line, fill, skip = _drain(line, fill, skip, pending, streamed)
    copy_short(line + skip, pending + skip, fill - skip)
    return target & ~63, target & 63, target & 63


@subroutine("streamed", inline=True)
def go_to(stream, target, pending, streamed):  # type: ignore[no-untyped-def]
    """Continue at an address; if it is not adjacent, write all pending bytes first; return the new state."""
    line, fill, skip = stream
    if target == line + fill:
        return line, fill, skip
    return _restart(line, fill, skip, pending, streamed, target)


@subroutine("streamed", inline=True)
def finish(stream, pending, streamed):  # type: ignore[no-untyped-def]
    """Write all pending bytes."""
    line, fill, skip = stream
    _restart(line, fill, skip, pending, streamed, 0)
