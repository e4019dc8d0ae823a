"""What planner and kernels know of transposes."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.tables.places import places

#: Bytes of the units that are transposed.
UNIT_BYTES = (1, 2, 4, 8, 16, 32, 64)

#: Rows of the source of no more elements, or bytes where an element is one, are moved one by one. Within L2, ns a row
#: in squares and one by one: of f64[64,3,64] reversed out of T(64,128)(8,1) 13.9 and 7.7, of bf16[1024,2,5] out of
#: T(256) 7.8 and 5.2, of u8[1024,2,8] 7.2 and 8.2.
FEW_COLUMNS, FEW_BYTES = 8, 4


#: No two rows are so far apart.
NO_PITCH = 1 << 62


class TransposeGeometry(NamedTuple):
    """The numbers of a transpose.

    Attributes
    ----------
    row_block, row_count : int
        A task takes `row_block` of `row_count` rows, the last one what is left.
    row_source_stride : int
        Bytes in the source from one block of rows to the next.
    column_block, column_count, column_target_stride : int
        The same of columns, in the destination.
    columns_aligned : int
        Whether all columns begin equally far from a line boundary.
    columns_joined : int
        Whether each column begins in the destination where the one before ends.
    streamed : int
        Whether lines go past the cache.
    inner_iterations : int
        How many iterations of the loops around the blocks come before the next block of rows.
    evicting_pitch : int
        Long rows that are staged and a multiple of it apart lose what is prefetched of them; see `staged_bands`.
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
