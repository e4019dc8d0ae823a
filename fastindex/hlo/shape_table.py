"""The shapes of a module, each parsed once and split into its arrays."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from fastindex.errors import FastIndexError
from fastindex.shapes.layout import Layout
from fastindex.shapes.shape import Shape

_PLAIN_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9]+(?:,[0-9]+)*|)\](\{[0-9:][^{}]*\})")
#: The most shapes to keep; the modules of a report have many in common.
_MOST_ENTRIES = 100_000


@dataclass(frozen=True, slots=True)
class Leaves:
    """A shape split into its leaves.

    Attributes
    ----------
    leaves : tuple of int
        The numbers of its leaves, in order.
    spans : tuple of (int, int)
        Of a tuple: where the leaves of each element begin and end.
    problem : str
        Why the shape, or one of its leaves, has no size; or "".
    """

    leaves: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    problem: str = ""

    def at(self, path: tuple[int, ...], table: ShapeTable) -> tuple[int, int]:
        """Return where the leaves at a path into the tuple begin and end."""
        if not path:
            return 0, len(self.leaves)
        if path[0] >= len(self.spans):
            return 0, 0
        begin, end = self.spans[path[0]]
        # Only the top level is split; deeper paths are rare and name single leaves.
        return (begin, end) if len(path) == 1 else (min(begin + path[1], end - 1), min(begin + path[1] + 1, end))


class ShapeTable:
    """Numbers the leaves of shapes.

    Attributes
    ----------
    shapes : list of Shape
        The leaf shapes by number.
    nbytes, logical_nbytes, spaces : list of int
        Of each leaf: the bytes of its buffer, -1 if unknown; of its elements; its memory space.

    Examples
    --------
    >>> table = ShapeTable()
    >>> entry = table.entry(b"(f32[2]{0}, (s8[3]{0}, f32[2]{0}))")
    >>> entry.leaves, entry.spans, table.nbytes
    ((0, 1, 0), ((0, 1), (1, 3)), [8, 3])
    """

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.nbytes: list[int] = []
        self.logical_nbytes: list[int] = []
        self.spaces: list[int] = []
        self._entries: dict[bytes, Leaves] = {}
        self._numbers: dict[Shape, int] = {}

    def entry(self, text: bytes) -> Leaves:
        """Return the leaves of a shape's text."""
        entry = self._entries.get(text)
        if entry is None:
            if len(self._entries) >= _MOST_ENTRIES:
                self._entries.clear()
            entry = self._entries[text] = self._read(text.decode("utf-8", "replace"))
        return entry

    def number(self, shape: Shape) -> int:
        """Return the number of a leaf."""
        number = self._numbers.get(shape)
        if number is None:
            number = self._numbers[shape] = len(self.shapes)
            self.shapes.append(shape)
            array = array_of(shape)
            self.spaces.append(array.layout.memory_space if array is not None else 0)
            try:
                sizes = shape.nbytes, shape.logical_nbytes
            except FastIndexError:
                sizes = -1, -1
            self.nbytes.append(sizes[0])
            self.logical_nbytes.append(sizes[1])
        return number

    def _read(self, text: str) -> Leaves:
        try:
            shape = _parse_quickly(text) or Shape.parse(text)
        except FastIndexError as error:
            return Leaves((), (), str(error).splitlines()[0])
        leaves = tuple(self.number(leaf) for leaf in shape.leaves())
        spans = []
        if shape.is_tuple:
            begin = 0
            for element in shape.tuple_shapes:
                end = begin + sum(1 for _ in element.leaves())
                spans.append((begin, end))
                begin = end
        problem = ""
        try:
            # A shape of unknown size, or a tuple with such a leaf, is a problem, but its other leaves still count.
            shape.nbytes  # noqa: B018
        except FastIndexError as error:
            problem = str(error).splitlines()[0]
        return Leaves(leaves, tuple(spans), problem)


def array_of(shape: Shape) -> Shape | None:
    """Return the array of a leaf: the leaf, or the contents of a buffer; None for tokens and opaque values."""
    if shape.is_buffer:
        return shape.tuple_shapes[0]
    return shape if shape.is_array else None


def _parse_quickly(text: str) -> Shape | None:
    """Read an array with a cached layout: a module has few layouts, and its shapes can share them."""
    parts = _PLAIN_ARRAY.fullmatch(text)
    if parts is None:
        return None
    try:
        sizes = [int(size) for size in parts.group(2).split(",")] if parts.group(2) else []
        return Shape(parts.group(1), sizes, _layout(parts.group(3)))
    except (FastIndexError, ValueError):
        # The parser says better what is wrong, and where. ValueError: a number of thousands of digits.
        return None


@lru_cache(maxsize=4096)
def _layout(text: str) -> Layout:
    return Layout.parse(text)
