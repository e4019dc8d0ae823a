"""Pictures against the slow reference: the numbers in them, the colours of the rendered pixels, the limits.

Tests of: show.scenes, show.svg, show.picture.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given

import fastindex as fi
from fastindex.layouts import Picture
from fastindex.show.svg import DARK_TILES, LIGHT, LIGHT_TILES
from tests.cases import strategies
from tests.oracles import reference

SVG = "{http://www.w3.org/2000/svg}"
CASES = [
    "f32[3,5]{1,0:T(2,2)}",
    "f32[4,8]{1,0:T(2,4)(2,1)}",
    "f32[3,5]{0,1:T(2,2)}",
    "f32[]",
    "f32[]{:T(4)}",
    "f32[11]{0:T(4)L(16)}",
    "f32[3,3,5]{2,0,1:T(2,2)}",
    "f32[2,2,3,4]{0,2,3,1:T(2,3)}",
    "s8[9,9]{1,0:T(8,8)(4,4)(2,2)}",
    "bf16[1024,1000]{1,0:T(8,128)(2,1)}",
    "bf16[20,18]{1,0:T(8,16)(2,1)}",
    "f32[6,5]{1,0:T(2,4)(2,1,1,1)}",
    "f32[2,7,8,11,10]{4,3,2,1,0:T(*,*,2,*,3)}",
    "f32[3,5]{1,0:PAD(4,7)}",
    "f32[3,5]{1,0:PAD(4,7)T(2,2)}",
    "f32[<=3,5]{1,0:T(2,2)}",
    "f32[7]{0:T(3)(2)}",
    "pred[100,2]{0,1:T(8,128)(4,1)}",
    "f32[1000000,1000000,1000000]{2,1,0:T(8,128)}",
    "f32[1,1,1,1,1,1,1,1]",
    "s4[5,9]{1,0:T(2,4)E(4)}",
]


@dataclass(frozen=True)
class Label:
    """A text in an SVG file."""

    x: float
    y: float
    text: str
    padding: bool


def labels(picture: Picture, kind: str) -> list[list[Label]]:
    """The texts of each group of one kind, in the order of the file."""
    root = ElementTree.fromstring(picture.svg())
    return [
        [
            Label(float(t.get("x", "")), float(t.get("y", "")), t.text or "", t.get("class") == "x")
            for t in group.iter(f"{SVG}text")
            if t.get("class") in (None, "x")
        ]
        for group in root.iter(f"{SVG}g")
        if group.get("class") == kind
    ]


def panel_dimensions(shape: fi.Shape) -> list[int]:
    return sorted(shape.layout.minor_to_major[:2])


def expected_panels(picture: Picture, text: str) -> list[list[tuple[str, bool]]]:
    """What each panel must say, from the coordinates it claims to show and the reference."""
    shape, slow = fi.Shape.parse(text), reference.parse(text)
    grid = panel_dimensions(shape)
    panels = []
    for panel in picture.scene.panels:
        fixed = [None if part == ":" else int(part) for part in re.findall(r"\d+|:", panel.label)]
        cells = []
        for row in panel.rows:
            for column in panel.columns:
                shown = dict(zip(grid, (row, column)[2 - len(grid) :], strict=True))
                index = tuple(shown.get(d, fixed[d] if fixed else 0) for d in range(shape.rank))
                inside = all(i < size for i, size in zip(index, shape.dimensions, strict=True))
                cells.append((str(reference.linear_index(slow, index)) if inside else "", not inside))
        panels.append(cells)
    return panels


@pytest.mark.parametrize("text", CASES)
def test_the_numbers_in_the_grid_are_the_slots(text: str) -> None:
    picture = fi.draw(text)
    found = labels(picture, "cells")
    expected = expected_panels(picture, text)
    assert len(found) == len(expected) >= 1
    for cells, wanted in zip(found, expected, strict=True):
        assert [("" if cell.padding else cell.text, cell.padding) for cell in cells] == wanted


@pytest.mark.parametrize("text", CASES)
def test_no_number_stands_twice(text: str) -> None:
    """Padding too has its slots, and none of them is an element's."""
    for cells in labels(fi.draw(text), "cells"):
        numbers = [cell.text for cell in cells]
        assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("text", CASES)
def test_the_memory_strip_holds_the_elements_in_order(text: str) -> None:
    slow = reference.parse(text)
    if reference.slot_count(slow) > 20_000:
        pytest.skip("too large for the reference")
    elements = {slot: index for slot, index in enumerate(reference.slots(slow)) if index is not None}
    scene = fi.draw(text).scene
    shown = [cell for strip in scene.strips for line in strip.lines for cell in line]
    assert shown[0].slot == 0
    for cell in shown:
        assert cell.element == elements.get(cell.slot)
        wanted = ",".join(map(str, cell.element)) or "()" if cell.element is not None else ""
        assert cell.text == wanted


