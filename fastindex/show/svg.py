"""SVG rendering of scenes without a drawing library: one path per colour; light and dark colour schemes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from html import escape

from fastindex.show.scenes import COLOUR_COUNT, Cell, Panel, Scene, Strip, edge_level

#: Fill colours of tiles; neighbouring tiles get different ones.
LIGHT_TILES = ("#a6cee3", "#fdcb8f", "#b8df9b", "#f4b3ae", "#cdb9e4", "#fbe88a", "#93d8cd", "#dcc0a4")
DARK_TILES = ("#2f6283", "#8a5c1f", "#41702c", "#8b4249", "#5f4a88", "#766a1c", "#1f6f66", "#6d523a")
LIGHT = {"paper": "#ffffff", "ink": "#1f2328", "faint": "#59636e", "padding": "#d4d7db", "edge": "#1f2328"}
DARK = {"paper": "#0d1117", "ink": "#f0f6fc", "faint": "#9198a1", "padding": "#3d444d", "edge": "#f0f6fc"}
#: Edge colours of nested tiles.
LIGHT_LEVELS = ("#d1242f", "#0550ae")
DARK_LEVELS = ("#ff7b72", "#79c0ff")
#: Colours of the causes of padding: Okabe and Ito's palette, safe for colour-blind readers. Each also has a pattern.
PADDING_CAUSES = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00")


_CELL_HEIGHT = 22
_CHARACTER_WIDTH = 6.7
_TITLE_CHARACTER_WIDTH = 8.6
_GAP = 14
_MARGIN = 12
_PANEL_SPACE = 26
_MOST_WIDTH = 1000
_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


class SvgCanvas:
    """Collects SVG primitives by CSS class."""

    def __init__(self) -> None:
        self.fills: dict[str, list[str]] = {}
        self.lines: dict[str, list[str]] = {}
        self.texts: list[str] = []
        self.width = 0.0
        self.height = 0.0

    def rectangle(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        """Add a filled rectangle."""
        self.fills.setdefault(kind, []).append(f"M{x:g} {y:g}h{width:g}v{height:g}h{-width:g}z")
        self._grow(x + width, y + height)

    def line(self, kind: str, x1: float, y1: float, x2: float, y2: float) -> None:
        """Add a line, horizontal or vertical."""
        along = f"h{x2 - x1:g}" if y1 == y2 else f"v{y2 - y1:g}"
        self.lines.setdefault(kind, []).append(f"M{x1:g} {y1:g}{along}")

    def curve(self, kind: str, x1: float, y1: float, x2: float, y2: float) -> None:
        """Add a Bezier curve with vertical ends."""
        middle = (y1 + y2) / 2
        self.lines.setdefault(kind, []).append(f"M{x1:g} {y1:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}")

    def text(self, kind: str, x: float, y: float, text: str) -> None:
        """Add one line of text; `kind` is its CSS class, empty for cell text."""
        attribute = f' class="{kind}"' if kind else ""
        self.texts.append(f'<text x="{x:g}" y="{y:g}"{attribute}>{escape(text)}</text>')
        if kind not in ("", "m", "e"):
            self._grow(x + len(text) * (_TITLE_CHARACTER_WIDTH if kind == "t" else _CHARACTER_WIDTH), y + 4)

    def open_group(self, kind: str, label: str) -> None:
        """Begin a labelled group of texts, for tests and for readers of the SVG source."""
        self.texts.append(f'<g class="{kind}" data-label="{escape(label)}">')

    def close_group(self) -> None:
        """End the group."""
        self.texts.append("</g>")

    def _grow(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)


def svg_of(scene: Scene) -> str:
    """Return a scene as an SVG document.

    Examples
    --------
    >>> from fastindex.show.scenes import layout_scene
    >>> from fastindex.core.shape import Shape
    >>> svg_of(layout_scene(Shape.parse("f32[3,5]{1,0:T(2,2)}"))).startswith("<svg ")
    True
    """
    canvas = SvgCanvas()
    canvas.text("t", _MARGIN, _MARGIN + 12, scene.title)
    names = [f"↓ {scene.row_name}" if scene.row_name else "", f"→ {scene.column_name}" if scene.column_name else ""]
    top = _MARGIN + 32.0
    if any(names):
        canvas.text("f", _MARGIN, top, "  ".join(names).strip())
    top = _draw_panels(canvas, scene, top + 8)
    top = _draw_strips(canvas, scene, top)
    top = _draw_legend(canvas, scene, top)
    for note in scene.notes:
        top += 16
        canvas.text("f", _MARGIN, top, note)
    return _document(canvas, scene)


def _draw_panels(canvas: SvgCanvas, scene: Scene, top: float) -> float:
    """Draw the panels side by side, wrapped to rows; return the y coordinate of their bottom."""
    width = _cell_width(cell for panel in scene.panels for row in panel.cells for cell in row)
    left, bottom = float(_MARGIN), top
    for panel in scene.panels:
        header = _label_width(panel.rows) + 10
        needed = max(header + _span(panel.columns, width), len(panel.label) * _CHARACTER_WIDTH)
        if left > _MARGIN and left + needed > _MOST_WIDTH:
            left, top = float(_MARGIN), bottom + _PANEL_SPACE
        bottom = max(bottom, _draw_panel(canvas, scene, panel, left, top, width, header))
        left += needed + _PANEL_SPACE
    return bottom


def _draw_panel(
    canvas: SvgCanvas, scene: Scene, panel: Panel, left: float, top: float, width: float, header: float
) -> float:
    if panel.label:
        canvas.text("f", left, top + 10, panel.label)
        top += 18
    xs = _positions(panel.columns, left + header, width)
    ys = _positions(panel.rows, top + 18, _CELL_HEIGHT)
    if scene.column_name:
        for i, (column, x) in enumerate(zip(panel.columns, xs, strict=True)):
            canvas.text("m", x + width / 2, top + 13, str(column))
            if _jumps(panel.columns, i):
                canvas.text("m", x - _GAP / 2, top + 13, "⋯")
    if scene.row_name:
        for i, (row, y) in enumerate(zip(panel.rows, ys, strict=True)):
            canvas.text("e", left + header - 6, y + 15, str(row))
            if _jumps(panel.rows, i):
                canvas.text("m", left + header - 10, y - 4, "⋮")
    canvas.open_group("cells", panel.label)
    for row_cells, y in zip(panel.cells, ys, strict=True):
        for cell, x in zip(row_cells, xs, strict=True):
            _draw_cell(canvas, cell, x, y, width)
    canvas.close_group()
    _draw_edges(canvas, panel, xs, ys, width)
    return ys[-1] + _CELL_HEIGHT


def _draw_cell(canvas: SvgCanvas, cell: Cell, x: float, y: float, width: float) -> None:
    canvas.rectangle("p" if cell.element is None else f"c{cell.colour}", x, y, width, _CELL_HEIGHT)
    if cell.text:
        canvas.text("x" if cell.element is None else "", x + width / 2, y + 15, cell.text)


def _draw_edges(canvas: SvgCanvas, panel: Panel, xs: Sequence[float], ys: Sequence[float], width: float) -> None:
    """Draw the outlines of the tiles of each level, except where cells are omitted."""
    for i, y in enumerate(ys):
        for j, x in enumerate(xs):
            cell = panel.cells[i][j]
            left = panel.cells[i][j - 1] if j else None
            above = panel.cells[i - 1][j] if i else None
            if not _jumps(panel.columns, j):
                canvas.line(_edge_kind(cell, left), x, y, x, y + _CELL_HEIGHT)
            if not _jumps(panel.rows, i):
                canvas.line(_edge_kind(cell, above), x, y, x + width, y)
            if j == len(xs) - 1:
                canvas.line("l0", x + width, y, x + width, y + _CELL_HEIGHT)
            if i == len(ys) - 1:
                canvas.line("l0", x, y + _CELL_HEIGHT, x + width, y + _CELL_HEIGHT)


def _edge_kind(cell: Cell, neighbour: Cell | None) -> str:
    """Return the line class of an edge by the level of the largest tiles it separates; "l9" within the smallest."""
    level = 0 if neighbour is None else edge_level(cell, neighbour)
    return "l9" if level is None else f"l{level}"


def _draw_strips(canvas: SvgCanvas, scene: Scene, top: float) -> float:
    if not scene.strips:
        return top
    width = _cell_width(cell for strip in scene.strips for line in strip.lines for cell in line)
    space = 70 if scene.moves else 18
    places: list[dict[int, tuple[float, float]]] = []
    top += 22
    for number, strip in enumerate(scene.strips):
        # Curves enter from above, so the label of the second strip goes below it.
        label_below = number > 0
        if not label_below:
            canvas.text("f", _MARGIN, top + 10, strip.label)
            top += 18
        top, place = _draw_strip(canvas, strip, top, width)
        places.append(place)
        if label_below:
            canvas.text("f", _MARGIN, top + 16, strip.label)
            top += 18
        top += space
    colours = {cell.slot: cell.colour for line in scene.strips[0].lines for cell in line}
    for source, destination in scene.moves:
        (x1, y1), (x2, y2) = places[0][source], places[1][destination]
        canvas.curve(f"v{colours[source]}", x1 + width / 2, y1 + _CELL_HEIGHT, x2 + width / 2, y2)
    return top - space


def _draw_strip(
    canvas: SvgCanvas, strip: Strip, top: float, width: float
) -> tuple[float, dict[int, tuple[float, float]]]:
    """Draw one strip; return the y coordinate of its bottom, and the position of each slot."""
    places: dict[int, tuple[float, float]] = {}
    header = _label_width([line[0].slot for line in strip.lines]) + 10
    y = top
    canvas.open_group("memory", strip.label)
    previous = -1
    for line in strip.lines:
        if line[0].slot != previous + 1:
            canvas.text("m", _MARGIN + header + 8, y + 10, "⋮")
            y += _GAP
        canvas.text("e", _MARGIN + header - 6, y + 15, str(line[0].slot))
        for i, cell in enumerate(line):
            x = _MARGIN + header + i * width
            places[cell.slot] = x, y
            _draw_cell(canvas, cell, x, y, width)
            canvas.line("l9", x, y, x, y + _CELL_HEIGHT)
        end = _MARGIN + header + len(line) * width
        canvas.line("l9", end, y, end, y + _CELL_HEIGHT)
        canvas.line("l9", _MARGIN + header, y, end, y)
        canvas.line("l9", _MARGIN + header, y + _CELL_HEIGHT, end, y + _CELL_HEIGHT)
        previous = line[-1].slot
        y += _CELL_HEIGHT
    canvas.close_group()
    return y, places


def _draw_legend(canvas: SvgCanvas, scene: Scene, top: float) -> float:
    x, y = float(_MARGIN), top + 16
    for kind, meaning in scene.legend:
        needed = 24 + len(meaning) * _CHARACTER_WIDTH
        if x > _MARGIN and x + needed > max(canvas.width, 400):
            x, y = float(_MARGIN), y + 20
        if kind == "text":
            canvas.text("m", x + 7, y + 11, "1")
        elif kind in ("tile", "padding"):
            canvas.rectangle("c0" if kind == "tile" else "p", x, y + 1, 14, 12)
        for side in _box(x, y + 1, 14, 12) if kind not in ("text", "padding") else ():
            canvas.line("l0" if kind == "tile" else f"l{kind[-1]}", *side)
        canvas.text("f", x + 20, y + 11, meaning)
        x += needed + 16
    return y + 14


def _box(x: float, y: float, width: float, height: float) -> list[tuple[float, float, float, float]]:
    return [
        (x, y, x + width, y),
        (x, y + height, x + width, y + height),
        (x, y, x, y + height),
        (x + width, y, x + width, y + height),
    ]


def _document(canvas: SvgCanvas, scene: Scene) -> str:
    width, height = canvas.width + _MARGIN, canvas.height + _MARGIN
    # Styles of an inline SVG apply to the whole page, so a unique class scopes them.
    name = f"fi{zlib.crc32((scene.title + scene.description).encode()):08x}"
    fills = "".join(f'<path class="{kind}" d="{"".join(d)}"/>' for kind, d in sorted(canvas.fills.items()))
    order = (*(f"v{i}" for i in range(COLOUR_COUNT)), "l9", "l2", "l1", "l0")
    lines = "".join(
        f'<path class="{kind}" d="{"".join(canvas.lines[kind])}"/>' for kind in order if kind in canvas.lines
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-labelledby="{name}t {name}d">'
        f'<title id="{name}t">{escape(scene.title)}</title><desc id="{name}d">{escape(scene.description)}</desc>'
        f"<style>{_style(name, bool(scene.moves))}</style>"
        f'<rect class="w" width="100%" height="100%"/>{fills}{lines}{"".join(canvas.texts)}</svg>\n'
    )


def _style(name: str, has_moves: bool) -> str:
    shared = {
        "text": f"font:11px {_FONT};text-anchor:middle",
        ".t": "font-size:14px;font-weight:bold;text-anchor:start",
        ".f": "text-anchor:start",
        ".e": "text-anchor:end",
        "path[class^=l],path[class^=v]": "fill:none",
        ".l0": "stroke-width:1.8;stroke-linecap:square",
        ".l1": "stroke-width:1.6;stroke-linecap:square",
        ".l2": "stroke-width:1.2;stroke-dasharray:3 2",
        ".l9": "stroke-width:.4",
        "path[class^=v]": "stroke-width:1.6",
    }
    rules = [_rule(name, selector, body) for selector, body in shared.items()]
    rules += _colour_rules(name, LIGHT, LIGHT_TILES, LIGHT_LEVELS, has_moves)
    dark = "".join(_colour_rules(name, DARK, DARK_TILES, DARK_LEVELS, has_moves))
    return "".join(rules) + f"@media (prefers-color-scheme:dark){{{dark}}}"


def _colour_rules(
    name: str, theme: dict[str, str], tiles: Sequence[str], levels: Sequence[str], has_moves: bool
) -> list[str]:
    bodies = {
        ".w": f"fill:{theme['paper']}",
        "text": f"fill:{theme['ink']}",
        ".f,.m,.e,.x": f"fill:{theme['faint']}",
        ".p": f"fill:{theme['padding']}",
        ".l0": f"stroke:{theme['edge']}",
        ".l1": f"stroke:{levels[0]}",
        ".l2": f"stroke:{levels[1]}",
        ".l9": f"stroke:{theme['faint']}",
        **{f".c{i}": f"fill:{colour}" for i, colour in enumerate(tiles)},
        **({f".v{i}": f"stroke:{colour}" for i, colour in enumerate(tiles)} if has_moves else {}),
    }
    return [_rule(name, selector, body) for selector, body in bodies.items()]


def _rule(name: str, selectors: str, body: str) -> str:
    return ",".join(f".{name} {selector}" for selector in selectors.split(",")) + f"{{{body}}}"


def _cell_width(cells: Iterable[Cell]) -> float:
    longest = max((len(cell.text) for cell in cells), default=1)
    return max(26.0, round(longest * _CHARACTER_WIDTH + 8))


def _label_width(labels: Iterable[int]) -> float:
    return max(len(str(label)) for label in labels) * _CHARACTER_WIDTH


def _positions(coordinates: Sequence[int], start: float, size: float) -> list[float]:
    """Return the position of each row or column, with a gap where coordinates are omitted."""
    places: list[float] = []
    at = start
    for i in range(len(coordinates)):
        if _jumps(coordinates, i):
            at += _GAP
        places.append(at)
        at += size
    return places


def _span(coordinates: Sequence[int], size: float) -> float:
    return _positions(coordinates, 0, size)[-1] + size


def _jumps(coordinates: Sequence[int], i: int) -> bool:
    """Whether coordinates are omitted before index `i`."""
    return i > 0 and coordinates[i] != coordinates[i - 1] + 1
