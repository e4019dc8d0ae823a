"""The page to point at, in a real browser: what it shows, what it answers, keys, both themes.

Tests of fastindex.show.page, fastindex.show.svg: here too, since the page is what evaluates and shows
them. A browser is needed for most: Debian's chromium, and ``pip install playwright``.

Tests of: show.page.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import fastindex as fi
from fastindex.show.page import page_of
from tests.cases.strategies import random_pair, random_shape, seeds
from tests.oracles import reference

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
MISSING = "no chromium" if BROWSER is None else None
if importlib.util.find_spec("playwright") is None:
    MISSING = "playwright is not installed"
#: Nothing but the page itself: a closed network is no error of the page.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]

in_browser = pytest.mark.skipif(
    MISSING is not None and "browser" not in os.environ.get("FASTINDEX_REQUIRE", ""), reason=MISSING or ""
)

TILED = "bf16[1024,1000]{1,0:T(8,128)(2,1)}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Open the page of some shapes; whatever goes wrong in it fails the test."""
    wrong: list[str] = []
    pages = []

    def opened(*texts: str, **options: Any) -> Any:
        path = tmp_path / "page.html"
        path.write_text(page_of(*map(fi.Shape.parse, texts)), encoding="utf-8")
        page = browser.new_page(viewport={"width": 1400, "height": 1000}, **options)
        pages.append(page)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
        page.goto(path.as_uri())
        return page

    yield opened
    for page in pages:
        page.close()
    assert wrong == []


# Without a browser