@pytest.mark.in_turn(seconds=2)
@given(strategies.array_shapes())
def test_any_layout_can_be_drawn(slow: reference.ReferenceShape) -> None:
    text = str(slow)
    picture = fi.draw(text)
    svg = picture.svg()
    assert len(svg.encode()) < 300_000
    ElementTree.fromstring(svg)
    for cells, wanted in zip(labels(picture, "cells"), expected_panels(picture, text), strict=True):
        assert [("" if cell.padding else cell.text, cell.padding) for cell in cells] == wanted
    for line in picture.text(colour=False, width=80).splitlines():
        assert len(line) <= 80 or line in (text, *picture.scene.notes), line


@pytest.mark.parametrize("text", CASES)
def test_text_shows_the_same_numbers(text: str) -> None:
    picture = fi.draw(text)
    lines = picture.text(colour=False, width=190).splitlines()
    grid = [line for line in lines if "│" in line and " around " not in line]
    found = [number for line in grid for number in re.findall(r"\d+|·", line.split("│", 1)[1])]
    wanted = [number or "·" for panel in expected_panels(picture, text) for number, _ in panel]
    assert found == wanted


# --- rendering ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Image:
    """Pixels of a rendered picture."""

    width: int
    height: int
    channels: int
    rows: list[bytes]

    def at(self, x: float, y: float) -> str:
        begin = round(x) * self.channels
        return "#" + self.rows[round(y)][begin : begin + 3].hex()


def render(svg: str) -> Image:
    resvg_py = pytest.importorskip("resvg_py")
    return decode_png(bytes(resvg_py.svg_to_bytes(svg_string=svg)))


def decode_png(data: bytes) -> Image:
    """Decode an 8-bit RGB or RGBA file without interlacing."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    width = height = channels = 0
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        chunk = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", chunk)
            assert (depth, interlace) == (8, 0)
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            packed += chunk
        at += 12 + length
    raw = zlib.decompress(packed)
    stride = width * channels
    rows: list[bytes] = []
    previous = bytes(stride)
    for y in range(height):
        begin = y * (stride + 1)
        previous = unfilter(raw[begin], bytearray(raw[begin + 1 : begin + 1 + stride]), previous, channels)
        rows.append(previous)
    return Image(width, height, channels, rows)


def unfilter(kind: int, line: bytearray, above: bytes, step: int) -> bytes:
    for i in range(len(line)):
        left = line[i - step] if i >= step else 0
        corner = above[i - step] if i >= step else 0
        if kind == 1:
            line[i] = (line[i] + left) & 255
        elif kind == 2:
            line[i] = (line[i] + above[i]) & 255
        elif kind == 3:
            line[i] = (line[i] + (left + above[i]) // 2) & 255
        elif kind == 4:
            line[i] = (line[i] + paeth(left, above[i], corner)) & 255
    return bytes(line)


def paeth(left: int, above: int, corner: int) -> int:
    estimate = left + above - corner
    distances = (abs(estimate - left), abs(estimate - above), abs(estimate - corner))
    return (left, above, corner)[distances.index(min(distances))]


RENDERED = [text for text in CASES if "*" not in text]


@pytest.mark.parametrize("text", [*strategies.rotating(RENDERED)])
def test_rendered_colours_tell_the_tiles(text: str) -> None:
    """Pixels of one tile have one colour, neighbours in another tile another, padding is grey."""
    picture, slow = fi.draw(text), reference.parse(text)
    image = render(picture.svg())
    root = ElementTree.fromstring(picture.svg())
    assert (image.width, image.height) == (int(root.get("width", "")), int(root.get("height", "")))
    for panel, cells in zip(picture.scene.panels, labels(picture, "cells"), strict=True):
        across = len(panel.columns)
        pixels = [image.at(cell.x, cell.y - 12) for cell in cells]
        flat = [cell for row in panel.cells for cell in row]
        for i, (label, pixel, cell) in enumerate(zip(cells, pixels, flat, strict=True)):
            assert (pixel == LIGHT["padding"]) == label.padding, label
            assert label.padding or pixel in LIGHT_TILES
            for j in (i + 1 if (i + 1) % across else -1, i + across):
                other = flat[j] if 0 <= j < len(flat) else None
                if slow.tiles and cell.element is not None and other is not None and other.element is not None:
                    same = tile_number(slow, cell.element) == tile_number(slow, other.element)
                    if same or are_neighbours(cell.element, other.element):
                        assert (pixel == pixels[j]) == same, (cell, other)


def tile_number(slow: reference.ReferenceShape, index: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(reference.tile_index(slow, index, 0)[0])


def are_neighbours(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return sum(abs(i - j) for i, j in zip(a, b, strict=True)) == 1


def test_render_fails_on_a_wrong_colour() -> None:
    """The check above can fail: with one colour exchanged, the pixel is another."""
    svg = fi.draw(CASES[0]).svg()
    cell = labels(fi.draw(CASES[0]), "cells")[0][0]
    assert render(svg).at(cell.x, cell.y - 12) == LIGHT_TILES[0]
    assert render(svg.replace(LIGHT_TILES[0], "#123456")).at(cell.x, cell.y - 12) == "#123456"


def test_figure_1_of_the_document() -> None:
    """F32[3,5] in tiles of 2 by 2: six tiles, 24 slots, padding at the right and at the bottom."""
    (cells,) = labels(fi.draw("f32[3,5]{1,0:T(2,2)}"), "cells")
    slots = [int(cell.text) for cell in cells if not cell.padding]
    assert slots == [0, 1, 4, 5, 8, 2, 3, 6, 7, 10, 12, 13, 16, 17, 20]
    assert {int(cell.text) for cell in cells if cell.padding} == set(range(24)) - set(slots)


def test_figure_2_of_the_document() -> None:
    """4 by 8 in tiles of 2 by 4, then 2 by 1: the numbers of the document's picture."""
    picture = fi.draw("f32[4,8]{1,0:T(2,4)(2,1)}")
    (cells,) = labels(picture, "cells")
    first_row = list(range(0, 16, 2))
    rows = [[slot + begin for slot in first_row] for begin in (0, 1, 16, 17)]
    assert [int(cell.text) for cell in cells] == [slot for row in rows for slot in row]
    colours = [cell.colour for row in picture.scene.panels[0].cells for cell in row]
    assert len(set(colours)) == 4
    # Red lines: around each of the sixteen tiles of 2 by 1 where no tile of 2 by 4 ends.
    root = ElementTree.fromstring(picture.svg())
    red = next(path for path in root.iter(f"{SVG}path") if path.get("class") == "l1").get("d", "")
    inner = 6 * 4 + 4
    assert red.count("M") == inner


