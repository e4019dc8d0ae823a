"""Strides of arrays, taking tiles and padding into account.

Source: ``GetDimensionStride`` in ``xla/index_util.h`` and ``ByteStrides`` in ``xla/shape_util.h``, which ignore tiles.
"""

from __future__ import annotations

from typing import SupportsIndex

from fastindex.core import strides as shape_strides
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import UnsupportedError


def slot_strides(shape: Shape | str) -> tuple[int, ...] | None:
    """Return the distance in slots between neighbours along each dimension, or None if it is not constant.

    It is None if tiles reorder elements. A dimension of size 1 has the stride that it would have if it were longer.

    Raises
    ------
    UnsupportedError
        This is not an array, it is sparse, or a dimension is unbounded.

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
        There is no such dimension.
    UnsupportedError
        The distance is not constant, or the elements do not have fixed slots.

    Examples
    --------
    >>> dimension_stride("f32[3,5]{0,1}", -1)
    3
    """
    shape = as_shape(shape)
    number = shape.dimension_number(dimension)
    strides = slot_strides(shape)
    if strides is None:
        raise UnsupportedError(f"{shape.cut_text()} has no strides: tiles reorder its elements; use linear_index")
    return strides[number]


def byte_strides(shape: Shape | str) -> tuple[int, ...] | None:
    """Return the distance in bytes between neighbours along each dimension, or None; see `Shape.byte_strides`.

    Raises
    ------
    UnsupportedError
        This is not an array, it is sparse, or a dimension is unbounded.

    Examples
    --------
    >>> byte_strides("f32[3,5]{1,0}"), byte_strides("s4[3,5]{1,0:E(4)}")
    ((20, 4), None)
    """
    return as_shape(shape).byte_strides


def unpacked_byte_strides(shape: Shape | str) -> tuple[int, ...] | None:
    """Return the byte strides that unpacked elements would have, or None if tiles reorder elements.

    Raises
    ------
    UnsupportedError
        This is not an array, it is sparse, or a dimension is unbounded.

    Examples
    --------
    >>> unpacked_byte_strides("s4[3,5]{1,0:E(4)}")
    (5, 1)
    """
    shape = as_shape(shape)
    strides = slot_strides(shape)
    return None if strides is None else tuple([stride * shape.element_type.nbytes for stride in strides])
