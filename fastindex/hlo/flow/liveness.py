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
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

from fastindex.hlo.flow.buffers import Buffer, Interval, ModuleBuffers, union
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
    alive : frozenset of int
        Buffers that are live at the peak, as positions in `ModuleBuffers.buffers`.
    timeline : tuple of Moment
        Maxima of consecutive intervals of the schedule; at most a few hundred.
    steps : int
    held : int
        Bytes of arguments, outputs and constants.
    gaps : int
        Bytes of gaps in the heap, if there is one.
    """

    peak: Moment
    alive: frozenset[int]
    timeline: tuple[Moment, ...]
    steps: int
    held: int = 0
    gaps: int = 0


def liveness(found: ModuleBuffers, table: ShapeTable, space: int = 0, on_tpu: bool = False) -> Liveness:
    """Compute the memory in use over the schedule of a module, in one memory space."""
    here = [number for number, buffer in enumerate(found.buffers) if table.spaces[buffer.leaf] == space]
    in_outputs = set() if on_tpu else _placed_in_outputs(found.buffers, here, table)
    steps = max(found.steps, 1)
    change, logical_change = [0] * (steps + 2), [0] * (steps + 2)
    base = logical_base = 0
    for number in here:
        buffer = found.buffers[number]
        nbytes, logical = table.nbytes[buffer.leaf], table.logical_nbytes[buffer.leaf]
        if buffer.role != "temporary":
            base += nbytes
            logical_base += logical
        elif number not in in_outputs:
            whole = [(start, end, buffer.leaf) for start, end in buffer.intervals]
            for start, end, leaf in (*whole, *buffer.slices):
                nbytes, logical = table.nbytes[leaf], table.logical_nbytes[leaf]
                change[start] += nbytes
                change[end + 1] -= nbytes
                logical_change[start] += logical
                logical_change[end + 1] -= logical
    peak, timeline = _sweep(change, logical_change, base, logical_base, steps)
    alive = frozenset(
        number
        for number in here
        if found.buffers[number].role != "temporary"
        or (number not in in_outputs and _is_alive(found.buffers[number], peak[0]))
    )
    gaps = 0
    if on_tpu:
        temporary = [found.buffers[number] for number in here if found.buffers[number].role == "temporary"]
        assigned = _assigned(temporary, table) if space == 0 else _assigned_fast(found.buffers, table, space)
        gaps = max(assigned - (peak[1] - base), 0)
    return Liveness(peak, alive, timeline, found.steps, base, gaps)


def _is_alive(buffer: Buffer, step: int) -> bool:
    return any(a <= step <= b for a, b in buffer.intervals) or any(a <= step <= b for a, b, _ in buffer.slices)


def _assigned(buffers: list[Buffer], table: ShapeTable) -> int:
    """Return the bytes that a TPU assigns to temporary buffers: a heap, and contexts of calls to other cores.

    Contexts of the same shape share memory with each other only.
    """
    contexts = {buffer.leaf for buffer in buffers if _is_context(buffer)}
    units = sum(-(-table.nbytes[leaf] // UNIT_NBYTES) for leaf in contexts)
    others = [buffer for buffer in buffers if buffer.leaf not in contexts or not _is_context(buffer)]
    return units * UNIT_NBYTES + heap_nbytes(
        (buffer.intervals[0][0], buffer.intervals[-1][1], table.nbytes[buffer.leaf]) for buffer in others
    )


def _assigned_fast(buffers: list[Buffer], table: ShapeTable, space: int) -> int:
    """Return the bytes of the fast memory of a core that are assigned to temporary buffers; 0 for another memory."""
    found = []
    for buffer in buffers:
        if buffer.fast is not None:
            nbytes = table.nbytes[buffer.leaf]
            slices = [(start, table.nbytes[leaf]) for start, _, leaf in sorted(buffer.slices)]
            ranges = buffer.intervals
            if table.spaces[buffer.leaf] == 0:
                found.append(FastBuffer(nbytes, (), ranges, buffer.fast))
            elif table.spaces[buffer.leaf] == space and buffer.role == "temporary":
                found.append(FastBuffer(nbytes, slices or [(ranges[0][0], nbytes)], ranges, buffer.fast))
    return fast_nbytes(found)


def _is_context(buffer: Buffer) -> bool:
    """Whether a buffer is the context of an asynchronous call whose operands are bound after its start."""
    opcode = buffer.computation.opcodes[buffer.place]
    return opcode.endswith("-start") and not len(buffer.computation.operands(buffer.place))


def _sweep(
    change: list[int], logical_change: list[int], base: int, logical_base: int, steps: int
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


def _placed_in_outputs(buffers: list[Buffer], here: list[int], table: ShapeTable) -> set[int]:
    """Return the temporary buffers placed in an output outside of its live range."""
    outputs = [number for number in here if buffers[number].is_output]
    outputs.sort(key=lambda number: table.nbytes[buffers[number].leaf])
    rooms = [(n, table.nbytes[buffers[n].leaf], list(buffers[n].intervals)) for n in outputs[-_TRIED_OUTPUTS:]]
    if not rooms:
        return set()
    largest = rooms[-1][1]
    tried = [n for n in here if buffers[n].role == "temporary" and 0 < table.nbytes[buffers[n].leaf] <= largest]
    tried.sort(key=lambda number: -table.nbytes[buffers[number].leaf])
    placed = set()
    for number in tried[:_TRIED_BUFFERS]:
        size, intervals = table.nbytes[buffers[number].leaf], buffers[number].intervals
        for output, nbytes, taken in rooms:
            used = intervals
            if output in buffers[number].heirs and intervals[-1][0] < intervals[-1][1]:
                # The output may overwrite this buffer in its last step.
                used = [*intervals[:-1], (intervals[-1][0], intervals[-1][1] - 1)]
            if size <= nbytes and not _overlap(taken, used):
                taken[:] = union(taken + used)
                placed.add(number)
                break
    return placed


def _overlap(first: list[Interval], second: list[Interval]) -> bool:
    return any(a <= d and c <= b for a, b in first for c, d in second)


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
