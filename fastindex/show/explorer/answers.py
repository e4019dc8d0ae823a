"""Responses of the live page for a typed shape: sizes, advice, or the error. The work per request is bounded."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError, ParseError, UnsupportedError
from fastindex.show.changes import cheapest_change
from fastindex.show.page import page_of
from fastindex.show.sentences import info
from fastindex.show.suggestions import suggest_tiles

#: Length limit; no user types a longer shape.
MOST_CHARACTERS = 2000
#: Advice tries orders of the dimensions, and pictures nest one box per dimension.
MOST_DIMENSIONS = 12
#: The work per request grows with each tile.
MOST_TILES = 8


def read_shape(text: str) -> Shape:
    """Parse the typed shape, within the limits of a request.

    Raises
    ------
    FastIndexError
        The text is not an array shape, or exceeds a limit.

    Examples
    --------
    >>> str(read_shape("f32[3, 5]"))
    'f32[3,5]{1,0}'
    """
    if len(text) > MOST_CHARACTERS:
        raise FastIndexError(f"the text has {len(text)} characters; this page takes {MOST_CHARACTERS}")
    shape = Shape.parse(text)
    if not shape.is_array:
        raise FastIndexError(f"{shape.cut_text()} is a {shape.element_type}; type one of its arrays")
    if shape.rank > MOST_DIMENSIONS or len(shape.layout.tiles) > MOST_TILES:
        raise FastIndexError(
            f"{shape.cut_text()} has {shape.rank} dimensions and {len(shape.layout.tiles)} tiles; "
            f"this page takes {MOST_DIMENSIONS} and {MOST_TILES}"
        )
    return shape


@lru_cache(maxsize=64)
def description(source: str, destination: str) -> dict[str, Any]:
    """Return the text around the picture, as JSON-compatible data.

    Parameters
    ----------
    source : str
        The typed shape.
    destination : str
        The typed destination shape; empty for none.

    Returns
    -------
    dict
        ``text`` and ``numbers`` of the shape, its ``change`` and ``suggestion``; or the ``error``, the ``field`` it is
        in and, for a syntax error, its ``position``.

    Examples
    --------
    >>> description("f32[3,5]{1,0:T(2,2)}", "")["numbers"]["slot_count"]
    24
    >>> description("f32[3,", "")["position"]
    6
    """
    try:
        shape = read_shape(source)
        numbers = info(shape)
        change = cheapest_change(shape)
        suggestion = _suggestion(shape)
    except FastIndexError as error:
        return _wrong(error, "shape")
    try:
        other = read_shape(destination) if destination else None
        page_of(shape, other)
    except FastIndexError as error:
        return _wrong(error, "to")
    return {
        "text": str(shape),
        "to": "" if other is None else str(other),
        "numbers": numbers,
        "change": None
        if change is None
        else {"description": change.description, "shape": str(change.shape), "saved_nbytes": change.saved_nbytes},
        "suggestion": suggestion,
    }


def _suggestion(shape: Shape) -> str:
    try:
        return str(suggest_tiles(shape))
    except UnsupportedError as error:
        # The page still shows the other numbers of such an array.
        return str(error)


def _wrong(error: FastIndexError, field: str) -> dict[str, Any]:
    if isinstance(error, ParseError):
        return {"error": error.rule, "hint": error.hint, "position": error.position, "field": field}
    return {"error": str(error), "field": field}
