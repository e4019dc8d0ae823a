"""Transposes: neighbours in the source go to different lines of the destination.

Defines the records that the planner and the kernels share.
"""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import places

#: Bytes of the elements that a transpose moves.
TRANSPOSE_WIDTHS = (1, 2, 4, 8, 16, 32, 64)

#: Longest source rows whose elements are moved one by one, in elements, and in bytes for elements of one byte. Within
#: L2, ns per row in squares and one by one: f64[64,3,64] reversed out of T(64,128)(8,1) 13.9 and 7.7, bf16[1024,2,5]
#: out of T(256) 7.8 and 5.2, u8[1024,2,8] 7.2 and 8.2.
FEW_COLUMNS, FEW_BYTE_COLUMNS = 8, 4

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
