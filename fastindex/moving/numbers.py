"""Numbers on which plans and kernels of passes agree: tables of passes, and the record of each kind of move.

Each record is written by the planner or the executor; a kernel reads it as a table of int64, by the
places of its fields.
"""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import LINE_BYTES, places

#: Bytes in front of a kernel's scratch memory.
SCRATCH_FRONT_BYTES = LINE_BYTES


class PassTable(NamedTuple):
    """What the kernel of a pass gets: addresses and lengths of its tables.

    Attributes
    ----------
    loops : int
        How many loops are around the tasks.
    outer : int
        Address of these loops, innermost first: rows of an `OuterLoop`.
    first, second : int
        Addresses of the tables of byte offsets; which ones, the kernel says.
    second_length : int
    geometry : int
        Address of the kernel's own numbers.
    """

    loops: int
    outer: int
    first: int
    second: int
    second_length: int
    geometry: int


LOOPS, OUTER, FIRST, SECOND, SECOND_LENGTH, GEOMETRY = range(6)


class OuterLoop(NamedTuple):
    """A loop around the tasks of a pass; strides are in bytes."""

    size: int
    source_stride: int
    target_stride: int


OUTER_LOOP = places(OuterLoop)
OUTER_LOOP_BYTES = 8 * len(OUTER_LOOP)


class PassCall(NamedTuple):
    """A pass, ready to run.

    Attributes
    ----------
    kernel, table : int
        The address of the compiled kernel, and of its `PassTable`.
    source_start, target_start : int
        Bytes from the addresses that a call is given.
    tasks : int
    tasks_at_once, most_at_once : int
        The fewest that a thread takes at a time, and the most.
    fills : int
        Whether it writes padding, so that the padding is its source.
    """

    kernel: int
    table: int
    source_start: int
    target_start: int
    tasks: int
    tasks_at_once: int
    most_at_once: int
    fills: int


PASS_CALL = places(PassCall)
PASS_CALL_BYTES = 8 * len(PASS_CALL)


class StridedGeometry(NamedTuple):
    """What a task copies one by one: runs of elements.

    Attributes
    ----------
    element_bytes : int
        0 for nibbles. Then all strides, also those of the loops around the tasks, count nibbles.
    elements, source_stride, target_stride : int
        Of a run, and how many bytes these are apart on each side.
    runs, run_source_stride, run_target_stride : int
        The same of runs.
    source_nibble, target_nibble : int
        Where the first task begins, of nibbles.
    last_nibble : int
        The nibble in the middle of whose byte the destination ends, -1 where there is none: that byte is written whole.
    """

    element_bytes: int
    elements: int
    source_stride: int
    target_stride: int
    runs: int
    run_source_stride: int
    run_target_stride: int
    source_nibble: int = 0
    target_nibble: int = 0
    last_nibble: int = -1


STRIDED = places(StridedGeometry)


class FillGeometry(NamedTuple):
    """What a task fills: the bytes of a run, past the cache or not."""

    run_bytes: int
    streamed: int


FILL = places(FillGeometry)


#: The numbers of rows that vectors interleave or deinterleave, by the bytes of an element: those of which real layouts
#: have short runs. Others go in lanes. Deinterleaved images, 224 by 224, time in lanes over time by vectors: 8 channels
#: of one byte 0.90, of two 0.85, 4 of two 0.96, of eight 1.07, 2 of eight 1.01, of sixteen 1.13 (2026-11-24). In the
#: cache lanes take longer: c64[512,128,2] out of pairs 3.2 times as long, s64[301,77,2] 1.3 (2026-11-26).
VECTOR_WAYS: dict[str, dict[int, tuple[int, ...]]] = {
    "interleave": {1: (2, 4, 8), 2: (2, 4, 8), 4: (2, 4), 8: (2,)},
    "deinterleave": {1: (2, 4), 2: (2,), 4: (2, 4, 8), 8: (2,)},
}

#: The most bytes of a column that an interleave collects: its scratch memory holds 64 of these.
MOST_COLUMN_BYTES = 512

#: What vectors may move of a column at once within a lane of 16 bytes.
LANE_UNITS_BYTES = (1, 2, 4, 8, 16)

#: The most rows that are deinterleaved or interleaved in lanes, whose elements have at most `LANE_BYTES` each.
MOST_LANE_ROWS = 128


#: How many chunks ahead lines are prefetched where they are in L1 already.
AT_HAND = -1


#: How far ahead lines are prefetched where chunks are several runs, and where each is one.
ROW_AHEAD_BYTES, RUN_AHEAD_BYTES = 256, 1024


