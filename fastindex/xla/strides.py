"""Strides of layouts that have them: tiles and padding included.

Source: ``GetDimensionStride`` in ``xla/index_util.h``, ``ByteStrides`` in ``xla/shape_util.h``, which overlook tiles.
"""

from __future__ import annotations

from typing import SupportsIndex

from fastindex.errors import UnsupportedError
from fastindex.shapes.shape import Shape
from fastindex.shapes.shape_sizes import axes_of, check_placed
from fastindex.tiling.digits import Variable, canonical, digit, slot_digits
from fastindex.tiling.scalar_index import slot_of
from fastindex.xla.bitcasts import MOST_ELEMENTS_VISITED
from fastindex.xla.index_queries import indices


def slot_strides(shape: Shape) -> tuple[int, ...] | None:
    """Give the distance in slots between neighbours along each dimension, or None where there is no such distance.

    Tiles that change the order leave none. A dimension of size 1 gets the stride it would have if it were longer and
    nothing else changed.

    Raises
    ------
    UnsupportedError
        Not an array, a sparse one, or a dimension is unbounded.

    Examples
    --------
    >>> slot_strides(Shape.parse("f32[3,5]{0,1}")), slot_strides(Shape.parse("f32[3,5]{1,0:T(2,2)}"))
    ((1, 3), None)
    >>> slot_strides(Shape.parse("f32[3,100]{1,0:T(8,128)}"))
    (128, 1)
    """
    check_placed(shape)
    if 0 in shape.dimensions:
        return _closed(shape, [None] * shape.rank)
    variables = [Variable(number, size, True) for number, size in enumerate(shape.dimensions)]
    digits = slot_digits(axes_of(shape), [digit(1, variable, 1, None) for variable in variables], {})
    strides: list[int | None] = [None] * shape.rank
    whole = True
    for d in canonical(digits):
        if d.low == 1 and d.high is None and d.variable.is_coordinate:
            strides[variables.index(d.variable)] = d.weight
        else:
            whole = False
    if whole:
        return _closed(shape, strides)
    if all(d.variable.is_coordinate for d in digits) or shape.element_count > MOST_ELEMENTS_VISITED:
        return None
    return _strides_of_every_element(shape)


def _closed(shape: Shape, strides: list[int | None]) -> tuple[int, ...]:
    """Fill in the strides of dimensions that have at most one place."""
    sizes = shape.layout.padded_dimensions or shape.dimensions
    filled = [0] * shape.rank
    following = 1
    for number in shape.layout.minor_to_major:
        stride = strides[number]
        filled[number] = following if stride is None else stride
        following = filled[number] * sizes[number]
    return tuple(filled)


def _strides_of_every_element(shape: Shape) -> tuple[int, ...] | None:
    axes = axes_of(shape)
    strides: list[int | None] = [None] * shape.rank
    for number, size in enumerate(shape.dimensions):
        if size > 1:
            strides[number] = slot_of(axes, [int(other == number) for other in range(shape.rank)])
    for index in indices(shape):
        if slot_of(axes, index) != sum(i * (stride or 0) for i, stride in zip(index, strides, strict=True)):
            return None
    return _closed(shape, strides)


def dimension_stride(shape: Shape, dimension: SupportsIndex) -> int:
    """Give the distance in slots between neighbours along a dimension.

    Raises
    ------
    OutOfBoundsError
        No such dimension.
    UnsupportedError
        The layout has no strides, or the shape no fixed slots.

    Examples
    --------
    >>> dimension_stride(Shape.parse("f32[3,5]{0,1}"), -1)
    3
    """
    number = shape.dimension_number(dimension)
    strides = slot_strides(shape)
    if strides is None:
        raise UnsupportedError(f"the tiles of {shape.cut_text()} leave no strides; use linear_index")
    return strides[number]


def byte_strides(shape: Shape) -> tuple[int, ...] | None:
    """Give the distance in bytes between neighbours along each dimension, or None where there is no such distance.

    There is none where tiles change the order, or where an element takes no whole number of bytes.

    Raises
    ------
    UnsupportedError
        Not an array, a sparse one, or a dimension is unbounded.

    Examples
    --------
    >>> byte_strides(Shape.parse("f32[3,5]{1,0}")), byte_strides(Shape.parse("s4[3,5]{1,0:E(4)}"))
    ((20, 4), None)
    """
    strides = slot_strides(shape)
    if strides is None or shape.element_bits % 8:
        return None
    return tuple([stride * (shape.element_bits // 8) for stride in strides])


def unpacked_byte_strides(shape: Shape) -> tuple[int, ...] | None:
    """Give the byte strides as if every element took its unpacked bytes, or None where tiles change the order.

    Raises
    ------
    UnsupportedError
        Not an array, a sparse one, or a dimension is unbounded.

    Examples
    --------
    >>> unpacked_byte_strides(Shape.parse("s4[3,5]{1,0:E(4)}"))
    (5, 1)
    """
    strides = slot_strides(shape)
    return None if strides is None else tuple([stride * shape.element_type.nbytes for stride in strides])
