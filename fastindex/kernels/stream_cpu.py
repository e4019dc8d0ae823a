"""Relayouts in which the destination, or the source, is one sequential stream.

Runs that both sides keep contiguous, `ways` rows that are interleaved into one stream, one stream that is dealt out to
`ways` rows: the destination is written run after run, each as whole lines. `chunks` says where the runs begin.
"""

from __future__ import annotations

from numba import carray, njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.lines import copy_short
from fastindex.kernels.memory import pointer
from fastindex.kernels.simd import (
    byte_pointer,
    copy_element,
    copy_vector,
    deinterleave_line,
    fence,
    interleave_rows,
    literal,
    prefetch,
    stream_line,
)

#: Places in the `geometry` array of a stream.
CHUNK_BLOCK, CHUNK_COUNT, CHUNK_SOURCE_STEP, CHUNK_TARGET_STEP, RUN, WAYS, STREAMED = range(7)

_AHEAD_BYTES = 1024
_PIECE_BYTES = 2048
_ROW_BYTES = 64 + _PIECE_BYTES + 64

#: Bytes of scratch memory: per row of up to 64, a line that is not complete yet and the piece that follows it.
SCRATCH_BYTES = 64 * _ROW_BYTES + 4 * 64 * 8


@njit(nogil=True)
def _drain(line, pending, fill, skip, streamed):  # type: ignore[no-untyped-def]
    """Write the complete lines of what is pending for the line at an address; keep the rest. Gives the bytes written.

    The first `skip` bytes of the first line belong to somebody else.
    """
    whole = fill & ~63
    at = 0
    if skip and whole:
        copy_short(line + skip, pending + skip, 64 - skip)
        at = 64
    if streamed:
        for start in range(at, whole, 64):
            stream_line(line + start, pending + start)
    else:
        for start in range(at, whole, 64):
            copy_vector(line + start, pending + start, 64)
    if whole and fill > whole:
        copy_vector(pending, pending + whole, 64)
    return whole


@njit(nogil=True)
def _flush(line, pending, fill, skip):  # type: ignore[no-untyped-def]
    copy_short(line + skip, pending + skip, fill - skip)


@njit(nogil=True)
def _append_run(line, pending, fill, skip, source, size, streamed):  # type: ignore[no-untyped-def]
    """Append contiguous bytes, complete lines straight from the source. Gives the bytes of the lines written."""
    if fill + size < 64:
        copy_short(pending + fill, source, size)
        return 0
    taken = 0
    if fill:
        taken = 64 - fill
        copy_short(pending + fill, source, taken)
        _drain(line, pending, 64, skip, streamed)
    lines_start = 64 if fill else 0
    whole = (size - taken) & ~63
    if streamed:
        for at in range(0, whole, 64):
            stream_line(line + lines_start + at, source + taken + at)
    else:
        for at in range(0, whole, 64):
            copy_vector(line + lines_start + at, source + taken + at, 64)
    copy_short(pending, source + taken + whole, size - taken - whole)
    return lines_start + whole


@njit(nogil=True)
def _append_interleaved(width, ways, line, pending, fill, skip, source, rows, run, streamed):  # type: ignore[no-untyped-def]
    """Append `run` elements of each of some rows, in turn. Gives the bytes of the lines written."""
    w = literal(width)
    per_line = 64 // w
    count = literal(ways) if literal(ways) else rows.shape[0]
    table = rows.ctypes.data
    written = 0
    column = 0
    if literal(ways):
        while column + per_line <= run:
            for i in range(count):
                prefetch(source + rows[i] + column * w + 256)
            if fill == 0 and skip == 0 and streamed:
                interleave_rows(width, ways, 1, line + written, source + column * w, table)
                written += 64 * count
            else:
                interleave_rows(width, ways, 0, pending + fill, source + column * w, table)
                fill += 64 * count
                if fill >= _PIECE_BYTES // 2:
                    drained = _drain(line + written, pending, fill, skip, streamed)
                    written += drained
                    fill -= drained
                    skip = 0
            column += per_line
    while column < run:
        for i in range(count):
            copy_element(width, pending + fill, source + rows[i] + column * w)
            fill += w
        if fill >= _PIECE_BYTES // 2:
            drained = _drain(line + written, pending, fill, skip, streamed)
            written += drained
            fill -= drained
            skip = 0
        column += 1
    return written + _drain(line + written, pending, fill, skip, streamed)


@njit(nogil=True)
def _start_of_block(source, target, outer, geometry, task):  # type: ignore[no-untyped-def]
    """Give where the blocks of a task start, and how many chunks it has."""
    block = geometry[CHUNK_BLOCK]
    blocks = (geometry[CHUNK_COUNT] + block - 1) // block
    rest, index = divmod(task, blocks)
    source += index * geometry[CHUNK_SOURCE_STEP]
    target += index * geometry[CHUNK_TARGET_STEP]
    for loop in range(outer.shape[0]):
        rest, place = divmod(rest, outer[loop, 0])
        source += place * outer[loop, 1]
        target += place * outer[loop, 2]
    return source, target, min(block, geometry[CHUNK_COUNT] - index * block)


