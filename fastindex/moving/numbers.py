"""Records shared by planner and kernels: pass tables, and one geometry record per kind of move.

The planner or the executor writes each record; a kernel reads it as a table of int64, indexed by field.
"""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import LINE_BYTES, places

#: Bytes in front of a kernel's scratch memory.
SCRATCH_FRONT_BYTES = LINE_BYTES


class PassTable(NamedTuple):
    """The argument of a pass's kernel: addresses and lengths of its tables.

    Attributes
    ----------
    loops : int
        Number of loops around the tasks.
    outer : int
        Address of these loops, innermost first: an array of `OuterLoop`.
    first, second : int
        Addresses of two tables of byte offsets; their meaning depends on the kernel.
    second_length : int
    geometry : int
        Address of the kernel's geometry record.
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
        Addresses of the compiled kernel and of its `PassTable`.
    source_start, target_start : int
        Byte offsets from the source and target addresses of a call.
    tasks : int
    tasks_at_once, most_at_once : int
        Fewest and most tasks that a thread takes at a time.
    fills : int
        Whether the pass writes padding: its source is then the padding pattern.
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
    """A task of a strided copy: runs of elements, copied one element at a time.

    Attributes
    ----------
    element_bytes : int
        0 for nibbles; all strides, those of the loops around the tasks included, then count nibbles.
    elements, source_stride, target_stride : int
        Elements of a run, and their stride in bytes on each side.
    runs, run_source_stride, run_target_stride : int
        Number of runs, and their stride in bytes on each side.
    source_nibble, target_nibble : int
        Start of the first task, in nibbles; for nibbles only.
    last_nibble : int
        The last nibble of a destination that ends in the middle of a byte, else -1; that byte is written whole.
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
    """A task of a fill: the bytes of a run, and whether to use non-temporal stores."""

    run_bytes: int
    streamed: int


FILL = places(FillGeometry)


#: Row counts with a whole-vector interleave or deinterleave, by element bytes: those for which real layouts have short
#: runs. Other counts use lanes. Deinterleaved images, 224 by 224, time of lanes over time of vectors: 8 channels of
#: one byte 0.90, of two 0.85, 4 of two 0.96, of eight 1.07, 2 of eight 1.01, of sixteen 1.13 (2026-11-24). In the
#: cache lanes take longer: c64[512,128,2] out of pairs 3.2 times as long, s64[301,77,2] 1.3 (2026-11-26).
VECTOR_WAYS: dict[str, dict[int, tuple[int, ...]]] = {
    "interleave": {1: (2, 4, 8), 2: (2, 4, 8), 4: (2, 4), 8: (2,)},
    "deinterleave": {1: (2, 4), 2: (2,), 4: (2, 4, 8), 8: (2,)},
}

#: The longest column that an interleave collects, in bytes: its scratch memory holds 64 of these.
MOST_COLUMN_BYTES = 512

#: Bytes of one column that a 16-byte lane may hold: the unit of a transpose in lanes.
LANE_UNITS_BYTES = (1, 2, 4, 8, 16)

#: The most rows that are deinterleaved or interleaved in lanes; their elements have at most `LANE_BYTES` bytes.
MOST_LANE_ROWS = 128


#: Value of `chunks_ahead` where all data is in L1 already: nothing is prefetched.
AT_HAND = -1


#: Prefetch distance for chunks of several runs, and for chunks of one run.
ROW_AHEAD_BYTES, RUN_AHEAD_BYTES = 256, 1024


class StreamGeometry(NamedTuple):
    """Geometry of a stream: a copy, interleave, deinterleave, expand or compress.

    Attributes
    ----------
    chunk_block, chunk_count : int
        A task moves `chunk_block` of `chunk_count` chunks; the last task moves the remainder.
    chunk_source_stride, chunk_target_stride : int
        Bytes from the chunks of one task to those of the next.
    run : int
        Bytes of a run for a copy; elements of a run for packed elements; else elements of each row.
    ways : int
        Rows to interleave, columns to deinterleave, packed elements per byte; else 1.
    by_source : int
        Whether chunks are taken in the order of the source, not of the destination.
    streamed : int
        Whether lines are written with non-temporal stores.
    readable_bytes : int
        Bytes that may be read, counted from the start of the source.
    follower_every, follower_count, follower_source_stride : int
        Chunks with a distance of `follower_every` are adjacent in the destination, in groups of `follower_count`; in
        the source they are `follower_source_stride` bytes apart.
    element_bytes, unit_bytes : int
        Bytes of an element, and of a column within a lane; for deinterleaves and interleaves in lanes.
    mask_low, mask_high : int
        The 16 bytes of the shuffle mask within lanes.
    chunks_ahead : int
        Prefetch distance in chunks, for small chunks with large strides; 0 where chunks are long enough to be
        prefetched while they are read; `AT_HAND` where all data is in the cache.
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
    """Whether whole vectors interleave or deinterleave `ways` rows of `run` elements; otherwise lanes do."""
    is_long = kernel == "deinterleave" or run * width >= LINE_BYTES
    return is_long and ways in VECTOR_WAYS[kernel].get(width, ())


#: Bytes of each half of the scratch memory for boxes. With packed elements, one half holds a box as read and the other
#: as written, a byte per element.
BOX_BYTES = 256 << 10


class BoxGeometry(NamedTuple):
    """Geometry of a pass over boxes.

    Attributes
    ----------
    calls : int
        Number of calls that move a box, one after the other.
    row_bytes : int
        Bytes of a box that is assembled in scratch memory and then written as one run; else 0.
    readable_bytes : int
        Bytes that may be read, counted from the first box, for calls that need this bound.
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
        As in a `PassCall`.
    from_scratch, to_scratch : int
        Whether it reads from scratch memory instead of the source, or writes there instead of the destination.
    source_start, target_start : int
        Byte offsets from there.
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


