"""An interactive HTML page of a layout or of a relayout, and the JSON data that its script evaluates."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from fastindex.core.shape import Shape
from fastindex.core.sizes import slots_before_tail
from fastindex.core.tiles import (
    Axis,
    CountAxis,
    DimensionAxis,
    MergedAxis,
    OffsetAxis,
    axis_strides,
    parts_first,
)
from fastindex.errors import FastIndexError
from fastindex.first_use import uninterrupted
from fastindex.show.notations import steps
from fastindex.show.padding import change_sentence, describe_step, main_cause, padded_axes, padding_steps
from fastindex.show.sentences import explain
from fastindex.show.spelling import times_text
from fastindex.show.svg import DARK, DARK_TILES, LIGHT, LIGHT_TILES, PADDING_CAUSES


def layout_data(shape: Shape) -> dict[str, Any]:
    """Return the data of a layout for a page, JSON-compatible.

    Numbers that may exceed 2**53 are strings of digits.

    Parameters
    ----------
    shape : Shape
        An array with a size.

    Returns
    -------
    dict
        ``axes`` holds the tree of axes, operands before results: the kind of each axis, its size, and the numbers of
        its operands. ``places`` are the axes of the physical array with their strides. ``causes`` describes each cause
        of padding. ``why`` describes the main cause and a fix; it is empty without padding.

    Raises
    ------
    UnsupportedError
        Not an array, or one without a size.

    Examples
    --------
    >>> data = layout_data(Shape.parse("f32[3,5]{1,0:T(2,2)}"))
    >>> data["slot_count"], data["places"][0], data["causes"][1]
    ('24', [1, '12'], 'dimension 1 (size 5) is padded to 6 by the tile (2,2), 1.2 times its size')
    """
    causes = padding_steps(shape)
    physical, padded = padded_axes(shape)
    cause_of = {axis: number for number, (axis, _) in enumerate(padded)}
    known = {axis: number for number, axis in enumerate(parts_first(physical))}
    return {
        "text": str(shape),
        "dimensions": list(shape.dimensions),
        "minor_to_major": list(shape.layout.minor_to_major),
        "letters": list(shape.dimension_letters),
        "element_bits": shape.element_bits,
        "element_count": str(shape.element_count),
        "slot_count": str(shape.slot_count),
        "placed_count": str(slots_before_tail(shape)),
        "nbytes": str(shape.nbytes),
        "logical_nbytes": str(shape.logical_nbytes),
        "why": _why(shape),
        "axes": [_axis_data(axis, known, cause_of.get(axis, -1)) for axis in known],
        "places": [[known[axis], str(stride)] for axis, stride in zip(physical, axis_strides(physical), strict=True)],
        "causes": [describe_step(shape, cause) for cause in causes],
        "tail_cause": len(causes) - 1 if causes and causes[-1].kind == "tail" else -1,
        "steps": [
            {"kind": step.kind, "argument": step.argument, "cause": step.cause, "line": str(step)}
            for step in steps(shape)
        ],
        "tiles": [list(tile) for tile in shape.layout.tiles],
        "words": explain(shape).splitlines()[1:],
        "tile": math.prod(size for size in shape.layout.tiles[0] if size > 0) if shape.layout.tiles else 0,
    }


def _why(shape: Shape) -> str:
    cause = main_cause(shape)
    if cause is None or not shape.logical_nbytes or shape.nbytes == shape.logical_nbytes:
        return ""
    because = "because" if len(padding_steps(shape)) == 1 else "mostly because"
    text = f"{times_text(shape.padding_ratio)} the bytes of the elements, {because} {describe_step(shape, cause)}."
    return f"{text} {change_sentence(shape)}".rstrip()


def _axis_data(axis: Axis, known: dict[Axis, int], cause: int) -> list[Any]:
    size = str(axis.size)
    match axis:
        case DimensionAxis(dimension=dimension, extent=extent):
            return ["dimension", size, dimension, str(extent), cause]
        case MergedAxis(outer=outer, inner=inner):
            return ["merged", size, known[outer], known[inner]]
        case CountAxis(whole=whole, tile_size=tile_size):
            return ["count", size, known[whole], str(tile_size), cause]
        case OffsetAxis(whole=whole):
            return ["offset", size, known[whole]]
        case _:
            return ["unit", size]


#: The hatching for the padding of each cause, in addition to its colour.
_PATTERNS = (
    "repeating-linear-gradient(45deg,{0} 0 3px,{1} 3px 8px)",
    "repeating-linear-gradient(-45deg,{0} 0 3px,{1} 3px 8px)",
    "radial-gradient({0} 30%,{1} 34%) 0 0/8px 8px",
    "repeating-linear-gradient(0deg,{0} 0 2px,{1} 2px 7px)",
    "repeating-linear-gradient(90deg,{0} 0 2px,{1} 2px 7px)",
)


def page_of(source: Shape, destination: Shape | None = None) -> str:
    """Return an HTML document that shows a layout or, with a destination, a relayout.

    The page contains the lowered layouts and evaluates them itself with big integers, so it covers every element and
    slot of an array of any size.

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
    # "<" is escaped, so that no comment or closing tag in the text ends the script.
    data = json.dumps({"layouts": [layout_data(shape) for shape in shapes]}).replace("<", "\\u003c")
    title = escape(" to ".join(map(str, shapes)))
    return _template().replace("TITLE", title, 1).replace("COLOURS", _colours(), 1).replace("DATA", data, 1)


@cache
def _template() -> str:
    # Uninterrupted, because importlib.resources imports reader modules.
    return uninterrupted(lambda: resources.files("fastindex.show").joinpath("page.html").read_text("utf-8"))


def _colours() -> str:
    """Return the CSS rules of tiles and padding, for light and dark backgrounds."""
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
