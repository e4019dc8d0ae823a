"""Records shared by planner and kernels of block permutes and column gathers: destination blocks made of vectors."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import places

#: Bits of the packed elements that permutations support.
NIBBLE_BITS = 4
#: Flags in a pattern byte: take nothing from the fragment; take the high nibble, for packed elements.
NOTHING, HIGH_NIBBLE = 0x80, 0x40


def patterns_of_piece(nibbles: int) -> int:
    """Return how many patterns a fragment of the source has.

    One for bytes. Three for nibbles, where `nibbles` is 2: one for the low nibbles of the vector, one for the high
    nibbles, and a mask with ones at the nibbles that the fragment provides.
    """
    return 3 if nibbles == 2 else 1


#: Element sizes of a column gather, in bytes; nibbles are the only other size.
COLUMN_ELEMENT_BYTES = (1, 2, 4, 8, 16)

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


#: Bytes read of short fragments, in vectors of several: few reads of this length cross a line.
SHORT_PIECE_BYTES = 16


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
    chunk_block, chunk_count, chunk_source_stride, chunk_target_stride : int
        As in a `StreamGeometry`; a chunk is a block.
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

    chunk_block: int
    chunk_count: int
    chunk_source_stride: int
    chunk_target_stride: int
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


ASSEMBLY = places(AssemblyGeometry)


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
    apart : int
        Whether a band is written before the next one is read; else reading and writing overlap.
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
    apart: int


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
