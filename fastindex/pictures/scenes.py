"""Which cells a picture of a layout or of a relayout shows, and which it leaves out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fastindex.advice.spelling import tile_text
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.pictures.cells import Cells, tile_size
from fastindex.pictures.scene import Cell, Panel, Scene, Strip

#: A grid that is larger than the first number is cut to the second.
_MOST_ROWS = 20, 12
_MOST_COLUMNS = 24, 18
_MOST_PANELS = 6
_MOST_CELLS = 1000
_MOST_STRIP_SLOTS = 160
_MOST_STRIP_LINES = 12
_STRIP_COLUMNS = 16
_MOVE_COLUMNS = 32


def layout_scene(shape: Shape, characters: int = 190) -> Scene:
    """Return the scene of one shape, about `characters` wide at most.

    Raises
    ------
    UnsupportedError
        Not an array, or one without a size.

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
    """Return the scene of a move between two layouts of an array, about `characters` wide at most.

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
    # Elements keep their colour from the source, so that the eye can follow a tile.
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
    """Which panels, rows and columns to show: the two most minor dimensions, the others fixed."""

    shape: Shape
    bounds: tuple[int, ...]
    most_columns: int

    @property
    def row_dimension(self) -> int | None:
        """The lower of the two dimensions."""
        minor = sorted(self.shape.layout.minor_to_major[:2])
        return minor[0] if len(minor) == 2 else None

    @property
    def column_dimension(self) -> int | None:
        """The higher of the two dimensions, or the only one."""
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
        room = self.most_columns
        return self._shown(self.column_dimension, min(most, room), min(cut_to, max(room, 3)))

    def _rows(self, column_count: int) -> tuple[int, ...]:
        most, cut_to = _MOST_ROWS
        room = max(_MOST_CELLS // (min(self._panel_count, _MOST_PANELS) * column_count), 4)
        return self._shown(self.row_dimension, min(most, room), min(cut_to, room))

    def _shown(self, dimension: int | None, most: int, cut_to: int) -> tuple[int, ...]:
        """Return all coordinates, or the first ones and those around the edges of a tile and of the array."""
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
        """Return the panels, with the cells that `cell_at` makes."""
        if 0 in self.shape.dimensions:
            return ()
        columns = self._columns()
        rows = self._rows(len(columns))
        ranges = [range(self.shape.dimensions[d]) for d in self._others]
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
        """Return a sentence for each part that was left out."""
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
    """Return the buffer in lines; if it is cut, the last line is kept unless `lines` fixes the number of lines."""
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
    """Return how many cells fit on a line of text next to its label."""
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
