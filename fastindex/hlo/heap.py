"""How far the heap of a TPU's memory grows: buffers get the smallest gap that holds them, in the order of the schedule.

Measured on what libtpu assigns in memory space 0: the offsets in ``*-buffer-assignment.txt``.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable

#: Offsets in the heap are multiples of it.
UNIT_NBYTES = 1 << 14


def heap_nbytes(buffers: Iterable[tuple[int, int, int]]) -> int:
    """Return the size of the heap of buffers, each with its first and last step, both included, and its bytes.

    Examples
    --------
    The third fits into the memory of the first, the fourth into none of the gaps:

    >>> heap_nbytes([(0, 2, 5 << 14), (1, 9, 1 << 14), (3, 9, 4 << 14), (4, 9, 2 << 14)]) >> 14
    8
    """
    gaps: list[tuple[int, int]] = []
    ends: list[tuple[int, int, int]] = []
    # Where the buffers that live now end, and ended at most.
    used = most = 0
    for start, end, nbytes in sorted(buffers, key=lambda buffer: (buffer[0], -buffer[2])):
        while ends and ends[0][0] < start:
            _, offset, size = heapq.heappop(ends)
            used = _freed(gaps, offset, size, used)
        size = -(-nbytes // UNIT_NBYTES) * UNIT_NBYTES
        fitting = min(((gap, place) for place, (_, gap) in enumerate(gaps) if gap >= size), default=None)
        if fitting is None:
            offset, used = used, used + size
            most = max(most, offset + nbytes)
        else:
            gap, place = fitting
            offset = gaps[place][0]
            gaps[place : place + 1] = [(offset + size, gap - size)] if gap > size else []
        heapq.heappush(ends, (end, offset, size))
    return most


def _freed(gaps: list[tuple[int, int]], offset: int, size: int, used: int) -> int:
    """Add a gap, joined with those that touch it; return where the memory in use ends now."""
    place = bisect_left(gaps, (offset, 0))
    if place < len(gaps) and gaps[place][0] == offset + size:
        size += gaps.pop(place)[1]
    if place and sum(gaps[place - 1]) == offset:
        place -= 1
        offset, before = gaps.pop(place)
        size += before
    if offset + size == used:
        return offset
    gaps.insert(place, (offset, size))
    return used
