"""What a picture of a layout shows: panels of cells, strips of memory, marks and notes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
        0 to 7; neighbouring tiles have different ones. -1 for padding.
    tiles : tuple of hashable
        The tile of each level that the slot belongs to.
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
    """A grid over two dimensions, the others fixed.

    Attributes
    ----------
    label : str
        The panel as an index in NumPy's notation; "" if it is the only one.
    rows, columns : tuple of int
        The coordinates shown; where they jump, some were left out.
    cells : tuple of tuples of Cell
    """

    label: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    cells: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """The buffer in the order of memory, in lines.

    Attributes
    ----------
    label : str
    lines : tuple of tuples of Cell
        Where the slots jump from line to line, some were left out.
    """

    label: str
    lines: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a picture shows.

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
        Pairs of slots, of the first strip and of the second, that hold the same element.
    legend : tuple of (str, str)
        A kind of mark, "text", "tile", "level1", "level2" or "padding", and its meaning.
    notes : tuple of str
        What was left out.
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
    """Return the level of the largest tiles that differ, at most 2, or None if the cells share all tiles.

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
