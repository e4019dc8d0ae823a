"""Transposes: elements that are neighbours in the source go to different lines of the destination.

A panel is a set of rows and a set of columns. A row is contiguous in the source, a column in the destination; two
tables of byte offsets have the start of each row in the source, and of each column in the destination. Any permutation
of any loops has this form.

Few rows are read at a time, over many columns: long sequential streams that the hardware prefetches. Two whole
neighbouring lines of each column are written at a time: the rows of these form a band. Elements of one or two bytes are
staged, see `staged_bands`: two lines of them take too many rows to read at once.
"""

from __future__ import annotations

from fastindex.moving.kernels.passes import outer_place
from fastindex.moving.kernels.staging import (
    ALIGNED,
    FIRST_SHIFTED,
    MOST_CARRIED,
    SHIFTED,
    STAGED_BYTES,
    begin_staging,
    staged_band,
    write_staged,
)
from fastindex.moving.moves.transposes import FEW_BYTE_COLUMNS, FEW_COLUMNS, TRANSPOSE
from fastindex.moving.numbers import TABLE
from fastindex.runtime.kernels import subroutine, unrolled_kernel
from fastindex.runtime.lines.lines import (
    copy_run,
    copy_short,
    place_ahead,
    transpose_rows,
    transpose_square,
    transpose_stage_lanes,
)
from fastindex.runtime.lines.memory import (
    copy_vector,
    entry,
    fence,
    prefetch,
    prefetch_to_l2,
    set_entry,
    stream_line,
)

# A staged band of rows: two lines' worth, and one more square if columns start off a line boundary.
_STAGE_BYTES = 3 * 64 * 64
_AHEAD_BYTES = 128
# Prefetch distance, in rows, of rows that are read a line or less at a time.
_ROWS_AHEAD = 64
# Lines of each column to write at a time for few columns: by then the elements have left the store buffer.
_FEW_COLUMNS_LINES = 16
_PITCH_BYTES = 192

#: Bytes of scratch memory that edges need: staged rows, transposed columns, and the offsets of these.
EDGE_BYTES = 2 * _STAGE_BYTES + 8 * 64
#: Bytes of scratch memory that a transpose needs.
SCRATCH_BYTES = EDGE_BYTES + STAGED_BYTES


@subroutine()
def write_pitches(table, pitch_bytes):  # type: ignore[no-untyped-def]
    """Write a table of 64 offsets, `pitch_bytes` apart."""
    for j in range(64):
        set_entry(table, j, j * pitch_bytes)


@subroutine("width")
def stage_rows(width, stage, source, rows, row_count, columns):  # type: ignore[no-untyped-def]
    """Copy up to a line of each row to the stage, at a pitch of a line."""
    size = columns * width
    if size == 64:
        for i in range(row_count):
            copy_vector(stage + i * 64, source + entry(rows, i), 64)
    else:
        for i in range(row_count):
            copy_short(stage + i * 64, source + entry(rows, i), size)


@subroutine("size", inline=True)
def _short_row(i, sources, rows, row_count, size):  # type: ignore[no-untyped-def]
    """Return the address of a row of less than a line, and prefetch a later one to L2.

    `sources` is (base of this panel, base of the next one, whose rows follow the last row).
    """
    following = i + _ROWS_AHEAD - row_count
    if following < 0:
        later = sources[0] + entry(rows, i + _ROWS_AHEAD)
    else:
        later = sources[1] + entry(rows, following if following < row_count else i)
    prefetch_to_l2(later)
    if (later & 63) + size > 64:
        prefetch_to_l2(later + size - 1)
    return sources[0] + entry(rows, i)


@subroutine("width", inline=True)
def _is_few(width, column_count):  # type: ignore[no-untyped-def]
    """Whether rows are so short that their elements are moved one by one."""
    few = FEW_COLUMNS if width > 1 else FEW_BYTE_COLUMNS
    return column_count < 64 // width and column_count <= few


