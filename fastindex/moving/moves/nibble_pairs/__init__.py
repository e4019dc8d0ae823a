"""Transposes of packed elements of four bits: nibbles of pairs of rows are transposed first, then bytes.

Defines the records that the planner and the kernels share.
"""

from __future__ import annotations

from typing import NamedTuple

from fastindex.moving.numbers import CHUNKS
from fastindex.runtime.numbers import places


class PairGeometry(NamedTuple):
    """Geometry of a nibble pairing: two elements that are neighbours in the destination make one byte.

    Attributes
    ----------
    begin : int
        First nibble of the first row.
    elements : int
        Elements of a row; where rows alternate, of all rows together.
    row_stride : int
        Stride from the first row of a pair to the second, in nibbles.
    high : int
        Bytes in the destination from the pairs of the source's low nibbles to those of its high nibbles.
    group_bytes : int
        Bytes of each row where rows alternate, 1, 2 or 4; else 0.
    chunks_ahead : int
        Prefetch distance in the source, in chunks.
    """

    begin: int
    elements: int
    row_stride: int
    high: int
    group_bytes: int
    chunks_ahead: int


PAIR = places(PairGeometry, len(CHUNKS))
