"""Which reshapes and transposes are bitcasts, taking tiles and padding into account; and bitcasts as steps.

XLA's functions of the same names only look at the order of the dimensions. Here a reshape or transpose is a bitcast if
every element keeps its slot, the buffer keeps its size, and the element types are the same.

This is proved by digits (see `fastindex.core.digits`), which works for any size. There is no proof if tile sizes
split a digit unevenly and the two layouts differ in structure. Then arrays of up to `MOST_ELEMENTS_VISITED` elements
are checked element by element, and larger ones are reported as not a bitcast.

The steps of `bitcast_sequence` are operations on the logical array: padding, reshapes around transposes, and a slice.
In a layout without uneven splits, the slot of an element is a weighted sum of digits of its coordinates. Two layouts of
one buffer cut its slots into digits at certain weights. Where both can be cut at all of these, both have the same
digits: the dimensions of the first are split into them, transposed to the order of the second, and joined. Otherwise
the digits of the first are transposed to memory order and reshaped to those of the second.
`fastindex.xla.decompose_bitcast`, which is XLA's, begins with a transpose and cannot split tiles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import SupportsIndex

from fastindex.core.digits import (
    MOST_ELEMENTS_VISITED,
    Digits,
    Names,
    always_equal,
    canonical,
    dimension_digits,
    reshaped_digits,
    slot_digits,
)
from fastindex.core.integers import checked_permutation, inverse, permuted
from fastindex.core.shape import Shape, as_placed, as_shape
from fastindex.core.sizes import axes_of, check_placed
from fastindex.core.tiles import Axis, CountAxis, DimensionAxis, MergedAxis, slot_of


def reshape_is_bitcast(a: Shape | str, b: Shape | str) -> bool:
    """Whether reshaping `a` to `b` leaves every element in its slot.

    The reshape is that of `numpy.reshape`: the last index varies fastest.

    Parameters
    ----------
    a, b : Shape or str
        Arrays.

    Raises
    ------
    UnsupportedError
        A shape is not an array, is sparse, or has an unbounded dimension.

    Examples
    --------
    >>> a = "f32[16,128]{1,0:T(8,128)}"
    >>> reshape_is_bitcast(a, "f32[2,8,128]{2,1,0:T(8,128)}")
    True
    >>> reshape_is_bitcast(a, "f32[2048]{0:T(1024)}")
    True
    >>> reshape_is_bitcast(a, "f32[128,16]{1,0:T(8,128)}")
    False
    """
    a, b = as_shape(a), as_shape(b)
    if not _same_buffer(a, b) or a.element_count != b.element_count:
        return False
    if a.element_count == 0:
        return True
    _, of_a, of_b = reshaped_digits(a.dimensions, b.dimensions)

    def pairs() -> Iterator[tuple[list[int], list[int]]]:
        for number in _telling_numbers(a.dimensions, b.dimensions):
            yield _index_of(number, a.dimensions), _index_of(number, b.dimensions)

    return _is_bitcast(a, b, of_a, of_b, pairs())


def transpose_is_bitcast(a: Shape | str, b: Shape | str, dimensions: Iterable[SupportsIndex]) -> bool:
    """Whether transposing `a` to `b` leaves every element in its slot.

    Parameters
    ----------
    a, b : Shape or str
        Arrays.
    dimensions : sequence of int
        Dimension i of `b` is dimension ``dimensions[i]`` of `a`, as in `numpy.transpose`.

    Raises
    ------
    LayoutError
        `dimensions` is not a permutation of the dimensions of `a`.
    UnsupportedError
        A shape is not an array, is sparse, or has an unbounded dimension.

    Examples
    --------
    >>> a, b = "f32[16,128]{1,0:T(8,128)}", "f32[128,16]{0,1:T(8,128)}"
    >>> transpose_is_bitcast(a, b, (1, 0))
    True
    """
    a, b = as_shape(a), as_shape(b)
    same_buffer = _same_buffer(a, b)
    permutation = checked_permutation(dimensions, a.rank)
    if not same_buffer or b.dimensions != permuted(a.dimensions, permutation):
        return False
    if a.element_count == 0:
        return True
    _, of_a = dimension_digits([max(size, 1) for size in a.dimensions])

    def pairs() -> Iterator[tuple[list[int], list[int]]]:
        for number in _telling_numbers(a.dimensions, a.dimensions):
            index = _index_of(number, a.dimensions)
            yield index, [index[i] for i in permutation]

    return _is_bitcast(a, b, of_a, [of_a[i] for i in permutation], pairs())


def deduce_transpose_dimensions_for_bitcast(a: Shape | str, b: Shape | str) -> tuple[int, ...] | None:
    """Return the transpose from `a` to `b` that leaves every element in its slot, or None if there is none.

    Source: ``ShapeUtil::DeduceTransposeDimensionsForBitcast``, which ignores tiles and padding.

    Raises
    ------
    UnsupportedError
        A shape is not an array, is sparse, or has an unbounded dimension.

    Examples
    --------
    >>> deduce_transpose_dimensions_for_bitcast("f32[2,3]{1,0}", "f32[3,2]{0,1}")
    (1, 0)
    """
    a, b = as_shape(a), as_shape(b)
    if not _same_buffer(a, b) or a.rank != b.rank:
        return None
    dimensions = permuted(a.layout.minor_to_major, inverse(b.layout.minor_to_major))
    return dimensions if transpose_is_bitcast(a, b, dimensions) else None


def is_reshape_or_transpose_bitcast(a: Shape | str, b: Shape | str) -> bool:
    """Whether a reshape or a transpose of `a` to `b` leaves every element in its slot.

    Source: ``ShapeUtil::IsReshapeOrTransposeBitcast``.

    Raises
    ------
    UnsupportedError
        A shape is not an array, is sparse, or has an unbounded dimension.

    Examples
    --------
    >>> is_reshape_or_transpose_bitcast("f32[2,3]{1,0}", "f32[3,2]{0,1}")
    True
    """
    a, b = as_shape(a), as_shape(b)
    return reshape_is_bitcast(a, b) or deduce_transpose_dimensions_for_bitcast(a, b) is not None


def is_untiled(shape: Shape | str) -> bool:
    """Whether the tiles of an array change nothing: every element has the slot it would have without them.

    Source: ``LayoutUtil::IsUntiledLayout``.

    Raises
    ------
    UnsupportedError
        This is not an array, it is sparse, or a dimension is unbounded.

    Examples
    --------
    >>> [is_untiled(f"f32[16,{size}]{{1,0:T(8,128)}}") for size in (128, 256)]
    [True, False]
    """
    shape = as_placed(shape)
    if not shape.layout.tiles:
        return True
    layout = replace(shape.layout, tiles=())
    return reshape_is_bitcast(shape, Shape(shape.element_type, shape.dimensions, layout, shape.dynamic_dimensions))


def _same_buffer(a: Shape, b: Shape) -> bool:
    check_placed(a)
    check_placed(b)
    return a.element_type == b.element_type and a.element_bits == b.element_bits and a.slot_count == b.slot_count


def _is_bitcast(
    a: Shape, b: Shape, of_a: Sequence[Digits], of_b: Sequence[Digits], pairs: Iterator[tuple[list[int], list[int]]]
) -> bool:
    axes_a, axes_b = axes_of(a), axes_of(b)
    names: Names = {}
    proven = always_equal(slot_digits(axes_a, of_a, names), slot_digits(axes_b, of_b, names))
    if proven is not None:
        return proven
    if a.element_count > MOST_ELEMENTS_VISITED:
        return False
    return all(slot_of(axes_a, left) == slot_of(axes_b, right) for left, right in pairs)


def _telling_numbers(*many_dimensions: Sequence[int]) -> Iterator[int]:
    """Iterate over the numbers of all elements, starting with the neighbours of the first element."""
    for dimensions in many_dimensions:
        number = 1
        for size in reversed(dimensions):
            if size > 1:
                yield number
            number *= size
    yield from range(math.prod(many_dimensions[0]))


def _index_of(number: int, dimensions: Sequence[int]) -> list[int]:
    index = []
    for size in reversed(dimensions):
        number, coordinate = divmod(number, size)
        index.append(coordinate)
    return index[::-1]


#: A digit of the buffer within a dimension: its unit there, and its weight in slots.
_Part = tuple[int, int]


@dataclass(frozen=True, slots=True)
class BitcastSequence:
    """A bitcast as steps that together leave every element in its slot.

    Attributes
    ----------
    padded_dimensions : tuple of int
        Dimensions of the source after padding.
    split_dimensions : tuple of int
        Dimensions after the first reshape.
    permutation : tuple of int
        Dimension i after the transpose is dimension ``permutation[i]`` before it.
    regrouped_dimensions : tuple of int
        Dimensions after the second reshape, which is the identity if both layouts have the same digits.
    second_permutation : tuple of int
        Of the second transpose; the identity if both layouts have the same digits.
    joined_dimensions : tuple of int
        Dimensions after the last reshape.
    dimensions : tuple of int
        Dimensions of the result, after the slice.
    """

    padded_dimensions: tuple[int, ...]
    split_dimensions: tuple[int, ...]
    permutation: tuple[int, ...]
    regrouped_dimensions: tuple[int, ...]
    second_permutation: tuple[int, ...]
    joined_dimensions: tuple[int, ...]
    dimensions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Side:
    """A shape, and the digits of the buffer in each of its dimensions.

    Attributes
    ----------
    shape : Shape
    sizes : dict of int to int
        The size of each digit by its weight.
    parts : list of list of _Part
        The digits of each dimension, most major first.
    """

    shape: Shape
    sizes: dict[int, int]
    parts: list[list[_Part]]

    @property
    def split_dimensions(self) -> tuple[int, ...]:
        """The dimensions split into digits."""
        return tuple(self.sizes[weight] for parts in self.parts for _, weight in parts)

    @property
    def padded_dimensions(self) -> tuple[int, ...]:
        """The dimensions with their padding."""
        return tuple(math.prod(self.sizes[weight] for _, weight in parts) for parts in self.parts)

    @property
    def weights(self) -> list[int]:
        """The weights of the digits, in their order within the dimensions."""
        return [weight for parts in self.parts for _, weight in parts]


def bitcast_sequence(a: Shape | str, b: Shape | str) -> BitcastSequence | None:
    """Return the steps that are equivalent to a bitcast from `a` to `b`.

    Return None if the two differ in the width of their elements or the size of their buffers, if an element of the
    one with fewer lies in padding of the other, or if the tiles of one split another tile unevenly, or have more
    dimensions than the array.

    Raises
    ------
    UnsupportedError
        A shape is not an array, is sparse, or has an unbounded dimension.

    Examples
    --------
    Tiles split into dimensions, and rows of padding sliced off, as XLA's TPU compiler does:

    >>> bitcast_sequence("f32[16,256]{1,0:T(8,128)}", "f32[2,2,8,128]").permutation
    (0, 2, 1, 3)
    >>> found = bitcast_sequence("bf16[38,8,3,128]{3,1,2,0:T(8,128)(2,1)}", "bf16[384,300]{0,1:T(8,128)(2,1)}")
    >>> found.joined_dimensions, found.dimensions
    ((384, 304), (384, 300))
    >>> bitcast_sequence("f32[8,3]{1,0:T(8,128)}", "f32[3,8]{1,0:T(8,128)}") is None
    True

    Two rows of three tiles, and three of two:

    >>> found = bitcast_sequence("f32[8,384]{1,0:T(4,128)}", "f32[12,256]{1,0:T(4,128)}")
    >>> found.permutation, found.regrouped_dimensions, found.second_permutation
    ((0, 2, 1, 3), (3, 2, 4, 128), (0, 2, 1, 3))
    """
    a, b = as_placed(a), as_placed(b)
    if a.element_bits != b.element_bits or a.slot_count != b.slot_count or a.slot_count == 0:
        return None
    of_a, of_b = _weights(a), _weights(b)
    if of_a is None or of_b is None:
        return None
    ends = {1, a.slot_count}
    shared = sorted(
        cut for cut in ends.union(of_a, of_b) if _cuts(cut, ends.union(of_a)) and _cuts(cut, ends.union(of_b))
    )
    before, after = _side(a, of_a, ends.union(of_a, shared)), _side(b, of_b, ends.union(of_b, shared))
    smaller = (after, before) if b.element_count <= a.element_count else (before, after)
    if not _lies_within(*smaller):
        return None
    permutation, second = _permutations(before, after)
    regrouped = permuted(before.split_dimensions, permutation)
    if before.sizes != after.sizes:
        regrouped = tuple(after.sizes[weight] for weight in sorted(after.sizes, reverse=True))
    return BitcastSequence(
        before.padded_dimensions,
        before.split_dimensions,
        permutation,
        regrouped,
        second,
        after.padded_dimensions,
        b.dimensions,
    )


def _permutations(before: _Side, after: _Side) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the transpose to memory order and the one from it; with the same digits, the first does both."""
    places = {weight: place for place, weight in enumerate(before.weights)}
    if before.sizes == after.sizes:
        return tuple(places[weight] for weight in after.weights), tuple(range(len(places)))
    slots = {weight: place for place, weight in enumerate(sorted(after.weights, reverse=True))}
    return (
        tuple(places[weight] for weight in sorted(places, reverse=True)),
        tuple(slots[weight] for weight in after.weights),
    )


