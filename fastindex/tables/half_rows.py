"""What planner and kernel know of rows of packed elements of four bits that are written as one stream."""

from __future__ import annotations

from typing import NamedTuple

#: The most elements of a piece: what the kernel has room for behind what waits for a whole line.
MOST_PIECE_HALVES = 2048


class HalfRowsGeometry(NamedTuple):
    """The numbers of a pass that writes rows, each task a box of some; places count halves of bytes.

    Attributes
    ----------
    pieces : int
        Of a box.
    halves : int
        Elements of a box.
    source_start, target_start : int
        Of the first element.
    readable_bytes : int
        Of the source, from its first byte on.
    streamed : int
        Whether lines go past the cache.
    end : int
        The half behind which the destination ends within a byte, -1 where it does not: that byte is written whole.
    """

    pieces: int
    halves: int
    source_start: int
    target_start: int
    readable_bytes: int
    streamed: int
    end: int


(
    ROW_PIECES,
    ROW_HALVES,
    ROW_SOURCE_START,
    ROW_TARGET_START,
    ROW_READABLE,
    ROW_STREAMED,
    ROW_END,
) = range(7)


class HalfPiece(NamedTuple):
    """What a box takes of the source: where from, how many elements, and how far apart these are, 1 or 2 halves."""

    source: int
    length: int
    stride: int


PIECE_SOURCE, PIECE_LENGTH, PIECE_STRIDE = range(3)
HALF_PIECE_BYTES = 8 * 3
