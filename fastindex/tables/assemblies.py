"""What planner and kernels know of assemblies: blocks of the destination, put together of permuted vectors."""

from __future__ import annotations

from typing import NamedTuple

#: Of a byte of a permutation: nothing comes from the piece; the high half of a byte of packed elements is taken.
NOTHING, HIGH_HALF = 0x80, 0x40

#: The most bytes of a block: what the kernel's scratch memory holds.
MOST_BLOCK_BYTES = 64 << 10


class AssemblyGeometry(NamedTuple):
    """The numbers of an assembly.

    Attributes
    ----------
    chunk_block, chunk_count, chunk_source_stride, chunk_target_stride : int
        As of a `StreamGeometry`; a chunk is a block.
    block_bytes : int
        How much a block writes.
    streamed : int
        Whether lines go past the cache.
    readable_bytes : int
        How many bytes may be read from the start of the source on.
    vectors, pieces : int
        How many vectors a block has, and all of these together pieces.
    lines, lines_every, lines_ahead : int
        So many lines of the source are asked for before every so many chunks, so many chunks before they are read.
    low, high : int
        Where the source of a block begins and ends, in bytes behind the place of its chunk.
    """

    chunk_block: int
    chunk_count: int
    chunk_source_stride: int
    chunk_target_stride: int
    block_bytes: int
    streamed: int
    readable_bytes: int
    vectors: int
    pieces: int
    lines: int
    lines_every: int
    lines_ahead: int
    low: int
    high: int


(
    CHUNK_BLOCK,
    CHUNK_COUNT,
    CHUNK_SOURCE_STRIDE,
    CHUNK_TARGET_STRIDE,
    BLOCK_BYTES,
    STREAMED,
    READABLE_BYTES,
    VECTORS,
    PIECES,
    LINES,
    LINES_EVERY,
    LINES_AHEAD,
    LOW,
    HIGH,
) = range(14)
