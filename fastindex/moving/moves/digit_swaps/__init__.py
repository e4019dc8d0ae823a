"""Packed elements of four bits whose binary index digits are permuted: a butterfly network.

Defines the records that the planner and the kernels share.
"""

from __future__ import annotations

from typing import NamedTuple

from fastindex.moving.numbers import CHUNKS
from fastindex.runtime.numbers import places

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
    halves : int
        `KEPT`, `OF_ROWS`, `WITHIN`.
    again : int
        Whether the lowest digit of the row is swapped once more, after all others.
    streamed : int
        Whether whole lines are written with non-temporal stores, if the destination starts on a line boundary.
    """

    halves: int
    again: int
    streamed: int


SWAP = places(SwapGeometry, len(CHUNKS))
