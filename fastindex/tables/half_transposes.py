"""What planner and kernel know of transposes of packed elements of four bits."""

from __future__ import annotations

from typing import NamedTuple

#: Columns that are read together: a line of a row has so many elements.
CHUNK_COLUMNS = 128
#: The most chunks of a task: what the kernel's scratch memory holds.
MOST_CHUNKS = 8
#: Rows that are read before lines are written: two lines of a column have so many elements.
BAND_ROWS = 256


class HalfTransposeGeometry(NamedTuple):
    """The numbers of a transpose of packed elements; all places and strides count halves of bytes.

    Attributes
    ----------
    source_start, target_start : int
        Of the first element.
    columns, column_stride : int
        How many, at least `CHUNK_COLUMNS`, next to each other in the source, and how far apart in the destination.
    chunks : int
        How many chunks a task has.
    row_block, row_blocks, last_rows : int
        Rows of a task, how many tasks are along the rows, and how many rows the last of them has; `row_block` is even.
    row_source_stride : int
        From one block of rows to the next.
    readable_bytes : int
        Of the source, from its first byte on.
    end : int
        The half behind which the destination ends within a byte, -1 where it does not: that byte is written whole.
    """

    source_start: int
    target_start: int
    columns: int
    column_stride: int
    chunks: int
    row_block: int
    row_blocks: int
    last_rows: int
    row_source_stride: int
    readable_bytes: int
    end: int


(
    HALF_SOURCE_START,
    HALF_TARGET_START,
    HALF_COLUMNS,
    HALF_COLUMN_STRIDE,
    HALF_CHUNKS,
    HALF_ROW_BLOCK,
    HALF_ROW_BLOCKS,
    HALF_LAST_ROWS,
    HALF_ROW_SOURCE_STRIDE,
    HALF_READABLE,
    HALF_END,
) = range(11)
