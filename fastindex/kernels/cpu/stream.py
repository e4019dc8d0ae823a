"""Relayouts in which the destination is written as one sequential stream, or run by run.

Runs that both sides keep contiguous, rows that are interleaved or transposed into one stream: the destination is
written run after run. What is not yet a whole line is pending, in scratch memory, for the line at an address: `fill`
bytes, the first `skip` of which belong to somebody else. `chunks` says where the runs begin.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.lines import copy_run, copy_short, transpose_square
from fastindex.kernels.cpu.memory import (
    byte_at,
    copy_vector,
    entry,
    fence,
    literal,
    prefetch,
    prefetch_to_write,
    set_byte,
    set_entry,
    stream_line,
)
from fastindex.kernels.cpu.pass_table import outer_place, padding_of
from fastindex.kernels.cpu.vectors import compress_line, expand_line, interleave_rows, transpose_rows
from fastindex.tables.passes import FIRST, GEOMETRY, SECOND, SECOND_LENGTH
from fastindex.tables.streams import (
    BY_SOURCE,
    CHUNK_BLOCK,
    CHUNK_COUNT,
    CHUNK_SOURCE_STRIDE,
    CHUNK_TARGET_STRIDE,
    FOLLOWER_COUNT,
    FOLLOWER_EVERY,
    FOLLOWER_SOURCE_STRIDE,
    MOST_COLUMN_BYTES,
    PADDING,
    READABLE_BYTES,
    RUN,
    STREAMED,
    WAYS,
)

# Lines are written when this many bytes are pending: reading a line back at once would wait for its stores.
_PENDING_BYTES = 1024
_AHEAD_BYTES = 1024
_ROW_AHEAD_BYTES = 256

# Scratch memory: what is pending, with room for 64 of the longest columns more than four times, a staged square, and a
# table of 64 numbers.
_STAGE = 64 * (4 * MOST_COLUMN_BYTES + 128)
_TABLES = _STAGE + 64 * 64

#: Bytes of scratch memory that these kernels need.
SCRATCH_BYTES = _TABLES + 64 * 8


@njit(nogil=True)
def _drain(line, pending, fill, skip, streamed):  # type: ignore[no-untyped-def]
    """Write the complete lines of what is pending; give the new line, fill and skip."""
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
            copy_vector(line + start, pending + start, 64)
    if fill > whole:
        copy_vector(pending, pending + whole, 64)
    return line + whole, fill - whole, 0


@njit(nogil=True)
def _restart(line, pending, fill, skip, streamed, target):  # type: ignore[no-untyped-def]
    """Write all that is pending, and go on at another address; give the new line, fill and skip."""
    line, fill, skip = _drain(line, pending, fill, skip, streamed)
    copy_short(line + skip, pending + skip, fill - skip)
    return target & ~63, target & 63, target & 63


@njit(nogil=True)
def prefetch_ends(target, size):  # type: ignore[no-untyped-def]
    """Ask for the lines that a run will share with its neighbours."""
    if target & 63:
        prefetch_to_write(target)
    if (target + size) & 63:
        prefetch_to_write(target + size)


@njit(nogil=True, inline="always")
def _append_run(line, pending, fill, skip, source, size, streamed):  # type: ignore[no-untyped-def]
    """Append bytes that are contiguous in the source; give the new line, fill and skip."""
    if size < _PENDING_BYTES and (fill or size & 63):
        lines = size & ~63
        for at in range(0, lines, 64):
            copy_vector(pending + fill + at, source + at, 64)
        copy_short(pending + fill + lines, source + lines, size - lines)
        fill += size
        return _drain(line, pending, fill, skip, streamed) if fill >= _PENDING_BYTES else (line, fill, skip)
    line, fill, skip = _drain(line, pending, fill, skip, streamed)
    if fill:
        taken = 64 - fill
        copy_short(pending + fill, source, taken)
        line, fill, skip = _drain(line, pending, 64, skip, streamed)
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


@njit(nogil=True, inline="always")
def _gather_runs(vector_bytes, target, source, rows, row_count, run):  # type: ignore[no-untyped-def]
    """Put runs after each other, copying whole vectors: the next run overwrites what is too much."""
    for i in range(row_count):
        start = source + entry(rows, i)
        for at in range(0, run, vector_bytes):
            copy_vector(target + at, start + at, vector_bytes)
        target += run


@njit(nogil=True)
def _gather(target, source, rows, row_count, run, exactly):  # type: ignore[no-untyped-def]
    """Put runs after each other; if `exactly`, without reading beyond them."""
    if exactly:
        for i in range(row_count):
            copy_run(target + i * run, source + entry(rows, i), run, False)
    elif run <= 16:
        _gather_runs(16, target, source, rows, row_count, run)
    elif run <= 32:
        _gather_runs(32, target, source, rows, row_count, run)
    else:
        _gather_runs(64, target, source, rows, row_count, run)


@njit(nogil=True, inline="always")
def _append_expanded(bits, line, pending, fill, skip, source, size, streamed):  # type: ignore[no-untyped-def]
    """Append `size` packed elements, a byte each; give the new line, fill and skip."""
    per_byte = 8 // literal(bits)
    mask = (1 << literal(bits)) - 1
    lines = size & ~63
    for at in range(0, lines, 64):
        prefetch(source + at // per_byte + _AHEAD_BYTES)
        if fill == 0 and streamed:
            expand_line(bits, 1, line, source + at // per_byte)
            line += 64
        else:
            expand_line(bits, 0, pending + fill, source + at // per_byte)
            fill += 64
            if fill >= _PENDING_BYTES:
                line, fill, skip = _drain(line, pending, fill, skip, streamed)
    for i in range(lines, size):
        set_byte(pending + fill, (byte_at(source + i // per_byte) >> (i % per_byte * literal(bits))) & mask)
        fill += 1
    return _drain(line, pending, fill, skip, streamed) if fill >= _PENDING_BYTES else (line, fill, skip)


@njit(nogil=True, inline="always")
def _append_compressed(bits, line, pending, fill, skip, source, size, streamed):  # type: ignore[no-untyped-def]
    """Append `size` elements of a byte each, packed; give the new line, fill and skip."""
    per_byte = 8 // literal(bits)
    mask = (1 << literal(bits)) - 1
    lines = size & ~63
    for at in range(0, lines, 64):
        compress_line(bits, pending + fill, source + at)
        fill += 64 // per_byte
        if fill >= _PENDING_BYTES:
            line, fill, skip = _drain(line, pending, fill, skip, streamed)
    for first in range(lines, size, per_byte):
        byte = 0
        for k in range(min(per_byte, size - first)):
            byte |= (byte_at(source + first + k) & mask) << (k * literal(bits))
        set_byte(pending + fill, byte)
        fill += 1
    return _drain(line, pending, fill, skip, streamed) if fill >= _PENDING_BYTES else (line, fill, skip)


@njit(nogil=True, inline="always")
def _interleave_run(width, ways, target, source, rows, run, streamed, scratch):  # type: ignore[no-untyped-def]
    """Write `run` elements of each of some rows, in turn; whole lines straight from registers.

    Lines are met by beginning at another column. What is left at both ends is taken from groups that overlap.
    """
    w, count = literal(width), literal(ways)
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
        for i in range(count):
            prefetch(read + entry(rows, i) + 256)
        if streamed:
            interleave_rows(width, ways, 1, place, read, rows)
        else:
            interleave_rows(width, ways, 0, place, read, rows)
        column += per_line
    if column < run:
        last = run - per_line
        interleave_rows(width, ways, 0, scratch, source + last * w, rows)
        rest = (run - column) * column_bytes
        copy_run(target + column * column_bytes, scratch + (column - last) * column_bytes, rest, streamed)


@njit(nogil=True, inline="always")
def _append_columns(width, line, pending, fill, skip, source, rows, row_count, run, streamed):  # type: ignore[no-untyped-def]
    """Append `run` elements of each of some rows, in turn, one by one; give the new line, fill and skip."""
    w = literal(width)
    for column in range(run):
        for i in range(row_count):
            copy_vector(pending + fill, source + entry(rows, i) + column * w, width)
            fill += w
        if fill >= _PENDING_BYTES:
            line, fill, skip = _drain(line, pending, fill, skip, streamed)
    return line, fill, skip


@njit(nogil=True, inline="always")
def _append_transposed(width, line, pending, fill, skip, source, rows, counts, run, streamed):  # type: ignore[no-untyped-def]
    """Append the columns of some rows, each column contiguous; give the new line, fill and skip.

    `counts` is how many rows there are, and how many elements of padding behind a column. `rows` holds whole squares;
    what they hold beyond is read and then overwritten by padding, or by the next column.
    """
    w = literal(width)
    per_line = 64 // w
    row_count, padding = counts
    column_bytes, pattern = (row_count + padding) * w, padding_of(pending)
    stage, pitches = pending + _STAGE, pending + _TABLES
    for column in range(0, run, per_line):
        read = source + column * w
        count = min(per_line, run - column)
        for square in range((row_count - 1) // per_line, -1, -1):
            place = pending + fill + 64 * square
            first = square * per_line
            if w > 2 and count == per_line:
                transpose_rows(width, 1, 0, 128, place, pitches, read, rows + 8 * first)
            else:
                for i in range(per_line):
                    if count == per_line:
                        prefetch(read + entry(rows, first + i) + 128)
                        copy_vector(stage + 64 * i, read + entry(rows, first + i), 64)
                    else:
                        copy_short(stage + 64 * i, read + entry(rows, first + i), count * w)
                transpose_square(width, place, column_bytes, stage)
        if padding:
            for j in range(count):
                place = pending + fill + j * column_bytes + row_count * w
                for at in range(0, padding * w, 32):
                    copy_short(place + at, pattern, min(32, padding * w - at))
        fill += count * column_bytes
        if fill >= _PENDING_BYTES:
            line, fill, skip = _drain(line, pending, fill, skip, streamed)
    return line, fill, skip


@njit(nogil=True)
def _neighbours(geometry, task, x):  # type: ignore[no-untyped-def]
    """Tell whether a chunk continues another one in the destination, and whether another one continues it."""
    every, count = entry(geometry, FOLLOWER_EVERY), entry(geometry, FOLLOWER_COUNT)
    block = entry(geometry, CHUNK_BLOCK)
    blocks = (entry(geometry, CHUNK_COUNT) + block - 1) // block
    position = (task % blocks * block + x) // every % count
    return position > 0, position < count - 1


@njit(nogil=True)
def _copy_following(target, source, before, size, goes_on, scratch):  # type: ignore[no-untyped-def]
    """Copy a run of at least a line past the cache; the line that it shares with the run before belongs to it.

    `before` is where that run is in the source, 0 for none; `goes_on` says that there is a run after it.
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


