"""Transposes of packed elements of four bits, wherever rows and columns begin within a byte.

Two rows of the source whose elements share a byte of a column become a row of bytes, and bytes are transposed: nothing
is expanded. A row that begins with the high half of a byte is shifted while it is read. A column that begins with one
takes the pairs that begin a row earlier; every second column of a row begins alike, so what the even columns take and
what the odd ones take are paired apart.

A band is as many rows as two lines of a column have. What it has of each column is staged in lanes of 16 bytes. While
it is, two lines of each column are written of the band before, and the rows of the band after are asked for. Where
columns begin off a line boundary, what a band has left of a column is carried to the next. A line that one column ends
with and the next begins with is put together if a task has both; only other ends of columns are parts of lines, and
bytes that others share are written half by half.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.halves import put_half
from fastindex.kernels.cpu.lane_columns import stage_halves, write_lanes
from fastindex.kernels.cpu.lanes import write_carried_lanes, write_staged_lanes
from fastindex.kernels.cpu.lines import copy_run, copy_short
from fastindex.kernels.cpu.memory import (
    byte_at,
    copy_vector,
    entry,
    fence,
    prefetch_to_l2,
    set_byte,
    set_entry,
    stream_line,
)
from fastindex.kernels.cpu.pass_table import outer_place
from fastindex.tables.half_transposes import (
    BAND_ROWS,
    CHUNK_COLUMNS,
    HALF_CHUNKS,
    HALF_COLUMN_STRIDE,
    HALF_COLUMNS,
    HALF_END,
    HALF_LAST_ROWS,
    HALF_READABLE,
    HALF_ROW_BLOCK,
    HALF_ROW_BLOCKS,
    HALF_ROW_SOURCE_STRIDE,
    HALF_SOURCE_START,
    HALF_TARGET_START,
    MOST_CHUNKS,
)
from fastindex.tables.passes import FIRST, GEOMETRY

# Bytes that a band has of a column; rows and bytes of these that are staged at a time, in so many groups.
_BAND_BYTES, _GROUP_ROWS, _GROUP_BYTES, _GROUPS = BAND_ROWS // 2, 32, 16, 8
# What all groups have of four columns follows each other; a line more, so that columns meet in all sets of the cache.
_PITCH_BYTES = _GROUPS * 64 + 64
# Vectors of a group of a chunk: of the even columns, then of the odd ones. Of each, 16, with a lane of four columns.
_VECTORS = 2 * 16
_CHUNK_BYTES = _VECTORS * _PITCH_BYTES
# What is read of each row: a line, and what a shift takes of what is behind it.
_READ_BYTES = 64 + 8

# Scratch memory: what is staged of two bands, what is carried of each column, where columns go, the places of the rows
# of a band and of the next, those of rows that end with the source and copies of them, the numbers from 0 to 127 and
# room for lines that are shifted, four columns of a band at either end, what columns begin with, and halves of bytes.
_CARRY = 2 * MOST_CHUNKS * _CHUNK_BYTES
_TARGETS = _CARRY + 64 * CHUNK_COLUMNS * MOST_CHUNKS
_PLACES_BYTES = 8 * (BAND_ROWS + 8)
_PLACES = _TARGETS + 8 * CHUNK_COLUMNS * MOST_CHUNKS
_SAFE = _PLACES + 2 * _PLACES_BYTES
_COPIES = _SAFE + _PLACES_BYTES
_COPY_BYTES = 128
_NUMBERS = _COPIES + _COPY_BYTES * (BAND_ROWS + 1)
_EDGES = _NUMBERS + 2 * 64 + 4 * 3 * 64
_EDGE_BYTES = 64 + _BAND_BYTES
_HEADS = _EDGES + 4 * _EDGE_BYTES
_HALVES = _HEADS + 64 * CHUNK_COLUMNS * MOST_CHUNKS
#: Bytes of scratch memory that this kernel needs.
SCRATCH_BYTES = _HALVES + 8 * (2 * CHUNK_COLUMNS * MOST_CHUNKS + 8)


@njit(nogil=True)
def _write_places(places, rows, base, span):  # type: ignore[no-untyped-def]
    """Write where the rows of a band begin, and the row before.

    Return the highest place, and whether some rows begin within lines. `span` is (first row, first and last row that
    there are). Others are what the nearest of these is.
    """
    first, least, most = span
    highest, all_bits = 0, 0
    for i in range(BAND_ROWS + 1):
        place = base + entry(rows, 1 + min(max(first - 1 + i, least), most))
        set_entry(places, i, place)
        highest = max(highest, place)
        all_bits |= place
    return highest, int(all_bits & 127 != 0)


@njit(nogil=True)
def _write_safe(scratch, places, first, offset, end):  # type: ignore[no-untyped-def]
    """Write the places of a chunk of a group's rows where all that is read of them is in the source, or of copies."""
    for i in range(first, first + _GROUP_ROWS + 1):
        place = entry(places, i) + offset
        begin = place >> 1
        if begin + _READ_BYTES > end:
            copy = scratch + _COPIES + _COPY_BYTES * i
            copy_run(copy, begin, end - begin, False)
            place = 2 * copy + (place & 1)
        set_entry(scratch + _SAFE, i, place)


