"""What planner and kernel know of gathers: pieces of the destination, each element of which lies elsewhere."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.tables.places import places

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
