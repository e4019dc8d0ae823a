"""An interactive page that shows a layout, or the move between two: no network, nothing to install."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib import resources

from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.first_use import uninterrupted
from fastindex.pictures.colours import DARK, DARK_TILES, LIGHT, LIGHT_TILES, PADDING_CAUSES
from fastindex.pictures.page_data import layout_data

#: The hatching for the padding of each cause, in addition to its colour.
_PATTERNS = (
    "repeating-linear-gradient(45deg,{0} 0 3px,{1} 3px 8px)",
    "repeating-linear-gradient(-45deg,{0} 0 3px,{1} 3px 8px)",
    "radial-gradient({0} 30%,{1} 34%) 0 0/8px 8px",
    "repeating-linear-gradient(0deg,{0} 0 2px,{1} 2px 7px)",
    "repeating-linear-gradient(90deg,{0} 0 2px,{1} 2px 7px)",
)


def page_of(source: Shape, destination: Shape | None = None) -> str:
    """Return an HTML document that shows a layout, or with a second one a relayout.

    The page contains the lowered layouts and evaluates them itself, with integers of any size, so it covers every
    element and slot of an array of any size.

    Raises
    ------
    UnsupportedError
        Not an array, or one without a size.
    FastIndexError
        The dimensions of the two differ.

    Examples
    --------
    >>> page_of(Shape.parse("f32[3,5]{1,0:T(2,2)}")).startswith("<!doctype html>")
    True
    """
    shapes = [source] if destination is None else [source, destination]
    if destination is not None and source.dimensions != destination.dimensions:
        raise FastIndexError(f"both layouts must be of one array: {source} and {destination} differ")
    # Escaped, so that no comment or closing tag in the text ends the script.
    data = json.dumps({"layouts": [layout_data(shape) for shape in shapes]}).replace("<", "\\u003c")
    title = escape(" to ".join(map(str, shapes)))
    return _template().replace("TITLE", title, 1).replace("COLOURS", _colours(), 1).replace("DATA", data, 1)


@cache
def _template() -> str:
    # Resources import what reads them.
    return uninterrupted(lambda: resources.files("fastindex.pictures").joinpath("page.html").read_text("utf-8"))


def _colours() -> str:
    """Return the style rules of tiles and padding, for light and dark backgrounds."""
    light, dark = _variables(LIGHT, LIGHT_TILES, "#f6f8fa"), _variables(DARK, DARK_TILES, "#161b22")
    rules = [
        f":root{{color-scheme:light;{light}}}",
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}",
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}",
        *(f".t{i}{{background:var(--tile{i})}}" for i in range(len(LIGHT_TILES))),
        *(
            f".p{i}{{background:{pattern.format(colour, 'var(--padding)')}}}"
            for i, (pattern, colour) in enumerate(zip(_PATTERNS, PADDING_CAUSES, strict=True))
        ),
    ]
    return "\n".join(rules)


def _variables(paper: dict[str, str], tiles: Iterable[str], field: str) -> str:
    named = {**paper, "field": field, "line": paper["padding"], "focus": "#b5540a" if field == "#f6f8fa" else "#ffb454"}
    return "".join(f"--{name}:{value};" for name, value in named.items()) + "".join(
        f"--tile{i}:{colour};" for i, colour in enumerate(tiles)
    )
