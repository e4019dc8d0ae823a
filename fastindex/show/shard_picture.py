"""Pictures of sharded arrays, two dimensions as a grid of parts coloured by device, and tables of reshard plans."""

from __future__ import annotations

import html
import itertools
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastindex.core.shape import Shape, as_shape
from fastindex.errors import OutOfBoundsError
from fastindex.sharding.sharding import Sharding, as_sharding
from fastindex.show.picture import Drawing
from fastindex.show.svg import DARK, DARK_TILES, LIGHT, LIGHT_TILES
from fastindex.terminal import shows_colours

#: Maximum number of parts along a dimension, of panels, and of tile lines in a part.
_MOST_PARTS = 32
_MOST_PANELS = 6
_MOST_TILE_LINES = 64

_WIDTH = 560.0
_ANSI = (117, 215, 150, 217, 183, 227, 115, 180)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the array in a panel.

    Attributes
    ----------
    row, column : int
    devices : tuple of int
        All devices that hold the part.
    rows, columns : int
        Elements of the part along the two dimensions, without padding.
    """

    row: int
    column: int
    devices: tuple[int, ...]
    rows: int
    columns: int

    @property
    def label(self) -> str:
        """The devices; of more than four, the first two and the last."""
        if len(self.devices) <= 4:
            return ",".join(map(str, self.devices))
        return f"{self.devices[0]},{self.devices[1]}..{self.devices[-1]}"


class ShardPicture(Drawing):
    """Picture of the devices that hold each part of an array; notebooks display it directly.

    Parameters
    ----------
    shape : Shape or str
    sharding : Sharding or str
    device_count : int, optional
        Needed if the sharding does not specify it.
    dimensions : pair of int, optional
        The dimensions drawn as rows and columns; by default the last two. Each part of the other dimensions gets a
        panel.
    tiles : bool
        Whether to draw the edges of the layout's first tile in each part.

    Raises
    ------
    OutOfBoundsError
        The array does not have such dimensions.
    LayoutError, UnsupportedError
        As `fastindex.sharding.shards`.

    Examples
    --------
    >>> print(ShardPicture("f32[5,4]", "{devices=[2,2]<=[4]}").text(colour=False, width=24))
    rows: dimension 0 (5, parts of 3), columns: dimension 1 (4, parts of 2)
    ┌──────────┬──────────┐
    │    0     │    1     │
    │          │          │
    │          │          │
    ├──────────┼──────────┤
    │    2     │    3     │
    │          │          │
    │░░░░░░░░░░│░░░░░░░░░░│
    └──────────┴──────────┘
    ░ padding of uneven parts
    """

    def __init__(
        self,
        shape: Shape | str,
        sharding: Sharding | str,
        device_count: int | None = None,
        dimensions: tuple[int, int] | None = None,
        tiles: bool = False,
    ) -> None:
        self._shape, self._sharding = as_shape(shape), as_sharding(sharding)
        self._count = self._sharding.checked_device_count(device_count)
        self._part = self._sharding.shard_shape(self._shape)
        rank = self._shape.rank
        chosen = dimensions or (rank - 2, rank - 1)
        if dimensions is not None and (len(set(chosen)) < 2 or not all(0 <= d < rank for d in chosen)):
            raise OutOfBoundsError(f"dimensions must be two of the {rank} of {self._shape}, got {dimensions}")
        self._row, self._column = chosen
        self._tiles = tiles

    # Contents

    def _sizes(self, dimension: int) -> tuple[int, int, int]:
        """Return the size of a dimension, the size of a part along it, and the number of parts."""
        if dimension < 0:
            return 1, 1, 1
        parts = self._sharding.parts or (1,) * self._shape.rank
        return self._shape.dimensions[dimension], self._part.dimensions[dimension], parts[dimension]

    def _devices(self, place: Sequence[int]) -> tuple[int, ...]:
        devices = self._sharding.devices
        if devices is None:
            return tuple(range(self._count)) if self._sharding.device is None else (self._sharding.device,)
        return tuple(devices[tuple(place)].reshape(-1).tolist())

    def panels(self) -> Iterator[tuple[str, list[list[Part]]]]:
        """Yield the label and the rows of parts of each panel, up to the maximum number of panels."""
        others = [d for d in range(self._shape.rank) if d not in (self._row, self._column)]
        ranges = [range(self._sizes(d)[2]) for d in others]
        (n, size, rows), (m, width, columns) = self._sizes(self._row), self._sizes(self._column)
        for fixed in itertools.islice(itertools.product(*ranges), _MOST_PANELS):
            grid = []
            for i in range(min(rows, _MOST_PARTS)):
                line = []
                for j in range(min(columns, _MOST_PARTS)):
                    place = dict(zip(others, fixed, strict=True)) | {self._row: i, self._column: j}
                    devices = self._devices([place[d] for d in range(self._shape.rank)])
                    held = min(max(n - i * size, 0), size), min(max(m - j * width, 0), width)
                    line.append(Part(i, j, devices, *held))
                grid.append(line)
            label = ", ".join(f"dimension {d}: part {i}" for d, i in zip(others, fixed, strict=True))
            yield label, grid

    def notes(self) -> list[str]:
        """Return lines that name the rows and columns, and list omitted parts."""
        named = []
        for name, d in (("rows", self._row), ("columns", self._column)):
            size, part, _ = self._sizes(d)
            if d >= 0:
                named.append(f"{name}: dimension {d} ({size}, parts of {part})")
        notes = [", ".join(named) or "a scalar"]
        for name, d in (("rows", self._row), ("columns", self._column)):
            if self._sizes(d)[2] > _MOST_PARTS:
                notes.append(f"the first {_MOST_PARTS} of {self._sizes(d)[2]} parts along the {name}")
        panels = math.prod(self._sizes(d)[2] for d in range(self._shape.rank) if d not in (self._row, self._column))
        if panels > _MOST_PANELS:
            notes.append(f"the first {_MOST_PANELS} of {panels} parts of the other dimensions")
        return notes

    # As text

    def text(self, colour: bool | None = None, width: int | None = None) -> str:
        """Return the picture as lines of text.

        Parameters
        ----------
        colour : bool, optional
            Use ANSI colours. By default, if stdout is a terminal and ``NO_COLOR`` is not set.
        width : int, optional
            Characters per line; by default, the width of the terminal.
        """
        if colour is None:
            colour = shows_colours()
        width = width or shutil.get_terminal_size().columns
        lines = self.notes()
        padded = False
        for label, grid in self.panels():
            lines += [label] if label else []
            columns = len(grid[0]) if grid else 0
            longest = max((len(part.label) for line in grid for part in line), default=1)
            cell = max(longest, min((width - 1) // max(columns, 1) - 1, 24), 1)
            lines.append("┌" + "┬".join(["─" * cell] * columns) + "┐")
            for i, line in enumerate(grid):
                if i:
                    lines.append("├" + "┼".join(["─" * cell] * columns) + "┤")
                height = 3 if len(grid) <= 8 else 1
                drawn = [self._part_lines(part, cell, height, colour) for part in line]
                padded = padded or any("░" in text for texts in drawn for text in texts)
                lines += ["│" + "│".join(texts[k] for texts in drawn) + "│" for k in range(height)]
            lines.append("└" + "┴".join(["─" * cell] * columns) + "┘")
        return "\n".join([*lines, *(["░ padding of uneven parts"] if padded else [])])

    def _part_lines(self, part: Part, width: int, height: int, colour: bool) -> list[str]:
        rows, columns = self._part_size()
        full_lines = math.ceil(height * part.rows / rows) if rows else 0
        full_columns = math.ceil(width * part.columns / columns) if columns else 0
        texts = []
        for k in range(height):
            inside = full_columns if k < full_lines else 0
            text = part.label.center(width) if k == 0 else " " * width
            text = text[:inside] + "░" * (width - inside) if k or not inside else _over(text, inside, width)
            if colour:
                text = f"\x1b[48;5;{_ANSI[part.devices[0] % 8]}m\x1b[30m{text}\x1b[0m"
            texts.append(text)
        return texts

    def _part_size(self) -> tuple[int, int]:
        return self._sizes(self._row)[1], self._sizes(self._column)[1]

    # As SVG

    def svg(self) -> str:
        """Return an SVG document that follows the reader's colour scheme.

        Examples
        --------
        >>> ShardPicture("f32[5,4]", "{devices=[2,2]<=[4]}").svg()[:4]
        '<svg'
        """
        drawing, top = [], 24.0
        drawing.append(_svg_text(8, 16, f"{self._shape}: {self._sharding}", "title"))
        for note in self.notes():
            top += 16
            drawing.append(_svg_text(8, top - 8, note, "note"))
        rows, columns = self._part_size()
        for label, grid in self.panels():
            if label:
                top += 16
                drawing.append(_svg_text(8, top - 4, label, "note"))
            scale = _WIDTH / max(columns * len(grid[0]) if grid and grid[0] else 1, 1)
            height = min(max(rows * scale, 22.0), _WIDTH / max(len(grid), 1))
            for line in grid:
                for part in line:
                    box = 8 + part.column * columns * scale, top + part.row * height, columns * scale, height
                    drawing += self._svg_part(part, box, rows, columns)
            top += height * len(grid) + 12
        return _svg_document(drawing, top, f"{self._shape} divided as {self._sharding}")

    def _svg_part(self, part: Part, box: tuple[float, float, float, float], rows: int, columns: int) -> list[str]:
        x, y, width, height = box
        held = (height * part.rows / rows if rows else 0, width * part.columns / columns if columns else 0)
        if not part.rows or not part.columns:
            held = 0.0, 0.0
        found = [_rectangle("padding", *box), _rectangle(f"d{part.devices[0] % 8}", x, y, held[1], held[0])]
        if self._tiles:
            found += self._tile_lines(box, rows, columns)
        found.append(_rectangle("edge", *box))
        found.append(_svg_text(x + width / 2, y + height / 2 + 4, part.label, "label"))
        return found

    def _tile_lines(self, box: tuple[float, float, float, float], rows: int, columns: int) -> list[str]:
        tiles, order = self._part.layout.tiles, self._part.layout.minor_to_major
        if not tiles:
            return []
        size = {d: tile for d, tile in zip(order, reversed(tiles[0]), strict=False) if tile > 0}
        x, y, width, height = box
        lines = []
        for extent, tile, horizontal in ((rows, size.get(self._row), True), (columns, size.get(self._column), False)):
            if tile is None or tile >= extent or extent // tile > _MOST_TILE_LINES:
                continue
            for at in range(tile, extent, tile):
                if horizontal:
                    lines.append(_line(x, y + height * at / extent, x + width, y + height * at / extent))
                else:
                    lines.append(_line(x + width * at / extent, y, x + width * at / extent, y + height))
        return lines


def _over(text: str, inside: int, width: int) -> str:
    """Overlay a label on the padding marks of a line; `inside` characters are without padding."""
    return "".join(c if c != " " or i < inside else "░" for i, c in enumerate(text.ljust(width)))


def _rectangle(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    # SVG does not draw a rectangle of width 0.
    return f'<line class="tile" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _svg_text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{html.escape(text)}</text>'


def _svg_document(drawing: Sequence[str], height: float, title: str) -> str:
    def rules(paper: dict[str, str], tiles: Sequence[str]) -> str:
        devices = "".join(f".d{i}{{fill:{colour}}}" for i, colour in enumerate(tiles))
        return (
            f"text{{fill:{paper['ink']}}}.back{{fill:{paper['paper']}}}.edge,.tile{{stroke:{paper['edge']}}}"
            f".hatch{{stroke:{paper['faint']}}}{devices}"
        )

    style = (
        "text{font:12px sans-serif}.title{font-weight:bold}.label{text-anchor:middle}.edge{fill:none}"
        ".tile{fill:none;stroke-width:.7;stroke-dasharray:3 2}.padding{fill:url(#hatch)}"
        + rules(LIGHT, LIGHT_TILES)
        + f"@media(prefers-color-scheme:dark){{{rules(DARK, DARK_TILES)}}}"
    )
    width = _WIDTH + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img"><title>{html.escape(title)}</title><style>{style}</style>'
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>'
        f'<rect class="back" width="{width:.0f}" height="{height:.0f}"/>' + "".join(drawing) + "</svg>\n"
    )


#: Maximum number of devices in the table.
_MOST_DEVICES = 32


def reshard_html(description: str, between: NDArray[np.int64]) -> str:
    """Return the HTML for a reshard plan; `between` is the (source, target) matrix of bytes.

    Cells with more bytes are a deeper blue; bytes that stay on their device are italic.

    Examples
    --------
    >>> reshard_html("8 bytes move", np.array([[8, 8], [0, 8]]))[:21]
    '<pre>8 bytes move</pr'
    """
    shown = between[:_MOST_DEVICES, :_MOST_DEVICES]
    most = max(1, int(shown.max(initial=0)))
    head = "".join(f"<th>to {target}</th>" for target in range(shown.shape[1]))
    lines = [f"<tr><th>bytes</th>{head}</tr>"]
    for source, row in enumerate(shown.tolist()):
        cells = "".join(_cell(nbytes, most, source == target) for target, nbytes in enumerate(row))
        lines.append(f"<tr><th>from {source}</th>{cells}</tr>")
    counts = f" of {between.shape[0]} by {between.shape[1]}"
    cut = f"<div>the first {_MOST_DEVICES}{counts} devices</div>" if max(between.shape) > _MOST_DEVICES else ""
    return f"<pre>{html.escape(description)}</pre><table>{''.join(lines)}</table>{cut}"


def _cell(nbytes: int, most: int, stays: bool) -> str:
    if not nbytes:
        return "<td></td>"
    text = f"<i>{nbytes:,}</i>" if stays else f"{nbytes:,}"
    # Half transparent, so that text stays readable on light and dark backgrounds.
    return f'<td style="background:rgba(0,114,178,{0.1 + 0.4 * nbytes / most:.2f})">{text}</td>'
