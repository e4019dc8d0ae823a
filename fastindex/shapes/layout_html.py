"""A layout as HTML for notebooks: its text, and a table of what each part says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from html import escape

from fastindex.shapes.layout_fields import LayoutFields
from fastindex.tiling.definition import COMBINE

#: Fields that the first rows say in words.
_IN_WORDS = ("minor_to_major", "tiles")


def layout_html(layout: LayoutFields) -> str:
    """Return what a notebook shows for a layout.

    Examples
    --------
    >>> layout_html(LayoutFields((1, 0)))[:38]
    '<div><code>{1,0}</code></div><table><t'
    """
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in _rows(layout))
    return f"<div><code>{escape(str(layout))}</code></div>" + (f"<table>{rows}</table>" if rows else "")


def _rows(layout: LayoutFields) -> Iterator[tuple[str, str]]:
    order = layout.minor_to_major
    if len(order) > 1:
        yield "order", f"dimension {order[0]} is the most minor, then {', then '.join(map(str, order[1:]))}"
    for level, tile in enumerate(layout.tiles):
        sizes = " by ".join("*" if size == COMBINE else str(size) for size in tile)
        combined = "; * combines a dimension with the next more minor one" if COMBINE in tile else ""
        yield f"tile, level {level}", f"{sizes}{combined}"
    for field in fields(layout):
        value = getattr(layout, field.name)
        if field.name not in _IN_WORDS and value != field.default:
            yield field.name.replace("_", " "), str(value)
