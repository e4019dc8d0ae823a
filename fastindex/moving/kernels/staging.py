"""Bytes staged in scratch memory until they fill whole lines: of a stream (write combining), or bands of a transpose.

Pending bytes of a destination stream: its state is (line, fill, skip). `fill` bytes are pending for the destination
from address `line` on; the first `skip` of them do not belong to the stream and are not written. The stream continues
at ``line + fill``.

Staged bands of a transpose of elements of one or two bytes: read along a few rows, write while reading goes on. A band
is as many rows as two lines of a column have elements. Only a few rows are read at a time, as many as 16 bytes of a
column have elements, for many columns: the hardware prefetcher cannot follow more streams. Their elements of each
column are staged, 16 bytes per lane. Once a chunk of columns is staged, its lines are written while the next chunk is
read, in alternation: memory is read and written at the same time, and the cache holds both chunks.

Where columns start off a line boundary, the last partial line of each column is carried to the next band.
"""

from __future__ import annotations

from fastindex.moving.kernels.lanes import stage_lanes, write_carried_lanes, write_staged_lanes
from fastindex.moving.numbers import MOST_COLUMN_BYTES
from fastindex.runtime.kernels import subroutine
from fastindex.runtime.lines.lines import copy_short
from fastindex.runtime.lines.memory import copy_vector, entry, prefetch_to_write, set_entry, stream_line

# Groups of rows per band; lines of all rows of a group that are staged; prefetch distance in lines. A chunk may have
# one more line of each row: rows off a line boundary do, and a chunk of one line would delay all others.
_GROUPS = 8
_STAGED_LINES, _LINES_AHEAD = 128, 64
# Long rows of a group that map to one set of L1 evict each other's prefetched lines. Fractions of a copy with
# prefetches and without, an Intel Xeon (2026-11-23): u8 8192 by 8192 0.57 and 0.69, 8256 by 8256 0.71 and 0.67;
# u8[16,2048,2048] transposed, two sets, 0.61 and 0.56; u8[49,1000,1000] reversed out of T(1024), short, 0.68 and 0.58.
_LONG_ROW_BYTES = 4096
# The lanes of eight groups are contiguous per column; the pitch has one line more, to spread columns over cache sets.
_PITCH_BYTES = _GROUPS * 64 + 64
_CHUNK_BYTES = (_STAGED_LINES + 16) * _PITCH_BYTES

