"""The records of launches: one kernel each, its loops and its tiles. Numbers only, no CUDA."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastindex.algebra.loops import Loop


@dataclass(frozen=True, slots=True)
class Tile:
    """The tiles of a launch; each block moves one.

    Attributes
    ----------
    rows, columns : int
        How many there are in all.
    tile_rows, tile_columns : int
        Of one tile; the last tiles may have fewer.
    room : pair of int
        The most rows and columns that the kernel's tiles hold.
    row_places : tuple of int
        Where each row of a tile starts, in bytes: in the source, or where rows part, in the destination.
    column_places : tuple of int
        Where each column of a tile starts in the destination, in bytes; empty where columns are contiguous there.
    skew : int
        As `stage_skew` says, where rows are woven in shared memory.
    """

    rows: int
    columns: int
    tile_rows: int
    tile_columns: int
    room: tuple[int, int]
    row_places: tuple[int, ...]
    column_places: tuple[int, ...] = ()
    skew: int = 31


@dataclass(frozen=True, slots=True)
class CastUnit:
    """What a thread of a launch converts at once.

    Attributes
    ----------
    code : int
        The conversion, as `fastindex.algebra.cast_numbers.conversion_code` numbers them.
    rows, columns : int
        Elements: of "cast rows" and "cast parts", `columns` of each of `rows` rows that are woven on one side; of "cast
        transpose", columns that are read as one and rows that are written as one.
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
        "copy", "fill", "shift", "expand", "compress", "weave", "part", "weave rows", "part rows", "transpose",
        "transpose words", "transpose elements", "stage" or "unstage"; "cast", "cast rows", "cast parts" or "cast
        transpose".
    width : int
        Bytes of a unit: an element, or what moves as one. Of "shift", "expand" and "compress", bits of a packed
        element. Of "weave rows" and "part rows", a word has 4 / `width` rows.
    loops : tuple of Loop
        The fastest first; of tiles, the first two go over tiles along the columns and along the rows; of "shift", the
        first goes over granules of 16 bytes of a run; of "weave rows" and "part rows", over those of a run on the
        woven side, which `pieces` places there.
    source_start, destination_start : int
        Bytes. Of "shift", the source's numbers here and in the loops are bits.
    why : str
    vectors : bool
        Whether 16 bytes move at once in a kernel that has a choice.
    words : bool
        Whether 4 bytes of smaller elements move at once in a kernel that has a choice.
    step : int
        Bytes between the rows of "weave", "part", "weave rows" and "part rows"; of "fill", the byte of the padding
        value that a unit starts with; of "shift", the bytes of a run in the destination.
    tile : Tile, optional
    length : int
        Bytes of a row in a run, of "weave rows" and "part rows".
    pieces : Loop, optional
        Of "weave rows" and "part rows": granules of a piece, and what the next piece of a run is away.
    cast : CastUnit, optional
        Where elements become those of another type.
    """

    kernel: str
    width: int
    loops: tuple[Loop, ...]
    source_start: int
    destination_start: int
    why: str
    vectors: bool = False
    step: int = 0
    tile: Tile | None = None
    words: bool = False
    length: int = 0
    pieces: Loop | None = None
    cast: CastUnit | None = None

    @property
    def units(self) -> int:
        """How many steps the loops have: units to move, or tiles."""
        return math.prod(loop.size for loop in self.loops)

    def describe(self) -> str:
        """Return the launch in one line."""
        vectors = ", 16 bytes at once" if self.vectors else ", 4 bytes at once" if self.words else ""
        what = "tiles" if self.tile else "units"
        if self.kernel in ("shift", "expand", "compress"):
            return f"{self.kernel}, {self.width} bits, 16 bytes at once, {self.units} units: {self.why}"
        if self.cast is not None:
            at_once = f"{self.cast.rows} x {self.cast.columns} elements at once"
            return f"{self.kernel}, {at_once}, {self.units} {what}: {self.why}"
        if self.pieces is not None:
            vectors = f", {16 * self.width // 4} bytes at once"
        return f"{self.kernel}, {self.width}-byte units{vectors}, {self.units} {what}: {self.why}"
