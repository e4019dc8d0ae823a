"""Records of launches: one kernel each, with its loops, its tiles and their padding. Numbers only, no CUDA."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import division
from fastindex.algebra.loops import Loop, Nest

#: The most steps that the divisions of a kernel allow: larger nests are split.
MOST_UNITS = 1 << 30


@dataclass(frozen=True, slots=True)
class Tile:
    """The tiles of a launch; each block moves one.

    Attributes
    ----------
    rows, columns : int
        In total.
    tile_rows, tile_columns : int
        Of one tile; the last tiles may have fewer.
    capacity : pair of int
        The capacity of the kernel's tiles, in rows and columns.
    row_places : tuple of int
        The byte offset of each row of a tile: in the source, or if rows are deinterleaved, in the destination.
    column_places : tuple of int
        The byte offset of each column of a tile in the destination; empty if columns are contiguous there.
    skew : int
        As `stage_skew` returns it, if rows are interleaved in shared memory.
    """

    rows: int
    columns: int
    tile_rows: int
    tile_columns: int
    capacity: tuple[int, int]
    row_places: tuple[int, ...]
    column_places: tuple[int, ...] = ()
    skew: int = 31


@dataclass(frozen=True, slots=True)
class CastUnit:
    """The elements that a thread of a launch converts at once.

    Attributes
    ----------
    code : int
        The conversion, as `fastindex.algebra.cast_numbers.conversion_code` numbers them.
    rows, columns : int
        For "cast rows" and "cast parts", `columns` elements of each of `rows` rows that are interleaved on one side;
        for "cast transpose", columns that are read at once and rows that are written at once.
    """

    code: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch.

    Attributes
    ----------
    kernel : str
        "copy", "fill", "shift", "expand", "compress", "pack bits", "interleave", "interleave rows" or the inverse of
        these two, "deinterleave" and "deinterleave rows", "transpose", "transpose words", "transpose elements", "stage"
        or "unstage"; "cast", "cast rows", "cast parts" or "cast transpose".
    width : int
        Bytes of a unit: an element, or several that move at once. For "shift", "expand", "compress" and "pack bits",
        bits of a packed element. For "interleave rows" and its inverse, a word has 4 / `width` rows.
    loops : tuple of Loop
        The fastest first. For tiles, the first two go over tiles along the columns and along the rows. For "shift", the
        first goes over granules of 16 bytes of a run; for "interleave rows" and its inverse, over those of a run on the
        interleaved side, where `pieces` gives their offsets.
    source_start, destination_start : int
        In bytes. For "shift", the source's numbers here and in the loops are in bits.
    words : bool
        Whether 4 bytes of smaller elements move at once in a kernel that has a choice.
    step : int
        For "interleave", "interleave rows" and their inverses, the stride between rows in bytes; for "fill", the byte
        of the padding value that a unit starts with.
    tile : Tile, optional
    length : int
        For "shift", the bytes of a run in the destination; for "interleave rows" and its inverse, those of a row.
    pieces : Loop, optional
        For "interleave rows" and its inverse, the granules of a piece, and the stride to the next piece of a run.
    cast : CastUnit, optional
        If elements are converted to another type.
    """

    kernel: str
    width: int
    loops: tuple[Loop, ...]
    source_start: int
    destination_start: int
    step: int = 0
    tile: Tile | None = None
    words: bool = False
    length: int = 0
    pieces: Loop | None = None
    cast: CastUnit | None = None

    @property
    def units(self) -> int:
        """The number of steps of the loops: units to move, or tiles."""
        return math.prod(loop.size for loop in self.loops)


def cut(nest: Nest, most: int = MOST_UNITS) -> Iterator[Nest]:
    """Split a nest of more than `most` steps into several."""
    if nest.element_count <= most:
        yield nest
        return
    size, source, destination = loop = max(nest.loops, key=lambda k: k.size)
    others = tuple(k for k in nest.loops if k is not loop)
    half = 1 << (size - 1).bit_length() - 1
    for begin, count in ((0, half), (half, size - half)):
        starts = nest.source_start + begin * source, nest.destination_start + begin * destination
        yield from cut(Nest((loop._replace(size=count), *others), *starts), most)


def ordered(loops: Iterable[Loop]) -> list[Loop]:
    """Sort loops by their destination stride, the smallest first."""
    return sorted(loops, key=lambda k: (abs(k.destination_stride), abs(k.source_stride)))


def table_numbers(loops: Sequence[Loop], header: Sequence[int] = (), places: Sequence[int] = ()) -> NDArray[np.int64]:
    """Return the table of a launch, in the order of the offsets in `fastindex.cuda.numbers`.

    Parameters
    ----------
    loops : sequence of Loop
        In bytes.
    header : sequence of int
        Of a tile kernel: five numbers.
    places : sequence of int
        Of a tile kernel: the offsets of the rows of a tile, then of its columns.
    """
    numbers = [*header]
    for loop in loops:
        constants = division(loop.size, 1)
        numbers += [loop.size, constants.magic, constants.shift, loop.source_stride, loop.destination_stride]
    return np.array([*numbers, *places], np.int64)


# Padding against bank conflicts: shared memory has 32 banks of 4 bytes; accesses of a warp's lanes to different words
# of one bank are serialised.

_WARP = 32
_BANKS = 32

#: Shifts to try, the best first: no gaps, a gap after every 128 bytes, after every 256.
_SKEWS = (31, 7, 8)


@lru_cache(maxsize=512)
def stage_skew(rows: int, width: int, unit: int) -> int:
    """Return the skew of interleaved rows as a shift: there is a gap after every ``1 << shift`` bytes.

    Parameters
    ----------
    rows : int
        That are interleaved.
    width : int
        Bytes of an element.
    unit : int
        Bytes of a row that a thread moves at once, a multiple of `width`.

    Examples
    --------
    >>> stage_skew(3, 4, 4), stage_skew(8, 4, 4)
    (31, 7)
    """
    return min(_SKEWS, key=lambda skew: (max(stage_ways(rows, width, unit, skew), 2), _SKEWS.index(skew)))


def stage_ways(rows: int, width: int, unit: int, skew: int) -> int:
    """Return the worst bank conflict, in serialised accesses, of all accesses that interleave or deinterleave rows."""
    lanes = np.arange(_WARP)[None, :]
    blocks = np.arange(0, 16 * _WARP, _WARP)[:, None]
    column = ((blocks + lanes) * unit // width)[:, None, None, :]
    row = np.arange(rows)[None, :, None, None]
    part = np.arange(unit // width)[None, None, :, None]
    offset = ((column + part) * rows + row) * width
    return _conflicts((offset + (offset >> skew) * max(unit, 4)).reshape(-1, _WARP), width)


def _conflicts(places: NDArray[np.int64], size: int) -> int:
    """Return the most words that the lanes of a phase access in one bank; a row of `places` is one access of a warp."""
    phase = _WARP * 4 // max(size, 4)
    words = np.sort(places.reshape(-1, phase) // max(size, 4), axis=1)
    bank = np.where(np.diff(words, axis=1, prepend=-1) != 0, words % (_BANKS * 4 // max(size, 4)), -1)
    return int(max((bank == b).sum(axis=1).max() for b in range(_BANKS)))