@njit(nogil=True, inline="always")
def _offset_of(chunk, columns):  # type: ignore[no-untyped-def]
    """Return the first column of a chunk: the last chunk overlaps the one before, rather than be less than whole."""
    return min(CHUNK_COLUMNS * chunk, columns - CHUNK_COLUMNS)


@njit(nogil=True)
def _stage(stage, rows, first, columns, chunk, end):  # type: ignore[no-untyped-def]
    """Stage a group of rows of a chunk.

    `rows` is (the places of a band, the highest of these, scratch memory), `first` the group's first row, `columns`
    (chunks, columns, where the first begins, from one to the next).
    """
    places, highest, scratch = rows
    _, count, start, stride = columns
    column = _offset_of(chunk, count)
    offset = column
    if ((highest + offset) >> 1) + _READ_BYTES > end:
        _write_safe(scratch, places, first, offset, end)
        places, offset = scratch + _SAFE, 0
    # A column that begins with the high half of a byte takes the pairs that begin a row earlier.
    even, odd = (start + column * stride) & 1, (start + (column + 1) * stride) & 1
    targets = stage, stage + _CHUNK_BYTES // 2
    begin = places + 8 * (first + 1)
    if even == odd:
        stage_halves(0, targets, _PITCH_BYTES, begin - 8 * even, offset)
    elif odd:
        stage_halves(1, targets, _PITCH_BYTES, begin - 8, offset)
    else:
        stage_halves(2, targets, _PITCH_BYTES, begin - 8, offset)


@njit(nogil=True)
def _write_targets(scratch, columns):  # type: ignore[no-untyped-def]
    """Write the address of each column's first byte, in the order in which columns are staged."""
    chunks, count, start, stride = columns
    for chunk in range(chunks):
        table, first = scratch + _TARGETS + 8 * CHUNK_COLUMNS * chunk, _offset_of(chunk, count)
        for i in range(CHUNK_COLUMNS):
            column = first + 2 * (i & 63) + (i >> 6)
            set_entry(table, i, (start + column * stride) >> 1)


@njit(nogil=True)
def _ask(places, within, chunks, columns, steps):  # type: ignore[no-untyped-def]
    """Prefetch lines of a band's rows: of a number of steps, each of which asks for a line.

    Those in which each of a row's chunks ends, and where rows begin `within` lines, first that in which it begins.
    """
    row, line = divmod(steps[0], chunks + within)
    line -= within
    for _ in range(steps[0], steps[1]):
        column = _offset_of(line, columns) + CHUNK_COLUMNS - 1 if line >= 0 else 0
        prefetch_to_l2((entry(places, row + 1) + column) >> 1)
        line += 1
        if line == chunks:
            row, line = row + 1, -within


@njit(nogil=True)
def _write_vectors(scratch, stage, target, aligned, vectors):  # type: ignore[no-untyped-def]
    """Write two lines each of the four columns of some vectors, `target` behind where a column begins."""
    for vector in range(vectors[0], vectors[1]):
        # The columns of a vector's lanes are 16 apart.
        column = vector // 16 * 64 + vector % 16
        table, place = scratch + _TARGETS + 8 * column, stage + vector * _PITCH_BYTES
        if aligned:
            write_staged_lanes(1, target, table, place)
        else:
            carry, numbers = scratch + _CARRY + 64 * column, scratch + _NUMBERS
            write_carried_lanes(1, target, table, place, carry, 0, numbers)


@njit(nogil=True)
def _put_later(scratch, address, high, value):  # type: ignore[no-untyped-def]
    """Note a half of a byte: what is written one by one would wait for the lines that are on their way."""
    halves = scratch + _HALVES
    count = entry(halves, 0) + 1
    set_entry(halves, count, address * 32 + high * 16 + value)
    set_entry(halves, 0, count)


@njit(nogil=True)
def _put_halves(scratch):  # type: ignore[no-untyped-def]
    halves = scratch + _HALVES
    for i in range(1, entry(halves, 0) + 1):
        noted = entry(halves, i)
        put_half(noted >> 5, noted >> 4 & 1, noted & 15)
    set_entry(halves, 0, 0)


