"""Assemblies whose blocks take a column each of the same rows of the source.

Each slot of a block has a row. Squares of as many rows as a line has slots, in the order of the slots, are transposed
straight into lines of the destination: whatever the tiles, nothing is left to permute. A row of padding is padding. So
every line of the source is read once, and every line of the destination written once, padding included.

Rows are read some lines at a time, a set of rows after the other, and transposed within lanes; lines of a block are put
together of these lanes one after the other.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel, subroutine
from fastindex.kernels.cpu.lane_columns import transpose_in_lanes, write_lane, write_lanes
from fastindex.kernels.cpu.lines import copy_short
from fastindex.kernels.cpu.memory import copy_vector, entry, fence, literal, set_entry, stream_line
from fastindex.kernels.cpu.pass_table import outer_place, padding_of
from fastindex.kernels.cpu.pending import PENDING_BYTES, drain, restart
from fastindex.tables.assemblies import (
    BAND_FIRST,
    BAND_LINES,
    BAND_ROW_COUNT,
    BAND_ROWS,
    COLUMN_BAND_BYTES,
    COLUMN_GROUP_BYTES,
    COLUMNS_BANDS,
    COLUMNS_BLOCK_BYTES,
    COLUMNS_GROUPS,
    COLUMNS_PITCH,
    COLUMNS_READABLE,
    COLUMNS_SHIFTED,
    COLUMNS_STREAMED,
    COLUMNS_WHOLE_LINES,
    GROUP_CHUNKS,
    GROUP_ROW_BYTES,
    GROUP_SOURCE,
    MOST_BAND_LINES,
    MOST_BLOCK_BYTES,
    MOST_CHUNKS,
    MOST_COLLECTED_BYTES,
    NOWHERE,
)
from fastindex.tables.cache_lines import LANE_BYTES, LINE_BYTES
from fastindex.tables.passes import FIRST, GEOMETRY, SECOND

# Scratch memory: what is pending and a block more, addresses of rows, a row of padding, the rows that end where the
# source does, and lanes. Two elements of four bits may begin in each of the last bytes of the source.
_ADDRESSES = PENDING_BYTES + MOST_BLOCK_BYTES + 2 * LINE_BYTES
_PADDING = _ADDRESSES + 8 * 2 * LINE_BYTES * MOST_BAND_LINES
_STAGE = _PADDING + (MOST_CHUNKS + 2) * LINE_BYTES
_COLLECTED = _STAGE + 2 * (LINE_BYTES + 2) * 2 * LINE_BYTES
#: Bytes of scratch memory that this kernel needs.
SCRATCH_BYTES = _COLLECTED + MOST_COLLECTED_BYTES + 2 * LINE_BYTES

# So many lines are prefetched before they are read.
_LINES_AHEAD = 64


@subroutine()
def _write_padding_row(scratch):  # type: ignore[no-untyped-def]
    """Write a row of nothing but padding."""
    padding, row = padding_of(scratch), scratch + _PADDING
    for k in range(MOST_CHUNKS + 2):
        copy_vector(row + LINE_BYTES * k, padding, 64)


@subroutine("halves")
def _write_addresses(halves, source, end, rows, counts, shifted, scratch):  # type: ignore[no-untyped-def]
    """Write the addresses of rows, `counts` of them and bytes of each: where padding is, and copies of the last rows.

    `source` is where rows are counted from, in bytes or halves of these; so are addresses where `shifted`.
    """
    row_count, row_bytes = counts
    table, stage, padding = scratch + _ADDRESSES, scratch + _STAGE, scratch + _PADDING << shifted
    whole = literal(halves) == 1
    last = end - LINE_BYTES - shifted if row_bytes < LINE_BYTES else end
    for i in range(row_count):
        row = entry(rows, i)
        if row == NOWHERE:
            set_entry(table, i, padding)
            continue
        row += source
        address = row if whole else row >> 1
        if address > last:
            # A line of it would reach beyond the source.
            size = min(end - address, LINE_BYTES)
            copy_short(stage, address, size // 2)
            copy_short(stage + size // 2, address + size // 2, size - size // 2)
            address = stage
            stage += 2 * LINE_BYTES
        set_entry(table, i, address if not shifted else 2 * address + (row & 1))


@njit(nogil=True, inline="always")
def _collect(width, halves, sizes, further, shifted, pitch, scratch):  # type: ignore[no-untyped-def]
    """Transpose rows within lanes.

    `sizes` is how many rows there are, bytes of each, and chunks; `further` how much further in the source the rows are
    that come after these.
    """
    row_count, row_bytes, chunks = sizes
    lane = LANE_BYTES // literal(width) * literal(halves)
    addresses, collected = scratch + _ADDRESSES, scratch + _COLLECTED
    last = max(row_bytes - LINE_BYTES, 0)
    ahead = min(max(_LINES_AHEAD // (lane * chunks), 1) * lane, row_count)
    for first in range(0, row_count, lane):
        table, target = addresses + 8 * first, collected + first // lane * LINE_BYTES
        later, beyond = table + 8 * ahead, 0
        if first + ahead + lane > row_count:
            later, beyond = addresses + 8 * max(first + ahead - row_count, 0), further
        for chunk in range(chunks):
            offset = min(LINE_BYTES * chunk, last)
            asked = LINE_BYTES * chunk + beyond
            transpose_in_lanes(width, halves, shifted, target, pitch, table, offset, later, asked)
            target += lane * pitch


@njit(nogil=True, inline="always")
def _write_padding(streamed, target, padding):  # type: ignore[no-untyped-def]
    if streamed:
        stream_line(target, padding)
    else:
        copy_vector(target, padding, 64)


@njit(nogil=True, inline="always")
def _write_lines(width, halves, streamed, places, targets, lines, source, pitch):  # type: ignore[no-untyped-def]
    """Write whole lines of the columns of a chunk, of four columns at a time.

    `targets` is what is added to places, and where padding is; `lines` is where their table is, and how many.
    """
    lane, every = LANE_BYTES // literal(width), 8 * literal(halves)
    (target, padding), (table, count) = targets, lines
    for j in range(lane):
        vectors, own = source + j * pitch, places + every * j
        columns = own, own + every * lane, own + 2 * every * lane, own + 3 * every * lane
        first, second, third, fourth = (
            entry(columns[0], 0),
            entry(columns[1], 0),
            entry(columns[2], 0),
            entry(columns[3], 0),
        )
        if min(min(first, second), min(third, fourth)) != NOWHERE:
            begins = target + first, target + second, target + third, target + fourth
            for k in range(count):
                at, behind = entry(table, k), LINE_BYTES * k
                if at != NOWHERE:
                    write_lanes(streamed, begins, behind, vectors + at)
                else:
                    for begin in begins:
                        _write_padding(streamed, begin + behind, padding)
            continue
        for part in range(4):
            place = entry(own, part * literal(halves) * lane)
            if place != NOWHERE:
                for k in range(count):
                    at, begin = entry(table, k), target + place + LINE_BYTES * k
                    if at != NOWHERE:
                        write_lane(streamed, begin, vectors + at + LANE_BYTES * part)
                    else:
                        _write_padding(streamed, begin, padding)


@njit(nogil=True, inline="always")
def _append(width, halves, state, place, column, lines, collected, scratch):  # type: ignore[no-untyped-def]
    """Append the lines of one column to what is pending.

    `lines` is their table, how many, and of how many bytes; `collected` is where lanes are, and bytes between vectors.
    """
    source, pitch = collected
    (line, fill, skip, position, streamed), (table, count, run) = state, lines
    lane, half = LANE_BYTES // literal(width), 0
    if literal(halves) == 2:
        # The vectors of low halves come before those of high ones.
        column, half = column >> 1, column & 1
    vectors = source + (column % lane + half * lane) * pitch + column // lane * LANE_BYTES
    if place != position:
        line, fill, skip = restart(line, scratch, fill, skip, streamed, place)
    for k in range(count):
        at, target = entry(table, k), scratch + fill + LINE_BYTES * k
        if at != NOWHERE:
            write_lane(0, target, vectors + at)
        else:
            copy_vector(target, padding_of(scratch), 64)
    fill += run
    if fill >= PENDING_BYTES:
        line, fill, skip = drain(line, scratch, fill, skip, streamed)
    return line, fill, skip, place + run, streamed


@njit(nogil=True, inline="always")
def _write_chunks(width, halves, state, places, targets, piece, sizes, scratch):  # type: ignore[no-untyped-def]
    """Write a band of the blocks of some chunks of columns.

    `piece` is (table of lines, how many, bytes), `sizes` is (chunks, bytes between vectors, whether lines are whole).
    """
    target, (chunks, pitch, whole_lines) = targets[0], sizes
    lane, of_chunk = LANE_BYTES // literal(width), LINE_BYTES // literal(width) * literal(halves)
    source, lines = scratch + _COLLECTED, (piece[0], piece[1])
    for _ in range(chunks):
        if whole_lines:
            for half in range(literal(halves)):
                vectors, own = source + half * lane * pitch, places + 8 * half
                _write_lines(width, halves, state[4], own, targets, lines, vectors, pitch)
        else:
            for column in range(of_chunk):
                place = entry(places, column)
                if place != NOWHERE:
                    state = _append(width, halves, state, target + place, column, piece, (source, pitch), scratch)
        places += 8 * of_chunk
        source += lane * literal(halves) * pitch
    return state


@kernel()
def assemble_columns(width, halves, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout whose blocks take a column each of the same rows.

    Parameters
    ----------
    width : literal int
        Bytes of an element, 1 where halves of bytes move.
    halves : literal int
        2 where elements of four bits move, else 1.
    target, source, table, scratch
        As for `copy_chunks`. The first table has a `ColumnGroup` for each group, then for each column of each chunk
        the offset of its block in the destination, or `NOWHERE`. The second has a `ColumnBand` for each band; for each
        line of a block where its lanes are among those of its band, in bytes, or `NOWHERE` where it is padding; then
        for each slot of the other lines where its row is in the source, in bytes or halves of these, or `NOWHERE`.
    """
    geometry, groups, bands = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
    run, streamed = entry(geometry, COLUMNS_BLOCK_BYTES), entry(geometry, COLUMNS_STREAMED) != 0
    pitch, shifted = entry(geometry, COLUMNS_PITCH), entry(geometry, COLUMNS_SHIFTED)
    group_count, band_count = entry(geometry, COLUMNS_GROUPS), entry(geometry, COLUMNS_BANDS)
    all_places, lines = groups + COLUMN_GROUP_BYTES * group_count, bands + COLUMN_BAND_BYTES * band_count
    end, padding, h = source + entry(geometry, COLUMNS_READABLE), padding_of(scratch), literal(halves)
    whole_lines = entry(geometry, COLUMNS_WHOLE_LINES) != 0 and target & 63 == 0
    _write_padding_row(scratch)
    state = 0, 0, 0, -1, streamed
    for task in range(first, last):
        at_source, at_target = outer_place(table, task, source, target)
        next_task, _ = outer_place(table, min(task + 1, last - 1), source, target)
        places = all_places
        for g in range(group_count):
            group = groups + COLUMN_GROUP_BYTES * g
            begin, row_bytes, chunks = (
                entry(group, GROUP_SOURCE),
                entry(group, GROUP_ROW_BYTES),
                entry(group, GROUP_CHUNKS),
            )
            further = (entry(group + COLUMN_GROUP_BYTES, GROUP_SOURCE) - begin) // h
            if g + 1 == group_count:
                further = next_task - at_source + (entry(groups, GROUP_SOURCE) - begin) // h
            for b in range(band_count):
                band = bands + COLUMN_BAND_BYTES * b
                first_line, line_count = entry(band, BAND_FIRST), entry(band, BAND_LINES)
                rows, row_count = bands + entry(band, BAND_ROWS), entry(band, BAND_ROW_COUNT)
                _write_addresses(halves, at_source * h + begin, end, rows, (row_count, row_bytes), shifted, scratch)
                _collect(width, halves, (row_count, row_bytes, chunks), further, shifted, pitch, scratch)
                piece = lines + 8 * first_line, line_count, min(run - LINE_BYTES * first_line, LINE_BYTES * line_count)
                targets, sizes = (at_target + LINE_BYTES * first_line, padding), (chunks, pitch, whole_lines)
                state = _write_chunks(width, halves, state, places, targets, piece, sizes, scratch)
            places += 8 * (LINE_BYTES // literal(width) * h) * chunks
    restart(state[0], scratch, state[1], state[2], streamed, 0)
    fence()