# Record of the staged chunk that is not yet written: its half of the memory, lines of each row, target address, state
# of the carried lines (`ALIGNED` and so on), number of its first line, pitch of rows that evict prefetched lines, and
# for each line the address of its table of columns.
_PENDING = 2 * _CHUNK_BYTES
_HALF, _COUNT, _TARGET, _CARRIED, _BEGIN, _EVICTING_PITCH, _TABLES = range(7)
# The bytes from 0 to 127, then one carried and two new lines of each of four columns.
_NUMBERS = _PENDING + 64 * ((_TABLES + _STAGED_LINES) // 8 + 1)
_CARRY = _NUMBERS + 2 * 64 + 4 * 3 * 64

#: The most columns off line boundaries that are moved together.
MOST_CARRIED = 4096
#: Bytes of scratch memory that staged bands need.
STAGED_BYTES = _CARRY + 64 * (MOST_CARRIED + 2 * 64)

# State of a band: columns start on line boundaries; off line boundaries, first band; off line boundaries, later band.
ALIGNED, FIRST_SHIFTED, SHIFTED = 0, 1, 2


@subroutine()
def begin_staging(scratch, evicting_pitch):  # type: ignore[no-untyped-def]
    """Initialise the record of staged lines; `evicting_pitch` is that of a `TransposeGeometry`."""
    set_entry(scratch + _PENDING, _EVICTING_PITCH, evicting_pitch)
    set_entry(scratch + _PENDING, _HALF, 0)
    set_entry(scratch + _PENDING, _COUNT, 0)
    for place in range(2 * 64 // 8):
        set_entry(scratch + _NUMBERS, place, 0x0706050403020100 + 0x0808080808080808 * place)


@subroutine("width", inline=True)
def _write_next(width, scratch, half, done):  # type: ignore[no-untyped-def]
    """Write the next two staged lines of each of four columns; `done` such steps have been written before."""
    group, pending = 16 // width, scratch + _PENDING
    table = entry(pending, _TABLES + done // group) + 8 * (done % group)
    stage = scratch + half * _CHUNK_BYTES + done * _PITCH_BYTES
    if entry(pending, _CARRIED) == ALIGNED:
        write_staged_lanes(width, entry(pending, _TARGET), table, stage)
    else:
        is_first = 1 if entry(pending, _CARRIED) == FIRST_SHIFTED else 0
        carry = scratch + _CARRY + 64 * ((entry(pending, _BEGIN) + done // group) * 4 * group + done % group)
        numbers = scratch + _NUMBERS
        write_carried_lanes(width, entry(pending, _TARGET), table, stage, carry, is_first, numbers)


@subroutine("width")
def write_staged(width, scratch):  # type: ignore[no-untyped-def]
    """Write the staged lines."""
    half = entry(scratch + _PENDING, _HALF)
    for done in range(entry(scratch + _PENDING, _COUNT) * (16 // width)):
        _write_next(width, scratch, half, done)
    set_entry(scratch + _PENDING, _COUNT, 0)


@subroutine(inline=True)
def _column(line, column_first, last, per_line):  # type: ignore[no-untyped-def]
    """Return the first column of a line of a row: the second line starts at `column_first`, the last is a whole one."""
    return min(column_first + (line - 1) * per_line, last) if line else 0


@subroutine("width")
def staged_band(width, target, sources, tables, band, carried, scratch):  # type: ignore[no-untyped-def]
    """Stage a band, and write the lines staged before; the last chunk of the band stays staged.

    Parameters
    ----------
    width : literal int
        1 or 2.
    target : int64
        Address of the first column at the first row of the panel.
    sources : (int64, int64)
        Addresses of this panel and of the next one.
    tables : (int64, int64)
        Addresses of the offsets of rows and of columns.
    band : (int64, int64, int64, int64)
        First row, end of rows, first column of the second line of a row or 0, number of columns.
    carried : int64
        `ALIGNED`, `FIRST_SHIFTED` or `SHIFTED`. With the last two, the last line of each column may stay carried, and
        there are at most `MOST_CARRIED` columns.
    scratch : int64
        Address of `STAGED_BYTES` bytes of scratch memory.
    """
    per_line, group = 64 // width, 16 // width
    (rows, columns), (first, end, column_first, column_count) = tables, band
    (source, upcoming), pending = sources, scratch + _PENDING
    last, most = column_count - per_line, _STAGED_LINES // group
    column_first = column_first if column_first else per_line
    lines = (2 + max(last - column_first + per_line - 1, 0) // per_line) if last else 1
    chunks = (lines + most) // (most + 1)
    is_lost = (entry(rows, first + 1) - entry(rows, first)) % entry(pending, _EVICTING_PITCH) == 0
    asks = not is_lost or column_count * width < _LONG_ROW_BYTES
    following = 0
    for chunk in range(chunks):
        begin, count = following, lines // chunks + (1 if chunk < lines % chunks else 0)
        half, done, waiting = entry(pending, _HALF), 0, entry(pending, _COUNT) * group
        stage, each = scratch + (1 - half) * _CHUNK_BYTES, (waiting + _GROUPS * count - 1) // (_GROUPS * count)
        # Read after this chunk: the next columns, the next band, or the next panel.
        following, next_source, next_rows = begin + count, source, rows + 8 * first
        if following == lines:
            is_last = first + 2 * _GROUPS * group > end
            following, next_source = 0, upcoming if is_last else source
            next_rows = rows if is_last else next_rows + 8 * _GROUPS * group
        asked_group, asked_line = divmod(_LINES_AHEAD // group, count)
        for part in range(_GROUPS):
            table = rows + 8 * (first + part * group)
            for line in range(count):
                if asked_group < _GROUPS:
                    asked = source + _column(begin + asked_line, column_first, last, per_line) * width
                    asked_rows = rows + 8 * (first + asked_group * group)
                else:
                    later = min(following + asked_line, lines - 1)
                    asked = next_source + _column(later, column_first, last, per_line) * width
                    asked_rows = next_rows
                read = source + _column(begin + line, column_first, last, per_line) * width
                place = stage + line * group * _PITCH_BYTES + 64 * part
                stage_lanes(width, place, _PITCH_BYTES, read, table, asked if asks else 0, asked_rows)
                asked_line += 1
                if asked_line == count:
                    asked_group, asked_line = asked_group + 1, 0
                for _ in range(min(each, waiting - done)):
                    _write_next(width, scratch, half, done)
                    done += 1
        set_entry(pending, _HALF, 1 - half)
        set_entry(pending, _COUNT, count)
        set_entry(pending, _TARGET, target + first * width)
        set_entry(pending, _CARRIED, carried)
        set_entry(pending, _BEGIN, begin)
        for line in range(count):
            set_entry(pending, _TABLES + line, columns + 8 * _column(begin + line, column_first, last, per_line))


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