@njit(nogil=True, inline="always")
def _begin_column(scratch, start, bytes_at, head):  # type: ignore[no-untyped-def]
    """Write what is in front of the first whole line of a column, or keep it as `head`; return where that line is."""
    begin = start >> 1
    if head:
        copy_vector(head, bytes_at + (begin & ~63), 64)
        return (start + 2 * 64 - 1) // (2 * 64) * 64
    if start & 1:
        _put_later(scratch, begin, 1, byte_at(bytes_at + begin) >> 4)
    return begin + (start & 1)


@njit(nogil=True, inline="always")
def _end_column(scratch, stop, first, bytes_at, head, end):  # type: ignore[no-untyped-def]
    """Write the lines from `first` on of a column that ends at `stop`, in halves; `head` is of the next column."""
    whole, last = stop >> 1, stop >> 1 & ~63
    if head and stop & 127:
        copy_run(first, bytes_at + first, last - first, True)
        value = byte_at(head + (whole & 63))
        copy_short(head, bytes_at + last, whole & 63)
        if stop & 1:
            set_byte(head + (whole & 63), value & 0xF0 | byte_at(bytes_at + whole) & 15)
        stream_line(last, head)
        return
    copy_run(first, bytes_at + first, whole - first, True)
    if stop & 1:
        if stop - 1 == end:
            set_byte(whole, byte_at(bytes_at + whole) & 15)
        else:
            _put_later(scratch, whole, 0, byte_at(bytes_at + whole) & 15)


