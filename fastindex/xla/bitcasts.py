"""Which reshapes and transposes are bitcasts, taking tiles and padding into account.

XLA's functions of the same names only look at the order of the dimensions. Here a reshape or transpose is a bitcast if
every element keeps its slot, the buffer keeps its size, and the element types are the same.

This is proved by digits (see `fastindex.core.digits`), which works for any size. There is no proof if tile sizes
split a digit unevenly and the two layouts differ in structure. Then arrays of up to `MOST_ELEMENTS_VISITED` elements
are checked element by element, and larger ones are reported as not a bitcast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import SupportsIndex

from fastindex.core.digits import Digits, Names, Variable, always_equal, digit, slot_digits
from fastindex.core.integers import checked_permutation, inverse, permuted
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import axes_of, check_placed
from fastindex.core.strides import MOST_ELEMENTS_VISITED
from fastindex.core.tiles import slot_of


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
    variables = _common_factors(a.dimensions, b.dimensions)
    of_a, of_b = _coordinates(a.dimensions, variables), _coordinates(b.dimensions, variables)

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
    variables = [Variable(i, max(size, 1), True) for i, size in enumerate(a.dimensions)]
    of_a = [digit(1, variable, 1, None) for variable in variables]

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
    shape = as_shape(shape)
    check_placed(shape)
    if not shape.layout.tiles:
        return True
    layout = replace(shape.layout, tiles=())
    return reshape_is_bitcast(shape, Shape(shape.element_type, shape.dimensions, layout, shape.dynamic_dimensions))


def _same_buffer(a: Shape, b: Shape) -> bool:
    check_placed(a)
    check_placed(b)
    return a.element_type == b.element_type and a.element_bits == b.element_bits and a.slot_count == b.slot_count


def _is_bitcast(
    a: Shape, b: Shape, of_a: list[Digits], of_b: list[Digits], pairs: Iterator[tuple[list[int], list[int]]]
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


def _common_factors(a: Sequence[int], b: Sequence[int]) -> list[Variable]:
    """Return a variable for each shortest run of dimensions with the same product in both shapes, most major first."""
    variables: list[Variable] = []
    left, right = ([size for size in sizes if size > 1] for sizes in (a, b))
    while left:
        of_left, of_right = left.pop(), right.pop()
        while of_left != of_right:
            if of_left < of_right:
                of_left *= left.pop()
            else:
                of_right *= right.pop()
        variables.append(Variable(len(variables), of_left, True))
    return variables[::-1]


def _coordinates(dimensions: Sequence[int], variables: list[Variable]) -> list[Digits]:
    """Return each coordinate as a digit of its run's variable."""
    coordinates: list[Digits] = []
    waiting = list(variables)
    low = 1
    for size in reversed(dimensions):
        if size == 1:
            coordinates.append(())
            continue
        coordinates.append(digit(1, waiting[-1], low, low * size))
        low *= size
        if low == waiting[-1].extent:
            waiting.pop()
            low = 1
    return coordinates[::-1]
