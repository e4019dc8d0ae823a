"""Copies of runs: written as one stream, or run by run if the source is read in order.

A run is contiguous on both sides; a table of chunks has their offsets. Runs of packed elements are expanded to bytes,
or compressed from bytes, as they are copied.
"""

from __future__ import annotations

from fastindex.moving.kernels.passes import start_of_block
from fastindex.moving.kernels.staging import (
    NOTHING_PENDING,
    PENDING_BYTES,
    PENDING_CAPACITY,
    added,
    drain,
    finish,
    go_to,
)
from fastindex.moving.moves.streams import ROW_AHEAD_BYTES, RUN_AHEAD_BYTES, STREAM
from fastindex.moving.numbers import CHUNKS, TABLE
from fastindex.runtime.kernels import kernel, subroutine, unrolled_kernel
from fastindex.runtime.lines.lines import compress_line, copy_run, copy_short, expand_line, prefetch_rows
from fastindex.runtime.lines.memory import copy_vector, entry, fence, prefetch, prefetch_to_write, set_byte, stream_line

#: Bytes of scratch memory that these kernels need: pending bytes, and two lines of packed elements and of bytes.
SCRATCH_BYTES = PENDING_CAPACITY + 128

# Prefetch distance for packed elements.
_PACKED_AHEAD_BYTES = 1024
_PACKED_CHUNKS_AHEAD = 8


@subroutine("size", "streamed", inline=True)
def _append_run(stream, pending, source, size, streamed):  # type: ignore[no-untyped-def]
    """Append bytes that are contiguous in the source; return the new stream."""
    if size < PENDING_BYTES and (stream[1] or size & 63):
        write_at, lines = pending + stream[1], size & ~63
        for at in range(0, lines, 64):
            copy_vector(write_at + at, source + at, 64)
        copy_short(write_at + lines, source + lines, size - lines)
        return added(stream, size, pending, streamed)
    line, fill, skip = drain(stream, pending, streamed)
    if fill:
        taken = 64 - fill
        copy_short(pending + fill, source, taken)
        line, fill, skip = drain((line, 64, skip), pending, streamed)
        source += taken
        size -= taken
    lines = size & ~63
    if streamed:
        for at in range(0, lines, 64):
            stream_line(line + at, source + at)
    else:
        for at in range(0, lines, 64):
            copy_vector(line + at, source + at, 64)
    copy_short(pending, source + lines, size - lines)
    return line + lines, size - lines, 0


@subroutine("vector_bytes", inline=True)
def _gather_runs(vector_bytes, target, source, rows, row_count, run):  # type: ignore[no-untyped-def]
    """Concatenate runs by whole vectors: each run overwrites the excess bytes of the one before."""
    for i in range(row_count):
        start = source + entry(rows, i)
        for at in range(0, run, vector_bytes):
            copy_vector(target + at, start + at, vector_bytes)
        target += run


@subroutine("exactly")
def _gather(target, source, rows, row_count, run, exactly):  # type: ignore[no-untyped-def]
    """Concatenate runs; if `exactly`, without reading beyond them."""
    if exactly:
        for i in range(row_count):
            copy_run(target + i * run, source + entry(rows, i), run, False)
    elif run <= 16:
        _gather_runs(16, target, source, rows, row_count, run)
    elif run <= 32:
        _gather_runs(32, target, source, rows, row_count, run)
    else:
        _gather_runs(64, target, source, rows, row_count, run)


@subroutine()
def _neighbours(geometry, task, x):  # type: ignore[no-untyped-def]
    """Return whether a chunk continues the one before in the destination, and whether the next one continues it."""
    every, count = entry(geometry, STREAM.follower_every), entry(geometry, STREAM.follower_count)
    block = entry(geometry, CHUNKS.per_task)
    blocks = (entry(geometry, CHUNKS.total) + block - 1) // block
    position = (task % blocks * block + x) // every % count
    return position > 0, position < count - 1


@subroutine()
def _copy_following(target, source, before, size, goes_on, scratch):  # type: ignore[no-untyped-def]
    """Copy a run of at least a line with non-temporal stores, including the line that it shares with the run before.

    `before` is the source address of the run before, 0 if there is none; `goes_on` says that a run follows.
    """
    shared = target & 63
    head = (-shared) & 63
    if shared and before:
        copy_vector(scratch, before + size - 64, 64)
        copy_vector(scratch + 64, source, 64)
        stream_line(target - shared, scratch + 64 - shared)
    else:
        copy_short(target, source, head)
    lines_end = head + ((size - head) & ~63)
    for at in range(head, lines_end, 64):
        stream_line(target + at, source + at)
    if not goes_on:
        copy_short(target + lines_end, source + lines_end, size - lines_end)