@njit(nogil=True, inline="always")
def _write_part(scratch, place, edge, columns, band, block, end):  # type: ignore[no-untyped-def]
    """Write what the first or the last band has of a column, `edge` being the line that is carried, and the band.

    `place` is that of the column as it is staged; `band` is (number, how many, whether lines are whole); `block` is
    (rows, is the first, is the last).
    """
    _, count, first_start, stride = columns
    (number, bands, aligned), (rows, is_first, is_last) = band, block
    column = _offset_of(place // CHUNK_COLUMNS, count) + 2 * (place & 63) + (place >> 6 & 1)
    start = first_start + column * stride
    begin = start >> 1
    bytes_at = edge + 64 - _BAND_BYTES * number - begin
    lead = (-begin) & 63
    # What a column begins with goes where the one before ends, if that is one of these.
    joined, heads = is_first and is_last and not aligned and stride == rows, scratch + _HEADS
    first = begin + lead + (_BAND_BYTES * number - 64 if number and not aligned else _BAND_BYTES * number)
    if number == 0 and is_first:
        first = _begin_column(scratch, start, bytes_at, heads + 64 * column if joined and column else 0)
    if number < bands - 1:
        copy_run(first, bytes_at + first, begin + lead + 64 - first, True)
    elif is_last:
        following = heads + 64 * (column + 1) if joined and column + 1 < count else 0
        _end_column(scratch, start + rows, first, bytes_at, following, end)
    else:
        copy_run(first, bytes_at + first, ((begin + (rows >> 1) + 63) & ~63) - first, True)


@njit(nogil=True)
def _write_ends(scratch, staged, columns, band, block, end):  # type: ignore[no-untyped-def]
    """Write what the first or the last band has of all columns, and carry what the band after the first needs."""
    edges = scratch + _EDGES
    lanes = (edges + 64, edges + 64 + _EDGE_BYTES, edges + 64 + 2 * _EDGE_BYTES, edges + 64 + 3 * _EDGE_BYTES)
    for vector in range(_VECTORS * columns[0]):
        first, stage = vector // 16 * 64 + vector % 16, staged + vector * _PITCH_BYTES
        write_lanes(0, lanes, 0, stage)
        write_lanes(0, lanes, 64, stage + 4 * 64)
        for lane in range(4):
            place, edge = first + 16 * lane, edges + lane * _EDGE_BYTES
            carry = scratch + _CARRY + 64 * place
            if band[0]:
                copy_vector(edge, carry, 64)
            _write_part(scratch, place, edge, columns, band, block, end)
            if band[0] == 0:
                copy_vector(carry, edge + _BAND_BYTES, 64)
    _put_halves(scratch)


@njit(nogil=True)
def _transpose_block(scratch, rows, base, columns, block, ends):  # type: ignore[no-untyped-def]
    """Transpose a block of rows of some columns; `base` is where row 0 begins, `ends` those of source and target."""
    chunks, count, start, stride = columns
    row_count, is_first, is_last = block
    # Lines that a column begins in a block end with rows of the next.
    aligned = (start | stride) % (2 * 64) == 0
    pairs = (row_count + 2) >> 1
    if aligned:
        pairs = (row_count + 1) >> 1
    elif not is_last:
        pairs = (row_count >> 1) + 64
    bands = (pairs + _BAND_BYTES - 1) // _BAND_BYTES
    whole = bands if aligned and row_count % BAND_ROWS == 0 else bands - 1
    least, most = 0 if is_first else -1, row_count - 1 if is_last else row_count + 2 * 64
    _write_targets(scratch, columns)
    # Each step stages what a group has of a chunk, writes as much of the band before, and asks for the band after.
    asked, steps = scratch + _PLACES, _GROUPS * chunks
    highest, within = _write_places(asked, rows, base, (0, least, most))
    lines = BAND_ROWS * (chunks + within)
    _ask(asked, within, chunks, count, (0, lines))
    for number in range(bands + 1):
        staged, highest_staged = asked, highest
        if number + 1 < bands:
            asked = scratch + _PLACES + _PLACES_BYTES * ((number + 1) % 2)
            highest, within = _write_places(asked, rows, base, ((number + 1) * BAND_ROWS, least, most))
            lines = BAND_ROWS * (chunks + within)
        before, stage = number - 1, scratch + number % 2 * MOST_CHUNKS * _CHUNK_BYTES
        waiting = scratch + before % 2 * MOST_CHUNKS * _CHUNK_BYTES
        is_whole = before >= (0 if aligned else 1) and before < whole
        left = min(pairs - number * _BAND_BYTES, _BAND_BYTES)
        for step in range(steps):
            group, chunk = divmod(step, chunks)
            if group * _GROUP_BYTES < left:
                place, first = stage + chunk * _CHUNK_BYTES + 64 * group, _GROUP_ROWS * group
                _stage(place, (staged, highest_staged, scratch), first, columns, chunk, ends[0])
            if is_whole:
                _write_vectors(scratch, waiting, before * _BAND_BYTES, aligned, (4 * step, 4 * step + 4))
            if number + 1 < bands:
                _ask(asked, within, chunks, count, (lines * step // steps, lines * (step + 1) // steps))
        if before >= 0 and not is_whole:
            _write_ends(scratch, waiting, columns, (before, bands, aligned), block, ends[1])


@kernel()
def transpose_halves(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a transpose of packed elements of four bits.

    Parameters
    ----------
    target, source, table
        As for `copy_chunks`, but that the loops around the tasks count halves of bytes; the kernel's own numbers are a
        `HalfTransposeGeometry`. The first table has the places of the rows of a block in the source, in halves: first
        of the row before, then of all of the block, and of those behind it that end its last lines.
    scratch : int64
        Address of `SCRATCH_BYTES` bytes on a line boundary, for this thread alone.
    width, ways
        Not used.
    """
    geometry, rows = entry(table, GEOMETRY), entry(table, FIRST)
    columns, column_stride = entry(geometry, HALF_COLUMNS), entry(geometry, HALF_COLUMN_STRIDE)
    most, row_blocks = entry(geometry, HALF_CHUNKS), entry(geometry, HALF_ROW_BLOCKS)
    chunk_count = (columns + CHUNK_COLUMNS - 1) // CHUNK_COLUMNS
    chunk_blocks = (chunk_count + most - 1) // most
    ends = source + entry(geometry, HALF_READABLE), 2 * target + entry(geometry, HALF_END)
    begins = 2 * source + entry(geometry, HALF_SOURCE_START), 2 * target + entry(geometry, HALF_TARGET_START)
    for place in range(2 * 64 // 8):
        set_entry(scratch + _NUMBERS, place, 0x0706050403020100 + 0x0808080808080808 * place)
    set_entry(scratch + _HALVES, 0, 0)
    for task in range(first, last):
        rest, row_index = divmod(task, row_blocks)
        rest, chunk_index = divmod(rest, chunk_blocks)
        begin, start = outer_place(table, rest, begins[0], begins[1])
        begin += row_index * entry(geometry, HALF_ROW_SOURCE_STRIDE)
        start += row_index * entry(geometry, HALF_ROW_BLOCK)
        is_last = row_index == row_blocks - 1
        block = entry(geometry, HALF_LAST_ROWS if is_last else HALF_ROW_BLOCK), row_index == 0, is_last
        column = most * chunk_index * CHUNK_COLUMNS
        count = min(most * CHUNK_COLUMNS, columns - column)
        if count < CHUNK_COLUMNS:
            column, count = columns - CHUNK_COLUMNS, CHUNK_COLUMNS
        chunks = (count + CHUNK_COLUMNS - 1) // CHUNK_COLUMNS
        taken = chunks, count, start + column * column_stride, column_stride
        _transpose_block(scratch, rows, begin + column, taken, block, ends)
    fence()
