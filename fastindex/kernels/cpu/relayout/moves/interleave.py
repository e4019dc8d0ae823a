"""Relayouts that make one stream of a few rows, an element of each in turn, by vectors."""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.memory import copy_vector, entry, fence, literal, prefetch
from fastindex.kernels.cpu.relayout.lines.lines import copy_run, copy_short, prefetch_ends, prefetch_rows
from fastindex.kernels.cpu.relayout.lines.pending import NOTHING_PENDING, PENDING_ROOM, added, finish, go_to
from fastindex.kernels.cpu.relayout.lines.vectors import interleave_rows
from fastindex.kernels.cpu.relayout.passes.table import start_of_block
from fastindex.tables.passes import FIRST, GEOMETRY, SECOND
from fastindex.tables.streams import CHUNKS_AHEAD, RUN, STREAMED, WAYS

#: Bytes of scratch memory that this kernel needs: pending bytes.
SCRATCH_BYTES = PENDING_ROOM

_AHEAD_BYTES, _ROW_AHEAD_BYTES = 1024, 256
# How many lines ahead chunks are prefetched of rows that are no longer.
_LINES_AHEAD = 32


@njit(nogil=True, inline="always")
def _asked(source, upcoming, place, ahead_bytes, run_bytes):  # type: ignore[no-untyped-def]
    """Return what is prefetched where a run is read at `place`: what is ahead in it or, behind its end, in another."""
    later = place + min(ahead_bytes, run_bytes)
    return source + later if later < run_bytes else upcoming + later - run_bytes


@njit(nogil=True, inline="always")
def _interleave_run(width, ways, target, sources, rows, run, streamed, scratch):  # type: ignore[no-untyped-def]
    """Write `run` elements of each of some rows, in turn; whole lines straight from registers.

    The first column is chosen so that whole lines of the target are written. The rest at both ends comes from groups
    that overlap others. `sources` is where the rows are, and the next ones, 0 where these are prefetched already.
    """
    source, upcoming = sources
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
        if upcoming:
            asked = _asked(source, upcoming, column * w, _ROW_AHEAD_BYTES, run * w)
            for i in range(count):
                prefetch(asked + entry(rows, i))
        interleave_rows(width, ways, streamed, place, read, rows)
        column += per_line
    if column < run:
        last = run - per_line
        interleave_rows(width, ways, 0, scratch, source + last * w, rows)
        rest = (run - column) * column_bytes
        copy_run(target + column * column_bytes, scratch + (column - last) * column_bytes, rest, streamed)


@njit(nogil=True, inline="always")
def _append_columns(width, stream, pending, source, rows, counts, streamed):  # type: ignore[no-untyped-def]
    """Append elements of each of some rows, in turn, one by one; return the new stream.

    `counts` is how many rows there are, and elements a row.
    """
    row_count, run = counts
    w = literal(width)
    for column in range(run):
        behind = pending + stream[1]
        for i in range(row_count):
            copy_vector(behind + i * w, source + entry(rows, i) + column * w, width)
        stream = added(stream, row_count * w, pending, streamed)
    return stream


@kernel()
def interleave_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout that makes one stream of a few rows, in turns.

    Parameters
    ----------
    width : literal int
        Bytes of an element.
    ways : literal int
        How many rows, a power of two of at most 32 bytes.
    target, source, table, scratch
        As for `copy_chunks`; `RUN` is in elements of one row, `WAYS` the number of rows. The second table holds the
        byte offsets in the source of the rows.
    """
    geometry, chunks, rows = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
    run, streamed, row_count = entry(geometry, RUN), entry(geometry, STREAMED) != 0, entry(geometry, WAYS)
    chunk_bytes = run * row_count * literal(width)
    ahead, rows_ahead = _AHEAD_BYTES // chunk_bytes + 1, entry(geometry, CHUNKS_AHEAD)
    later = max(rows_ahead, 1)
    if rows_ahead == 0 and run * literal(width) <= _ROW_AHEAD_BYTES:
        later = max(_LINES_AHEAD // (row_count * ((run * literal(width) + 63) // 64)), 1)
    stream, counts = NOTHING_PENDING, (row_count, run)
    for task in range(first, last):
        at_source, at_target, count = start_of_block(source, target, table, task)
        for x in range(count):
            read, place = at_source + entry(chunks, 2 * x), at_target + entry(chunks, 2 * x + 1)
            upcoming = at_source + entry(chunks, 2 * min(x + later, count - 1))
            if rows_ahead > 0:
                prefetch_rows(upcoming, rows, row_count, run * literal(width))
            if rows_ahead:
                upcoming = 0
            if run * literal(width) >= 64:
                if x + ahead < count:
                    prefetch_ends(at_target + entry(chunks, 2 * (x + ahead) + 1), chunk_bytes)
                _interleave_run(width, ways, place, (read, upcoming), rows, run, streamed, scratch)
                continue
            stream = go_to(stream, place, scratch, streamed)
            stream = _append_columns(width, stream, scratch, read, rows, counts, streamed)
    finish(stream, scratch, streamed)
    if streamed:
        fence()
