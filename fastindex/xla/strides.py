"""Strides of layouts that have them: tiles and padding included.

Source: ``GetDimensionStride`` in ``xla/index_util.h``, ``ByteStrides`` in ``xla/shape_util.h``, which overlook tiles.
"""

from __future__ import annotations

from typing import SupportsIndex

from fastindex.errors import UnsupportedError
from fastindex.shapes import shape_strides
from fastindex.shapes.shape import Shape, as_shape


def slot_strides(shape: Shape | str) -> tuple[int, ...] | None:
    """Return the distance in slots between neighbours along each dimension, or None where it is not constant.

    Tiles that change the order leave none. A dimension of size 1 gets the stride it would have if it were longer and
    nothing else changed.

    Raises
    ------
    UnsupportedError
        Not an array, a sparse one, or a dimension is unbounded.

    Examples
    --------
    >>> slot_strides("f32[3,5]{0,1}"), slot_strides("f32[3,5]{1,0:T(2,2)}")
    ((1, 3), None)
    >>> slot_strides("f32[3,100]{1,0:T(8,128)}")
    (128, 1)
    """
    return shape_strides.slot_strides(as_shape(shape))


def dimension_stride(shape: Shape | str, dimension: SupportsIndex) -> int:
    """Return the distance in slots between neighbours along a dimension.

    Raises
    ------
    OutOfBoundsError
        No such dimension.
    UnsupportedError
        The layout has no strides, or the elements have no fixed slots.

    Examples
    --------
    >>> dimension_stride("f32[3,5]{0,1}", -1)
    3
    """
    shape = as_shape(shape)
    number = shape.dimension_number(dimension)
    strides = slot_strides(shape)
    if strides is None:
        raise UnsupportedError(f"the tiles of {shape.cut_text()} leave no strides; use linear_index")
    return strides[number]


def byte_strides(shape: Shape | str) -> tuple[int, ...] | None:
    """Return the distance in bytes between neighbours along each dimension, or None: `Shape.byte_strides`.

    Raises
    ------
    UnsupportedError
        Not an array, a sparse one, or a dimension is unbounded.

    Examples
    --------
    >>> byte_strides("f32[3,5]{1,0}"), byte_strides("s4[3,5]{1,0:E(4)}")
    ((20, 4), None)
    """
    return as_shape(shape).byte_strides


def unpacked_byte_strides(shape: Shape | str) -> tuple[int, ...] | None:
    """Return the byte strides as if every element took its unpacked bytes, or None where tiles change the order.

    Raises
    ------
    UnsupportedError
        Not an array, a sparse one, or a dimension is unbounded.

    Examples
    --------
    >>> unpacked_byte_strides("s4[3,5]{1,0:E(4)}")
    (5, 1)
    """
    shape = as_shape(shape)
    strides = slot_strides(shape)
    return None if strides is None else tuple([stride * shape.element_type.nbytes for stride in strides])
