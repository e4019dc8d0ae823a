"""Memory in use at each step of a schedule, and the peak: an estimate of XLA's buffer assignment.

Arguments and outputs belong to the caller and constants to the program; like XLA, this counts them for the whole
schedule. Temporary buffers count during their live ranges. Except on TPUs, a temporary buffer that fits into an output
not written yet is placed there at no cost, and gaps between buffers are ignored. In a TPU's main memory, temporary
buffers are allocated from a heap whose gaps count: best fit, in schedule order. In the fast memory of a TPU core gaps
count, too, see `fast_memory`.

Sources: ``xla/service/buffer_assignment.cc`` (AssignSingleHloBuffer: reuse of larger allocations, the smallest first),
``xla/service/heap_simulator/heap_simulator.cc``; for the heap of a TPU, the offsets in ``*-buffer-assignment.txt`` of
libtpu.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, MutableSequence, Sequence, Set
from dataclasses import dataclass

from fastindex.core.integers import INT64_MAX
from fastindex.hlo.computations import Computation
from fastindex.hlo.flow.buffers import Interval, ModuleBuffers, union
from fastindex.hlo.flow.fast_memory import FastBuffer, fast_nbytes
from fastindex.hlo.shape_table import ShapeTable

#: Alignment of offsets in the heap of a TPU.
UNIT_NBYTES = 1 << 14
#: Limits on the temporary buffers tried (largest first), and on the outputs in which they are tried.
_TRIED_BUFFERS, _TRIED_OUTPUTS = 2000, 100
_TIMELINE_STEPS = 400


#: Maximum memory use in an interval of the schedule: the step, bytes, and bytes of elements.
Moment = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Liveness:
    """Memory in use over a schedule, in one memory space.

    Attributes
    ----------
    peak : Moment
    alive : set of int
        Buffers that are live at the peak.
    timeline : tuple of Moment
        Maxima of consecutive intervals of the schedule; at most a few hundred.
    steps : int
    held : int
        Bytes of arguments, outputs and constants.
    gaps : int
        Bytes of gaps in the heap, if there is one.
    """

    peak: Moment
    alive: Set[int]
    timeline: tuple[Moment, ...]
    steps: int
    held: int = 0
    gaps: int = 0


def liveness(found: ModuleBuffers, table: ShapeTable, space: int = 0, on_tpu: bool = False) -> Liveness:
    """Compute the memory in use over the schedule of a module, in one memory space."""
    here = [number for number, leaf in enumerate(found.leaves) if table.spaces[leaf] == space]
    temporary = [number for number in here if found.roles[number] == "temporary"]
    held = Counter(found.leaves[number] for number in here if found.roles[number] != "temporary")
    base = sum(count * table.nbytes[leaf] for leaf, count in held.items())
    logical_base = sum(count * table.logical_nbytes[leaf] for leaf, count in held.items())
    in_outputs = set() if on_tpu else _placed_in_outputs(found, space, temporary, table)
    counted = [number for number in temporary if number not in in_outputs]
    steps = max(found.steps, 1)
    changes = _changes(found, counted, table.nbytes, steps), _changes(found, counted, table.logical_nbytes, steps)
    peak, timeline = _sweep(*changes, base, logical_base, steps)
    alive = {number for number in here if found.roles[number] != "temporary"}
    alive.update(number for number in counted if _is_alive(found, number, peak[0]))
    gaps = 0
    if on_tpu:
        assigned = _assigned(found, temporary, table) if space == 0 else _assigned_fast(found, table, space)
        gaps = max(assigned - (peak[1] - base), 0)
    return Liveness(peak, alive, timeline, found.steps, base, gaps)


def _changes(found: ModuleBuffers, numbers: list[int], sizes: list[int], steps: int) -> MutableSequence[int]:
    """Return the bytes by which the memory that buffers use changes at each step."""
    leaves, slices = found.leaves, [each for number in numbers for each in found.slices.get(number, ())]
    most = sum(sizes[leaves[number]] for number in numbers) + sum(sizes[leaf] for _, _, leaf in slices)
    # In damaged text, sums may exceed the items of an array.
    change: MutableSequence[int] = array("q", bytes(8 * (steps + 2))) if most <= INT64_MAX else [0] * (steps + 2)
    for number in numbers:
        nbytes = sizes[leaves[number]]
        for start, end in found.intervals(number):
            change[start] += nbytes
            change[end + 1] -= nbytes
    for start, end, leaf in slices:
        change[start] += sizes[leaf]
        change[end + 1] -= sizes[leaf]
    return change


def _is_alive(found: ModuleBuffers, number: int, step: int) -> bool:
    intervals, slices = found.intervals(number), found.slices.get(number, ())
    return any(a <= step <= b for a, b in intervals) or any(a <= step <= b for a, b, _ in slices)


def _assigned(found: ModuleBuffers, temporary: list[int], table: ShapeTable) -> int:
    """Return the bytes that a TPU assigns to temporary buffers: a heap, and contexts of calls to other cores.

    Contexts of the same shape share memory with each other only.
    """
    leaves, nbytes = found.leaves, table.nbytes
    contexts = {number for number in temporary if _is_context(found.owners[number], found.places[number])}
    units = sum(-(-nbytes[leaf] // UNIT_NBYTES) for leaf in {leaves[number] for number in contexts})
    others = [number for number in temporary if number not in contexts]
    others.sort(key=lambda number: -nbytes[leaves[number]])
    others.sort(key=found.starts.__getitem__)
    return units * UNIT_NBYTES + heap_nbytes(
        (found.starts[number], found.ends[number], nbytes[leaves[number]]) for number in others
    )


def _assigned_fast(found: ModuleBuffers, table: ShapeTable, space: int) -> int:
    """Return the bytes of the fast memory of a core that are assigned to temporary buffers; 0 for another memory."""
    buffers = []
    for number, use in found.fast.items():
        leaf, ranges = found.leaves[number], found.intervals(number)
        nbytes = table.nbytes[leaf]
        slices = [(start, table.nbytes[part]) for start, _, part in sorted(found.slices.get(number, ()))]
        if table.spaces[leaf] == 0:
            buffers.append(FastBuffer(nbytes, (), ranges, use))
        elif table.spaces[leaf] == space and found.roles[number] == "temporary":
            buffers.append(FastBuffer(nbytes, slices or [(ranges[0][0], nbytes)], ranges, use))
    return fast_nbytes(buffers)


def _is_context(computation: Computation, place: int) -> bool:
    """Whether a buffer is the context of an asynchronous call whose operands are bound after its start."""
    return computation.opcodes[place].endswith("-start") and not len(computation.operands(place))


def _sweep(
    change: Sequence[int], logical_change: Sequence[int], base: int, logical_base: int, steps: int
) -> tuple[Moment, tuple[Moment, ...]]:
    width = -(-steps // _TIMELINE_STEPS)
    timeline = []
    nbytes, logical = base, logical_base
    # Maximum within the current interval.
    step_of_most, most, most_logical = 0, -1, 0
    for step in range(steps):
        if change[step] or logical_change[step] or most < 0:
            nbytes += change[step]
            logical += logical_change[step]
            if nbytes > most:
                step_of_most, most, most_logical = step, nbytes, logical
        if (step + 1) % width == 0 or step + 1 == steps:
            timeline.append((step_of_most, most, most_logical))
            step_of_most, most, most_logical = step + 1, -1, 0
    return max(timeline, key=lambda moment: moment[1]), tuple(timeline)


def _placed_in_outputs(found: ModuleBuffers, space: int, temporary: list[int], table: ShapeTable) -> Collection[int]:
    """Return the temporary buffers placed in an output outside of its live range."""

    def size(number: int) -> int:
        return table.nbytes[found.leaves[number]]

    outputs = [number for number in found.outputs if table.spaces[found.leaves[number]] == space]
    outputs.sort(key=size)
    rooms = [(number, size(number), list(found.intervals(number))) for number in outputs[-_TRIED_OUTPUTS:]]
    if not rooms:
        return ()
    tried = [number for number in temporary if 0 < size(number) <= rooms[-1][1]]
    tried.sort(key=lambda number: -size(number))
    placed = set()
    for number in tried[:_TRIED_BUFFERS]:
        intervals, heirs = found.intervals(number), found.heirs.get(number, ())
        for output, nbytes, taken in rooms:
            used = intervals
            if output in heirs and intervals[-1][0] < intervals[-1][1]:
                # The output may overwrite this buffer in its last step.
                used = [*intervals[:-1], (intervals[-1][0], intervals[-1][1] - 1)]
            if size(number) <= nbytes and not _overlap(taken, used):
                taken[:] = union(taken + used)
                placed.add(number)
                break
    return placed


def _overlap(first: list[Interval], second: list[Interval]) -> bool:
    return any(a <= d and c <= b for a, b in first for c, d in second)


def heap_nbytes(buffers: Iterable[tuple[int, int, int]]) -> int:
    """Return the heap size for buffers given as (first step, last step, bytes), both steps included.

    Buffers come in order of the first step; of several in one step, the largest first.

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
    for start, end, nbytes in buffers:
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
