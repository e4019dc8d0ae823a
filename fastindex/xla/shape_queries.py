"""Properties of one shape.

Source: ``xla/shape_util.h``; the names are XLA's in Python's spelling.
"""

from __future__ import annotations

import math
from typing import SupportsIndex

from fastindex.core.integers import UNBOUNDED
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import UnsupportedError


def is_dynamic(shape: Shape | str) -> bool:
    """Whether an array anywhere in `shape` has a dynamic or unbounded dimension.

    Examples
    --------
    >>> is_dynamic("(f32[<=4], s8[3])"), is_dynamic("f32[4]")
    (True, False)
    """
    shape = as_shape(shape)
    return any(True in leaf.dynamic_dimensions for leaf in shape.leaves())


def is_effectively_most_major_dimension(shape: Shape | str, dimension: SupportsIndex) -> bool:
    """Whether all dimensions more major than `dimension` have size 1.

    Raises
    ------
    OutOfBoundsError
        There is no such dimension.
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> is_effectively_most_major_dimension("f32[1,3,5]", 1)
    True
    """
    shape = as_shape(shape)
    number = _array(shape).dimension_number(dimension)
    for other in shape.layout.major_to_minor:
        if other == number:
            return True
        if shape.dimensions[other] != 1:
            break
    return False


def last_dimension_is_minor_most(shape: Shape | str) -> bool:
    """Whether the last dimension is the most minor; False for a scalar.

    Examples
    --------
    >>> last_dimension_is_minor_most("f32[2,3,5]{2,0,1}")
    True
    """
    shape = as_shape(shape)
    order = _array(shape).layout.minor_to_major
    return bool(order) and order[0] == shape.rank - 1


def extent_product(shape: Shape | str) -> int:
    """Return the product of the sizes and upper bounds of an array, leaving out unbounded dimensions.

    Raises
    ------
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> extent_product("f32[3,<=5,?]")
    15
    """
    shape = as_shape(shape)
    return math.prod([size for size in _array(shape).dimensions if size != UNBOUNDED])


def static_extent_product(shape: Shape | str) -> int:
    """Return the product of the sizes of an array without dynamic dimensions.

    Raises
    ------
    UnsupportedError
        This is not an array, or it has dynamic dimensions.

    Examples
    --------
    >>> static_extent_product("f32[3,5]")
    15
    """
    shape = as_shape(shape)
    if is_dynamic(_array(shape)):
        raise UnsupportedError(f"{shape.cut_text()} has dynamic dimensions; extent_product takes their bounds")
    return math.prod(shape.dimensions)


def packed_factor_for_1d_interleaved_array(shape: Shape | str) -> int:
    """Return the number of elements of a 1-D array that share a word, as its third tile says.

    Raises
    ------
    UnsupportedError
        This is not a 1-D array with three tiles, the third with two entries.

    Examples
    --------
    >>> packed_factor_for_1d_interleaved_array("bf16[2048]{0:T(1024)(128)(2,1)}")
    2
    """
    shape = as_shape(shape)
    tiles = _array(shape).layout.tiles
    if shape.rank != 1 or len(tiles) != 3 or len(tiles[2]) != 2:
        raise UnsupportedError(f"not a 1-D interleaved array: {shape.cut_text()}")
    return tiles[2][0]


def _array(shape: Shape) -> Shape:
    if not shape.is_array:
        raise UnsupportedError(f"only arrays have dimensions, not {shape.cut_text()}")
    return shape
