"""What planner and kernels know of relayouts box by box."""

from __future__ import annotations

from typing import NamedTuple

#: Bytes of the elements of a box, one each, as they come from the source, and as they go to the destination.
BOX_BYTES = 256 << 10


class BoxGeometry(NamedTuple):
    """How a box is moved.

    Attributes
    ----------
    calls : int
        How many calls move it, one after the other.
    row_bytes : int
        Its bytes where all calls write to scratch memory, from where it is written as one run; else 0.
    readable_bytes : int
        How many bytes may be read from the first box on, where a call asks for it.
    """

    calls: int
    row_bytes: int
    readable_bytes: int = 0


CALLS, ROW_BYTES, READABLE_BYTES = range(3)


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


#: The most bytes of a box whose rows are put together in the cache, so that it stays in L2.
MOST_ROW_BOX_BYTES = 128 << 10

#: Smaller boxes are written one by one, even if they continue each other.
LEAST_CARRIED_BYTES = 128


class PairGeometry(NamedTuple):
    """How a task pairs rows of packed elements: a byte of each two elements, which neighbour in the destination.

    Attributes
    ----------
    chunk_block, chunk_count, chunk_source_stride, chunk_target_stride : int
        As of a `StreamGeometry`; a chunk is a pair of rows. Offsets in the source count nibbles.
    begin : int
        The nibble with which the first row begins.
    elements : int
        Of each row; where rows alternate, of all rows together.
    apart : int
        Nibbles from the first row of a pair to the second.
    high : int
        Bytes from the pairs of the low nibbles of the source's bytes to those of the high nibbles.
    group_bytes : int
        The bytes of rows that alternate, 1, 2 or 4; else 0.
    chunks_ahead : int
        How many chunks ahead the lines of the source are prefetched.
    """

    chunk_block: int
    chunk_count: int
    chunk_source_stride: int
    chunk_target_stride: int
    begin: int
    elements: int
    apart: int
    high: int
    group_bytes: int
    chunks_ahead: int


(PAIR_BEGIN, PAIR_ELEMENTS, PAIR_APART, PAIR_HIGH, PAIR_GROUP_BYTES, PAIR_CHUNKS_AHEAD) = range(4, 10)
