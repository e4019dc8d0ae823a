"""Sequential streams: copies of runs, interleaves and deinterleaves, packed runs.

Defines the records that the planner and the kernels share.
"""

from __future__ import annotations

from typing import NamedTuple

from fastindex.moving.numbers import CHUNKS
from fastindex.runtime.numbers import LINE_BYTES, places

#: Row counts with a whole-vector interleave or deinterleave, by element bytes: those for which real layouts have short
#: runs. Other counts use lanes. Deinterleaved images, 224 by 224, time of lanes over time of vectors: 8 channels of
#: one byte 0.90, of two 0.85, 4 of two 0.96, of eight 1.07, 2 of eight 1.01, of sixteen 1.13 (2026-11-24). In the
#: cache lanes take longer: c64[512,128,2] out of pairs 3.2 times as long, s64[301,77,2] 1.3 (2026-11-26).
VECTOR_WAYS: dict[str, dict[int, tuple[int, ...]]] = {
    "interleave": {1: (2, 4, 8), 2: (2, 4, 8), 4: (2, 4), 8: (2,)},
    "deinterleave": {1: (2, 4), 2: (2,), 4: (2, 4, 8), 8: (2,)},
}


def are_vectors(kernel: str, width: int, ways: int, run: int) -> bool:
    """Whether whole vectors interleave or deinterleave `ways` rows of `run` elements; otherwise lanes do."""
    is_long = kernel == "deinterleave" or run * width >= LINE_BYTES
    return is_long and ways in VECTOR_WAYS[kernel].get(width, ())


#: Prefetch distance for chunks of several runs, and for chunks of one run.
ROW_AHEAD_BYTES, RUN_AHEAD_BYTES = 256, 1024


class StreamGeometry(NamedTuple):
    """Geometry of a stream: a copy, interleave, deinterleave, expand or compress.

    Attributes
    ----------
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
        prefetched while they are read.
    """

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


STREAM = places(StreamGeometry, len(CHUNKS))
