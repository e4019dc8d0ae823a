"""Relayouts that deinterleave one sequential stream into a few rows, an element to each in turn.

The number of rows is a power of two here, so that vectors deinterleave; `deinterleave_lanes` takes any other number.
Rows that all begin equally far from a line boundary are written by whole lines straight from registers. Others are
staged in scratch memory first, a piece of each.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.memory import copy_vector, entry, fence, literal, prefetch, set_entry
from fastindex.kernels.cpu.relayout.lines.lines import copy_run, copy_short, prefetch_bytes, prefetch_ends
from fastindex.kernels.cpu.relayout.lines.vectors import deinterleave_line
from fastindex.kernels.cpu.relayout.passes.table import start_of_block
from fastindex.tables.passes import FIRST, GEOMETRY, SECOND, SECOND_LENGTH
from fastindex.tables.streams import STREAM

_AHEAD_BYTES = 1024
_ROW_BYTES = 64 + 2048 + 64

# Scratch memory: up to 64 staged rows, and their addresses.
_PLACES = 64 * _ROW_BYTES

#: Bytes of scratch memory that this kernel needs.
SCRATCH_BYTES = _PLACES + 64 * 8


@njit(nogil=True, inline="always")
def _deinterleave_direct(width, ways, target, rows, sources, run, streamed, scratch):  # type: ignore[no-untyped-def]
    """Deinterleave a stream into rows that all begin equally far from a line boundary, whole lines from registers.

    `sources` is where the stream is, and the next one, 0 where that has been prefetched.
    """
    source, upcoming = sources
    w, count = literal(width), literal(ways)
    per_line = 64 // w
    head = (-(target + entry(rows, 0))) & 63 if streamed else 0
    places = scratch + _PLACES
    column = head // w
    if head:
        deinterleave_line(width, ways, 0, 0, places, source)
        for i in range(count):
            copy_short(target + entry(rows, i), entry(places, i), head)
    while column + per_line <= run:
        here = source + column * count * w
        if upcoming:
            later, total = column * count * w + _AHEAD_BYTES, run * count * w
            asked = source + later if later < total else upcoming + later - total
            for i in range(count):
                prefetch(asked + 64 * i)
        deinterleave_line(width, ways, streamed, target + column * w, rows, here)
        column += per_line
    if column < run:
        last = run - per_line
        deinterleave_line(width, ways, 0, 0, places, source + last * count * w)
        for i in range(count):
            rest = entry(places, i) + (column - last) * w
            copy_short(target + entry(rows, i) + column * w, rest, (run - column) * w)


@njit(nogil=True, inline="always")
def _deinterleave_pieces(width, ways, target, rows, source, counts, streamed, scratch):  # type: ignore[no-untyped-def]
    """Deinterleave a stream into any rows, a piece of each after the other; `counts` is (rows, elements of each)."""
    w, (count, run) = literal(width), counts
    per_line = 64 // w
    places = scratch + _PLACES
    for first in range(0, run, 1024 // w):
        piece = min(run - first, 1024 // w)
        start = source + first * count * w
        whole = piece - piece % per_line
        for column in range(0, whole, per_line):
            deinterleave_line(width, ways, 0, column * w, places, start + column * count * w)
        for column in range(whole, piece):
            for i in range(count):
                copy_vector(entry(places, i) + column * w, start + (column * count + i) * w, width)
        for i in range(count):
            copy_run(target + entry(rows, i) + first * w, entry(places, i), piece * w, streamed)


@kernel()
def deinterleave_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout that deinterleaves a stream into a few rows.

    Parameters
    ----------
    width : literal int
        Bytes of an element.
    ways : literal int
        How many rows, a power of two of at most 32 bytes.
    target, source, table, scratch
        As for `copy_chunks`; `RUN` is in elements of one row. The second table holds the byte offsets in the
        destination of the rows.
    """
    geometry, chunks, rows = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
    run, streamed = entry(geometry, STREAM.run), entry(geometry, STREAM.streamed) != 0
    w, count, aligned = literal(width), entry(table, SECOND_LENGTH), True
    for i in range(count):
        set_entry(scratch + _PLACES, i, scratch + i * _ROW_BYTES)
        aligned = aligned and (entry(rows, i) - entry(rows, 0)) & 63 == 0
    ahead, reads_ahead = _AHEAD_BYTES // (run * count * w) + 1, entry(geometry, STREAM.chunks_ahead)
    for task in range(first, last):
        at_source, at_target, chunk_count = start_of_block(source, target, table, task)
        for x in range(chunk_count):
            read, place = at_source + entry(chunks, 2 * x), at_target + entry(chunks, 2 * x + 1)
            if reads_ahead >= 0 and x + ahead < chunk_count:
                for i in range(count):
                    prefetch_ends(at_target + entry(chunks, 2 * (x + ahead) + 1) + entry(rows, i), run * w)
            upcoming = at_source + entry(chunks, 2 * min(x + max(reads_ahead, 1), chunk_count - 1))
            if reads_ahead > 0:
                prefetch_bytes(upcoming, run * count * w)
            if reads_ahead:
                upcoming = 0
            if run * w >= 64 and (not streamed or (aligned and (place + entry(rows, 0)) % w == 0)):
                _deinterleave_direct(width, ways, place, rows, (read, upcoming), run, streamed, scratch)
            else:
                _deinterleave_pieces(width, ways, place, rows, read, (count, run), streamed, scratch)
    if streamed:
        fence()
