"""Simulate the heap in a TPU's main memory: best fit, with buffers allocated in schedule order.

Derived from libtpu's assignments in memory space 0: the offsets in ``*-buffer-assignment.txt``.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable

#: Alignment of offsets in the heap.
UNIT_NBYTES = 1 << 14


def heap_nbytes(buffers: Iterable[tuple[int, int, int]]) -> int:
    """Return the heap size for buffers given as (first step, last step, bytes), both steps included.

    Examples
    --------
    The third buffer reuses the memory of the first; the fourth fits into no gap:

    >>> heap_nbytes([(0, 2, 5 << 14), (1, 9, 1 << 14), (3, 9, 4 << 14), (4, 9, 2 << 14)]) >> 14
    8
    """
    gaps = _Gaps()
    ends: list[tuple[int, int, int]] = []
    # Current and maximum end of the live buffers.
    used = most = 0
    for start, end, nbytes in sorted(buffers, key=lambda buffer: (buffer[0], -buffer[2])):
        while ends and ends[0][0] < start:
            _, offset, size = heapq.heappop(ends)
            used = gaps.free(offset, size, used)
        size = -(-nbytes // UNIT_NBYTES) * UNIT_NBYTES
        found = gaps.take(size)
        if found is None:
            found, used = used, used + size
            most = max(most, found + nbytes)
        heapq.heappush(ends, (end, found, size))
    return most


class _Gaps:
    """Free gaps, sorted both by offset and by size for fast searches."""

    def __init__(self) -> None:
        self._by_offset: list[tuple[int, int]] = []
        self._by_size: list[tuple[int, int]] = []

    def take(self, size: int) -> int | None:
        """Allocate at the start of the smallest gap that fits; return the offset, or None if no gap fits."""
        place = bisect_left(self._by_size, (size, 0))
        if place == len(self._by_size):
            return None
        gap, offset = self._by_size[place]
        self._remove(offset, gap)
        if gap > size:
            self._add(offset + size, gap - size)
        return offset

    def free(self, offset: int, size: int, used: int) -> int:
        """Free memory and merge it with adjacent gaps; return the new end of the memory in use."""
        place = bisect_left(self._by_offset, (offset, 0))
        if place < len(self._by_offset) and self._by_offset[place][0] == offset + size:
            following = self._by_offset[place]
            self._remove(*following)
            size += following[1]
        if place and sum(self._by_offset[place - 1]) == offset:
            before = self._by_offset[place - 1]
            self._remove(*before)
            offset, size = before[0], before[1] + size
        if offset + size == used:
            return offset
        self._add(offset, size)
        return used

    def _add(self, offset: int, size: int) -> None:
        insort(self._by_offset, (offset, size))
        insort(self._by_size, (size, offset))

    def _remove(self, offset: int, size: int) -> None:
        del self._by_offset[bisect_left(self._by_offset, (offset, size))]
        del self._by_size[bisect_left(self._by_size, (size, offset))]