@kernel()
def copy_chunks(target, source, outer, chunks, geometry, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout that keeps runs of bytes.

    Parameters
    ----------
    target, source : int64
        Addresses.
    outer : int64 array of (loops, 3)
        The loops around the blocks of chunks, innermost first: size, source and destination stride in bytes.
    chunks : int64 array of (chunks of a block, 2)
        Byte offsets in the source and in the destination.
    geometry : int64 array
        See the names of its places above; `RUN` is in bytes.
    scratch : int64
        Address of `SCRATCH_BYTES` bytes on a line boundary, for this thread alone.
    """
    run, streamed = geometry[RUN], geometry[STREAMED] != 0
    ahead = _AHEAD_BYTES // run + 1 if run < 4096 else 0
    for task in range(first, last):
        at_source, at_target, count = _start_of_block(source, target, outer, geometry, task)
        position = at_target + chunks[0, 1]
        line, fill = position & ~63, position & 63
        skip = fill
        for x in range(count):
            if at_target + chunks[x, 1] != position:
                _flush(line, scratch, fill, skip)
                position = at_target + chunks[x, 1]
                line, fill = position & ~63, position & 63
                skip = fill
            if ahead and x + ahead < count:
                upcoming = at_source + chunks[x + ahead, 0]
                for at in range(0, run, 64):
                    prefetch(upcoming + at)
            written = _append_run(line, scratch, fill, skip, at_source + chunks[x, 0], run, streamed)
            fill += run - written
            position += run
            line += written
            skip = 0 if written else skip
        _flush(line, scratch, fill, skip)
    fence()


@kernel()
def interleave_chunks(width, ways, target, source, outer, chunks, rows, geometry, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout that interleaves a few rows.

    Parameters
    ----------
    width : literal int
        Bytes of an element.
    ways : literal int
        How many rows, a power of two; 0 for any other number.
    rows : int64 array
        Byte offsets in the source of the rows.
    target, source, outer, chunks, geometry, scratch
        As for `copy_chunks`; `RUN` is in elements of one row.
    """
    run, streamed = geometry[RUN], geometry[STREAMED] != 0
    chunk_bytes = run * rows.shape[0] * literal(width)
    for task in range(first, last):
        at_source, at_target, count = _start_of_block(source, target, outer, geometry, task)
        position = at_target + chunks[0, 1]
        line, fill = position & ~63, position & 63
        skip = fill
        for x in range(count):
            if at_target + chunks[x, 1] != position:
                _flush(line, scratch, fill, skip)
                position = at_target + chunks[x, 1]
                line, fill = position & ~63, position & 63
                skip = fill
            start = at_source + chunks[x, 0]
            written = _append_interleaved(width, ways, line, scratch, fill, skip, start, rows, run, streamed)
            fill += chunk_bytes - written
            position += chunk_bytes
            line += written
            skip = 0 if written else skip
        _flush(line, scratch, fill, skip)
    fence()


@njit(nogil=True)
def _deal(width, ways, lines, fills, skips, places, pending, source, run, streamed):  # type: ignore[no-untyped-def]
    """Deal `run` elements out to each of some rows."""
    w = literal(width)
    per_line = 64 // w
    count = literal(ways) if literal(ways) else places.shape[0]
    done = 0
    while done < run:
        piece = min(run - done, _PIECE_BYTES // w)
        start = source + done * count * w
        moved = 0
        if literal(ways):
            while moved + per_line <= piece:
                here = start + moved * count * w
                for i in range(count):
                    prefetch(here + _AHEAD_BYTES + 64 * i)
                    places[i] = pending + i * _ROW_BYTES + fills[i] + moved * w
                deinterleave_line(width, ways, 0, 0, places.ctypes.data, here)
                moved += per_line
        for column in range(moved, piece):
            for i in range(count):
                place = pending + i * _ROW_BYTES + fills[i] + column * w
                copy_element(width, place, start + (column * count + i) * w)
        for i in range(count):
            fill = fills[i] + piece * w
            written = _drain(lines[i], pending + i * _ROW_BYTES, fill, skips[i], streamed)
            lines[i] += written
            fills[i] = fill - written
            if written:
                skips[i] = 0
        done += piece


@njit(nogil=True)
def _restart(lines, fills, skips, rows, target, pending, flush):  # type: ignore[no-untyped-def]
    """End every row's run, and begin the next one at an address."""
    for i in range(rows.shape[0]):
        if flush:
            _flush(lines[i], pending + i * _ROW_BYTES, fills[i], skips[i])
        position = target + rows[i]
        lines[i] = position & ~63
        fills[i] = position & 63
        skips[i] = position & 63


@kernel()
def deal_chunks(width, ways, target, source, outer, chunks, rows, geometry, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout that deals a stream out to a few rows.

    Parameters
    ----------
    width : literal int
        Bytes of an element.
    ways : literal int
        How many rows, a power of two; 0 for any other number up to 64.
    rows : int64 array
        Byte offsets in the destination of the rows.
    target, source, outer, chunks, geometry, scratch
        As for `copy_chunks`; `RUN` is in elements of one row.
    """
    run, streamed = geometry[RUN], geometry[STREAMED] != 0
    state = scratch + 64 * _ROW_BYTES
    lines, fills = carray(pointer(state), 64), carray(pointer(state + 512), 64)
    skips, places = carray(pointer(state + 1024), 64), carray(pointer(state + 1536), 64)
    for task in range(first, last):
        at_source, at_target, count = _start_of_block(source, target, outer, geometry, task)
        position = at_target + chunks[0, 1]
        _restart(lines, fills, skips, rows, position, scratch, False)
        for x in range(count):
            if at_target + chunks[x, 1] != position:
                position = at_target + chunks[x, 1]
                _restart(lines, fills, skips, rows, position, scratch, True)
            start = at_source + chunks[x, 0]
            _deal(width, ways, lines, fills, skips, places[: rows.shape[0]], scratch, start, run, streamed)
            position += run * literal(width)
        _restart(lines, fills, skips, rows, position, scratch, True)
    fence()


@kernel()
def copy_elements(width, target, source, outer, geometry, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout whose elements are apart on one side: copy them one by one.

    Parameters
    ----------
    width : literal int
        Bytes of an element.
    target, source, outer
        As for `copy_chunks`.
    geometry : int64 array
        How many elements a task copies; their distance in the source and in the destination in bytes.
    """
    count, source_stride, target_stride = geometry[0], geometry[1], geometry[2]
    for task in range(first, last):
        rest, at_source, at_target = task, source, target
        for loop in range(outer.shape[0]):
            rest, place = divmod(rest, outer[loop, 0])
            at_source += place * outer[loop, 1]
            at_target += place * outer[loop, 2]
        for i in range(count):
            copy_element(width, at_target + i * target_stride, at_source + i * source_stride)


@kernel()
def gather_slots(width, target, source, slots, pattern):  # type: ignore[no-untyped-def]
    """Copy the element at each of some slots; where a slot is negative, the one at `pattern`."""
    w = literal(width)
    for i in range(slots.shape[0]):
        slot = slots[i]
        copy_element(width, target + i * w, source + slot * w if slot >= 0 else pattern)


@kernel()
def fill_runs(target, pattern, outer, geometry, first, last):  # type: ignore[no-untyped-def]
    """Write runs `first` to `last` of one repeated element.

    Parameters
    ----------
    target : int64
        Address.
    pattern : int64
        Address of 128 bytes: the element, repeated.
    outer : int64 array of (loops, 3)
        The loops around the runs, innermost first: size, nothing, stride in bytes.
    geometry : int64 array
        Bytes of a run; whether lines go past the cache.
    """
    run_bytes, streamed = geometry[0], geometry[1] != 0
    for task in range(first, last):
        start, rest = target, task
        for loop in range(outer.shape[0]):
            rest, place = divmod(rest, outer[loop, 0])
            start += place * outer[loop, 2]
        head = min((-start) & 63, run_bytes)
        copy_short(start, pattern, head)
        whole = head + ((run_bytes - head) & ~63)
        for at in range(start + head, start + whole, 64):
            if streamed:
                stream_line(at, pattern + head)
            else:
                copy_vector(at, pattern + head, 64)
        copy_short(start + whole, pattern + head, run_bytes - whole)
    fence()


@kernel()
def expand_bits(bits, target, source, first, last):  # type: ignore[no-untyped-def]
    """Give elements of `bits` bits, packed from the low bits of each byte on, a byte each: `first` to `last`.

    `first` is a multiple of 8. Nothing is read behind the byte that holds the last element.
    """
    per_byte = 8 // bits
    mask = (1 << bits) - 1
    out = carray(byte_pointer(target), last)
    packed = carray(byte_pointer(source), (last + per_byte - 1) // per_byte)
    whole = first + (last - first) // per_byte * per_byte
    for byte in range(first // per_byte, whole // per_byte):
        value = packed[byte]
        for k in range(per_byte):
            out[byte * per_byte + k] = (value >> (k * bits)) & mask
    for i in range(whole, last):
        out[i] = (packed[i // per_byte] >> (i % per_byte * bits)) & mask


@kernel()
def compress_bits(bits, target, source, first, last):  # type: ignore[no-untyped-def]
    """Pack elements of a byte each into `bits` bits, from the low bits of each byte on; unused bits become 0.

    `first` is a multiple of 8.
    """
    per_byte = 8 // bits
    mask = (1 << bits) - 1
    packed = carray(byte_pointer(target), (last + per_byte - 1) // per_byte)
    values = carray(byte_pointer(source), last)
    for byte in range(first // per_byte, (last + per_byte - 1) // per_byte):
        value = 0
        for k in range(min(per_byte, last - byte * per_byte)):
            value |= (values[byte * per_byte + k] & mask) << (k * bits)
        packed[byte] = value
