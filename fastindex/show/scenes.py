"""Contents of pictures of layouts and relayouts: panels of cells, strips of memory, and the choice of cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fastindex.core.shape import Shape
from fastindex.core.tiles import CountAxis, DimensionAxis, physical_axes, tile_text
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.index.programs import linear_program, multi_program, tile_program, within_tile_count

COLOUR_COUNT = 8

MultiIndex = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One slot of the buffer.

    Attributes
    ----------
    slot : int
    element : tuple of int or None
        The multi-index of the element; None for padding.
    colour : int
        0 to 7; neighbouring tiles have different colours. -1 for padding.
    tiles : tuple of hashable
        The tile at each level that contains the slot.
    text : str
        The text in the cell.
    """

    slot: int
    element: MultiIndex | None
    colour: int
    tiles: tuple[MultiIndex, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A grid over two dimensions, with the others fixed.

    Attributes
    ----------
    label : str
        The panel as an index in NumPy's notation; "" if it is the only one.
    rows, columns : tuple of int
        The coordinates shown; jumps mean omitted coordinates.
    cells : tuple of tuples of Cell
    """

    label: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    cells: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """The buffer in memory order, in lines.

    Attributes
    ----------
    label : str
    lines : tuple of tuples of Cell
        Jumps of the slots between lines mean omitted slots.
    """

    label: str
    lines: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """The contents of a picture.

    Attributes
    ----------
    title : str
    description : str
        The picture in words, for readers who cannot see it.
    panels : tuple of Panel
    row_name, column_name : str
        The names of the rows and columns of the panels.
    strips : tuple of Strip
    moves : tuple of (int, int)
        Pairs of slots, in the first and in the second strip, that hold the same element.
    legend : tuple of (str, str)
        A kind of mark, "text", "tile", "level1", "level2" or "padding", and its meaning.
    notes : tuple of str
        Sentences about omitted parts.
    """

    title: str
    description: str
    panels: tuple[Panel, ...]
    row_name: str
    column_name: str
    strips: tuple[Strip, ...]
    moves: tuple[tuple[int, int], ...]
    legend: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    def cells(self) -> Iterator[Cell]:
        """Yield the cells of all panels and strips."""
        for grid in (*(panel.cells for panel in self.panels), *(strip.lines for strip in self.strips)):
            for line in grid:
                yield from line


def edge_level(cell: Cell, neighbour: Cell) -> int | None:
    """Return the level, at most 2, of the largest tiles that two cells do not share; None if they share all tiles.

    Examples
    --------
    >>> a, b = (Cell(0, (0, 0), 0, ((0,), (0, 0)), ""), Cell(1, (1, 0), 0, ((0,), (0, 1)), ""))
    >>> edge_level(a, b)
    1
    """
    for level, (mine, other) in enumerate(zip(cell.tiles, neighbour.tiles, strict=True)):
        if mine != other:
            return min(level, 2)
    return None


class Cells:
    """Makes the cells of one shape, by multi-index and by slot.

    Parameters
    ----------
    shape : Shape

    Attributes
    ----------
    bounds : tuple of int
        The dimensions, extended by the padding adjacent to the elements on the grid.

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
        """Return the tile at each level; without tiles, the contiguous run along the most minor dimension."""
        if not self._levels:
            order = self.shape.layout.minor_to_major
            return (tuple(multi_index[d] for d in order[:0:-1]),) if order else ()
        found = []
        for program, within in self._levels:
            values, _ = program.evaluate(multi_index)
            found.append(tuple(int(value) for value in values[: len(values) - within]))
        return tuple(found)


def _colour(tiles: tuple[MultiIndex, ...]) -> int:
    """Return the colour of a tile: odd weights give neighbours, which differ by 1 in a coordinate, other colours."""
    tile = tiles[0] if tiles else ()
    return sum((2 * i + 1) * value for i, value in enumerate(reversed(tile))) % COLOUR_COUNT


def tile_size(shape: Shape, dimension: int) -> int | None:
    """Return the size of the first tile along a dimension, or None if no axis of the tile is that dimension alone.

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
    """Return the shape with its padded dimensions rounded up to whole tiles; slots stay the same."""
    sizes = shape.layout.padded_dimensions or shape.dimensions
    tiles = [tile_size(shape, d) or 1 for d in range(shape.rank)]
    whole_tiles = tuple(-(-size // tile) * tile for size, tile in zip(sizes, tiles, strict=True))
    layout = replace(shape.layout, padded_dimensions=None, split_configs=())
    return Shape(shape.element_type, whole_tiles, layout)


#: A grid with more rows or columns than the first number is reduced to the second.
_MOST_ROWS = 20, 12
_MOST_COLUMNS = 24, 18
_MOST_PANELS = 6
_MOST_CELLS = 1000
_MOST_STRIP_SLOTS = 160
_MOST_STRIP_LINES = 12
_STRIP_COLUMNS = 16
_MOVE_COLUMNS = 32


def layout_scene(shape: Shape, characters: int = 190) -> Scene:
    """Return the scene of one shape, at most about `characters` wide.

    Raises
    ------
    UnsupportedError
        The shape is not an array, or has no size.

    Examples
    --------
    >>> scene = layout_scene(Shape.parse("f32[3,5]{1,0:T(2,2)}"))
    >>> [cell.slot for cell in scene.panels[0].cells[2]]
    [12, 13, 16, 17, 20, 21]
    """
    _check_drawable(shape)
    cells = Cells(shape)
    grid = _Grid(shape, cells.bounds, _fitting(characters, _digits(shape.slot_count)))
    strip_columns = _fitting(characters, _element_characters(shape))
    strip, strip_notes = _strip(
        cells, "memory, from slot 0 on", _line_length(shape, min(strip_columns, _STRIP_COLUMNS))
    )
    notes = (*grid.notes(), *strip_notes)
    return Scene(
        title=str(shape),
        description=_description(shape, notes),
        panels=grid.panels(cells.at),
        row_name=_axis_name(shape, grid.row_dimension),
        column_name=_axis_name(shape, grid.column_dimension),
        strips=(strip,) if strip.lines else (),
        moves=(),
        legend=_legend(shape, "number: the slot of the element"),
        notes=notes,
    )


def relayout_scene(source: Shape, destination: Shape, characters: int = 190) -> Scene:
    """Return the scene of a relayout between two layouts of an array, at most about `characters` wide.

    Raises
    ------
    UnsupportedError
        As `layout_scene`.
    FastIndexError
        The dimensions differ.

    Examples
    --------
    >>> scene = relayout_scene(Shape.parse("f32[2,3]{1,0}"), Shape.parse("f32[2,3]{0,1}"))
    >>> scene.panels[0].cells[0][1].text, scene.moves[1]
    ('1→2', (1, 2))
    """
    _check_drawable(source)
    _check_drawable(destination)
    if source.dimensions != destination.dimensions:
        raise FastIndexError(f"both layouts must be of one array: {source} and {destination} differ")
    before, after = Cells(source), Cells(destination)

    def moving(multi_index: tuple[int, ...]) -> Cell:
        cell = before.at(multi_index)
        return replace(cell, text=f"{cell.slot}→{after.slot_of(multi_index)}")

    widest = _digits(source.slot_count) + 1 + _digits(destination.slot_count)
    grid = _Grid(source, source.dimensions, _fitting(characters, widest))
    columns = min(_fitting(characters, _element_characters(source)), _MOVE_COLUMNS)
    first, first_notes = _strip(before, f"source memory, {source}", columns, lines=1)
    # Elements keep their source colour, so that tiles can be followed visually.
    label = f"destination memory, {destination}"
    second, second_notes = _strip(after, label, columns, lines=1, colour_of=lambda e: before.at(e).colour)
    shown = {cell.slot for line in second.lines for cell in line}
    sources = [cell for line in first.lines for cell in line]
    moves = [(cell.slot, after.slot_of(cell.element)) for cell in sources if cell.element is not None]
    notes = (*grid.notes(), *first_notes, *second_notes)
    title = f"{source} to {destination}"
    return Scene(
        title=title,
        description=" ".join((f"Where the elements move from {title}.", *notes)),
        panels=grid.panels(moving),
        row_name=_axis_name(source, grid.row_dimension),
        column_name=_axis_name(source, grid.column_dimension),
        strips=(first, second) if first.lines and second.lines else (),
        moves=tuple(move for move in moves if move[1] in shown),
        legend=_legend(source, "numbers: the slot before and after"),
        notes=notes,
    )


def _check_drawable(shape: Shape) -> None:
    if not shape.is_array:
        raise UnsupportedError(f"only arrays can be drawn, not {shape}; draw one of its arrays")
    shape.slot_count  # noqa: B018 - raises where the shape has no size


@dataclass(frozen=True)
class _Grid:
    """Selection of panels, rows and columns: the two most minor dimensions form the grid, the others are fixed."""

    shape: Shape
    bounds: tuple[int, ...]
    most_columns: int

    @property
    def row_dimension(self) -> int | None:
        """The lower-numbered of the two grid dimensions."""
        minor = sorted(self.shape.layout.minor_to_major[:2])
        return minor[0] if len(minor) == 2 else None

    @property
    def column_dimension(self) -> int | None:
        """The higher-numbered of the two grid dimensions, or the only one."""
        return max(self.shape.layout.minor_to_major[:2], default=None)

    @property
    def _others(self) -> list[int]:
        shown = (self.row_dimension, self.column_dimension)
        return [d for d in range(self.shape.rank) if d not in shown]

    @property
    def _panel_count(self) -> int:
        return math.prod(self.shape.dimensions[d] for d in self._others)

    def _columns(self) -> tuple[int, ...]:
        most, cut_to = _MOST_COLUMNS
        fitting = self.most_columns
        return self._shown(self.column_dimension, min(most, fitting), min(cut_to, max(fitting, 3)))

    def _rows(self, column_count: int) -> tuple[int, ...]:
        most, cut_to = _MOST_ROWS
        fitting = max(_MOST_CELLS // (min(self._panel_count, _MOST_PANELS) * column_count), 4)
        return self._shown(self.row_dimension, min(most, fitting), min(cut_to, fitting))

    def _shown(self, dimension: int | None, most: int, cut_to: int) -> tuple[int, ...]:
        """Return all coordinates, or a selection: the first ones, and those at the edges of a tile and of the array."""
        if dimension is None:
            return (0,)
        size, bound = self.shape.dimensions[dimension], self.bounds[dimension]
        if bound <= most:
            return tuple(range(bound))
        tile = tile_size(self.shape, dimension) or size
        edges = [0, size - 1, bound - 1, tile - 1, tile, size, size - 2, tile - 2, tile + 1]
        wanted = dict.fromkeys(i for i in (*edges, *range(cut_to)) if 0 <= i < bound)
        return tuple(sorted(itertools.islice(wanted, cut_to)))

    def panels(self, cell_at: Callable[[tuple[int, ...]], Cell]) -> tuple[Panel, ...]:
        """Return the panels, with cells from `cell_at`."""
        if 0 in self.shape.dimensions:
            return ()
        columns = self._columns()
        rows = self._rows(len(columns))
        # `product` makes a tuple of each range, and no panel has a number beyond the first few.
        ranges = [range(min(self.shape.dimensions[d], _MOST_PANELS)) for d in self._others]
        panels = []
        for fixed in itertools.islice(itertools.product(*ranges), _MOST_PANELS):
            places: list[int | str] = [":"] * self.shape.rank
            for d, i in zip(self._others, fixed, strict=True):
                places[d] = i
            cells = tuple(tuple(cell_at(self._multi_index(fixed, row, column)) for column in columns) for row in rows)
            panels.append(Panel(f"[{', '.join(map(str, places))}]" if fixed else "", rows, columns, cells))
        return tuple(panels)

    def _multi_index(self, fixed: Sequence[int], row: int, column: int) -> tuple[int, ...]:
        place = dict(zip(self._others, fixed, strict=True))
        if self.row_dimension is not None:
            place[self.row_dimension] = row
        if self.column_dimension is not None:
            place[self.column_dimension] = column
        return tuple(place[d] for d in range(self.shape.rank))

    def notes(self) -> list[str]:
        """Return a sentence for each omitted part."""
        if 0 in self.shape.dimensions:
            return ["The array has no elements."]
        notes = []
        if self._panel_count > _MOST_PANELS:
            notes.append(f"{_MOST_PANELS} of {self._panel_count:,} panels are shown.")
        columns = self._columns()
        shown = (("rows", self.row_dimension, self._rows(len(columns))), ("columns", self.column_dimension, columns))
        for name, dimension, coordinates in shown:
            if dimension is not None and len(coordinates) < self.bounds[dimension]:
                size = self.shape.dimensions[dimension]
                elements = sum(i < size for i in coordinates)
                padding = len(coordinates) - elements
                also = f", and {padding} of padding" if padding else ""
                notes.append(f"{elements} of {size:,} {name} are shown{also}.")
        return notes


def _strip(
    cells: Cells,
    label: str,
    line_length: int,
    lines: int | None = None,
    colour_of: Callable[[tuple[int, ...]], int] | None = None,
) -> tuple[Strip, list[str]]:
    """Return the buffer in lines; a shortened strip keeps the last line unless `lines` gives the number of lines."""
    count = cells.shape.slot_count
    begins: Sequence[int] = range(0, count, line_length)
    most = lines or min(max(_MOST_STRIP_SLOTS // line_length, 2), _MOST_STRIP_LINES)
    notes = []
    if len(begins) > most:
        begins = begins[:most] if lines else [*begins[: most - 1], begins[-1]]
        shown = sum(min(line_length, count - begin) for begin in begins)
        notes.append(f"{shown} of {count:,} slots are shown in the order of memory.")

    def cell(slot: int) -> Cell:
        found = cells.in_slot(slot)
        if colour_of is None or found.element is None:
            return found
        return replace(found, colour=colour_of(found.element))

    ends = [min(begin + line_length, count) for begin in begins]
    in_lines = tuple(tuple(cell(slot) for slot in range(begin, end)) for begin, end in zip(begins, ends, strict=True))
    return Strip(label, in_lines), notes


def _line_length(shape: Shape, most: int) -> int:
    """Return the slots per line: whole tiles if they fit, else a fraction of a tile."""
    layout = shape.layout
    if layout.tiles:
        tile = math.prod(size for size in layout.tiles[0] if size > 0)
    else:
        tile = shape.dimensions[layout.minor_to_major[0]] if shape.rank else 1
    if tile <= most:
        return most // max(tile, 1) * max(tile, 1)
    return max((d for d in range(most, most // 2, -1) if tile % d == 0), default=most)


def _fitting(characters: int, cell_characters: int) -> int:
    """Return the number of cells that fit on a line of text next to its label."""
    return max((characters - 12) // (cell_characters + 2), 1)


def _digits(bound: int) -> int:
    return len(str(max(bound - 1, 0)))


def _element_characters(shape: Shape) -> int:
    return sum(_digits(size) + 1 for size in shape.dimensions)


def _axis_name(shape: Shape, dimension: int | None) -> str:
    if dimension is None:
        return ""
    letters = shape.dimension_letters
    return f"dimension {dimension}" + (f" ({letters[dimension]})" if letters else "")


def _legend(shape: Shape, numbers: str) -> tuple[tuple[str, str], ...]:
    entries = [("text", numbers)]
    tiles = shape.layout.tiles
    entries.append(("tile", f"one tile {tile_text(tiles[0])}" if tiles else "one run of memory"))
    for level, tile in enumerate(tiles):
        if level:
            entries.append((f"level{min(level, 2)}", f"tile {tile_text(tile)} within"))
    if shape.slot_count > shape.element_count:
        entries.append(("padding", "padding"))
    return tuple(entries)


def _description(shape: Shape, notes: Sequence[str]) -> str:
    sizes = " by ".join(map(str, shape.dimensions)) or "one element"
    counts = f"{shape.slot_count:,} slots hold {shape.element_count:,} elements."
    what = f"The layout {shape.layout} of an array, {sizes}. Each cell of the grid holds the slot of its element."
    return " ".join((what, counts, *notes))
