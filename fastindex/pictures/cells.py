"""Single slots and elements for pictures, evaluated from the index programs in Python integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastindex.core.shape import Shape
from fastindex.core.tiles import CountAxis, DimensionAxis, physical_axes
from fastindex.index.programs import linear_program, multi_program
from fastindex.index.tile_programs import tile_program, within_tile_count
from fastindex.pictures.scene import COLOUR_COUNT, Cell, MultiIndex


class Cells:
    """Makes the cells of one shape, by multi-index and by slot.

    Parameters
    ----------
    shape : Shape

    Attributes
    ----------
    bounds : tuple of int
        The dimensions, extended by the padding that lies beside the elements on the grid.

    Examples
    --------
    >>> cells = Cells(Shape.parse("f32[3,5]{1,0:T(2,2)}"))
    >>> cells.bounds, cells.at((2, 3)).slot, cells.in_slot(17).element
    ((4, 6), 17, (2, 3))
    """

    def __init__(self, shape: Shape) -> None:
        grown = _grown(shape)
        self.shape = shape
        self.bounds = grown.dimensions
        self._linear = linear_program(grown)
        self._multi = multi_program(shape)
        levels = range(len(shape.layout.tiles))
        self._levels = [(tile_program(grown, level), within_tile_count(grown, level)) for level in levels]

    def slot_of(self, multi_index: Sequence[int]) -> int:
        """Return the slot at a multi-index within `bounds`."""
        (slot,), _ = self._linear.evaluate(multi_index)
        return int(slot)

    def at(self, multi_index: MultiIndex) -> Cell:
        """Return the cell at a multi-index within `bounds`; its text is the slot."""
        slot = self.slot_of(multi_index)
        tiles = self._tiles_of(multi_index)
        if any(i >= size for i, size in zip(multi_index, self.shape.dimensions, strict=True)):
            return Cell(slot, None, -1, tiles, str(slot))
        return Cell(slot, multi_index, _colour(tiles), tiles, str(slot))

    def in_slot(self, slot: int) -> Cell:
        """Return the cell of a slot; its text is the multi-index of the element."""
        values, holds = self._multi.evaluate([slot])
        if not holds:
            return Cell(slot, None, -1, (), "")
        element = tuple(int(value) for value in values)
        tiles = self._tiles_of(element)
        return Cell(slot, element, _colour(tiles), tiles, ",".join(map(str, element)) or "()")

    def _tiles_of(self, multi_index: Sequence[int]) -> tuple[MultiIndex, ...]:
        """Return the tile of each level; without tiles, the run along the most minor dimension."""
        if not self._levels:
            order = self.shape.layout.minor_to_major
            return (tuple(multi_index[d] for d in order[:0:-1]),) if order else ()
        found = []
        for program, within in self._levels:
            values, _ = program.evaluate(multi_index)
            found.append(tuple(int(value) for value in values[: len(values) - within]))
        return tuple(found)


def _colour(tiles: tuple[MultiIndex, ...]) -> int:
    """Return the colour of a tile; neighbours differ by 1 in one coordinate, so odd factors tell them apart."""
    tile = tiles[0] if tiles else ()
    return sum((2 * i + 1) * value for i, value in enumerate(reversed(tile))) % COLOUR_COUNT


def tile_size(shape: Shape, dimension: int) -> int | None:
    """Return the size of the first tile along a dimension, or None if it does not tile that dimension alone.

    Examples
    --------
    >>> tile_size(Shape.parse("f32[3,5]{0,1:T(2,4)}"), 0)
    4
    """
    layout = shape.layout
    sizes = layout.padded_dimensions or shape.dimensions
    for axis in physical_axes(sizes, layout.minor_to_major, None, layout.tiles[:1]):
        match axis:
            case CountAxis(whole=DimensionAxis(dimension=found), tile_size=size) if found == dimension:
                return size
    return None


def _grown(shape: Shape) -> Shape:
    """Return the shape with its dimensions extended by the padding beside them on the grid; slots stay the same."""
    sizes = shape.layout.padded_dimensions or shape.dimensions
    tiles = [tile_size(shape, d) or 1 for d in range(shape.rank)]
    whole_tiles = tuple(-(-size // tile) * tile for size, tile in zip(sizes, tiles, strict=True))
    layout = replace(shape.layout, padded_dimensions=None, split_configs=())
    return Shape(shape.element_type, whole_tiles, layout)