def _cuts(cut: int, weights: Iterable[int]) -> bool:
    """Whether digits of these weights can be cut at `cut`: a multiple of smaller weights, a divisor of larger ones."""
    return all(cut % weight == 0 if weight <= cut else weight % cut == 0 for weight in weights)


def _side(shape: Shape, weights: dict[int, tuple[int, int]], cuts: Iterable[int]) -> _Side:
    """Cut the digits of a shape at more weights."""
    sizes = {less: more // less for less, more in pairwise(sorted(cuts))}
    return _Side(shape, sizes, _parts(shape, weights, sizes))


def _weights(shape: Shape) -> dict[int, tuple[int, int]] | None:
    """Return the dimension and the unit of each digit, by its weight in slots; None if they leave gaps."""
    axes = axes_of(shape)
    extents = _padded_extents(axes, shape)
    variables, coordinates = dimension_digits([max(size, 1) for size in extents])
    slots = canonical(slot_digits(axes, coordinates, {}))
    if any(not part.variable.is_coordinate for part in slots) or len({part.weight for part in slots}) != len(slots):
        return None
    parts = sorted(slots, key=lambda part: part.weight)
    if parts and parts[0].weight != 1:
        return None
    ends = [*(part.weight for part in parts[1:]), shape.slot_count][: len(parts)]
    for part, end in zip(parts, ends, strict=True):
        capacity, remainder = divmod(end, part.weight)
        # Between two digits of one dimension there is no padding; above the last there may be.
        if remainder or part.largest >= capacity or (part.high is not None and capacity != part.high // part.low):
            return None
    return {part.weight: (variables.index(part.variable), part.low) for part in parts}


def _padded_extents(axes: list[Axis], shape: Shape) -> list[int]:
    """Return the dimensions including the padding above their largest index."""
    extents = list(shape.dimensions)
    waiting = [(axis, axis.size) for axis in axes]
    while waiting:
        axis, size = waiting.pop()
        if isinstance(axis, CountAxis):
            waiting.append((axis.whole, size * axis.tile_size))
        elif isinstance(axis, MergedAxis):
            waiting.append((axis.outer, -(-size // axis.inner.size)))
        elif isinstance(axis, DimensionAxis):
            extents[axis.dimension] = size
    return extents


def _parts(shape: Shape, weights: dict[int, tuple[int, int]], sizes: dict[int, int]) -> list[list[_Part]]:
    """Return the digits of the buffer that each dimension is made of, most major first."""
    found: list[list[_Part]] = [[] for _ in shape.dimensions] or [[]]
    known = sorted(weights)
    for weight in sorted(sizes):
        own = max((item for item in known if item <= weight), default=0)
        # A buffer of one element: its first dimension, if any, is padded.
        dimension, low = weights[own] if own else (0, 1)
        found[dimension].append((low * (weight // own if own else weight), weight))
    for parts in found:
        parts.sort(reverse=True)
    return found


def _lies_within(inner: _Side, outer: _Side) -> bool:
    """Whether all elements of one shape are elements of the other, given the digits of both."""
    if inner.shape.element_count == 0:
        return True
    for parts, padded, limit in zip(outer.parts, outer.padded_dimensions, outer.shape.dimensions or (1,), strict=True):
        if padded == limit:
            continue
        if any(inner.sizes.get(weight) != outer.sizes[weight] for _, weight in parts):
            # The digits of the other shape differ here.
            return _is_visited(inner.shape, outer.shape)
        counts = {weight: low for low, weight in parts}
        most = 0
        for own, size in zip(inner.parts, inner.shape.dimensions or (1,), strict=True):
            most += _largest([(low, inner.sizes[weight], counts.get(weight, 0)) for low, weight in own], size - 1)
        if most >= limit:
            return False
    return True


def _is_visited(inner: Shape, outer: Shape) -> bool:
    """Whether all slots of one shape are slots of another, by enumeration; False for shapes that are too large."""
    if outer.element_count > MOST_ELEMENTS_VISITED:
        return False
    slots = [
        {slot_of(axes_of(shape), index) for index in itertools.product(*map(range, shape.dimensions))}
        for shape in (inner, outer)
    ]
    return slots[0] <= slots[1]


def _largest(digits: list[tuple[int, int, int]], top: int) -> int:
    """Return the largest weighted sum of the digits of a number from 0 to `top`; digits are (low, size, weight)."""
    values = [(top // low % size, size, weight) for low, size, weight in digits]
    best = sum(value * weight for value, _, weight in values)
    above = 0
    for number, (value, _, weight) in enumerate(values):
        if value:
            below = sum((size - 1) * less for _, size, less in values[number + 1 :])
            best = max(best, above + (value - 1) * weight + below)
        above += value * weight
    return best
