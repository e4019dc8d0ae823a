"""What planner and kernel know of packed elements whose index digits are permuted within vectors, and between them."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.tables.places import places

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
