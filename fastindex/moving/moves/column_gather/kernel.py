"""Column gathers: a row gather with a blocked in-register transpose; each block is a column of the same source rows.

Each slot of a block has a row. Squares of as many rows as a line has slots, in the order of the slots, are transposed
directly into lines of the destination: whatever the tiles, no permutation remains. A slot of padding has a row of
padding. So every line of the source is read once, and every line of the destination is written once, with its padding.

A chunk is a line of each row. Rows are read a lane's worth at a time and transposed within lanes of 16 bytes; four
lanes, of four sets of rows, make a line of a block. With elements of 4 bytes, four rows a lane::

    source, 16 rows             collected, vector j = lanes of columns j, 4+j, ...   destination
      row 0   a0 a1 a2 a3 ...     vector 0 of set 0   [a0 b0 c0 d0] [a4 b4 c4 d4]      block 0   a0 b0 c0 d0  e0 ...
      row 1   b0 b1 b2 b3 ...     vector 1 of set 0   [a1 b1 c1 d1] [a5 b5 c5 d5]      block 1   a1 b1 c1 d1  e1 ...
      ...                         vector 0 of set 1   [e0 f0 g0 h0] ...                 (a line: 4 lanes, one per set)

A band is some lines of the blocks of a group of columns. Bands are double buffered: while one is read, the one before
is written, so that memory is read and written at the same time. If the destination stays in the cache, or two bands
would have few lines of each row, a band is written before the next is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from fastindex.moving.kernels.passes import outer_place, padding_of
from fastindex.moving.kernels.staging import NOTHING_PENDING, PENDING_BYTES, added, finish, go_to
from fastindex.moving.moves.block_permute import MOST_BLOCK_BYTES
from fastindex.moving.moves.column_gather import (
    COLUMN_BAND,
    COLUMN_BAND_BYTES,
    COLUMN_ELEMENT_BYTES,
    COLUMN_GROUP,
    COLUMN_GROUP_BYTES,
    COLUMNS,
    ENDS_AHEAD,
    MOST_BAND_LINES,
    MOST_COLLECTED_BYTES,
    MOST_ROW_LINES,
    NOWHERE,
)
from fastindex.moving.numbers import TABLE
from fastindex.runtime.kernels import instructions, subroutine, unrolled_kernel
from fastindex.runtime.lines.lines import (
    copy_short,
    lane_transpose,
    lines_of_lanes,
    load_nibbles,
    paired,
    prefetch_ends,
    shuffle,
)
from fastindex.runtime.lines.memory import (
    copy_vector,
    entry,
    fence,
    for_each,
    load_at,
    offset_by,
    prefetch_at,
    prefetch_to_l2,
    set_entry,
    store_at,
    store_lines,
    stream_line,
)
from fastindex.runtime.numbers import LANE_BYTES, LINE_BYTES

_INT64 = ir.IntType(64)
_LANES = LINE_BYTES // LANE_BYTES


def _address_at(builder: Any, table: Any, position: int) -> Any:
    return builder.load(builder.inttoptr(offset_by(builder, table, 8 * position), _INT64.as_pointer()))


def _loaded(builder: Any, place: Any, offset: Any, width: int, shifted: bool) -> Any:
    """Load a line of a row; if `shifted`, `place` counts nibbles, and an odd place starts with a high nibble."""
    size = min(width, 8)
    if not shifted:
        return load_at(builder, builder.add(place, offset), LINE_BYTES // size, size)
    odd = builder.and_(place, _INT64(1))
    return load_nibbles(builder, builder.add(builder.lshr(place, _INT64(1)), offset), odd, LINE_BYTES)


@instructions("lane", "nibbles", "asks")
def transpose_in_lanes(
    builder: Any,
    lane: Any,
    nibbles: int,
    asks: int,
    shifted: Any,
    target: Any,
    pitch_bytes: Any,
    rows: Any,
    offset: Any,
    upcoming: Any,
    further: Any,
) -> None:
    """Transpose a line of each of some rows within lanes; write a vector per lane element, with pitch `pitch_bytes`.

    Parameters
    ----------
    lane : int64
        Elements of 16 bytes, 1 to 16; for elements of four bits the literal 16, pairs of them.
    nibbles : literal int
        2 for elements of four bits, else 1. With elements of four bits, rows are paired, and the vectors of low nibbles
        come before those of high nibbles.
    asks : literal int
        Whether lines of the rows `upcoming` are prefetched to L2; not done for elements of four bits.
    shifted : int64
        Whether row addresses count nibbles; only for elements of four bits.
    target, pitch_bytes : int64
    rows, offset : int64
        Address of a table of row addresses, and the offset that is added to each.
    upcoming, further : int64
        The same for rows that are read later.
    """
    is_paired = nibbles == 2

    def write(lane: int, is_shifted: bool) -> None:
        width, count = LANE_BYTES // lane, lane * nibbles
        for i in range(count if asks and not is_paired else 0):
            prefetch_at(builder, builder.add(_address_at(builder, upcoming, i), further), nearness=2)
        lines = [_loaded(builder, _address_at(builder, rows, i), offset, width, is_shifted) for i in range(count)]
        parts: Sequence[list[Any]] = [lines]
        if is_paired:
            pairs = [paired(builder, *lines[i : i + 2]) for i in range(0, count, 2)]
            parts = [[pair[part] for pair in pairs] for part in range(2)]
        vectors = [vector for part in parts for vector in (lane_transpose(builder, part, width) if lane > 1 else part)]
        for j, vector in enumerate(vectors):
            store_at(builder, vector, builder.add(target, builder.mul(pitch_bytes, _INT64(j))), False)

    if not is_paired:
        for_each(builder, lane, [LANE_BYTES // width for width in COLUMN_ELEMENT_BYTES], lambda one: write(one, False))
        return
    with builder.if_else(builder.icmp_signed("!=", shifted, _INT64(0))) as (with_shift, without):
        with with_shift:
            write(lane, True)
        with without:
            write(lane, False)


@instructions("streamed")
def write_lanes(builder: Any, streamed: Any, targets: Any, offset: Any, source: Any) -> None:
    """Join the lanes of four vectors at `source` to four lines; write each at `offset` from one of four targets."""
    lines = enumerate(lines_of_lanes(builder, source))
    written = [(line, builder.add(targets[k], offset)) for k, line in lines]
    store_lines(builder, written, streamed)


@instructions("streamed")
def write_lane(builder: Any, streamed: Any, target: Any, source: Any) -> None:
    """Join one lane of each of four vectors to a line, and write it; `source` is that lane of the first vector."""
    lanes = [load_at(builder, offset_by(builder, source, LINE_BYTES * k), 2, 8) for k in range(_LANES)]
    low, high = (shuffle(builder, lanes[k], lanes[k + 1], range(4)) for k in (0, 2))
    store_lines(builder, [(shuffle(builder, low, high, range(8)), target)], streamed)


# Scratch memory: pending bytes and one more block; for each of two bands the addresses of its rows, and copies of the
# rows at the end of the source; a row of padding; the lanes of two bands. Two elements of four bits may begin in each
# of the last bytes of the source.
_ADDRESSES = PENDING_BYTES + MOST_BLOCK_BYTES + 2 * LINE_BYTES
_STAGE = 8 * 2 * LINE_BYTES * MOST_BAND_LINES
_ADDRESSES_BYTES = _STAGE + 2 * (LINE_BYTES + 2) * 2 * LINE_BYTES
_PADDING = _ADDRESSES + 2 * _ADDRESSES_BYTES
_COLLECTED = _PADDING + (MOST_ROW_LINES + 2) * LINE_BYTES
_COLLECTED_BYTES = MOST_COLLECTED_BYTES + 2 * LINE_BYTES
#: Bytes of scratch memory that this kernel needs.
SCRATCH_BYTES = _COLLECTED + 2 * _COLLECTED_BYTES

# Prefetch distance in lines, to L2: many rows share few sets of L1. Many rows of several lines are prefetched row by
# row, others a line of each row in turn. Many longer rows of bytes on separate pages are not prefetched: the hardware
# prefetcher follows them. Fractions of a copy with prefetches to L1, to L2 and without, one thread of an Intel Xeon
# (2026-11-23): u8[49152,1,1000] reversed to T(256) 0.55, 0.58, 0.68; two threads, pages shared, u8[196,1000,130]
# transposed to T(8,128)(2,1) 0.66, 0.65, 0.56.
_LINES_AHEAD, _MANY_ROWS, _LONG_ROW, _FOLLOWED_ROW, _PAGE_BYTES = 64, 16, 4, 8, 4096


@subroutine()
def _write_padding_row(groups, group_count, scratch):  # type: ignore[no-untyped-def]
    """Write a row of padding, as long as the longest row of the groups, and at least a line."""
    padding, row, nbytes = padding_of(scratch), scratch + _PADDING, LINE_BYTES
    for g in range(group_count):
        nbytes = max(nbytes, entry(groups + COLUMN_GROUP_BYTES * g, COLUMN_GROUP.row_bytes))
    # Rows of packed elements that begin with a high nibble end one byte later.
    for k in range(nbytes // LINE_BYTES + 2):
        copy_vector(row + LINE_BYTES * k, padding, 64)


@subroutine("nibbles")
def _write_addresses(nibbles, source, end, rows, counts, shifted, addresses, padding):  # type: ignore[no-untyped-def]
    """Write the table of row addresses; `counts` is (number of rows, bytes of each).

    Rows of padding point to `padding`; rows whose lines would reach beyond the source point to copies of them. `source`
    is the base of row offsets, in bytes, or in nibbles if nibbles move; addresses count nibbles if `shifted`.
    """
    row_count, row_bytes = counts
    stage, nothing = addresses + _STAGE, padding << shifted
    whole = nibbles == 1
    last = end - LINE_BYTES - shifted if row_bytes < LINE_BYTES else end
    for i in range(row_count):
        row = entry(rows, i)
        if row == NOWHERE:
            set_entry(addresses, i, nothing)
            continue
        row += source
        address = row if whole else row >> 1
        if address > last:
            # A line of the row would reach beyond the source.
            size = min(end - address, LINE_BYTES)
            copy_short(stage, address, size // 2)
            copy_short(stage + size // 2, address + size // 2, size - size // 2)
            address = stage
            stage += 2 * LINE_BYTES
        set_entry(addresses, i, address if not shifted else 2 * address + (row & 1))


@subroutine("nibbles", "shifted", inline=True)
def _band_of(nibbles, table, step, starts, shifted, addresses, padding):  # type: ignore[no-untyped-def]
    """Locate the rows of a band; return what to read and what to write.

    `step` is (group, band), `starts` is (start of the task in the source, in the destination, end of the source). What
    to read is (table of row addresses, number of rows, offsets of chunks, number of chunks). What to write is (places
    of columns, destination of a block's first line, table of lines, number of lines, bytes, number of chunks).
    """
    (g, b), (at_source, at_target, end), h = step, starts, nibbles
    geometry, groups, bands = entry(table, TABLE.geometry), entry(table, TABLE.first), entry(table, TABLE.second)
    group, band = groups + COLUMN_GROUP_BYTES * g, bands + COLUMN_BAND_BYTES * b
    row_bytes, chunks = entry(group, COLUMN_GROUP.row_bytes), entry(group, COLUMN_GROUP.chunks)
    rows, row_count = bands + entry(band, COLUMN_BAND.rows), entry(band, COLUMN_BAND.row_count)
    begin, counts = at_source * h + entry(group, COLUMN_GROUP.source), (row_count, row_bytes)
    _write_addresses(nibbles, begin, end, rows, counts, shifted, addresses, padding)
    first_line, line_count = entry(band, COLUMN_BAND.first), entry(band, COLUMN_BAND.lines)
    lines = bands + COLUMN_BAND_BYTES * entry(geometry, COLUMNS.bands) + 8 * first_line
    nbytes = min(entry(geometry, COLUMNS.block_bytes) - LINE_BYTES * first_line, LINE_BYTES * line_count)
    written = (
        groups + entry(group, COLUMN_GROUP.places),
        at_target + LINE_BYTES * first_line,
        lines,
        line_count,
        nbytes,
        chunks,
    )
    return (addresses, row_count, groups + entry(group, COLUMN_GROUP.offsets), chunks), written


@subroutine(inline=True)
def _end_of_line(offsets, chunk, chunks):  # type: ignore[no-untyped-def]
    """Return the offset in a row of the last byte read of a chunk; the last two lines of a row overlap."""
    return min(entry(offsets, chunk) + LINE_BYTES - 1, entry(offsets, chunks))


@subroutine("shifted", inline=True)
def _ask(cursor, count, bands, shifted):  # type: ignore[no-untyped-def]
    """Prefetch the next `count` lines of later rows, row by row; return the new cursor.

    `cursor` is (row, line); `bands` is this band and the next, whose rows follow the last row of this one.
    """
    (row, line), ((addresses, row_count, offsets, chunks), following) = cursor, bands
    while count > 0:
        table = addresses + 8 * row
        if row >= row_count:
            table = following[0] + 8 * min(row - row_count, following[1] - 1)
        begin, end = entry(table, 0) >> shifted, min(line + count, chunks)
        for k in range(line, end):
            prefetch_to_l2(begin + _end_of_line(offsets, k, chunks))
        count, line = count - (end - line), end
        if line == chunks:
            # A row off a line boundary touches one more line.
            if begin & (LINE_BYTES - 1):
                prefetch_to_l2(begin)
            row, line = row + 1, 0
    return row, line


@subroutine("lane_bits", "nibbles", inline=True)
def _collect(lane_bits, nibbles, state, bands, job, form, target, scratch):  # type: ignore[no-untyped-def]
    """Transpose the rows of a band within lanes; meanwhile, write the collected columns of the band before.

    `bands` is this band and the next one, `job` the remaining writes of the band before, see `_write_next`; `form` is
    (whether places count nibbles, pitch of vectors in bytes, whether blocks are whole lines).
    """
    (addresses, row_count, offsets, chunks), (shifted, pitch, whole_lines) = bands[0], form
    lane, h = nibbles << lane_bits, nibbles
    by_rows = h == 2 or (lane >= _MANY_ROWS and chunks >= _LONG_ROW)
    is_followed = h == 1 and lane >= _MANY_ROWS and chunks >= _FOLLOWED_ROW
    is_followed = is_followed and abs(entry(addresses, 1) - entry(addresses, 0)) >= _PAGE_BYTES
    ahead = lane * max((2 if by_rows else 1) * _LINES_AHEAD // (lane * chunks), 1)
    bits = lane_bits + nibbles - 1
    cursor, due, waiting, every = (ahead, 0), 0, job[0], (row_count >> bits) * chunks
    for first in range(0, row_count, lane):
        rows, later, place = (
            addresses + 8 * first,
            addresses + 8 * (first + ahead),
            target + (first >> bits) * LINE_BYTES,
        )
        if first + ahead >= row_count:
            later = bands[1][0] + 8 * min(first + ahead - row_count, bands[1][1] - lane)
        for chunk in range(chunks):
            offset, further = entry(offsets, chunk), _end_of_line(offsets, chunk, chunks)
            if by_rows:
                if not is_followed:
                    cursor = _ask(cursor, lane, bands, shifted)
                transpose_in_lanes(1 << lane_bits, nibbles, 0, shifted, place, pitch, rows, offset, later, further)
            else:
                transpose_in_lanes(1 << lane_bits, nibbles, 1, shifted, place, pitch, rows, offset, later, further)
            place += lane * pitch
            due += waiting
            while due >= every:
                due -= every
                state, job = _write_next(lane_bits, nibbles, state, job, pitch, whole_lines, scratch)
    return state, job


@subroutine("streamed", inline=True)
def _write_padding(streamed, target, padding):  # type: ignore[no-untyped-def]
    if streamed:
        stream_line(target, padding)
    else:
        copy_vector(target, padding, 64)


@subroutine("lane_bits", "nibbles", "streamed", inline=True)
def _write_lines(lane_bits, nibbles, streamed, places, targets, lines, source):  # type: ignore[no-untyped-def]
    """Write whole lines of four columns.

    `places` is the address of the first column's place, `targets` is (base added to places, address of padding),
    `lines` is (address of the table of lines, number of lines).
    """
    every = (8 << lane_bits) * nibbles
    (target, padding), (table, count) = targets, lines
    first, second, third, fourth = (
        entry(places, 0),
        entry(places + every, 0),
        entry(places + 2 * every, 0),
        entry(places + 3 * every, 0),
    )
    if min(min(first, second), min(third, fourth)) != NOWHERE:
        begins = target + first, target + second, target + third, target + fourth
        for k in range(count):
            at, after = entry(table, k), LINE_BYTES * k
            if at != NOWHERE:
                write_lanes(streamed, begins, after, source + at)
            else:
                for begin in begins:
                    _write_padding(streamed, begin + after, padding)
        return
    for part in range(4):
        place = entry(places + part * every, 0)
        if place != NOWHERE:
            for k in range(count):
                at, begin = entry(table, k), target + place + LINE_BYTES * k
                if at != NOWHERE:
                    write_lane(streamed, begin, source + at + LANE_BYTES * part)
                else:
                    _write_padding(streamed, begin, padding)


@subroutine("lane_bits", "nibbles", inline=True)
def _append(lane_bits, nibbles, state, place, column, lines, collected, scratch):  # type: ignore[no-untyped-def]
    """Append the lines of one column to the pending bytes.

    `lines` is (table of lines, number of lines, bytes); `collected` is (address of lanes, pitch of vectors in bytes).
    """
    source, pitch = collected
    (stream, streamed), (table, count, run) = state, lines
    lane, half = 1 << lane_bits, 0
    if nibbles == 2:
        # The vectors of low nibbles precede those of high nibbles.
        column, half = column >> 1, column & 1
    vectors = source + ((column & (lane - 1)) + half * lane) * pitch + (column >> lane_bits) * LANE_BYTES
    stream = go_to(stream, place, scratch, streamed)
    for k in range(count):
        at, target = entry(table, k), scratch + stream[1] + LINE_BYTES * k
        if at != NOWHERE:
            write_lane(0, target, vectors + at)
        else:
            copy_vector(target, padding_of(scratch), 64)
    return added(stream, run, scratch, streamed), streamed


@subroutine("lane_bits", "nibbles", inline=True)
def _write_next(lane_bits, nibbles, state, job, pitch, whole_lines, scratch):  # type: ignore[no-untyped-def]
    """Write the next four columns of a band, or the next one if blocks are not whole lines.

    `job` is (remaining writes, next column of the chunk, places of the chunk's columns, address of its lanes, base
    added to places, table of lines, number of lines, bytes).
    """
    left, column, places, source, target, table, count, nbytes = job
    lane, h = 1 << lane_bits, nibbles
    if whole_lines:
        # Neighbouring columns are written one after the other: a non-temporal line waits for its neighbour.
        own, targets = places + 8 * column, (target, padding_of(scratch))
        vectors = source + (column // h + column % h * lane) * pitch
        _write_lines(lane_bits, nibbles, state[1], own, targets, (table, count), vectors)
        of_chunk = lane * h
    else:
        place, later = entry(places, column), entry(places, column + ENDS_AHEAD)
        if later != NOWHERE and later != entry(places, column + ENDS_AHEAD - 1) + nbytes:
            prefetch_ends(target + later, nbytes)
        if place != NOWHERE:
            piece = table, count, nbytes
            state = _append(lane_bits, nibbles, state, target + place, column, piece, (source, pitch), scratch)
        of_chunk = 4 * lane * h
    column += 1
    if column == of_chunk:
        column, places, source = 0, places + 8 * 4 * lane * h, source + lane * h * pitch
    return state, (left - 1, column, places, source, target, table, count, nbytes)


@unrolled_kernel
def assemble_columns(width, nibbles, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a column gather.

    Parameters
    ----------
    width
        Not used.
    nibbles : literal int
        2 where elements of four bits move, else 1.
    target, source, table, scratch
        As for `copy_chunks`. The first table has a `ColumnGroup` for each group; for each column of each chunk the
        offset of its block in the destination, or `NOWHERE`; `ENDS_AHEAD` more entries `NOWHERE`; then for each group
        the offsets of its chunks in a row, and of the row's last byte. The second table has a `ColumnBand` for each
        band; for each line of a block the byte offset of its lanes in its band, or `NOWHERE` for a line of padding;
        then for each slot of the other lines the offset of its row in the source, in bytes, or in nibbles if nibbles
        move, or `NOWHERE`.
    """
    geometry = entry(table, TABLE.geometry)
    pitch, shifted = entry(geometry, COLUMNS.pitch), entry(geometry, COLUMNS.shifted)
    group_count, band_count = entry(geometry, COLUMNS.groups), entry(geometry, COLUMNS.bands)
    end, padding = source + entry(geometry, COLUMNS.readable), scratch + _PADDING
    whole_lines = entry(geometry, COLUMNS.whole_lines) != 0
    # Lines off a line boundary use ordinary stores: a non-temporal store would write each in two parts.
    streamed = entry(geometry, COLUMNS.streamed) != 0 and not (whole_lines and target & 63)
    lane_bits = 4 if nibbles == 2 else entry(geometry, COLUMNS.lane_bits)
    of_chunk = (nibbles << lane_bits) * (1 if whole_lines else 4)
    form, in_turn = (shifted, pitch, whole_lines), entry(geometry, COLUMNS.in_turn) != 0
    _write_padding_row(entry(table, TABLE.first), group_count, scratch)
    state = NOTHING_PENDING, streamed
    job = 0, 0, 0, 0, 0, 0, 0, 0
    task, g, b, half = first, 0, 0, 0
    at_source, at_target = outer_place(table, task, source, target)
    starts = at_source, at_target, end
    band, written = _band_of(nibbles, table, (g, b), starts, shifted, scratch + _ADDRESSES, padding)
    while task < last:
        b += 1
        if b == band_count:
            b, g = 0, g + 1
        if g == group_count:
            g, task = 0, task + 1
            at_source, at_target = outer_place(table, min(task, last - 1), source, target)
        starts, half = (at_source, at_target, end), 1 - half
        addresses = scratch + _ADDRESSES + half * _ADDRESSES_BYTES
        collected = scratch + _COLLECTED + (0 if in_turn else half * _COLLECTED_BYTES)
        following, then_written = _band_of(nibbles, table, (g, b), starts, shifted, addresses, padding)
        state, job = _collect(lane_bits, nibbles, state, (band, following), job, form, collected, scratch)
        places, at, lines, count, nbytes, chunks = written
        job = chunks * of_chunk, 0, places, collected, at, lines, count, nbytes
        band, written = following, then_written
        while job[0] and (in_turn or task == last):
            state, job = _write_next(lane_bits, nibbles, state, job, pitch, whole_lines, scratch)
    finish(state[0], scratch, state[1])
    fence()
