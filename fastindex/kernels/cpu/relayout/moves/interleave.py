"""Relayouts that make one stream of a few rows: an element of each in turn, with or without padding behind them."""

from __future__ import annotations

from typing import Any

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.memory import copy_vector, entry, fence, literal, prefetch, set_entry
from fastindex.kernels.cpu.relayout.lines.lines import (
    copy_run,
    copy_short,
    prefetch_ends,
    prefetch_rows,
    transpose_square,
)
from fastindex.kernels.cpu.relayout.lines.pending import NOTHING_PENDING, PENDING_ROOM, added, finish, go_to
from fastindex.kernels.cpu.relayout.lines.vectors import interleave_rows, transpose_rows
from fastindex.kernels.cpu.relayout.passes.table import padding_of, start_of_block
from fastindex.tables.passes import FIRST, GEOMETRY, SECOND
from fastindex.tables.streams import STREAM

# Scratch memory: pending bytes, a staged square, and a table of 64 numbers.
_STAGE = PENDING_ROOM
_TABLES = _STAGE + 64 * 64

#: Bytes of scratch memory that this kernel needs.
SCRATCH_BYTES = _TABLES + 64 * 8

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

    `counts` is how many rows there are, elements of padding, and elements a row.
    """
    row_count, _, run = counts
    w = literal(width)
    for column in range(run):
        behind = pending + stream[1]
        for i in range(row_count):
            copy_vector(behind + i * w, source + entry(rows, i) + column * w, width)
        stream = added(stream, row_count * w, pending, streamed)
    return stream


@njit(nogil=True, inline="always")
def _append_transposed(width, stream, pending, source, rows, counts, upcoming, streamed):  # type: ignore[no-untyped-def]
    """Append the columns of some rows, each column contiguous; return the new stream.

    `counts` is that of `_append_columns`. `rows` is filled up to whole squares; what these add is read, and overwritten
    by padding or by the next column. The next rows are at `upcoming`.
    """
    row_count, padding, run = counts
    w = literal(width)
    per_line = 64 // w
    column_bytes, pattern = (row_count + padding) * w, padding_of(pending)
    stage, pitches = pending + _STAGE, pending + _TABLES
    for column in range(0, run, per_line):
        read, behind = source + column * w, pending + stream[1]
        count = min(per_line, run - column)
        asked = _asked(source, upcoming, column * w, _ROW_AHEAD_BYTES // 2, run * w) if upcoming else read
        for square in range((row_count - 1) // per_line, -1, -1):
            place = behind + 64 * square
            first = square * per_line
            if w > 2 and count == per_line:
                transpose_rows(width, 1, 0, 1, place, pitches, read, rows + 8 * first, asked, rows + 8 * first)
            else:
                for i in range(per_line):
                    if count == per_line:
                        prefetch(asked + entry(rows, first + i))
                        copy_vector(stage + 64 * i, read + entry(rows, first + i), 64)
                    else:
                        copy_short(stage + 64 * i, read + entry(rows, first + i), count * w)
                transpose_square(width, place, column_bytes, stage)
        if padding:
            for j in range(count):
                place = behind + j * column_bytes + row_count * w
                for at in range(0, padding * w, 32):
                    copy_short(place + at, pattern, min(32, padding * w - at))
        stream = added(stream, count * column_bytes, pending, streamed)
    return stream


def _kernel(in_vectors: bool) -> Any:
    """Make one of two kernels; each is compiled without what only the other needs."""

    @kernel()
    def interleave_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
        """Run the tasks `first` to `last` of a relayout that makes one stream of a few rows, in turns.

        Parameters
        ----------
        width : literal int
            Bytes of an element.
        ways : literal int
            How many rows, a power of two of at most 32 bytes. Where squares of any number of rows are transposed, 1.
        target, source, table, scratch
            As for `copy_chunks`; `RUN` is in elements of one row, `WAYS` the number of rows. The second table holds the
            byte offsets in the source of the rows; where squares are transposed, the last is repeated until they are
            whole, and `PADDING` elements of padding come behind each column.
        """
        geometry, chunks, rows = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
        run, streamed = entry(geometry, STREAM.run), entry(geometry, STREAM.streamed) != 0
        row_count, padding = entry(geometry, STREAM.ways), entry(geometry, STREAM.padding)
        column_bytes = (row_count + padding) * literal(width)
        chunk_bytes = run * column_bytes
        for j in range(64):
            set_entry(scratch + _TABLES, j, j * column_bytes)
        ahead, rows_ahead = _AHEAD_BYTES // chunk_bytes + 1, entry(geometry, STREAM.chunks_ahead)
        later = max(rows_ahead, 1)
        if rows_ahead == 0 and run * literal(width) <= _ROW_AHEAD_BYTES:
            later = max(_LINES_AHEAD // (row_count * ((run * literal(width) + 63) // 64)), 1)
        stream, counts = NOTHING_PENDING, (row_count, padding, run)
        for task in range(first, last):
            at_source, at_target, count = start_of_block(source, target, table, task)
            for x in range(count):
                read, place = at_source + entry(chunks, 2 * x), at_target + entry(chunks, 2 * x + 1)
                upcoming = at_source + entry(chunks, 2 * min(x + later, count - 1))
                if rows_ahead > 0:
                    prefetch_rows(upcoming, rows, row_count, run * literal(width))
                if rows_ahead:
                    upcoming = 0
                if in_vectors and run * literal(width) >= 64:
                    if x + ahead < count:
                        prefetch_ends(at_target + entry(chunks, 2 * (x + ahead) + 1), chunk_bytes)
                    _interleave_run(width, ways, place, (read, upcoming), rows, run, streamed, scratch)
                    continue
                stream = go_to(stream, place, scratch, streamed)
                if in_vectors:
                    stream = _append_columns(width, stream, scratch, read, rows, counts, streamed)
                else:
                    stream = _append_transposed(width, stream, scratch, read, rows, counts, upcoming, streamed)
        finish(stream, scratch, streamed)
        if streamed:
            fence()

    return interleave_chunks


#: For any number of ways, and for those that vectors take.
interleave_squares, interleave_vectors = _kernel(in_vectors=False), _kernel(in_vectors=True)