class StreamGeometry(NamedTuple):
    """The numbers of a stream.

    Attributes
    ----------
    chunk_block, chunk_count : int
        A task moves `chunk_block` of `chunk_count` chunks, the last task what is left.
    chunk_source_stride, chunk_target_stride : int
        Bytes from the chunks of a task to those of the next.
    run : int
        Of a copy, the bytes of a run; of packed elements, the elements of a run; else, the elements of each row.
    ways : int
        Rows that are interleaved, columns that are deinterleaved, packed elements of a byte; else 1.
    by_source : int
        Whether the chunks follow each other in the source, not in the destination.
    streamed : int
        Whether lines go past the cache.
    readable_bytes : int
        How many bytes may be read from the start of the source on.
    follower_every, follower_count, follower_source_stride : int
        Of every `follower_count` chunks, `follower_every` apart, each continues the one before in the destination; it
        is `follower_source_stride` bytes on in the source.
    element_bytes, unit_bytes : int
        Bytes of an element, and of what vectors move of a column at once, of a deinterleave or an interleave in lanes.
    mask_low, mask_high : int
        The 16 bytes of the permutation within lanes.
    chunks_ahead : int
        Where chunks are small and far apart, how many chunks before it is read all lines of a chunk are prefetched; 0
        where a chunk is long enough to be prefetched as it is read; `AT_HAND` where all of it is in the cache.
    """

    chunk_block: int
    chunk_count: int
    chunk_source_stride: int
    chunk_target_stride: int
    run: int
    ways: int
    by_source: int
    streamed: int
    readable_bytes: int
    follower_every: int
    follower_count: int
    follower_source_stride: int
    element_bytes: int
    unit_bytes: int
    mask_low: int
    mask_high: int
    chunks_ahead: int


STREAM = places(StreamGeometry)


def are_vectors(kernel: str, width: int, ways: int, run: int) -> bool:
    """Whether vectors interleave or deinterleave `run` elements of each of `ways` rows in turn; lanes do otherwise."""
    is_long = kernel == "deinterleave" or run * width >= LINE_BYTES
    return is_long and ways in VECTOR_WAYS[kernel].get(width, ())


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


#: Bytes of the units that are transposed.
UNIT_BYTES = (1, 2, 4, 8, 16, 32, 64)

#: Rows of the source of no more elements, or bytes where an element is one, are moved one by one. Within L2, ns a row
#: in squares and one by one: of f64[64,3,64] reversed out of T(64,128)(8,1) 13.9 and 7.7, of bf16[1024,2,5] out of
#: T(256) 7.8 and 5.2, of u8[1024,2,8] 7.2 and 8.2.
FEW_COLUMNS, FEW_BYTES = 8, 4


#: No two rows are so far apart.
NO_PITCH = 1 << 62


class TransposeGeometry(NamedTuple):
    """The numbers of a transpose.

    Attributes
    ----------
    row_block, row_count : int
        A task takes `row_block` of `row_count` rows, the last one what is left.
    row_source_stride : int
        Bytes in the source from one block of rows to the next.
    column_block, column_count, column_target_stride : int
        The same of columns, in the destination.
    columns_aligned : int
        Whether all columns begin equally far from a line boundary.
    columns_joined : int
        Whether each column begins in the destination where the one before ends.
    streamed : int
        Whether lines go past the cache.
    inner_iterations : int
        How many iterations of the loops around the blocks come before the next block of rows.
    evicting_pitch : int
        Long rows that are staged and a multiple of it apart lose what is prefetched of them; see `staged_bands`.
    """

    row_block: int
    row_count: int
    row_source_stride: int
    column_block: int
    column_count: int
    column_target_stride: int
    columns_aligned: int
    columns_joined: int
    streamed: int
    inner_iterations: int
    evicting_pitch: int


TRANSPOSE = places(TransposeGeometry)


#: Binary digits of the place of an element of four bits in a vector of a line; the lowest is the nibble of a byte.
DIGITS = 7
#: The most rows of a task; all of its vectors stay in registers.
MOST_ROW_DIGITS = 4
#: Bytes of the pieces that vectors are written in; lanes, where these are the vectors, are pieces too.
PIECES = (64, 32)

#: What happens to the lowest digit: nothing, a swap with the digit of the first two rows, a swap within the vector.
KEPT, OF_ROWS, WITHIN = range(3)


class SwapGeometry(NamedTuple):
    """How a task permutes digits.

    A chunk is a vector of each of a few rows, a power of two. Each step swaps a digit of the place in a vector with one
    of the row; then the bytes of each vector are put in order, and its pieces are written. Where vectors are lanes, it
    has four for each row.

    Attributes
    ----------
    chunk_block, chunk_count, chunk_source_stride, chunk_target_stride : int
        As of a `StreamGeometry`.
    halves : int
        `KEPT`, `OF_ROWS`, `WITHIN`.
    again : int
        Whether the first digit of the row is swapped once more, after all others.
    streamed : int
        Whether whole lines go past the cache, where the destination begins with one.
    """

    chunk_block: int
    chunk_count: int
    chunk_source_stride: int
    chunk_target_stride: int
    halves: int
    again: int
    streamed: int


SWAP = places(SwapGeometry)

#: Words of a pattern of bytes.
PATTERN_WORDS = 8


#: Bytes of the elements that may be gathered.
GATHERED_BYTES = (4, 8, 16, 32, 64)

#: The most bytes of a piece.
MOST_PIECE_BYTES = 8192


class GatherGeometry(NamedTuple):
    """The numbers of a gather; a chunk is a piece, whose elements are contiguous in the destination.

    Attributes
    ----------
    chunk_block, chunk_count, chunk_source_stride, chunk_target_stride : int
        As of a `StreamGeometry`.
    element_bytes, elements : int
        How long an element is, and how many a piece has.
    streamed : int
        Whether lines go past the cache.
    lines : int
        How many lines of the source a piece has elements of.
    chunks_ahead : int
        How many pieces before they are read they are prefetched.
    """

    chunk_block: int
    chunk_count: int
    chunk_source_stride: int
    chunk_target_stride: int
    element_bytes: int
    elements: int
    streamed: int
    lines: int
    chunks_ahead: int


GATHER = places(GatherGeometry)