@subroutine("width", inline=True)
def _move_short_rows(width, target, pitch_bytes, sources, rows, band, counts):  # type: ignore[no-untyped-def]
    """Transpose rows of few elements, element by element, to columns `pitch_bytes` apart."""
    (first, end), (row_count, column_count) = band, counts
    for i in range(first, end):
        read, place = _short_row(i, sources, rows, row_count, column_count * width), target + (i - first) * width
        for j in range(column_count):
            copy_vector(place + j * pitch_bytes, read + j * width, width)


@subroutine("width", inline=True)
def _asked(width, sources, rows, column, band, reach):  # type: ignore[no-untyped-def]
    """Return the base of the lines to prefetch, and the table of their `reach` rows.

    After the last column comes the next band, after the last band the next panel. `sources` is (base of this panel,
    base of the next one), `band` is (first row, end of rows, number of columns).
    """
    (source, upcoming), (first, end, column_count) = sources, band
    later, following = column * width + _AHEAD_BYTES, first + 128 // width
    if later < column_count * width:
        return source + later, rows + 8 * first
    later -= column_count * width
    if following + reach <= end:
        return source + later, rows + 8 * following
    return upcoming + later, rows


@subroutine("width")
def edge_band(width, target, sources, tables, band, counts, streamed, scratch):  # type: ignore[no-untyped-def]
    """Write a part of each column that is less than whole lines, or has fewer columns than a square.

    `tables` is (rows, columns), the addresses of the tables of offsets; `band` is (first row, end of rows, begins on
    lines, ends on lines). A part that begins or ends on lines does so at the next line boundary of its column, which is
    up to a line later than in another column. `sources` is (base of this panel, base of the next one).
    """
    source, upcoming = sources
    per_line = 64 // width
    rows, columns = tables
    first, last, begins_on_lines, ends_on_lines = band
    row_count, column_count = counts
    rows_end = min(last + (per_line if ends_on_lines else 0), row_count)
    squares = (rows_end - first + per_line - 1) // per_line
    pitch = squares * 64
    transposed = scratch + _STAGE_BYTES
    for column in range(0, column_count, per_line):
        count = min(per_line, column_count - column)
        is_few = _is_few(width, column_count)
        if is_few:
            _move_short_rows(width, transposed, pitch, sources, rows, (first, rows_end), counts)
        elif column_count < per_line:
            # Bytes before the end of another row are part of the source, so a whole line may be read.
            end = source + entry(rows, row_count - 1) + column_count * width
            for i in range(first, rows_end):
                read = _short_row(i, sources, rows, row_count, column_count * width)
                if read + 64 <= end:
                    copy_vector(scratch + (i - first) * 64, read, 64)
                else:
                    copy_short(scratch + (i - first) * 64, read, column_count * width)
        else:
            later, size = column * width + _AHEAD_BYTES, column_count * width
            asked = place_ahead(source, upcoming, later, size)
            asked_rows = rows + 8 * first if later < size else rows
            for i in range(rows_end - first):
                prefetch(asked + entry(asked_rows, i))
            stage_rows(width, scratch, source + column * width, rows + 8 * first, rows_end - first, count)
        for square in range(0 if is_few else squares):
            transpose_square(width, transposed + 64 * square, pitch, scratch + square * 4096 // width)
        for j in range(count):
            start = target + entry(columns, column + j) + first * width
            begin = (-start) & 63 if begins_on_lines else 0
            end = (last - first) * width
            end += (-(start + end)) & 63 if ends_on_lines else 0
            end = min(end, (row_count - first) * width)
            if begin < end:
                copy_run(start + begin, transposed + j * pitch + begin, end - begin, streamed)


@subroutine("width", "streamed", inline=True)
def _whole_band(width, target, sources, tables, band, streamed, scratch):  # type: ignore[no-untyped-def]
    """Write two whole lines of each column; `band` is (first row, end of rows, column to align to, columns)."""
    per_line = 64 // width
    (rows, columns), (first, end, column_first, column_count) = tables, band
    source = sources[0]
    start = target + first * width
    last = column_count - per_line
    column = known = 0
    while True:
        read = source + column * width
        table = columns + 8 * column
        counts = (first, end, column_count)
        asked, asked_rows = _asked(width, sources, rows, column, counts, 2 * per_line)
        if width <= 1:
            for i in range(2 * per_line):
                prefetch(asked + entry(asked_rows, i))
            stage_rows(width, scratch, read, rows + 8 * first, 2 * per_line, per_line)
            for lane in range(4):
                lane_table = table + 8 * lane * (16 // width)
                transpose_stage_lanes(width, start, lane_table, scratch + 16 * lane)
        elif known and width > 2:
            # Columns that the square before has written are skipped.
            transposed, pitches = scratch + _STAGE_BYTES, scratch + 2 * _STAGE_BYTES
            for line in range(2):
                square, later = 8 * per_line * line, asked_rows + 8 * per_line * line
                transpose_rows(
                    width, 1, 0, 1, transposed + 64 * line, pitches, read, rows + 8 * first + square, asked, later
                )
            for j in range(known, per_line):
                place, line = start + entry(table, j), transposed + _PITCH_BYTES * j
                copy_run(place, line, 128, streamed)
        else:
            transpose_rows(width, 2, streamed and width > 2, 1, start, table, read, rows + 8 * first, asked, asked_rows)
        if column == last:
            break
        following = column_first if column < column_first else column + per_line
        column = min(following, last)
        known = following - column


@subroutine("width", inline=True)
def _shifted_band(width, target, sources, tables, band, scratch):  # type: ignore[no-untyped-def]
    """Write two whole lines of each column; they begin at its own line boundary, up to a line after the first row."""
    per_line = 64 // width
    (rows, columns), (first, end, column_first, column_count) = tables, band
    source = sources[0]
    transposed, pitches = scratch + _STAGE_BYTES, scratch + 2 * _STAGE_BYTES
    last = column_count - per_line
    column = 0
    while True:
        read = source + column * width
        counts = (first, end, column_count)
        asked, asked_rows = _asked(width, sources, rows, column, counts, 3 * per_line)
        # The band before has read the first square.
        asked_rows += 8 * per_line
        table = rows + 8 * first
        transpose_rows(width, 1, 0, 0, transposed, pitches, read, table, 0, 0)
        table += 8 * per_line
        transpose_rows(width, 1, 0, 1, transposed + 64, pitches, read, table, asked, asked_rows)
        table += 8 * per_line
        asked_rows += 8 * per_line
        transpose_rows(width, 1, 0, 1, transposed + 128, pitches, read, table, asked, asked_rows)
        for j in range(per_line):
            start = target + entry(columns, column + j) + first * width
            lead = (-start) & 63
            line = transposed + _PITCH_BYTES * j + lead
            stream_line(start + lead, line)
            stream_line(start + lead + 64, line + 64)
        if column == last:
            break
        column = min(column_first if column < column_first else column + per_line, last)


@subroutine("width")
def _aligned_panel(width, target, sources, tables, lead, panel, streamed, scratch):  # type: ignore[no-untyped-def]
    """Run a panel whose columns have a line boundary after `lead[0]` rows, and its rows after `lead[1]` columns."""
    per_line = 64 // width
    lead, column_first = lead
    row_count, column_count, is_first, following = panel
    is_few = _is_few(width, column_count)
    window = (_FEW_COLUMNS_LINES if is_few else 2) * per_line
    # This panel also writes the rows of the next one before its first line boundary.
    end = row_count + (min(((-(target + row_count * width)) & 63) // width, following) if streamed else 0)
    counts = (end, column_count)
    first = min(lead, end)
    if first and is_first:
        band = (0, first, False, False)
        edge_band(width, target, sources, tables, band, counts, streamed, scratch)
    while first < end:
        left = end - first
        if not is_few and per_line <= left < window and first + left // per_line * per_line - window >= lead:
            # A whole band that writes some lines again is faster than half a band.
            first += left // per_line * per_line - window
        if first + window <= end and column_count >= per_line:
            lines = (first, end, column_first, column_count)
            if width <= 2 and streamed:
                staged_band(width, target, sources, tables, lines, ALIGNED, scratch + EDGE_BYTES)
            else:
                _whole_band(width, target, sources, tables, lines, streamed, scratch)
        else:
            band = (first, min(first + window, end), False, False)
            edge_band(width, target, sources, tables, band, counts, streamed, scratch)
        first += window
    if width <= 2 and streamed:
        write_staged(width, scratch + EDGE_BYTES)


@subroutine("width", inline=True)
def _staged_panel(width, target, sources, tables, panel, column_first, scratch):  # type: ignore[no-untyped-def]
    """Write the lines of a shifted panel that begin in its bands, staged; return the first row of the others."""
    per_line = 64 // width
    window = 2 * per_line
    (rows, columns), (row_count, column_count, _, following) = tables, panel
    done = 0
    for begin in range(0, column_count, MOST_CARRIED):
        # The last line of a row overlaps the one before, so that it is a whole line.
        column = min(begin, column_count - per_line)
        at, places = (sources[0] + column * width, sources[1]), (rows, columns + 8 * column)
        count = min(MOST_CARRIED, column_count - column)
        for first in range(0, row_count - window + 1, window):
            lines = (first, row_count, column_first, count)
            staged_band(width, target, at, places, lines, SHIFTED if first else FIRST_SHIFTED, scratch + EDGE_BYTES)
        # The end of the last band is read again, with the rows that follow.
        done = max(row_count // window * window - per_line, 0)
        while done < row_count and done + window <= row_count + following:
            lines = (done, row_count + following, column_first, count)
            staged_band(width, target, at, places, lines, FIRST_SHIFTED, scratch + EDGE_BYTES)
            done += per_line
        write_staged(width, scratch + EDGE_BYTES)
    return done


@subroutine("width")
def _shifted_panel(width, target, sources, tables, panel, column_first, scratch):  # type: ignore[no-untyped-def]
    """Run a panel whose columns have different offsets from a line boundary."""
    per_line = 64 // width
    row_count, column_count, is_first, following = panel
    window = (_FEW_COLUMNS_LINES if _is_few(width, column_count) else 2) * per_line
    readable = row_count + following
    counts = (readable, column_count)
    if is_first:
        edge_band(width, target, sources, tables, (0, 0, False, True), counts, True, scratch)
    first = 0
    if width <= 2 and column_count >= per_line:
        first = _staged_panel(width, target, sources, tables, panel, column_first, scratch)
    while first < row_count:
        is_whole = first + window <= row_count and first + window + per_line <= readable and column_count >= per_line
        if width > 2 and is_whole:
            lines = (first, readable, column_first, column_count)
            _shifted_band(width, target, sources, tables, lines, scratch)
        else:
            band = (first, min(first + window, row_count), True, True)
            edge_band(width, target, sources, tables, band, counts, True, scratch)
        first += window


@subroutine("width", "streamed", inline=True)
def _panel(width, target, sources, tables, panel, aligned, streamed, scratch):  # type: ignore[no-untyped-def]
    """Run a panel in bands; `panel` is (rows, columns, whether it begins its columns, rows that follow)."""
    lead_bytes = (-target) & 63 if streamed else 0
    # Source rows with equal offsets from a line boundary are best read from a boundary on.
    column_first = ((-(sources[0] + entry(tables[0], 0))) & 63) // width if panel[1] >= 512 // width else 0
    if not streamed or (aligned and lead_bytes % width == 0):
        lead = (lead_bytes // width, column_first)
        _aligned_panel(width, target, sources, tables, lead, panel, streamed, scratch)
    else:
        _shifted_panel(width, target, sources, tables, panel, column_first, scratch)


@subroutine("width")
def _start_of_panel(source, target, table, task, width):  # type: ignore[no-untyped-def]
    """Return the start of a task on both sides, and the indices of its block of rows and of columns."""
    geometry = entry(table, TABLE.geometry)
    row_block, column_block = entry(geometry, TRANSPOSE.row_block), entry(geometry, TRANSPOSE.column_block)
    row_blocks = (entry(geometry, TRANSPOSE.row_count) + row_block - 1) // row_block
    column_blocks = (entry(geometry, TRANSPOSE.column_count) + column_block - 1) // column_block
    inner_count = entry(geometry, TRANSPOSE.inner_iterations)
    outer, inner = divmod(task, inner_count)
    outer, row_index = divmod(outer, row_blocks)
    outer, column_index = divmod(outer, column_blocks)
    source += row_index * entry(geometry, TRANSPOSE.row_source_stride) + column_index * column_block * width
    target += row_index * row_block * width + column_index * entry(geometry, TRANSPOSE.column_target_stride)
    source, target = outer_place(table, outer * inner_count + inner, source, target)
    return source, target, row_index, column_index


@unrolled_kernel
def transpose_panels(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a transpose.

    Parameters
    ----------
    width : literal int
        Bytes of an element.
    target, source : int64
        Addresses.
    table : int64
        Address of a `PassTable`; the kernel's own numbers are a `TransposeGeometry`. The first table of offsets holds
        the byte offsets in the source of the rows of a block, followed by a line's worth of the next block if there
        are several blocks of rows, or of the next column if columns are joined. The second holds the byte offsets in
        the destination of the columns of a block.
    scratch : int64
        Address of `SCRATCH_BYTES` bytes on a line boundary, for this thread alone.
    ways
        Not used.
    """
    geometry, rows, columns = entry(table, TABLE.geometry), entry(table, TABLE.first), entry(table, TABLE.second)
    write_pitches(scratch + 2 * _STAGE_BYTES, _PITCH_BYTES)
    begin_staging(scratch + EDGE_BYTES, entry(geometry, TRANSPOSE.evicting_pitch))
    row_block, column_block = entry(geometry, TRANSPOSE.row_block), entry(geometry, TRANSPOSE.column_block)
    column_blocks = (entry(geometry, TRANSPOSE.column_count) + column_block - 1) // column_block
    following = _start_of_panel(source, target, table, first, width)
    for task in range(first, last):
        at_source, at_target, row_index, column_index = following
        following = _start_of_panel(source, target, table, min(task + 1, last - 1), width)
        upcoming = following[0]
        panel = (
            min(row_block, entry(geometry, TRANSPOSE.row_count) - row_index * row_block),
            min(column_block, entry(geometry, TRANSPOSE.column_count) - column_index * column_block),
            row_index == 0,
            max(0, min(64 // width, entry(geometry, TRANSPOSE.row_count) - (row_index + 1) * row_block)),
        )
        aligned, streamed = entry(geometry, TRANSPOSE.columns_aligned) != 0, entry(geometry, TRANSPOSE.streamed) != 0
        joined = entry(geometry, TRANSPOSE.columns_joined) != 0
        is_last = column_index == column_blocks - 1
        if joined and streamed and column_index == 0:
            # Up to the first line boundary; from there on, each column writes the line that it shares with the next.
            ends = (panel[0], 1)
            tables = rows, columns
            sources = at_source, upcoming
            edge_band(width, at_target, sources, tables, (0, 0, False, True), ends, True, scratch)
        for part in range(2 if joined and is_last else 1):
            offset = (panel[1] - 1) * part
            counts = (panel[0], panel[1], panel[2], panel[3])
            if joined and part == 0:
                counts = (panel[0], panel[1] - is_last, False, 64 // width)
            elif joined:
                counts = (panel[0], 1, False, 0)
            if counts[1]:
                sources, places = (at_source + offset * width, upcoming), columns + 8 * offset
                _panel(width, at_target, sources, (rows, places), counts, aligned, streamed, scratch)
    fence()
