"""What planner and kernels know of streams: copies, interleaves and deinterleaves, chunk by chunk."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.tables.places import places

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
