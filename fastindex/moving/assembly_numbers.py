"""What planner and kernels know of block permutes and column gathers: blocks of the destination, made of vectors."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import places

#: Bits of packed elements that permutations know.
NIBBLE_BITS = 4
#: Of a byte of a permutation: nothing comes from the piece; the high nibble of packed elements is taken.
NOTHING, HIGH_NIBBLE = 0x80, 0x40


def patterns_of_piece(nibbles: int) -> int:
    """Return how many patterns a piece has.

    One for bytes. For nibbles, `nibbles` being 2, one for the low nibbles of the vector, one for the high ones,
    and a mask of all ones for the nibbles that the piece has.
    """
    return 3 if nibbles == 2 else 1


#: Bytes of the elements of columns that are gathered; nibbles are the other width.
COLUMN_ELEMENT_BYTES = (1, 2, 4, 8, 16)

#: The most elements of a block whose elements are gathered column by column: what the kernel's scratch memory holds.
MOST_ROWS = 1024

#: The most bytes of a block: what the kernel's scratch memory holds.
MOST_BLOCK_BYTES = 64 << 10


class VectorRun(NamedTuple):
    """Vectors one after the other that have as many pieces each.

    Attributes
    ----------
    pieces : int
        Of each vector; with none, it is padding alone.
    vectors : int
    patterns, pattern_step : int
        Where the patterns of the first are, behind the patterns of the first run, and how far it is to those of the
        next, in bytes: 0 where all have the same.
    """

    pieces: int
    vectors: int
    patterns: int
    pattern_step: int


VECTOR_RUN = places(VectorRun)
VECTOR_RUN_BYTES = 8 * len(VECTOR_RUN)


#: How much is read of pieces that are needed no further, of vectors of several pieces: few such reads cross a line.
SHORT_PIECE_BYTES = 16


class VectorHeader(NamedTuple):
    """What the table of a block begins with.

    Attributes
    ----------
    runs : int
        How many runs of vectors follow.
    pieces_begin : int
        Where the offsets of the pieces begin, in bytes.
    short : int
        Whether no more than `SHORT_PIECE_BYTES` are read of each piece, where a vector has several.
    """

    runs: int
    pieces_begin: int
    short: int


VECTOR_HEADER = places(VectorHeader)
VECTOR_HEADER_BYTES = 8 * len(VECTOR_HEADER)


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
    vectors, filled, pieces : int
        How many vectors a block has, how many of them are padding alone, and how many pieces all have together.
    lines, lines_every, lines_ahead : int
        How many lines of the source are prefetched, before every how many chunks, and how many chunks ahead.
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
    filled: int
    pieces: int
    lines: int
    lines_every: int
    lines_ahead: int
    low: int
    high: int


ASSEMBLY = places(AssemblyGeometry)


class ColumnsGeometry(NamedTuple):
    """The numbers of a column gather: its blocks differ by the column that they take of the same rows of the source.

    Attributes
    ----------
    block_bytes, streamed : int
        As of an `AssemblyGeometry`.
    whole_lines : int
        Whether every block has whole lines, if the first one begins with a line.
    readable : int
        How many bytes may be read from the place of the first block in the source on.
    bands, groups : int
        Bands of lines of a block, and groups of columns, that are moved together.
    chunks : int
        A line of each row is a chunk of columns: those of all groups.
    lines, rows : int
        Lines of a block that have elements, the others are padding; and how many elements these have.
    pitch : int
        Bytes from one vector of lanes to the next, of the same chunk.
    shifted : int
        Whether rows of packed elements begin with either nibble; else all begin with the low nibble.
    apart : int
        Whether a band is written before the next one is read; else while it is.
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

#: The place of a block that a column does not have, of a row that is padding, and of a line that is.
NOWHERE = -(1 << 62)


class ColumnGroup(NamedTuple):
    """Columns that are read together.

    Attributes
    ----------
    source : int
        Where the first is in the source, in bytes, of packed elements in nibbles of them.
    row_bytes : int
        How many bytes of each row lie between its first and its last column.
    chunks : int
        How many lines of each row there are.
    places, offsets : int
        Where the places of the columns of each chunk are in the table, and where the chunks begin in a row; in bytes.
    """

    source: int
    row_bytes: int
    chunks: int
    places: int
    offsets: int


COLUMN_GROUP = places(ColumnGroup)
COLUMN_GROUP_BYTES = 8 * len(COLUMN_GROUP)


class ColumnBand(NamedTuple):
    """Lines of a block that are moved together: the first, how many, where their rows begin, how many rows."""

    first: int
    lines: int
    rows: int
    row_count: int


COLUMN_BAND = places(ColumnBand)
COLUMN_BAND_BYTES = 8 * len(COLUMN_BAND)

#: The most lines with elements of a band, lines of each row that are read after each other, and bytes of the collected
#: columns of a band: what the kernel's scratch memory holds twice, and a quarter of L2.
MOST_BAND_LINES, MOST_CHUNKS, MOST_COLLECTED_BYTES = 32, 32, 288 << 10
#: How many blocks ahead the ends of blocks are prefetched before they are written, where these end within lines of
#: others; behind the places of the columns there are as many `NOWHERE`.
ENDS_AHEAD = 8
#: The most lines between the first and the last column of a group: a row of padding has as many.
MOST_ROW_LINES = 128