class References(HTMLParser):
    """Collects what a document would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found += [str(value) for name, value in attributes if name in ("src", "href", "srcset")]


@pytest.mark.parametrize("text", [TILED, "f32[]", "f32[0,5]{1,0:T(8,128)}", "f32[3,5]{1,0:T(2,2)}"])
def test_a_page_is_small_and_loads_nothing(text: str) -> None:
    page = fi.draw(text).html()
    assert len(page.encode()) < 500_000
    references = References()
    references.feed(page)
    assert references.found == []
    assert not re.search(r"https?://|@import|url\(", page)


def test_what_has_no_slots_has_no_page() -> None:
    for text in ("f32[?]", "token[]"):
        with pytest.raises(fi.UnsupportedError):
            page_of(fi.Shape.parse(text))
    with pytest.raises(fi.FastIndexError, match="one array"):
        page_of(fi.Shape.parse("f32[3]"), fi.Shape.parse("f32[4]"))


def test_the_data_cannot_leave_its_script() -> None:
    from fastindex.show import page

    text = page.page_of(fi.Shape.parse("f32[3]"))
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert "<" not in data[1]
    assert json.loads(data[1])["layouts"][0]["text"] == "f32[3]{0}"


# In a browser


def grid(page: Any, name: str) -> list[tuple[str, str]]:
    """(key, text) of each cell of a view."""
    return [
        (cell["key"], cell["text"])
        for cell in page.eval_on_selector_all(
            f"#{name} td[data-key]", "cells => cells.map(c => ({key: c.dataset.key, text: c.textContent}))"
        )
    ]


@in_browser
@pytest.mark.parametrize("seed", seeds(50))
def test_shown_numbers_are_those_of_the_reference(show: Any, seed: int) -> None:
    text = str(random_shape(seed))
    slow = reference.linear_indices(reference.parse(text))
    page = show(text)
    shown = [(tuple(map(int, key.split(","))) if key else (), int(slot)) for key, slot in grid(page, "array")]
    assert len(shown) > 0 or not slow
    assert shown == [(element, slow[element]) for element, _ in shown]
    elements = {slot: element for element, slot in slow.items()}
    for key, element in grid(page, "memory0"):
        expected = elements.get(int(key))
        assert element == ("" if expected is None else ",".join(map(str, expected)) or "()"), (text, key)


@in_browser
@pytest.mark.parametrize("seed", seeds(10))
def test_moves_are_those_of_the_reference(show: Any, seed: int) -> None:
    source, destination = map(str, random_pair(seed))
    slots = reference.linear_indices(reference.parse(destination))
    page = show(source, destination)
    for key, _ in grid(page, "array")[:5]:
        page.locator(f'#array td[data-key="{key}"]').hover()
        wanted = slots[tuple(map(int, key.split(","))) if key else ()]
        assert f"It moves to slot {wanted:,}." in page.inner_text("#status")
        assert page.get_attribute("#memory1 td[aria-selected=true]", "data-key") == str(wanted)


@in_browser
def test_pointing_links_element_and_slot_both_ways(show: Any) -> None:
    page = show("f32[3,5]{1,0:T(2,2)}")
    page.hover('#array td[data-key="2,3"]')
    assert page.inner_text("#status") == "Element (2, 3) is in slot 17: bytes 68 to 71."
    assert page.get_attribute("#memory0 td[aria-selected=true]", "data-key") == "17"
    page.hover('#memory0 td[data-key="8"]')
    assert page.get_attribute("#array td[aria-selected=true]", "data-key") == "0,4"
    page.hover('#memory0 td[data-key="9"]')
    assert "is padding: dimension 1 (size 5) is padded to 6 by the tile (2,2)" in page.inner_text("#status")


@in_browser
def test_the_slider_runs_through_memory(show: Any) -> None:
    page = show(TILED)
    page.eval_on_selector("#memory0", "() => {}")
    slider = page.locator("input[type=range]").first
    slider.evaluate("s => { s.value = 0; s.dispatchEvent(new Event('input')); }")
    assert page.inner_text("#status").startswith("Element (0, 0) is in slot 0")
    slider.evaluate("s => { s.value = s.max; s.dispatchEvent(new Event('input')); }")
    assert "Slot 1,048,575, bytes 2,097,150 to 2,097,151, is padding" in page.inner_text("#status")


@in_browser
def test_windows_of_a_huge_array_are_exact(show: Any) -> None:
    """Beyond 2**53, where the numbers of a browser are no integers any more."""
    text = "bf16[4294967296,4000000]{1,0:T(8,128)(2,1)}"
    page = show(text)
    element = (4294967295, 3999999)
    page.fill("#element", ", ".join(map(str, element)))
    page.press("#element", "Enter")
    slot = int(fi.linear_index(text, element))
    assert slot > 2**53
    assert f"is in slot {slot:,}:" in page.inner_text("#status")
    assert page.inner_text("#array td[aria-selected=true]") == str(slot)
    assert page.inner_text("#memory0 td[aria-selected=true]") == ",".join(map(str, element))


@in_browser
def test_what_people_ask(show: Any) -> None:
    page = show(TILED)
    page.fill("#element", "(9, 130)")
    page.press("#element", "Enter")
    assert "slot 9,221" in page.inner_text("#status")
    page.fill("#slot", "5000")
    page.press("#slot", "Enter")
    back = fi.multi_index(TILED, [5000])
    assert f"({back[0][0]}, {back[1][0]})" in page.inner_text("#status")
    page.fill("#slot", "9,221")
    page.press("#slot", "Enter")
    assert "Element (9, 130)" in page.inner_text("#status")
    for typed, answer in (("1,2,3", "has 2 coordinates"), ("x", "whole numbers"), ("1024,0", "out of bounds")):
        page.fill("#element", typed)
        page.press("#element", "Enter")
        assert answer in page.inner_text("#status")


@in_browser
def test_why_an_array_is_so_large_stands_on_top(show: Any) -> None:
    page = show("f32[100000,3]{1,0:T(8,128)}")
    assert page.inner_text("#facts") == (
        "300,000 elements in 12,800,000 slots, 51,200,000 bytes: 42.7 times the bytes of the elements, because "
        "dimension 1 (size 3) is padded to 128 by the tile (8,128), 42.7 times its size. If you lay it out yourself, "
        "swap the two minor dimensions and use T(4,128): f32[100000,3]{0,1:T(4,128)} is 49,598,464 bytes smaller."
    )
    assert page.locator("#facts").bounding_box()["y"] < page.locator("#array").bounding_box()["y"]
    assert show("f32[8,128]{1,0:T(8,128)}").inner_text("#facts").endswith("4,096 bytes, no padding.")
    assert "f32[3,5]{1,0:T(2,2)}: 15 elements in 24 slots, 96 bytes: 1.6 times the bytes" in show(
        "f32[3,5]", "f32[3,5]{1,0:T(2,2)}"
    ).inner_text("#facts")
    assert show("f32[]").inner_text("#facts") == "1 element in 1 slot, 4 bytes, no padding."


@in_browser
@pytest.mark.parametrize(
    "text", [TILED, "s8[64,3,224,224]{0,1,3,2:T(8,128)(4,1)}", "f32[5]{0:T(2)}", "f32[3,5]{0,1:T(2,2)}"]
)
def test_tiles_are_numbered_as_they_lie_in_memory(show: Any, text: str) -> None:
    """Each is the tile of the slot of its first element; within one, the slots themselves."""
    page, shape = show(text), fi.Shape.parse(text)
    tiles = page.eval_on_selector_all("#tiles figure:first-child text", "nodes => nodes.map(node => node.textContent)")
    tile, parsed = shape.layout.tiles[0], reference.parse(str(shape))
    minor, major = (*shape.layout.minor_to_major, None)[:2]
    columns = min(-(-shape.dimensions[minor] // tile[-1]), 16)

    def slot(row: int, column: int) -> int:
        index = [0] * shape.rank
        index[minor] = column
        if major is not None:
            index[major] = row
        return reference.linear_index(parsed, index)

    size = math.prod(tile)
    for number, shown in enumerate(tiles):
        row, column = divmod(number, columns)
        assert int(shown) == slot(row * (tile[0] if len(tile) > 1 else 1), column * tile[-1]) // size
    within = page.eval_on_selector_all(
        "#tiles figure:nth-child(2) text", "nodes => nodes.map(node => node.textContent)"
    )
    assert bool(within) == (len(shape.layout.tiles) > 1)
    across = min(tile[-1], 16)
    for number, shown in enumerate(within):
        row, column = divmod(number, across)
        if row < shape.dimensions[major] and column < shape.dimensions[minor]:
            assert int(shown) == slot(row, column)
    page.locator("#tiles rect.edge").last.click()
    assert page.locator("#tiles rect.on").count() == 1


@in_browser
@pytest.mark.parametrize(
    "text", [TILED, "f32[2,3,4,5,6]{4,3,2,1,0:T(2,4)}", "f32[1000,2000,3000,4,5]{4,3,2,1,0:T(8,128)}"]
)
def test_labels_fit_and_nothing_scrolls_but_the_page(show: Any, text: str) -> None:
    """At each step the text of every cell fits its box; no focus ring is cut off; the page is as wide as its window."""
    page = show(text, reduced_motion="reduce")
    for _ in range(len(fi.layouts.steps(text)) + 1):
        too_small = page.eval_on_selector_all(
            ".cell", "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth).map(cell => cell.textContent)"
        )
        assert too_small == []
        page.click("#on")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    scrolling = """nodes => nodes.filter(node => node.scrollHeight > node.clientHeight + 1
        && /auto|scroll/.test(getComputedStyle(node).overflowY)).map(node => node.className)"""
    assert page.eval_on_selector_all("body, body *", scrolling) == []
    room = """cell => {
        const box = cell.getBoundingClientRect(), around = cell.closest(".scroll").getBoundingClientRect();
        return [box.left - around.left, box.top - around.top]; }"""
    ring = page.eval_on_selector("#array td[aria-selected=true]", room)
    assert min(ring) >= 3


@in_browser
def test_arrow_keys_move(show: Any) -> None:
    page = show("f32[3,5]{1,0:T(2,2)}")
    page.click('#array td[data-key="0,0"]')
    for key in ("ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert page.inner_text("#status").startswith("Element (1, 1) is in slot 3")
    page.keyboard.press("End")
    assert page.inner_text("#status").startswith("Element (1, 4)")
    page.click('#memory0 td[data-key="0"]')
    page.keyboard.press("ArrowDown")
    assert page.input_value("#slot") == "16"
    assert page.evaluate("document.activeElement.dataset.key") == "16"


@in_browser
def test_steps_end_in_the_buffer(show: Any) -> None:
    text = "f32[3,5]{1,0:T(2,2)}"
    page = show(text, reduced_motion="reduce")
    for step in fi.layouts.steps(text):
        page.click("#on")
        assert page.inner_text("#line").startswith(str(step))
    page.click("#on")
    assert page.is_disabled("#on")
    places = page.eval_on_selector_all(
        ".cell[data-slot]",
        "cells => cells.map(c => [Number(c.dataset.slot), c.getBoundingClientRect().x, c.getBoundingClientRect().y])",
    )
    assert len(places) == 15
    left = min(x for _, x, _ in places)
    assert all(round((x - left) / 40) == slot for slot, x, _ in places)
    assert len({y for _, _, y in places}) == 1


@in_browser
def test_steps_go_back_and_play(show: Any) -> None:
    text = "f32[3,5]{1,0:T(2,2)}"
    page = show(text, reduced_motion="reduce")
    page.clock.install()
    steps = [str(step) for step in fi.layouts.steps(text)]
    shown = [page.inner_text("#line")]
    assert shown[0].startswith("x: the array")
    page.click("#play")
    assert page.inner_text("#play") == "Stop"
    while page.inner_text("#play") == "Stop":
        page.clock.run_for(1400)
        shown.append(page.inner_text("#line"))
    assert [line.startswith(step) for line, step in zip(shown[1:], steps, strict=False)] == [True] * len(steps)
    assert page.is_disabled("#on")
    for line in reversed(shown[:-1]):
        page.click("#back")
        assert page.inner_text("#line") == line
    assert page.is_disabled("#back")
    # From the end it begins again.
    for _ in shown[1:]:
        page.click("#on")
    page.click("#play")
    assert page.inner_text("#line") == shown[0]
    page.click("#play")
    assert page.inner_text("#play") == "Play"


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes(show: Any, scheme: str) -> None:
    page = show(TILED, color_scheme=scheme)
    paper = {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == paper[scheme]
    page.click("#theme")
    assert page.evaluate(background) == paper["dark" if scheme == "light" else "light"]


@in_browser
def test_cells_have_names_for_screen_readers(show: Any) -> None:
    page = show("f32[3,5]{1,0:T(2,2)}")
    assert page.get_attribute("#status", "aria-live") == "polite"
    assert page.get_attribute("#array", "role") == "grid"
    assert page.get_attribute('#memory0 td[data-key="9"]', "aria-label") == "slot 9, padding"
    unnamed = page.eval_on_selector_all(
        "input, button, select",
        "all => all.filter(n => !n.labels?.length && !n.ariaLabel && !n.textContent.trim()).map(n => n.outerHTML)",
    )
    assert unnamed == []