#: The most bytes of a box that is assembled in scratch memory: it stays in L2.
MOST_ROW_BOX_BYTES = 128 << 10

#: Smaller boxes are written separately, even where they are adjacent in the destination.
LEAST_CARRIED_BYTES = 128


class PairGeometry(NamedTuple):
    """Geometry of a nibble pairing: two elements that are neighbours in the destination make one byte.

    Attributes
    ----------
    chunk_block, chunk_count, chunk_source_stride, chunk_target_stride : int
        As in a `StreamGeometry`; a chunk is a pair of rows. Offsets in the source count nibbles.
    begin : int
        First nibble of the first row.
    elements : int
        Elements of a row; where rows alternate, of all rows together.
    apart : int
        Stride from the first row of a pair to the second, in nibbles.
    high : int
        Bytes in the destination from the pairs of the source's low nibbles to those of its high nibbles.
    group_bytes : int
        Bytes of each row where rows alternate, 1, 2 or 4; else 0.
    chunks_ahead : int
        Prefetch distance in the source, in chunks.
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


#: Bytes of the elements that a transpose moves.
UNIT_BYTES = (1, 2, 4, 8, 16, 32, 64)

#: Longest source rows whose elements are moved one by one, in elements, and in bytes for elements of one byte. Within
#: L2, ns per row in squares and one by one: f64[64,3,64] reversed out of T(64,128)(8,1) 13.9 and 7.7, bf16[1024,2,5]
#: out of T(256) 7.8 and 5.2, u8[1024,2,8] 7.2 and 8.2.
FEW_COLUMNS, FEW_BYTES = 8, 4


#: Value of `evicting_pitch` for no limit: larger than any row stride.
NO_PITCH = 1 << 62


class TransposeGeometry(NamedTuple):
    """Geometry of a transpose.

    Attributes
    ----------
    row_block, row_count : int
        A task takes `row_block` of `row_count` rows; the last task takes the remainder.
    row_source_stride : int
        Stride of blocks of rows in the source, in bytes.
    column_block, column_count, column_target_stride : int
        The same for columns, in the destination.
    columns_aligned : int
        Whether all columns have the same offset from a line boundary.
    columns_joined : int
        Whether columns are contiguous in the destination, each starting where the previous one ends.
    streamed : int
        Whether lines are written with non-temporal stores.
    inner_iterations : int
        Iterations of the outer loops that run before the next block of rows.
    evicting_pitch : int
        Long staged rows whose stride is a multiple of this evict their own prefetched lines; see `staged_bands`.
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


#: Binary digits of the position of a nibble in a 64-byte vector; the lowest selects the nibble of a byte.
DIGITS = 7
#: Binary digits of the largest number of rows of a task: all of its vectors stay in registers.
MOST_ROW_DIGITS = 4
#: Bytes of the fragments in which vectors are written; where the vectors are lanes, a fragment is a lane.
PIECES = (64, 32)

#: Handling of the lowest digit: kept, swapped with the lowest row digit, or swapped with a digit of the same vector.
KEPT, OF_ROWS, WITHIN = range(3)


class SwapGeometry(NamedTuple):
    """Geometry of a permutation of binary digits, done as a butterfly network.

    A chunk is one vector from each of a few rows, a power of two. Each step swaps a digit of the position in a vector
    with a digit of the row. The bytes of each vector are then shuffled, and its fragments written. Where vectors are
    lanes, a chunk has four for each row.

    Attributes
    ----------
    chunk_block, chunk_count, chunk_source_stride, chunk_target_stride : int
        As in a `StreamGeometry`.
    halves : int
        `KEPT`, `OF_ROWS`, `WITHIN`.
    again : int
        Whether the lowest digit of the row is swapped once more, after all others.
    streamed : int
        Whether whole lines are written with non-temporal stores, if the destination starts on a line boundary.
    """

    chunk_block: int
    chunk_count: int
    chunk_source_stride: int
    chunk_target_stride: int
    halves: int
    again: int
    streamed: int


SWAP = places(SwapGeometry)

#: int64 words of a shuffle pattern.
PATTERN_WORDS = 8


#: Element sizes that may be gathered, in bytes.
GATHERED_BYTES = (4, 8, 16, 32, 64)

#: The most bytes of a gathered fragment.
MOST_PIECE_BYTES = 8192


class GatherGeometry(NamedTuple):
    """Geometry of a gather; a chunk is a fragment: elements that are contiguous in the destination.

    Attributes
    ----------
    chunk_block, chunk_count, chunk_source_stride, chunk_target_stride : int
        As in a `StreamGeometry`.
    element_bytes, elements : int
        Bytes of an element, and elements of a fragment.
    streamed : int
        Whether lines are written with non-temporal stores.
    lines : int
        Lines of the source that hold elements of a fragment.
    chunks_ahead : int
        Prefetch distance in fragments.
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