@njit(nogil=True, inline="always")
def start_of_block(source, target, table, task):  # type: ignore[no-untyped-def]
    """Give where the blocks of a task start, and how many chunks it has."""
    geometry = entry(table, GEOMETRY)
    block, chunk_count = entry(geometry, CHUNK_BLOCK), entry(geometry, CHUNK_COUNT)
    rest, index = divmod(task, (chunk_count + block - 1) // block)
    source += index * entry(geometry, CHUNK_SOURCE_STRIDE)
    target += index * entry(geometry, CHUNK_TARGET_STRIDE)
    source, target = outer_place(table, rest, source, target)
    return source, target, min(block, chunk_count - index * block)


@kernel()
def copy_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout that keeps runs of bytes.

    Parameters
    ----------
    target, source : int64
        Addresses.
    table : int64
        Address of a `PassTable`; the kernel's own numbers are a `StreamGeometry`. The first table of offsets holds, for
        each chunk of a block, byte offsets in the source and in the destination; the second the offsets in the source
        of the runs of a chunk, which follow each other in the destination.
    scratch : int64
        Address of `SCRATCH_BYTES` bytes on a line boundary, for this thread alone.
    width, ways
        Not used.
    """
    geometry, chunks, rows = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
    run, streamed, row_count = entry(geometry, RUN), entry(geometry, STREAMED) != 0, entry(table, SECOND_LENGTH)
    by_source, size, reach = entry(geometry, BY_SOURCE) != 0, run * row_count, 0
    for i in range(row_count):
        reach = max(reach, entry(rows, i))
    ahead = (_AHEAD_BYTES if row_count == 1 else _ROW_AHEAD_BYTES) // run + 1
    readable = source + entry(geometry, READABLE_BYTES) - reach - run - 63
    follow_each_other = streamed and entry(geometry, FOLLOWER_COUNT) > 1
    line, fill, skip, position = 0, 0, 0, -1
    for task in range(first, last):
        at_source, at_target, count = start_of_block(source, target, table, task)
        for x in range(count):
            start, place = at_source + entry(chunks, 2 * x), at_target + entry(chunks, 2 * x + 1)
            if x + ahead < count:
                upcoming = at_source + entry(chunks, 2 * (x + ahead))
                begin, end = entry(chunks, 2 * (x + ahead) + 1), entry(chunks, 2 * (x + ahead) - 1) + size
                if begin != end and not follow_each_other:
                    prefetch_to_write(at_target + begin)
                    prefetch_to_write(at_target + end)
                if not by_source:
                    for i in range(row_count):
                        for at in range(0, run, 64):
                            prefetch(upcoming + entry(rows, i) + at)
            if follow_each_other:
                follows, goes_on = _neighbours(geometry, task, x)
                before = start - entry(geometry, FOLLOWER_SOURCE_STRIDE) if follows else 0
                _copy_following(place, start, before, run, goes_on, scratch + x % 8 * 128)
                continue
            if by_source:
                copy_run(place, start, run, streamed)
                continue
            if place != position:
                position = place
                line, fill, skip = _restart(line, scratch, fill, skip, streamed, position)
            if row_count > 1 or run < 64:
                _gather(scratch + fill, start, rows, row_count, run, start > readable)
                fill += size
                if fill >= _PENDING_BYTES:
                    line, fill, skip = _drain(line, scratch, fill, skip, streamed)
            else:
                line, fill, skip = _append_run(line, scratch, fill, skip, start, run, streamed)
            position += size
    _restart(line, scratch, fill, skip, streamed, 0)
    fence()


@kernel()
def expand_chunks(bits, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout from packed elements of `bits` bits to bytes, by runs.

    The parameters are those of `copy_chunks`, but that `bits` is a literal and that source offsets count elements, all
    of them at the start of a byte.
    """
    per_byte = 8 // literal(bits)
    geometry, chunks = entry(table, GEOMETRY), entry(table, FIRST)
    run, streamed = entry(geometry, RUN), entry(geometry, STREAMED) != 0
    line, fill, skip, position = 0, 0, 0, -1
    for task in range(first, last):
        at_source, at_target, count = start_of_block(0, target, table, task)
        for x in range(count):
            if at_target + entry(chunks, 2 * x + 1) != position:
                position = at_target + entry(chunks, 2 * x + 1)
                line, fill, skip = _restart(line, scratch, fill, skip, streamed, position)
            start = source + (at_source + entry(chunks, 2 * x)) // per_byte
            line, fill, skip = _append_expanded(bits, line, scratch, fill, skip, start, run, streamed)
            position += run
    _restart(line, scratch, fill, skip, streamed, 0)
    fence()


@kernel()
def compress_chunks(bits, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout from bytes to packed elements of `bits` bits, by runs.

    The parameters are those of `copy_chunks`, but that `bits` is a literal and that destination offsets count elements,
    all of them at the start of a byte.
    """
    per_byte = 8 // literal(bits)
    geometry, chunks = entry(table, GEOMETRY), entry(table, FIRST)
    run, streamed = entry(geometry, RUN), entry(geometry, STREAMED) != 0
    line, fill, skip, position = 0, 0, 0, -1
    for task in range(first, last):
        at_source, at_target, count = start_of_block(source, 0, table, task)
        for x in range(count):
            start = target + (at_target + entry(chunks, 2 * x + 1)) // per_byte
            if start != position:
                position = start
                line, fill, skip = _restart(line, scratch, fill, skip, streamed, position)
            read = at_source + entry(chunks, 2 * x)
            line, fill, skip = _append_compressed(bits, line, scratch, fill, skip, read, run, streamed)
            position += (run + per_byte - 1) // per_byte
    _restart(line, scratch, fill, skip, streamed, 0)
    fence()


@kernel()
def interleave_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout that makes one stream of a few rows, an element of each in turn.

    Parameters
    ----------
    width : literal int
        Bytes of an element.
    ways : literal int
        How many rows, a power of two of at most 32 bytes; 0 for any other number: they are transposed.
    target, source, table, scratch
        As for `copy_chunks`; `RUN` is in elements of one row, `WAYS` the number of rows. The second table holds the
        byte offsets in the source of the rows; where `ways` is 0, the last repeated up to whole squares. Behind each
        column come `PADDING` elements of padding; `ways` is 0 then.
    """
    geometry, chunks, rows = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
    run, streamed, row_count = entry(geometry, RUN), entry(geometry, STREAMED) != 0, entry(geometry, WAYS)
    padding = entry(geometry, PADDING)
    column_bytes = (row_count + padding) * literal(width)
    chunk_bytes = run * column_bytes
    for j in range(64):
        set_entry(scratch + _TABLES, j, j * column_bytes)
    ahead = _AHEAD_BYTES // chunk_bytes + 1
    line, fill, skip, position = 0, 0, 0, -1
    for task in range(first, last):
        at_source, at_target, count = start_of_block(source, target, table, task)
        for x in range(count):
            read, place = at_source + entry(chunks, 2 * x), at_target + entry(chunks, 2 * x + 1)
            if literal(ways) and run * literal(width) >= 64:
                if x + ahead < count:
                    prefetch_ends(at_target + entry(chunks, 2 * (x + ahead) + 1), chunk_bytes)
                _interleave_run(width, ways, place, read, rows, run, streamed, scratch)
                continue
            if place != position:
                position = place
                line, fill, skip = _restart(line, scratch, fill, skip, streamed, position)
            if literal(ways):
                line, fill, skip = _append_columns(
                    width, line, scratch, fill, skip, read, rows, row_count, run, streamed
                )
            else:
                counts = (row_count, padding)
                line, fill, skip = _append_transposed(
                    width, line, scratch, fill, skip, read, rows, counts, run, streamed
                )
            position += chunk_bytes
    _restart(line, scratch, fill, skip, streamed, 0)
    fence()
