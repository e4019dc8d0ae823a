"""Assign the fast memory of a TPU core (VMEM, on v4 also CMEM): the offsets that XLA's compiler chooses, estimated.

First the compiler places what it fetches for the next run, and keeps it throughout. Then it decides for one buffer
after the other whether it gets fast memory, the most beneficial first: by the time that its readers save, divided by
the square root of its size; of equal ones, the one that is there longest. Each goes into the smallest gap that is free
from its first step to the last use of its value *in any memory*, even if it leaves the fast memory earlier. Gaps
therefore stay open which live ranges do not explain. When a value is in the main memory and its first reader follows at
once, so that nothing could fetch it in time, the compiler takes this for a lack of memory: it places all buffers again,
now by their live ranges alone, the longest first. The time saved is not in the text; it is taken to be proportional
to the bytes that are read and written, as for instructions limited by memory. Those limited by computation save
nothing; which these are, the text does not say.

Sources, in ``xla/service/``: ``memory_space_assignment/cost_analysis.cc`` (GetMemoryBoundedness),
``memory_space_assignment/algorithm.cc`` (FindBestChunkCandidate, AllocateCrossProgramPrefetchBuffer, Prefetch),
``memory_space_assignment/best_fit_repacker.cc``, ``heap_simulator/heap_simulator.cc`` (FindChunkCandidate; of the
orders of slices only those by time). The alignment, the weight of loops and the limits are those of libtpu 0.0.52; with
``TPU_VMODULE=algorithm=5`` it logs its order, and why.
"""

from __future__ import annotations

import heapq
import math
import sys
from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

#: Memory spaces in which the compiler places values by their benefit.
SPACES = frozenset((1, 3))
#: Alignment of offsets.
UNIT_NBYTES = 1 << 12
#: Executions of a loop's body that the compiler assumes.
LOOP_WEIGHT = 5
#: Limit on the buffers placed, largest first: the time is quadratic in their number.
MOST_BUFFERS = 2000
#: How often the compiler places all buffers again.
_MOST_REPACKS = 4
#: Bytes that the program may access between two uses of a value that is kept: 8 times the 128 MiB of a core.
_MOST_BETWEEN_USES = 1 << 30

Interval = tuple[int, int]


class FastUse(NamedTuple):
    """The use of a value that has a buffer in fast memory, and maybe others in other memories.

    Attributes
    ----------
    last : int
        Step of the last use, in any memory, through which the buffer could have been kept.
    nbytes : float
        Bytes of the value that instructions read and write, those in loops counted `LOOP_WEIGHT` times.
    is_kept : bool
        Whether it is fetched for the next run of the program.
    events : int
        Number of values that begin or end while it is there, in any memory; an argument ends with the program.
    duration : int
        Number of instructions for which the buffer is there.
    """

    last: int
    nbytes: float
    is_kept: bool = False
    events: int = 0
    duration: int = 0


class FastBuffer(NamedTuple):
    """A buffer in fast memory.

    Attributes
    ----------
    nbytes : int
    parts : sequence of (int, int)
        First step and bytes of each slice that is written separately, in order of time; otherwise of the whole. None
        for a buffer in the main memory for which the compiler rearranges the others.
    ranges : sequence of (int, int)
        Its live ranges, in order of time.
    value : FastUse
    """

    nbytes: int
    parts: Sequence[tuple[int, int]]
    ranges: Sequence[Interval]
    value: FastUse

    @property
    def order(self) -> tuple[bool, float, int, int]:
        """Sort key: what is kept throughout, and then the most beneficial first."""
        benefit = self.value.nbytes / math.sqrt(self.nbytes or 1)
        return not self.value.is_kept, -benefit, -self.nbytes, -self.value.events


class Program(NamedTuple):
    """What a program does before each step.

    Attributes
    ----------
    nbytes : sequence of float
        Bytes that it accesses.
    events : sequence of int
        Number of values that begin or end.
    instructions : sequence of int
        Number of instructions, other than those that are inserted after fast memory is assigned.
    """

    nbytes: Sequence[float]
    events: Sequence[int]
    instructions: Sequence[int]


