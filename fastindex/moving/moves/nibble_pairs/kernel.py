"""Pair rows of packed elements of four bits: a 2 by 2 transpose of nibbles, for whole vectors of two rows.

Neighbours in the destination lie in two rows of the source. Once these are paired, any kernel for bytes moves them::

    first row    a1a0 a3a2 ..      low     b0a0 b2a2 ..   = (first & 0x0F) | (second << 4)
    second row   b1b0 b3b2 ..      high    b1a1 b3a3 ..   = (first >> 4) | (second & 0xF0)

Here the high nibble of a byte is on the left. `fastindex.moving.moves.nibble_pairs.plan` says which rows are paired.
"""

from __future__ import annotations

from fastindex.moving.kernels.passes import end_of_source, start_of_block
from fastindex.moving.moves.nibble_pairs import PAIR
from fastindex.moving.numbers import TABLE
from fastindex.runtime.kernels import kernel, subroutine
from fastindex.runtime.lines.lines import copy_run, pair_groups, pair_rows
from fastindex.runtime.lines.memory import entry, prefetch, prefetch_to_l2

# A line and a byte of each of two rows, or two lines.
_STAGE_BYTES = 128
# The most bytes of a row that is read by less than a line.
_SHORT_BYTES = 16
#: Bytes of scratch memory that this kernel needs.
SCRATCH_BYTES = 2 * _STAGE_BYTES


@subroutine("shifted", inline=True)
def _pair_run(shifted, target, high, sources, elements, ahead, ends):  # type: ignore[no-untyped-def]
    """Pair two rows of `elements` elements.

    `sources` are the offsets of the rows in nibbles; `ends` is (base of these, end of the readable source, scratch
    memory); `ahead` are the addresses of the rows to prefetch.
    """
    source, end, stage = ends
    odd = (sources[0] & 1, sources[1] & 1)
    first, second = source + (sources[0] >> 1), source + (sources[1] >> 1)
    size = (elements + 1) >> 1
    reach = max(first, second) + 64 + shifted
    at = 0
    if size <= _SHORT_BYTES and reach <= end:
        # Loading a whole line would often touch the next one, which has not been prefetched.
        for row in ahead:
            prefetch_to_l2(row)
            prefetch_to_l2(row + size - 1)
        pair_rows(_SHORT_BYTES, shifted, target, target + high, (first, second), odd)
        return
    while at < size:
        prefetch_to_l2(ahead[0] + at)
        prefetch_to_l2(ahead[1] + at)
        # The last line of a long row overlaps the one before: paired rows are adjacent, without gaps.
        place = min(at, max(size - 64, 0))
        if reach + place <= end:
            pair_rows(64, shifted, target + place, target + high + place, (first + place, second + place), odd)
        else:
            # Only bytes that hold elements may be read.
            copy_run(stage, first + place, min(((elements + odd[0] + 1) >> 1) - place, 65), False)
            copy_run(stage + 128, second + place, min(((elements + odd[1] + 1) >> 1) - place, 65), False)
            pair_rows(64, shifted, target + place, target + high + place, (stage, stage + 128), odd)
        at += 64


@subroutine("group_bytes", inline=True)
def _pair_alternating(group_bytes, target, high, source, elements, end, stage):  # type: ignore[no-untyped-def]
    """Pair rows of `group_bytes` bytes that alternate in a run of `elements` elements, a whole number of pairs."""
    size = elements >> 2
    for at in range(0, size, 64):
        read = source + 2 * at
        prefetch(read + 1024)
        prefetch(read + 1088)
        if read + 128 > end:
            copy_run(stage, read, 2 * min(size - at, 64), False)
            read = stage
        pair_groups(group_bytes, target + at, target + high + at, read)


@kernel
def pair_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` that pair rows of a box.

    The parameters are those of `copy_chunks`, except that source offsets count nibbles; the kernel's own numbers
    are a `PairGeometry`. Chunks are adjacent in the destination: up to a line after each chunk is overwritten, which
    the next chunk writes again; bytes after the last chunk are not used.
    """
    geometry, chunks = entry(table, TABLE.geometry), entry(table, TABLE.first)
    elements, row_stride = entry(geometry, PAIR.elements), entry(geometry, PAIR.row_stride)
    high, group_bytes = entry(geometry, PAIR.high), entry(geometry, PAIR.group_bytes)
    later = entry(geometry, PAIR.chunks_ahead)
    ends = (source, end_of_source(scratch), scratch)
    for task in range(first, last):
        at_source, place, count = start_of_block(entry(geometry, PAIR.begin), target, table, task)
        for x in range(count):
            row, written = at_source + entry(chunks, 2 * x), place + entry(chunks, 2 * x + 1)
            if group_bytes:
                begin = source + (row >> 1)
                if group_bytes == 1:
                    _pair_alternating(1, written, high, begin, elements, ends[1], scratch)
                elif group_bytes == 2:
                    _pair_alternating(2, written, high, begin, elements, ends[1], scratch)
                else:
                    _pair_alternating(4, written, high, begin, elements, ends[1], scratch)
                continue
            upcoming = at_source + entry(chunks, 2 * min(x + later, count - 1))
            ahead = (source + (upcoming >> 1), source + ((upcoming + row_stride) >> 1))
            if (row | (row + row_stride)) & 1:
                _pair_run(1, written, high, (row, row + row_stride), elements, ahead, ends)
            else:
                _pair_run(0, written, high, (row, row + row_stride), elements, ahead, ends)
