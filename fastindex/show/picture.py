"""Pictures of layouts and of relayouts, as SVG, and as text: lines between tiles, and ANSI colours on terminals."""

from __future__ import annotations

import shutil
from html import escape
from typing import Protocol, runtime_checkable

from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.first_use import load
from fastindex.show.scenes import Cell, Panel, Scene, Strip, edge_level, layout_scene, relayout_scene
from fastindex.show.svg import svg_of
from fastindex.terminal import ShownInNotebooks, shows_colours


@runtime_checkable
class RelayoutLike(Protocol):
    """The shapes of a relayout plan."""

    @property
    def source(self) -> Shape:
        """The shape before."""

    @property
    def destination(self) -> Shape:
        """The shape after."""


class DescribedRelayout(RelayoutLike, Protocol):
    """The interface of a relayout plan that notebook display needs."""

    def describe(self) -> str:
        """Return a description of the kernels that run."""


#: Width of SVG pictures in characters, about that of a page.
_SVG_CHARACTERS = 190


class Drawing(ShownInNotebooks):
    """A drawing that notebooks show as SVG and terminals as text."""

    def svg(self) -> str:
        """Return an SVG document."""
        raise NotImplementedError

    def text(self, colour: bool | None = None, width: int | None = None) -> str:
        """Return lines of text."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.svg()

    def _repr_svg_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        return self.text(colour=False)

    __repr__ = __str__


class Picture(Drawing):
    """A picture of a layout, or of a relayout.

    Notebooks display it directly; `svg`, `html` and `text` are for files and terminals.

    Parameters
    ----------
    source : Shape
    destination : Shape, optional
        Draw the relayout from `source` to this shape.
    """

    def __init__(self, source: Shape, destination: Shape | None = None) -> None:
        self._source = source
        self._destination = destination
        self._scene = self._make_scene(_SVG_CHARACTERS)

    def _make_scene(self, characters: int) -> Scene:
        if self._destination is None:
            return layout_scene(self._source, characters)
        return relayout_scene(self._source, self._destination, characters)

    @property
    def scene(self) -> Scene:
        """The contents of the picture: every cell with its slot, element and tiles."""
        return self._scene

    def svg(self) -> str:
        """Return an SVG document of less than 300 KB that follows the reader's colour scheme.

        Examples
        --------
        >>> import fastindex as fi
        >>> fi.draw("f32[3,5]{1,0:T(2,2)}").svg()[:4]
        '<svg'
        """
        return svg_of(self._scene)

    def text(self, colour: bool | None = None, width: int | None = None) -> str:
        """Return the picture as lines of text.

        Parameters
        ----------
        colour : bool, optional
            Use ANSI colours. By default, if stdout is a terminal and ``NO_COLOR`` is not set.
        width : int, optional
            Characters per line; by default, the width of the terminal.

        Examples
        --------
        >>> import fastindex as fi
        >>> print(fi.draw("s8[2,2]{0,1}").text(colour=False).splitlines()[5])
        0 │ 0│ 2│
        """
        if colour is None:
            colour = shows_colours()
        return text_of(self._make_scene(width or shutil.get_terminal_size().columns), colour)

    def html(self) -> str:
        """Return an interactive page that covers every element and slot; it works offline.

        Examples
        --------
        >>> import fastindex as fi
        >>> fi.draw("f32[3,5]{1,0:T(2,2)}").html()[:15]
        '<!doctype html>'
        """
        load("fastindex.show.page")
        from fastindex.show.page import page_of

        return page_of(self._source, self._destination)


def shape_html(shape: Shape) -> str:
    """Return the HTML of a shape for notebooks: its text, its size and, for arrays, its picture.

    Examples
    --------
    >>> shape_html(Shape.parse("(f32[2], f32[3])"))
    '<div><code>(f32[2]{0}, f32[3]{0})</code>, 20 bytes</div>'
    """
    text = f"<code>{escape(str(shape))}</code>"
    try:
        nbytes = f"{shape.nbytes:,} bytes"
    except FastIndexError:
        return f"<div>{text}</div>"
    if shape.nbytes != shape.logical_nbytes:
        nbytes += f" for {shape.logical_nbytes:,} bytes of elements"
    picture = Picture(shape).svg() if shape.is_array else ""
    return f"<div>{text}, {nbytes}</div>{picture}"


def plan_html(plan: DescribedRelayout) -> str:
    """Return the HTML of a relayout plan for notebooks: its kernels, and the picture of the relayout.

    Examples
    --------
    >>> import fastindex as fi
    >>> plan_html(fi.plan_relayout("s8[2,2]{1,0}", "s8[2,2]{0,1}")).splitlines()[0]
    '<pre>s8[2,2]{1,0} -&gt; s8[2,2]{0,1}'
    """
    return f"<pre>{escape(plan.describe())}</pre>{Picture(plan.source, plan.destination).svg()}"


def draw(subject: Shape | str | RelayoutLike) -> Picture:
    """Draw a layout: the logical grid with the slot of every element, and the buffer in memory order.

    Parameters
    ----------
    subject : Shape, str, or relayout plan
        For a plan from `plan_relayout`, the picture shows where the elements move.

    Returns
    -------
    Picture
        Notebooks display it; ``.svg()`` returns the contents of an SVG file, ``.text()`` lines for a terminal.

    Raises
    ------
    ParseError
        The text is not a shape.
    UnsupportedError
        The shape is not an array, or has no size.

    Examples
    --------
    >>> import fastindex as fi
    >>> picture = fi.draw("f32[3,5]{1,0:T(2,2)}")
    >>> [cell.slot for cell in picture.scene.panels[0].cells[0]]
    [0, 1, 4, 5, 8, 9]
    """
    if isinstance(subject, str):
        subject = Shape.parse(subject)
    if isinstance(subject, Shape):
        return Picture(subject)
    if isinstance(subject, RelayoutLike):
        return Picture(subject.source, subject.destination)
    raise ArgumentTypeError(f"draw takes a shape, its text or a relayout plan, got {type(subject).__name__}")


#: Background colours of the 256-colour palette, all light, for black text.
_BACKGROUNDS = (153, 222, 157, 217, 183, 229, 158, 180)
_RESET = "\x1b[0m"
_PADDING = "·"
#: Line characters by the level of the tiles that the line separates.
_VERTICAL = {0: "│", 1: "┆", 2: "╎", None: " "}
_HORIZONTAL = {0: "─", 1: "┄", 2: "╌", None: " "}
_GAP = " ⋯ "


def text_of(scene: Scene, colour: bool) -> str:
    """Return a scene as lines of text, with ANSI colours if asked.

    Examples
    --------
    >>> from fastindex.show.scenes import layout_scene
    >>> from fastindex.core.shape import Shape
    >>> print(text_of(layout_scene(Shape.parse("f32[2,3]{1,0:T(2,2)}")), colour=False))
    f32[2,3]{1,0:T(2,2)}
    ↓ dimension 0 (y)  → dimension 1 (x)
    <BLANKLINE>
        0  1  2  3
      ┌─────┬─────┐
    0 │ 0  1│ 4  ·│
    1 │ 2  3│ 6  ·│
      └─────┴─────┘
    <BLANKLINE>
    memory, from slot 0 on
    0  0,0 0,1 1,0 1,1 0,2   · 1,2   ·
    <BLANKLINE>
    number: the slot of the element
    │ around one tile (2,2)
    · padding
    """
    down = f"↓ {scene.row_name}" if scene.row_name else ""
    across = f"→ {scene.column_name}" if scene.column_name else ""
    lines = [scene.title, *([f"{down}  {across}".strip()] if down or across else [])]
    width = max((len(_cell_text(cell)) for panel in scene.panels for row in panel.cells for cell in row), default=1)
    for panel in scene.panels:
        lines += ["", *([panel.label] if panel.label else [])]
        lines += _PanelText(panel, width, colour).lines(bool(scene.row_name), bool(scene.column_name))
    width = max((len(_cell_text(cell)) for strip in scene.strips for line in strip.lines for cell in line), default=1)
    for strip in scene.strips:
        lines += ["", strip.label, *_strip_lines(strip, width, colour)]
    lines += ["", *_legend(scene), *scene.notes]
    return "\n".join(line.rstrip() for line in lines)


class _PanelText:
    """One panel as lines of text."""

    def __init__(self, panel: Panel, width: int, colour: bool) -> None:
        self._panel = panel
        self._width = max(width, len(str(panel.columns[-1])))
        self._colour = colour
        self._header = 0

    def lines(self, with_rows: bool, with_columns: bool) -> list[str]:
        """Return the lines, optionally with the coordinates of rows and columns."""
        panel = self._panel
        self._header = max(len(str(row)) for row in panel.rows) if with_rows else 0
        lines = [self._column_labels()] if with_columns else []
        for i, row in enumerate(panel.rows):
            if i and row != panel.rows[i - 1] + 1:
                lines.append("⋮".rjust(self._header))
            elif any(self._level(i, j, i - 1, j) is not None for j in range(len(panel.columns))):
                lines.append(self._rule(i))
            lines.append(self._row(i))
        return [*lines, self._rule(len(panel.rows))]

    def _column_labels(self) -> str:
        columns = self._panel.columns
        parts = [" " * (self._header + 1)]
        for j, column in enumerate(columns):
            parts.append(" " * len(_GAP) if self._is_cut(j) else " ")
            parts.append(str(column).rjust(self._width + 1))
        return "".join(parts)

    def _row(self, i: int) -> str:
        parts = [str(self._panel.rows[i]).rjust(self._header) if self._header else "", " "]
        for j, cell in enumerate(self._panel.cells[i]):
            parts.append(_GAP if self._is_cut(j) else _VERTICAL[self._level(i, j, i, j - 1)])
            parts.append(_coloured(cell, _cell_text(cell).rjust(self._width + 1), self._colour))
        return "".join(parts) + "│"

    def _rule(self, i: int) -> str:
        """Return the rule above row `i`."""
        count = len(self._panel.columns)
        parts = [" " * (self._header + 1)]
        for j in range(count):
            parts.append(" " * len(_GAP) if self._is_cut(j) else self._corner(i, j))
            parts.append(_HORIZONTAL[self._level(i, j, i - 1, j)] * (self._width + 1))
        return "".join(parts) + self._corner(i, count)

    def _corner(self, i: int, j: int) -> str:
        """Return the character where the rules above row `i` and left of column `j` meet."""
        up, down = self._level(i - 1, j, i - 1, j - 1), self._level(i, j, i, j - 1)
        left, right = self._level(i, j - 1, i - 1, j - 1), self._level(i, j, i - 1, j)
        strong = (up == 0, down == 0, left == 0, right == 0)
        if any(strong):
            return _CORNERS[strong]
        across, along = _min_level(left, right), _min_level(up, down)
        if across is not None and along is not None:
            return "+"
        return _HORIZONTAL[across] if across is not None else _VERTICAL[along]

    def _level(self, i: int, j: int, other_i: int, other_j: int) -> int | None:
        """Return the level of the largest tiles that two cells do not share; None if they share all tiles."""
        cell, other = self._at(i, j), self._at(other_i, other_j)
        if cell is None or other is None:
            return 0 if cell is not other else None
        return edge_level(cell, other)

    def _at(self, i: int, j: int) -> Cell | None:
        inside = 0 <= i < len(self._panel.rows) and 0 <= j < len(self._panel.columns)
        return self._panel.cells[i][j] if inside else None

    def _is_cut(self, j: int) -> bool:
        return j > 0 and self._panel.columns[j] != self._panel.columns[j - 1] + 1


#: Box-drawing character by which of (up, down, left, right) are solid lines.
_CORNERS = {
    (bool(mask & 8), bool(mask & 4), bool(mask & 2), bool(mask & 1)): mark
    for mask, mark in enumerate(" ──" + "─" + "│┌┐┬" + "│└┘┴" + "│├┤┼")
}


def _min_level(a: int | None, b: int | None) -> int | None:
    return min((level for level in (a, b) if level is not None), default=None)


def _strip_lines(strip: Strip, width: int, colour: bool) -> list[str]:
    header = max(len(str(line[0].slot)) for line in strip.lines)
    lines = []
    expected = 0
    for line in strip.lines:
        if line[0].slot != expected:
            lines.append("⋮".rjust(header))
        cells = " ".join(_coloured(cell, _cell_text(cell).rjust(width), colour) for cell in line)
        lines.append(f"{line[0].slot:>{header}}  {cells}")
        expected = line[-1].slot + 1
    return lines


def _cell_text(cell: Cell) -> str:
    return _PADDING if cell.element is None else cell.text


def _coloured(cell: Cell, text: str, colour: bool) -> str:
    if not colour:
        return text
    if cell.element is None:
        return f"\x1b[90m{text}{_RESET}"
    return f"\x1b[30;48;5;{_BACKGROUNDS[cell.colour]}m{text}{_RESET}"


def _legend(scene: Scene) -> list[str]:
    marks = {"text": "", "tile": "│ around ", "level1": "┆ around ", "level2": "╎ around ", "padding": "· "}
    return [marks[kind] + meaning for kind, meaning in scene.legend]