class ValueBuffer(NamedTuple):
    """A buffer of a value, in any memory.

    Attributes
    ----------
    number : int
    ranges : sequence of (int, int)
        Its live ranges.
    read, written : float
        Bytes that are read of it, and that its first writer writes.
    end : int
        Step at which the value ends.
    uses : sequence of int
        Steps at which it is used, other than to copy it.
    """

    number: int
    ranges: Sequence[Interval]
    read: float
    written: float
    end: int
    uses: Sequence[int]


def fast_uses(
    buffers: Iterable[ValueBuffer],
    moves: Iterable[tuple[int, int]],
    program: Program,
    kept: Collection[int] = (),
) -> Mapping[int, FastUse]:
    """Return the use of the value of each buffer.

    Parameters
    ----------
    buffers : iterable of ValueBuffer
    moves : iterable of (int, int)
        Pairs of buffers of which one gets a copy of the other.
    program : Program
    kept : collection of int
        The buffers that are fetched for the next run of the program.

    Examples
    --------
    A value at steps 0 to 9 in the main memory, of whose copy in fast memory 8 bytes are read, the last time at step 4:

    >>> main = ValueBuffer(0, [(0, 9)], 0, 0, 20, [9])
    >>> fast = ValueBuffer(1, [(1, 4)], 8, 0, 4, [4])
    >>> fast_uses([main, fast], [(1, 0)], Program([0] * 10, range(22), range(22)))[1]
    FastUse(last=9, nbytes=8, is_kept=False, events=21, duration=3)

    Between steps 4 and 9, a gibibyte is accessed:

    >>> fast_uses([main, fast], [(1, 0)], Program([0] * 6 + [1 << 30] * 4, range(22), range(22)))[1].last
    4
    """
    found = {buffer.number: buffer for buffer in buffers}
    members = {number: [number] for number in found}
    for first, second in moves:
        if first in members and second in members and members[first] is not members[second]:
            large, small = members[first], members[second]
            if len(large) < len(small):
                large, small = small, large
            large += small
            members.update(dict.fromkeys(small, large))
    uses: dict[int, FastUse] = {}
    for every in {id(every): every for every in members.values()}.values():
        value = [found[number] for number in every]
        earliest = min(value, key=lambda buffer: buffer.ranges[0][0])
        # Of the writers only the first one counts.
        count = sum(buffer.read for buffer in value) + earliest.written
        events = program.events[max(buffer.end for buffer in value) + 1] - program.events[earliest.ranges[0][0]]
        at = sorted({step for buffer in value for step in buffer.uses})
        lasts = _last_kept(at, program.nbytes)
        for buffer in value:
            start, end = buffer.ranges[0][0], buffer.ranges[-1][1]
            duration = program.instructions[end] - program.instructions[start]
            following = bisect_right(at, end)
            if following < len(at) and _is_near(end, at[following], program.nbytes):
                end = lasts[following]
            uses[buffer.number] = FastUse(end, count, buffer.number in kept, events, duration)
    return uses


def _last_kept(uses: Sequence[int], nbytes: Sequence[float]) -> list[int]:
    """Return for each use the last one from it on between which the program accesses few enough bytes."""
    lasts = list(uses)
    for at in range(len(uses) - 2, -1, -1):
        if _is_near(uses[at], uses[at + 1], nbytes):
            lasts[at] = lasts[at + 1]
    return lasts


def _is_near(step: int, use: int, nbytes: Sequence[float]) -> bool:
    return nbytes[use] - nbytes[min(step + 1, use)] < _MOST_BETWEEN_USES


