"""Expand runs of packed elements to bytes, or compress bytes to packed elements, and write them as one stream."""

from __future__ import annotations

from fastindex.moving.kernels.table import start_of_block
from fastindex.moving.lines.pending import NOTHING_PENDING, PENDING_ROOM, added, finish, go_to
from fastindex.moving.numbers import FIRST, GEOMETRY, STREAM
from fastindex.runtime.kernels import kernel, subroutine
from fastindex.runtime.lines.lines import compress_line, copy_short, expand_line
from fastindex.runtime.lines.memory import entry, fence, prefetch, set_byte

#: Bytes of scratch memory that these kernels need.
SCRATCH_BYTES = PENDING_ROOM + 128

_AHEAD_BYTES = 1024
_CHUNKS_AHEAD = 8


@subroutine("line_bytes", inline=True)
def _packed_bytes(elements, line_bytes):  # type: ignore[no-untyped-def]
    """Return the bytes of packed elements, 64 of which have `line_bytes`: a product is faster than a quotient."""
    return (elements * line_bytes + 63) >> 6


@subroutine("per_byte", "line_bytes", "size", "streamed", inline=True)
def _append_expanded(per_byte, line_bytes, stream, pending, source, size, streamed):  # type: ignore[no-untyped-def]
    """Append `size` packed elements, expanded to a byte each; return the new stream."""
    for _ in range(size >> 6):
        prefetch(source + _AHEAD_BYTES)
        line, fill, skip = stream
        if fill == 0 and streamed:
            expand_line(per_byte, 1, line, source)
            stream = line + 64, fill, skip
        else:
            expand_line(per_byte, 0, pending + fill, source)
            stream = added(stream, 64, pending, streamed)
        source += line_bytes
    if size & 63:
        # Only bytes that hold elements may be read; bytes written after the last element are overwritten later.
        stage = pending + PENDING_ROOM
        copy_short(stage, source, _packed_bytes(size & 63, line_bytes))
        expand_line(per_byte, 0, pending + stream[1], stage)
        stream = added(stream, size & 63, pending, streamed)
    return stream


@subroutine("per_byte", "line_bytes", "size", inline=True)
def _expand_run(per_byte, line_bytes, target, source, size, stage):  # type: ignore[no-untyped-def]
    """Expand `size` packed elements to a byte each, with ordinary stores."""
    for _ in range(size >> 6):
        expand_line(per_byte, 0, target, source)
        target, source = target + 64, source + line_bytes
    if size & 63:
        copy_short(stage, source, _packed_bytes(size & 63, line_bytes))
        expand_line(per_byte, 0, stage + 64, stage)
        copy_short(target, stage + 64, size & 63)


@subroutine("per_byte", "line_bytes", "size", "streamed", inline=True)
def _append_compressed(per_byte, line_bytes, stream, pending, source, size, streamed):  # type: ignore[no-untyped-def]
    """Append `size` elements of a byte each, compressed; return the new stream."""
    lines = size & ~63
    for at in range(0, lines, 64):
        compress_line(per_byte, pending + stream[1], source + at)
        stream = added(stream, line_bytes, pending, streamed)
    if lines < size:
        stage, left = pending + PENDING_ROOM, size - lines
        copy_short(stage, source + lines, left)
        for i in range(left, left + per_byte - 1):
            set_byte(stage + i, 0)
        compress_line(per_byte, pending + stream[1], stage)
        stream = added(stream, _packed_bytes(left, line_bytes), pending, streamed)
    return stream


@kernel
def expand_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout from packed elements to bytes, by runs.

    The parameters are those of `copy_chunks`, except that `ways` elements share a byte, and that source offsets count
    elements; each is that of the first element of a byte.
    """
    geometry, chunks = entry(table, GEOMETRY), entry(table, FIRST)
    run, streamed = entry(geometry, STREAM.run), entry(geometry, STREAM.streamed) != 0
    per_byte, stream = entry(geometry, STREAM.ways), NOTHING_PENDING
    line_bytes = 64 // per_byte
    for task in range(first, last):
        at_source, at_target, count = start_of_block(0, target, table, task)
        if not streamed:
            for x in range(count):
                ahead = at_source + entry(chunks, 2 * min(x + _CHUNKS_AHEAD, count - 1))
                prefetch(source + _packed_bytes(ahead, line_bytes))
                start = source + _packed_bytes(at_source + entry(chunks, 2 * x), line_bytes)
                written = at_target + entry(chunks, 2 * x + 1)
                _expand_run(per_byte, line_bytes, written, start, run, scratch + PENDING_ROOM)
            continue
        for x in range(count):
            stream = go_to(stream, at_target + entry(chunks, 2 * x + 1), scratch, streamed)
            start = source + _packed_bytes(at_source + entry(chunks, 2 * x), line_bytes)
            stream = _append_expanded(per_byte, line_bytes, stream, scratch, start, run, streamed)
    finish(stream, scratch, streamed)
    fence()


@kernel
def compress_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout from bytes to packed elements, by runs.

    The parameters are those of `copy_chunks`, except that `ways` elements share a byte, and that destination offsets
    count elements; each is that of the first element of a byte.
    """
    geometry, chunks = entry(table, GEOMETRY), entry(table, FIRST)
    run, streamed = entry(geometry, STREAM.run), entry(geometry, STREAM.streamed) != 0
    per_byte, stream = entry(geometry, STREAM.ways), NOTHING_PENDING
    line_bytes = 64 // per_byte
    for task in range(first, last):
        at_source, at_target, count = start_of_block(source, 0, table, task)
        for x in range(count):
            place = target + _packed_bytes(at_target + entry(chunks, 2 * x + 1), line_bytes)
            start = at_source + entry(chunks, 2 * x)
            stream = go_to(stream, place, scratch, streamed)
            stream = _append_compressed(per_byte, line_bytes, stream, scratch, start, run, streamed)
    finish(stream, scratch, streamed)
    fence()