def test_each_level_of_tiles_has_separate_lines() -> None:
    """16 by 16 slots in tiles of 8, 4 and 2: two straight lines inside for the first, then 4, then 8."""
    picture = fi.draw("s8[16,16]{1,0:T(8,8)(4,4)(2,2)}")
    lines = re.findall(r'<path class="l(\d)" d="([^"]*)"', picture.svg())
    counts = {level: d.count("M") for level, d in lines}
    # The legend draws one box of four lines for each level.
    assert counts["1"] == 2 * 2 * 16 + 4
    assert counts["2"] == 2 * 4 * 16 + 4
    assert counts["0"] == 2 * 1 * 16 + 4 * 16 + 4
    text = picture.text(colour=False)
    assert {"│", "┆", "╎"} <= set(text)


# --- relayouts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """As much of a relayout plan as a picture looks at."""

    source: fi.Shape
    destination: fi.Shape


PAIRS = [
    ("f32[4,8]{1,0}", "f32[4,8]{1,0:T(2,4)(2,1)}"),
    ("f32[3,5]{1,0:T(2,2)}", "f32[3,5]{0,1}"),
    ("bf16[64,300]{1,0}", "bf16[64,300]{1,0:T(8,128)(2,1)}"),
    ("f32[2,3,4]{2,1,0}", "f32[2,3,4]{0,1,2:T(2,2)}"),
    ("f32[]", "f32[]{:T(8)}"),
]


@pytest.mark.in_turn(seconds=0.8)
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_plan_shows_where_elements_move(before: str, after: str) -> None:
    picture = fi.draw(Plan(fi.Shape.parse(before), fi.Shape.parse(after)))
    source, destination = reference.parse(before), reference.parse(after)
    for panel in picture.scene.panels:
        for row in panel.cells:
            for cell in row:
                assert cell.element is not None
                slots = (reference.linear_index(shape, cell.element) for shape in (source, destination))
                assert cell.text == "→".join(map(str, slots))
    assert picture.scene.moves
    for move in picture.scene.moves:
        assert reference.convert_index(source, destination, move[0]) == move[1]
    image = render(picture.svg())
    assert image.width > 100
    curves = re.findall(r'class="v\d" d="([^"]*)"', picture.svg())
    assert sum(d.count("M") for d in curves) == len(picture.scene.moves)
    assert "→" in picture.text(colour=False)


def test_a_real_plan_can_be_drawn() -> None:
    relayouts = pytest.importorskip("fastindex.moving.relayout_calls")
    plan = relayouts.plan_relayout(fi.Shape.parse(PAIRS[0][0]), fi.Shape.parse(PAIRS[0][1]))
    assert fi.draw(plan).scene.moves[1] == (1, 2)


