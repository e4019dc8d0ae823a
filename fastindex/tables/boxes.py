"""What planner and kernels know of relayouts of packed elements box by box, and of single halves of bytes."""

from __future__ import annotations

from typing import NamedTuple

#: Bytes of the elements of a box, one each, as they come from the source, and as they go to the destination.
BOX_BYTES = 256 << 10


class BoxGeometry(NamedTuple):
    """How many calls move a box, one after the other."""

    calls: int


CALLS = 0


class BoxCall(NamedTuple):
    """A pass that runs within each box.

    Attributes
    ----------
    kernel, table, tasks : int
        As of a `PassCall`.
    from_scratch, to_scratch : int
        Whether it reads from scratch memory, or writes to it, instead of the place of the box in the source and in the
        destination.
    source_start, target_start : int
        Bytes from there.
    """

    kernel: int
    table: int
    tasks: int
    from_scratch: int
    to_scratch: int
    source_start: int
    target_start: int


CALL_KERNEL, CALL_TABLE, CALL_TASKS, FROM_SCRATCH, TO_SCRATCH, CALL_SOURCE_START, CALL_TARGET_START = range(7)
BOX_CALL_BYTES = 8 * 7


class HalvesGeometry(NamedTuple):
    """What a task copies half by half: how many halves of bytes, and where, all counted in halves.

    Attributes
    ----------
    halves, source_stride, target_stride : int
    source_start, target_start : int
        Of the first task.
    end : int
        The half behind which the destination ends within a byte, -1 where it does not: that byte is written whole.
    """

    halves: int
    source_stride: int
    target_stride: int
    source_start: int
    target_start: int
    end: int


HALVES, HALVES_SOURCE_STRIDE, HALVES_TARGET_STRIDE, HALVES_SOURCE_START, HALVES_TARGET_START, HALVES_END = range(6)
