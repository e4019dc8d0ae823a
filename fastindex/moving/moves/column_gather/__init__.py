"""Column gathers: each block of the destination is a column of the same rows of the source.

Defines the records that the planner and the kernels share.
"""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import places

#: Element sizes of a column gather, in bytes; nibbles are the only other size.
COLUMN_ELEMENT_BYTES = (1, 2, 4, 8, 16)


class ColumnsGeometry(NamedTuple):
    """Geometry of a column gather: each block takes one column of the same rows of the source.

    Attributes
    ----------
    block_bytes, streamed : int
        As in an `AssemblyGeometry`.
    whole_lines : int
        Whether every block consists of whole lines, if the first one starts on a line boundary.
    readable : int
        Bytes that may be read, counted from the first block in the source.
    bands, groups : int
        Number of bands of lines of a block, and of groups of columns; each is moved together.
    chunks : int
        Number of chunks of all groups; a chunk is the columns in one line of each row.
    lines, rows : int
        Lines of a block that hold elements, the others being padding; and elements of a block.
    pitch : int
        Stride of the vectors of lanes of a chunk, in bytes.
    shifted : int
        Whether rows of packed elements may start with either nibble; else all start with the low nibble.
    in_turn : int
        Whether a band is written before the next one is read; else reading and writing overlap.
    lane_bits : int
        Binary logarithm of the elements in 16 bytes.
    """

    block_bytes: int
    streamed: int
    whole_lines: int
    readable: int
    bands: int
    groups: int
    chunks: int
    lines: int
    rows: int
    pitch: int
    shifted: int
    in_turn: int
    lane_bits: int


COLUMNS = places(ColumnsGeometry)

#: Marks a column without a block, a row of padding, and a line of padding.
NOWHERE = -(1 << 62)


class ColumnGroup(NamedTuple):
    """Columns that are read together.

    Attributes
    ----------
    source : int
        Offset of the first column in the source, in bytes, or in nibbles for packed elements.
    row_bytes : int
        Bytes of each row from its first to its last column.
    chunks : int
        Lines of each row.
    places, offsets : int
        Byte offsets in the table: of the block offsets of each chunk's columns, and of the chunks' offsets in a row.
    """

    source: int
    row_bytes: int
    chunks: int
    places: int
    offsets: int


COLUMN_GROUP = places(ColumnGroup)

COLUMN_GROUP_BYTES = 8 * len(COLUMN_GROUP)


class ColumnBand(NamedTuple):
    """Lines of a block that are moved together: first line, line count, offset of the row table, row count."""

    first: int
    lines: int
    rows: int
    row_count: int


COLUMN_BAND = places(ColumnBand)

COLUMN_BAND_BYTES = 8 * len(COLUMN_BAND)

#: The most lines with elements of a band, consecutive lines of each row, and bytes of the collected columns of a band:
#: the kernel's scratch memory holds two such bands, each about a quarter of L2.
MOST_BAND_LINES, MOST_CHUNKS, MOST_COLLECTED_BYTES = 32, 32, 288 << 10

#: Prefetch distance for the ends of blocks that share lines with other blocks, in blocks; the table of block offsets
#: ends with this many `NOWHERE`.
ENDS_AHEAD = 8

#: The most lines from the first to the last column of a group: the length of a row of padding.
MOST_ROW_LINES = 128