# --- limits, accessibility, terminals ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", CASES)
def test_size_titles_and_themes(text: str) -> None:
    svg = fi.draw(text).svg()
    assert len(svg.encode()) < 300_000
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert title.text == str(fi.Shape.parse(text))
    assert description is not None
    assert str(fi.Shape.parse(text).layout) in (description.text or "")
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert "prefers-color-scheme:dark" in svg
    assert all(colour in svg for colour in DARK_TILES)


def contrast(a: str, b: str) -> float:
    """WCAG contrast of two colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("tile", LIGHT_TILES)
def test_contrast_in_light(tile: str) -> None:
    assert contrast(tile, LIGHT["ink"]) >= 4.5


@pytest.mark.parametrize("tile", DARK_TILES)
def test_contrast_in_dark(tile: str) -> None:
    assert contrast(tile, "#f0f6fc") >= 4.5


def test_styles_of_two_pictures_do_not_mix() -> None:
    first, second = fi.draw(CASES[0]).svg(), fi.draw(CASES[1]).svg()
    for svg, other in ((first, second), (second, first)):
        name = re.search(r'class="(fi[0-9a-f]{8})"', svg)
        assert name is not None
        assert name.group(1) not in other
        style = re.search("<style>(.*)</style>", svg)
        assert style is not None
        selectors = re.findall(r"([^{}]+)\{[^{}]", style.group(1).replace("@media (prefers-color-scheme:dark){", ""))
        assert all(part.startswith(f".{name.group(1)} ") for rule in selectors for part in rule.split(","))


def test_what_is_cut_is_said() -> None:
    picture = fi.draw("bf16[1024,1000]{1,0:T(8,128)(2,1)}")
    assert picture.scene.notes == (
        "12 of 1,024 rows are shown.",
        "16 of 1,000 columns are shown, and 2 of padding.",
        "160 of 1,048,576 slots are shown in the order of memory.",
    )
    for note in picture.scene.notes:
        assert note in picture.svg()
    columns = picture.scene.panels[0].columns
    assert {0, 127, 128, 999, 1000, 1023} <= set(columns)


def test_colours_follow_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = fi.draw(CASES[1])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[30;48;5;" in picture.text()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in picture.text()
    assert "\x1b" in picture.text(colour=True)
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", picture.text(colour=True))
    assert stripped == picture.text(colour=False)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert "\x1b" not in picture.text()


def test_an_array_without_elements() -> None:
    picture = fi.draw("f32[0,3]{1,0:T(2,2)}")
    assert picture.scene.panels == ()
    assert "no elements" in picture.svg()
    assert "no elements" in str(picture)


def test_panels_of_a_dimension_of_any_size() -> None:
    few, many = (fi.draw(f"u8[{size},7,2,3]").scene.panels for size in (7, 1 << 50))
    assert [panel.label for panel in many] == [panel.label for panel in few]
    assert len(fi.draw(f"u8[2,{1 << 50},2,3]").scene.panels) == len(few)


@pytest.mark.parametrize("text", ["(f32[2], f32[3])", "token[]", "f32[?,3]", "f32[3]{0:D(C)}"])
def test_what_cannot_be_drawn(text: str) -> None:
    with pytest.raises(fi.UnsupportedError):
        fi.draw(text)


def test_wrong_arguments() -> None:
    with pytest.raises(fi.ArgumentTypeError, match="draw takes"):
        fi.draw(3)  # type: ignore[arg-type]
    with pytest.raises(fi.ParseError):
        fi.draw("f32[3")
    with pytest.raises(fi.FastIndexError, match="one array"):
        fi.draw(Plan(fi.Shape.parse("f32[3]"), fi.Shape.parse("f32[4]")))


def test_notebooks_show_shapes_and_pictures() -> None:
    assert fi.draw(CASES[0])._repr_svg_() == fi.draw(CASES[0]).svg()


def test_import_stays_light() -> None:
    command = "import fastindex as fi, sys; fi.draw('f32[3,5]{1,0:T(2,2)}').svg(); "
    command += "print(sorted({'numba', 'numpy', 'rich'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_gallery_is_what_the_tool_draws() -> None:
    folder = Path(__file__).resolve().parents[2] / "docs" / "gallery"
    from benchmarks.gallery import gallery

    for name, content in gallery().items():
        assert (folder / name).read_text(encoding="utf-8") == content, "run python benchmarks/gallery.py"


def test_a_plan_shows_itself_in_a_notebook() -> None:
    plan = fi.plan_relayout("f32[4,6]{1,0}", "f32[4,6]{1,0:T(2,2)}")
    shown = plan._repr_html_()
    assert plan.describe().splitlines()[-1] in shown
    assert fi.draw(plan).svg() in shown
