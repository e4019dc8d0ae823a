"""Table of the shapes of a module: each text is parsed once and split into its arrays."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache

from fastindex.core.layout import Layout
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.hlo.attributes import Path
from fastindex.hlo.computations import Computation
from fastindex.hlo.modules import Module
from fastindex.xla.sizes import max_split_size

Span = tuple[int, int]
Spans = tuple[Span, ...]

_PLAIN_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9]+(?:,[0-9]+)*|)\](\{[0-9:][^{}]*\})")
#: Limit on the cached shapes; the modules of a report share many.
_MOST_ENTRIES = 100_000
#: Limit on the length of a path (programs use two or three steps): each step may count the leaves below it again.
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class Leaves:
    """A shape split into its leaves.

    Attributes
    ----------
    leaves : tuple of int
        Numbers of its leaves in the table, in order.
    spans : tuple of (int, int)
        Of a tuple: begin and end in `leaves` of each element.
    problem : str
        Reason why the shape, or one of its leaves, has no size; or "".
    elements : tuple of Shape
        Of a tuple: its elements.
    """

    leaves: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    problem: str = ""
    elements: tuple[Shape, ...] = ()
    #: Spans and elements of nested tuples by path, filled on demand.
    _inner: dict[Path, tuple[Spans, tuple[Shape, ...]]] = field(default_factory=dict)

    def at(self, path: Path) -> Span:
        """Return begin and end of the leaves at a path into the tuple; (0, 0) if there is no such path.

        Examples
        --------
        >>> entry = ShapeTable().entry(b"(f32[2]{0}, (s8[3]{0}, (), f32[2]{0}))")
        >>> entry.at(()), entry.at((1,)), entry.at((1, 2)), entry.at((1, 3)), entry.at((-1,))
        ((0, 3), (1, 3), (2, 3), (0, 0), (0, 0))
        """
        if len(path) > _DEEPEST:
            return 0, 0
        span = 0, len(self.leaves)
        spans, elements = self.spans, self.elements
        for depth, number in enumerate(path, 1):
            if not 0 <= number < len(spans):
                return 0, 0
            span = spans[number]
            if depth < len(path):
                inner = self._inner.get(path[:depth])
                if inner is None:
                    parts = _parts_of(elements[number])
                    inner = self._inner[path[:depth]] = _spans_of(parts, span[0]), parts
                spans, elements = inner
        return span


#: Allocation unit, in elements, of untiled arrays on a TPU, and the memory spaces where it applies.
_TPU_UNIT, _TPU_SPACES = 1024, (0, 4, 6)


class ShapeTable:
    """Assigns numbers to the leaves of shapes.

    Parameters
    ----------
    on_tpu : bool
        Whether sizes are those that a TPU assigns: rounded up for untiled arrays, and per core for split arrays.

    Attributes
    ----------
    shapes : list of Shape
        The leaf shapes by number.
    nbytes, logical_nbytes, spaces : list of int
        For each leaf: bytes of its buffer (-1 if unknown), bytes of its elements, and memory space.

    Examples
    --------
    >>> table = ShapeTable()
    >>> entry = table.entry(b"(f32[2]{0}, (s8[3]{0}, f32[2]{0}))")
    >>> entry.leaves, entry.spans, table.nbytes
    ((0, 1, 0), ((0, 1), (1, 3)), [8, 3])
    """

    def __init__(self, on_tpu: bool = False) -> None:
        self._on_tpu = on_tpu
        self.shapes: list[Shape] = []
        self.nbytes: list[int] = []
        self.logical_nbytes: list[int] = []
        self.spaces: list[int] = []
        self._entries: dict[bytes, Leaves] = {}
        self._numbers: dict[Shape, int] = {}

    def entry(self, text: bytes) -> Leaves:
        """Return the leaves of a shape, given its text."""
        entry = self._entries.get(text)
        if entry is None:
            if len(self._entries) >= _MOST_ENTRIES:
                self._entries.clear()
            entry = self._entries[text] = self._read(text.decode("utf-8", "replace"))
        return entry

    def number(self, shape: Shape) -> int:
        """Return the number of a leaf shape; a new shape is added to the table."""
        number = self._numbers.get(shape)
        if number is None:
            number = self._numbers[shape] = len(self.shapes)
            self.shapes.append(shape)
            array = array_of(shape)
            self.spaces.append(array.layout.memory_space if array is not None else 0)
            try:
                sizes = _sizes_of(shape, array, self._on_tpu)
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
        elements = _parts_of(shape)
        problem = ""
        try:
            # A shape without a size is a problem, but the other leaves of its tuple still count.
            shape.nbytes  # noqa: B018
        except FastIndexError as error:
            problem = str(error).splitlines()[0]
        return Leaves(leaves, _spans_of(elements, 0), problem, elements)


class Sizes:
    """Look up the result shapes of instructions in a shape table."""

    def __init__(self, module: Module, table: ShapeTable) -> None:
        self._texts = list(module.shapes)
        self._table = table

    def entry(self, computation: Computation, place: int) -> Leaves:
        """Return the result shape of an instruction, split into its arrays."""
        return self._table.entry(self._texts[computation.shape(place)])

    def leaves(self, computation: Computation, place: int) -> tuple[int, ...]:
        """Return the table numbers of the arrays in a result."""
        return self.entry(computation, place).leaves

    def element_count(self, computation: Computation, place: int) -> int:
        """Return the number of elements of a result; -1 if it is not a single array."""
        leaves = self.leaves(computation, place)
        array = array_of(self._table.shapes[leaves[0]]) if len(leaves) == 1 else None
        return -1 if array is None else array.element_count

    def nbytes(self, computation: Computation, place: int, element: int) -> int:
        """Return the bytes of a result, or of one element of its tuple; -1 stands for the whole result."""
        entry = self.entry(computation, place)
        begin, end = (0, len(entry.leaves))
        if element >= 0:
            begin, end = entry.spans[element] if element < len(entry.spans) else (0, 0)
        return sum(max(self._table.nbytes[leaf], 0) for leaf in entry.leaves[begin:end])


def _sizes_of(shape: Shape, array: Shape | None, on_tpu: bool) -> tuple[int, int]:
    """Return the bytes of a leaf (or those that a TPU assigns to it), and the bytes of its elements.

    For an array split over the cores of a chip, these are the sizes of the largest part; each core has one part.
    """
    if array is None or array is not shape:
        return shape.nbytes, shape.logical_nbytes
    layout = array.layout
    if on_tpu and layout.split_configs:
        sizes = [max_split_size(array, number) for number in range(array.rank)]
        array = Shape(array.element_type, sizes, replace(layout, split_configs=()))
    nbytes = array.nbytes
    if on_tpu and not layout.tiles and layout.memory_space in _TPU_SPACES:
        elements = -(-array.element_count // _TPU_UNIT) * _TPU_UNIT
        nbytes = max(nbytes, elements * array.element_bits // 8)
    return nbytes, array.logical_nbytes


def _parts_of(shape: Shape) -> tuple[Shape, ...]:
    return tuple(shape.tuple_shapes) if shape.is_tuple else ()


def _spans_of(elements: tuple[Shape, ...], begin: int) -> Spans:
    """Return begin and end of the leaves of each element."""
    ends = [*itertools.accumulate((sum(1 for _ in element.leaves()) for element in elements), initial=begin)]
    return tuple(itertools.pairwise(ends))


def array_of(shape: Shape) -> Shape | None:
    """Return the array in a leaf: the leaf itself, or the contents of a buffer; None for tokens and opaque values."""
    if shape.is_buffer:
        return shape.tuple_shapes[0]
    return shape if shape.is_array else None


def _parse_quickly(text: str) -> Shape | None:
    """Parse an array with a cached layout; None if that fails. A module has few layouts, which its shapes share."""
    parts = _PLAIN_ARRAY.fullmatch(text)
    if parts is None:
        return None
    try:
        sizes = [int(size) for size in parts.group(2).split(",")] if parts.group(2) else []
        return Shape(parts.group(1), sizes, _layout(parts.group(3)))
    except (FastIndexError, ValueError):
        # Shape.parse gives the better error message. ValueError: a number with thousands of digits.
        return None


@lru_cache(maxsize=4096)
def _layout(text: str) -> Layout:
    return Layout.parse(text)