def fast_nbytes(buffers: Iterable[FastBuffer]) -> int:
    """Return the bytes of fast memory that are assigned.

    Examples
    --------
    The second buffer ends before the first one begins, but its value is used again later, in the main memory:

    >>> read_twice, read_again_later = FastUse(5, 3 * 8192), FastUse(9, 8192)
    >>> first = FastBuffer(8192, [(4, 8192)], [(4, 5)], read_twice)
    >>> fast_nbytes([first, FastBuffer(8192, [(0, 8192)], [(0, 2)], read_again_later)])
    16384

    The compiler then fails to fetch a value in time:

    >>> late = FastBuffer(8192, (), [(7, 8)], FastUse(8, 8))
    >>> fast_nbytes([first, FastBuffer(8192, [(0, 8192)], [(0, 2)], read_again_later), late])
    8192
    """
    heap = _Heap()
    chosen = heapq.nlargest(MOST_BUFFERS, buffers, key=attrgetter("nbytes"))
    for buffer in sorted(chosen, key=attrgetter("order")):
        if buffer.parts:
            heap.place(buffer, [(buffer.ranges[0][0], max(buffer.ranges[-1][1], buffer.value.last))])
        else:
            heap.repack()
    return heap.nbytes


class _Heap:
    """The buffers that have places, and the bytes that they take."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._repacks = 0
        self._buffers: list[FastBuffer] = []
        self._placed: list[_Rectangle] = []

    def place(self, buffer: FastBuffer, ranges: Sequence[Interval]) -> None:
        """Place a buffer where memory is free in all of the given steps."""
        self._buffers.append(buffer)
        if len(buffer.parts) == 1:
            offset = _smallest_gap(buffer.nbytes, ranges, self._placed)
            top = offset + -(-buffer.nbytes // UNIT_NBYTES) * UNIT_NBYTES
            for each in buffer.ranges:
                insort(self._placed, (offset, top, *each))
        else:
            orders, last = (buffer.parts, buffer.parts[::-1]), ranges[-1][1]
            offset, parts = min(((_lowest(order, last, self._placed), order) for order in orders), key=itemgetter(0))
            at = offset
            for start, nbytes in parts:
                insort(self._placed, (at, at + nbytes, start, buffer.ranges[-1][1]))
                at += nbytes
        self.nbytes = max(self.nbytes, offset + buffer.nbytes)

    def repack(self) -> None:
        """Place all buffers again, those first that are there longest."""
        if self._repacks < _MOST_REPACKS:
            self._repacks += 1
            buffers, self._buffers, self._placed, self.nbytes = self._buffers, [], [], 0
            for buffer in sorted(buffers, key=lambda each: (-each.value.duration, -each.nbytes)):
                self.place(buffer, buffer.ranges)


#: A buffer that has its place: first byte and the one after the last, first and last step.
_Rectangle = tuple[int, int, int, int]


def _smallest_gap(nbytes: int, ranges: Sequence[Interval], placed: Sequence[_Rectangle]) -> int:
    """Return the offset of the smallest gap that is free in all steps, or of the end of what is placed."""
    size = -(-nbytes // UNIT_NBYTES) * UNIT_NBYTES
    start, last, is_one = ranges[0][0], ranges[-1][1], len(ranges) == 1
    smallest, offset, at = sys.maxsize, -1, 0
    for low, high, first, end in placed:
        if first <= last and start <= end and (is_one or any(first <= b and a <= end for a, b in ranges)):
            if size <= low - at < smallest:
                smallest, offset = low - at, at
            if high > at:
                at = high
    return at if offset < 0 else offset


def _lowest(parts: Sequence[tuple[int, int]], last: int, placed: Sequence[_Rectangle]) -> int:
    """Return the lowest offset at which each part, one after the other, is free from its own first step on."""
    taken: list[tuple[int, int]] = []
    before = 0
    for start, nbytes in parts:
        # Between these two offsets of the first part, this part would overlap.
        taken += [
            (low - before - nbytes, high - before) for low, high, first, end in placed if first <= last and start <= end
        ]
        before += nbytes
    at = 0
    for low, high in sorted(taken):
        if low >= at:
            break
        at = max(at, -(-high // UNIT_NBYTES) * UNIT_NBYTES)
    return at
