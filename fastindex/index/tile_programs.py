"""Index programs from coordinates to tiles, and back.

The tiles of a layout up to number `level` split the array into axes. The last ones, one for each entry of that tile
that is not ``*``, give the position in the tile; all others identify the tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from fastindex.algebra.forms import IndexProgram, ProgramBuilder, scaled_sum
from fastindex.core.shape import Shape
from fastindex.core.sizes import axes_of
from fastindex.core.tiles import COMBINE
from fastindex.errors import UnsupportedError
from fastindex.index.programs import (
    Undoing,
    axis_values,
    bits_of_unit,
    coordinate_forms,
    require_one_element,
    slot_form,
)


def within_tile_count(shape: Shape, level: int) -> int:
    """Return the number of trailing axes of `tile_program` that lie within the tile."""
    return sum(size != COMBINE for size in shape.layout.tiles[level])


@lru_cache(maxsize=1024)
def tile_program(shape: Shape, level: int, simplify: bool = True) -> IndexProgram:
    """Return the program from coordinates to all axes after tile number `level` has been applied.

    Raises
    ------
    UnsupportedError, LayoutError
        As `linear_program`.
    """
    builder = ProgramBuilder(shape.dimensions, simplify)
    axes = axes_of(shape, level + 1)
    if shape.slot_count == 0:
        return builder.program([()] * len(axes))
    values = axis_values(builder, axes, [builder.variable(d) for d in range(shape.rank)])
    return builder.program([values[axis] for axis in axes])


@lru_cache(maxsize=1024)
def from_tile_program(shape: Shape, level: int, simplify: bool = True) -> IndexProgram:
    """Return the inverse program, from all axes after tile number `level`, with checks that fail for padding.

    Raises
    ------
    UnsupportedError, LayoutError
        As `linear_program`.

    Examples
    --------
    >>> print(from_tile_program(Shape.parse("f32[3,5]{1,0:T(2,2)}"), 0).describe())
    x0 < 2, x1 < 3, x2 < 2, x3 < 2
    y0 = 2 x0 + x2
    y1 = 2 x1 + x3
    padding unless 2 x0 + x2 < 3
    padding unless 2 x1 + x3 < 5
    """
    axes = axes_of(shape, level + 1)
    builder = ProgramBuilder([axis.size for axis in axes], simplify)
    if shape.slot_count == 0:
        return builder.program([()] * shape.rank)
    values = {axis: builder.variable(i) for i, axis in enumerate(axes)}
    undoing = Undoing(builder, axes, values, {axis: axis.size - 1 for axis in axes})
    return builder.program(undoing.coordinates(shape.rank), undoing.checks(every=not simplify))


@dataclass(frozen=True, slots=True)
class TileSlots:
    """The tiles of one level, and the size of each in the buffer.

    Attributes
    ----------
    counts : tuple of int
        Number of tiles along each axis of the tile coordinates.
    sizes : tuple of int
        Size of a tile along each of its axes.
    tile_count : int
    slots_per_tile : int
        Padding by the tile's own subtiles included.
    bits_per_tile : int
    is_contiguous : bool
        Whether a tile is contiguous in the buffer. If not, a later tile reaches across its borders.

    Examples
    --------
    >>> import fastindex as fi
    >>> found = fi.tile_slots("bf16[1024,1000]{1,0:T(8,128)(2,1)}")
    >>> found.counts, found.sizes, found.slots_per_tile, found.bytes_per_tile
    ((128, 8), (8, 128), 1024, 2048)
    """

    counts: tuple[int, ...]
    sizes: tuple[int, ...]
    tile_count: int
    slots_per_tile: int
    bits_per_tile: int
    is_contiguous: bool

    @property
    def bytes_per_tile(self) -> float:
        """Bytes of one tile; a fraction where a tile ends within a byte."""
        return self.bits_per_tile // 8 if self.bits_per_tile % 8 == 0 else self.bits_per_tile / 8


def tile_slots_of(shape: Shape, level: int) -> TileSlots:
    """Return the counts and sizes of the tiles of one level.

    Raises
    ------
    UnsupportedError, LayoutError
        As `linear_program`.
    """
    within = within_tile_count(shape, level)
    sizes = [axis.size for axis in axes_of(shape, level + 1)]
    counts, tile = sizes[: len(sizes) - within], sizes[len(sizes) - within :]
    inside, contiguous = within, True
    for later in shape.layout.tiles[level + 1 :]:
        beyond = later[: max(len(later) - inside, 0)]
        # An entry of 1 leaves its axis in place.
        contiguous = contiguous and all(size == 1 for size in beyond)
        inside += sum(size != COMBINE for size in later) - sum(size == COMBINE for size in later[len(beyond) :])
    final = [axis.size for axis in axes_of(shape)]
    slots = math.prod(final[len(final) - inside :]) if contiguous else math.prod(tile)
    return TileSlots(tuple(counts), tuple(tile), math.prod(counts), slots, slots * shape.element_bits, contiguous)


def contiguous_tiles(shape: Shape, level: int, unit: str) -> TileSlots:
    """Return the tiles of one level, if each is contiguous and a whole number of units.

    Raises
    ------
    UnsupportedError
        A later tile reaches across the borders of these, or a tile ends within a byte.
    FastIndexError, LayoutError
        As `linear_program`.
    """
    bits = bits_of_unit(shape, unit)
    found = tile_slots_of(shape, level)
    if not found.is_contiguous:
        raise UnsupportedError(
            f"tiles of level {level} of {shape.cut_text()} are not one piece of the buffer each: a later tile reaches "
            f"across their borders; use level={len(shape.layout.tiles) - 1}, or flat=False"
        )
    if found.bits_per_tile % bits:
        raise UnsupportedError(f"a tile of {shape.cut_text()} ends within a byte; use unit='bit'")
    return found


@lru_cache(maxsize=1024)
def flat_tile_program(shape: Shape, level: int, unit: str = "slot") -> IndexProgram:
    """Return the program from coordinates to the number of the tile in memory order, and the offset within it.

    Raises
    ------
    UnsupportedError, LayoutError, FastIndexError
        As `contiguous_tiles`.
    """
    tiles, bits = contiguous_tiles(shape, level, unit), bits_of_unit(shape, unit)
    builder = ProgramBuilder(shape.dimensions)
    if shape.slot_count == 0:
        return builder.program([(), ()])
    slot = slot_form(builder, axes_of(shape), [builder.variable(d) for d in range(shape.rank)])
    number = builder.quotient(slot, tiles.slots_per_tile, shape.slot_count - 1)
    within = scaled_sum((1, slot), (-tiles.slots_per_tile, number))
    return builder.program([number, builder.in_units(within, shape.element_bits, bits, tiles.slots_per_tile - 1)])


@lru_cache(maxsize=1024)
def from_flat_tile_program(shape: Shape, level: int, unit: str = "slot") -> IndexProgram:
    """Return the inverse program, from tile number and offset within the tile, with checks that fail for padding.

    Raises
    ------
    UnsupportedError, LayoutError, FastIndexError
        As `contiguous_tiles`; also bytes of elements that are not a whole number of bytes.
    """
    require_one_element(shape, unit)
    tiles, bits = contiguous_tiles(shape, level, unit), bits_of_unit(shape, unit)
    units = tiles.bits_per_tile // bits
    builder = ProgramBuilder((tiles.tile_count, units))
    if shape.slot_count == 0:
        return builder.program([()] * shape.rank)
    within = builder.in_units(builder.variable(1), bits, shape.element_bits, units - 1)
    slot = scaled_sum((tiles.slots_per_tile, builder.variable(0)), (1, within))
    last = tiles.tile_count * tiles.slots_per_tile - 1
    return builder.program(*coordinate_forms(builder, shape, slot, last))
