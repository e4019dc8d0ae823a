"""Gather elements one by one into contiguous pieces of the destination, which are written as one stream.

A table has the source offsets of the elements of a piece, which holds many small matrices. So short rows cost no more
than long ones: an element is a load and a store within the cache. Transposes in squares are better only if rows and
columns fill whole lines.
"""

from __future__ import annotations

from fastindex.moving.kernels.passes import start_of_block
from fastindex.moving.kernels.staging import NOTHING_PENDING, PENDING_BYTES, added, finish, go_to
from fastindex.moving.moves.gathers import GATHER, MOST_PIECE_BYTES
from fastindex.moving.numbers import TABLE
from fastindex.runtime.kernels import kernel, subroutine
from fastindex.runtime.lines.memory import copy_vector, entry, fence, prefetch
from fastindex.runtime.numbers import LINE_BYTES

#: Bytes of scratch memory that this kernel needs: pending bytes, one more piece, and a line that is read after them.
SCRATCH_BYTES = PENDING_BYTES + MOST_PIECE_BYTES + LINE_BYTES


@subroutine("width", inline=True)
def _gather(width, target, source, places, count, asked):  # type: ignore[no-untyped-def]
    w, whole = width, count & ~7
    upcoming, lines, line_count, at_once = asked
    last = 0
    for i in range(0, whole, 8):
        # Prefetch a few lines at a time: those of a whole piece at once would wait for each other.
        first, last = last, min(last + at_once, line_count)
        for k in range(first, last):
            prefetch(upcoming + entry(lines, k))
        place = target + i * w
        for k in range(8):
            copy_vector(place + k * w, source + entry(places, i + k), width)
    for k in range(last, line_count):
        prefetch(upcoming + entry(lines, k))
    for i in range(whole, count):
        copy_vector(target + i * w, source + entry(places, i), width)


@subroutine("width")
def _gather_elements(width, target, source, places, count, asked):  # type: ignore[no-untyped-def]
    """Gather elements to contiguous places; `places` is the address of a table of their byte offsets from `source`.

    `asked` is what to prefetch: (base of a later piece, table of its lines, number of lines, lines for every eight
    elements).
    """
    if width == 4:
        _gather(4, target, source, places, count, asked)
    elif width == 8:
        _gather(8, target, source, places, count, asked)
    elif width == 16:
        _gather(16, target, source, places, count, asked)
    elif width == 32:
        _gather(32, target, source, places, count, asked)
    else:
        _gather(64, target, source, places, count, asked)


@kernel
def gather_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout that gathers elements.

    Parameters
    ----------
    target, source, table, scratch
        As for `copy_chunks`; the kernel's own numbers are a `GatherGeometry`. The second table has the source offset of
        each element of a piece, then the offsets of the lines to prefetch.
    width, ways
        Not used.
    """
    geometry, chunks, places = entry(table, TABLE.geometry), entry(table, TABLE.first), entry(table, TABLE.second)
    w, elements = entry(geometry, GATHER.element_bytes), entry(geometry, GATHER.elements)
    lines, line_count = places + 8 * elements, entry(geometry, GATHER.lines)
    streamed, ahead = entry(geometry, GATHER.streamed) != 0, entry(geometry, GATHER.chunks_ahead)
    at_once = (8 * line_count + elements - 1) // elements
    stream = NOTHING_PENDING
    for task in range(first, last):
        at_source, at_target, count = start_of_block(source, target, table, task)
        next_source, _, next_count = start_of_block(source, target, table, min(task + 1, last - 1))
        next_count = 0 if task + 1 == last else next_count
        for x in range(count):
            place = at_target + entry(chunks, 2 * x + 1)
            upcoming, asked_lines = at_source, 0
            if x + ahead < count:
                upcoming, asked_lines = at_source + entry(chunks, 2 * (x + ahead)), line_count
            elif x + ahead < count + next_count:
                upcoming, asked_lines = next_source + entry(chunks, 2 * (x + ahead - count)), line_count
            asked = upcoming, lines, asked_lines, at_once
            stream = go_to(stream, place, scratch, streamed)
            _gather_elements(w, scratch + stream[1], at_source + entry(chunks, 2 * x), places, elements, asked)
            stream = added(stream, elements * w, scratch, streamed)
    finish(stream, scratch, streamed)
    fence()
