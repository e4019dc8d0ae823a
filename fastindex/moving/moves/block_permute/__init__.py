"""Block permutes: each vector of the destination is a byte permutation of vectors of the source.

Defines the records that the planner and the kernels share.
"""

from __future__ import annotations

from typing import NamedTuple

from fastindex.moving.numbers import CHUNKS
from fastindex.runtime.numbers import places


def patterns_of_piece(nibbles: int) -> int:
    """Return how many patterns a fragment of the source has.

    One for bytes. Three for nibbles, where `nibbles` is 2: one for the low nibbles of the vector, one for the high
    nibbles, and a mask with ones at the nibbles that the fragment provides.
    """
    return 3 if nibbles == 2 else 1


#: Bytes read of short fragments, in vectors of several: few reads of this length cross a line.
SHORT_PIECE_BYTES = 16

#: The most elements of a block of a column gather: the capacity of the kernel's scratch memory.
MOST_ROWS = 1024

#: The most bytes of a block: the capacity of the kernel's scratch memory.
MOST_BLOCK_BYTES = 64 << 10


class VectorRun(NamedTuple):
    """Consecutive vectors with the same number of fragments.

    Attributes
    ----------
    pieces : int
        Fragments of each vector; 0 for vectors of padding only.
    vectors : int
    patterns, pattern_step : int
        Byte offset of the patterns of the first vector, from the patterns of the first run, and stride to those of the
        next vector: 0 where all share one pattern.
    """

    pieces: int
    vectors: int
    patterns: int
    pattern_step: int


VECTOR_RUN = places(VectorRun)

VECTOR_RUN_BYTES = 8 * len(VECTOR_RUN)


class VectorHeader(NamedTuple):
    """Header of the table of a block.

    Attributes
    ----------
    runs : int
        Number of runs of vectors that follow.
    pieces_begin : int
        Byte offset of the table of fragment offsets.
    short : int
        Whether only `SHORT_PIECE_BYTES` are read of each fragment, in vectors of several.
    """

    runs: int
    pieces_begin: int
    short: int


VECTOR_HEADER = places(VectorHeader)

VECTOR_HEADER_BYTES = 8 * len(VECTOR_HEADER)


class AssemblyGeometry(NamedTuple):
    """Geometry of a block permute.

    Attributes
    ----------
    block_bytes : int
        Bytes that a block writes.
    streamed : int
        Whether lines are written with non-temporal stores.
    readable_bytes : int
        Bytes that may be read, counted from the start of the source.
    vectors, filled, pieces : int
        Vectors of a block, how many of them are padding only, and the fragments of all of them.
    lines, lines_every, lines_ahead : int
        Source lines to prefetch at a time, interval between prefetches in chunks, and prefetch distance in chunks.
    low, high : int
        Start and end of the source of a block, as byte offsets from its chunk.
    """

    block_bytes: int
    streamed: int
    readable_bytes: int
    vectors: int
    filled: int
    pieces: int
    lines: int
    lines_every: int
    lines_ahead: int
    low: int
    high: int


ASSEMBLY = places(AssemblyGeometry, len(CHUNKS))