@unrolled_kernel
def copy_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout that copies runs of bytes.

    Parameters
    ----------
    target, source : int64
        Addresses.
    table : int64
        Address of a `PassTable`; the kernel's own numbers are a `StreamGeometry`. The first table of offsets holds, for
        each chunk of a block, byte offsets in the source and in the destination; the second holds the source offsets of
        the runs of a chunk, which are adjacent in the destination.
    scratch : int64
        Address of `SCRATCH_BYTES` bytes on a line boundary, for this thread alone.
    width, ways
        Not used.
    """
    geometry, chunks, rows = entry(table, TABLE.geometry), entry(table, TABLE.first), entry(table, TABLE.second)
    run, row_count = entry(geometry, STREAM.run), entry(table, TABLE.second_length)
    streamed, by_source = entry(geometry, STREAM.streamed) != 0, entry(geometry, STREAM.by_source) != 0
    size, reach = run * row_count, 0
    for i in range(row_count):
        reach = max(reach, entry(rows, i))
    ahead = (RUN_AHEAD_BYTES if row_count == 1 else ROW_AHEAD_BYTES) // run + 1
    reads_ahead = entry(geometry, STREAM.chunks_ahead)
    readable = source + entry(geometry, STREAM.readable_bytes) - reach - run - 63
    follow_each_other = streamed and entry(geometry, STREAM.follower_count) > 1
    stream = NOTHING_PENDING
    for task in range(first, last):
        at_source, at_target, count = start_of_block(source, target, table, task)
        for x in range(count):
            start, place = at_source + entry(chunks, 2 * x), at_target + entry(chunks, 2 * x + 1)
            if reads_ahead and x + reads_ahead < count:
                prefetch_rows(at_source + entry(chunks, 2 * (x + reads_ahead)), rows, row_count, run)
            if x + ahead < count:
                begin, end = entry(chunks, 2 * (x + ahead) + 1), entry(chunks, 2 * (x + ahead) - 1) + size
                if begin != end and not follow_each_other:
                    prefetch_to_write(at_target + begin)
                    prefetch_to_write(at_target + end)
            if follow_each_other:
                follows, goes_on = _neighbours(geometry, task, x)
                before = start - entry(geometry, STREAM.follower_source_stride) if follows else 0
                _copy_following(place, start, before, run, goes_on, scratch + x % 8 * 128)
                continue
            if by_source:
                copy_run(place, start, run, streamed)
                continue
            stream = go_to(stream, place, scratch, streamed)
            if row_count > 1 or run < 64:
                _gather(scratch + stream[1], start, rows, row_count, run, start > readable)
                stream = added(stream, size, scratch, streamed)
            else:
                stream = _append_run(stream, scratch, start, run, streamed)
    finish(stream, scratch, streamed)
    if streamed:
        fence()


@subroutine("line_bytes", inline=True)
def _packed_bytes(elements, line_bytes):  # type: ignore[no-untyped-def]
    """Return the bytes of packed elements, 64 of which have `line_bytes`: a product is faster than a quotient."""
    return (elements * line_bytes + 63) >> 6


@subroutine("per_byte", "line_bytes", "size", "streamed", inline=True)
def _append_expanded(per_byte, line_bytes, stream, pending, source, size, streamed):  # type: ignore[no-untyped-def]
    """Append `size` packed elements, expanded to a byte each; return the new stream."""
    for _ in range(size >> 6):
        prefetch(source + _PACKED_AHEAD_BYTES)
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
        stage = pending + PENDING_CAPACITY
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
        stage, left = pending + PENDING_CAPACITY, size - lines
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
    geometry, chunks = entry(table, TABLE.geometry), entry(table, TABLE.first)
    run, streamed = entry(geometry, STREAM.run), entry(geometry, STREAM.streamed) != 0
    per_byte, stream = entry(geometry, STREAM.ways), NOTHING_PENDING
    line_bytes = 64 // per_byte
    for task in range(first, last):
        at_source, at_target, count = start_of_block(0, target, table, task)
        if not streamed:
            for x in range(count):
                ahead = at_source + entry(chunks, 2 * min(x + _PACKED_CHUNKS_AHEAD, count - 1))
                prefetch(source + _packed_bytes(ahead, line_bytes))
                start = source + _packed_bytes(at_source + entry(chunks, 2 * x), line_bytes)
                written = at_target + entry(chunks, 2 * x + 1)
                _expand_run(per_byte, line_bytes, written, start, run, scratch + PENDING_CAPACITY)
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
    geometry, chunks = entry(table, TABLE.geometry), entry(table, TABLE.first)
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
