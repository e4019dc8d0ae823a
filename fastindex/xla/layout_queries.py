"""Properties of the order of dimensions in a layout.

Source: ``xla/layout_util.h``; the names are XLA's in Python's spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import SupportsIndex

from fastindex.core.integers import as_integers, inverse
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import LayoutError


def logical_to_physical(shape: Shape | str) -> tuple[int, ...]:
    """Return the physical number of each dimension; 0 is the most major.

    Raises
    ------
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> logical_to_physical("f32[2,3,5]{1,2,0}")
    (0, 2, 1)
    """
    return inverse(as_shape(shape).layout.major_to_minor)


def is_monotonic_with_dim0_minor(shape: Shape | str) -> bool:
    """Whether dimension 0 is the most minor, dimension 1 the next, and so on.

    Raises
    ------
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> is_monotonic_with_dim0_minor("f32[2,3]{0,1}")
    True
    """
    layout = as_shape(shape).layout
    return layout.minor_to_major == tuple(range(layout.rank))


def is_monotonic_with_dim0_major(shape: Shape | str) -> bool:
    """Whether dimension 0 is the most major, dimension 1 the next, and so on: the default order.

    Raises
    ------
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> is_monotonic_with_dim0_major("f32[2,3]{1,0}")
    True
    """
    layout = as_shape(shape).layout
    return layout.major_to_minor == tuple(range(layout.rank))


def are_dimensions_consecutive(shape: Shape | str, dimensions: Iterable[SupportsIndex]) -> bool:
    """Whether `dimensions` are adjacent in the layout, in any order.

    Raises
    ------
    OutOfBoundsError
        There is no such dimension.
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> are_dimensions_consecutive("f32[2,3,5]{1,0,2}", (0, 1)), are_dimensions_consecutive("f32[2,3,5]{1,0,2}", (1, 2))
    (True, False)
    """
    shape = as_shape(shape)
    places = inverse(shape.layout.minor_to_major)
    numbers = as_integers(dimensions, "dimensions")
    found = sorted([places[shape.dimension_number(number)] for number in numbers])
    return all(found[i] == found[0] + i for i in range(len(found)))


def has_custom_element_size(shape: Shape | str) -> bool:
    """Whether an array anywhere in `shape` sets its element size in bits.

    Examples
    --------
    >>> has_custom_element_size("(s4[8]{0:E(4)}, f32[])")
    True
    """
    return any(leaf.is_array and leaf.layout.element_size_in_bits != 0 for leaf in as_shape(shape).leaves())


def byte_strides_are_major_to_minor(shape: Shape | str, byte_strides: Sequence[SupportsIndex]) -> bool:
    """Whether `byte_strides` are those of an unpadded array whose last dimension is the most minor.

    Source: ``LayoutUtil::ByteStridesIsMajorToMinor``. The layout of `shape` is ignored.

    Raises
    ------
    LayoutError
        There is not one stride per dimension.

    Examples
    --------
    >>> byte_strides_are_major_to_minor("f32[3,5]", (20, 4))
    True
    """
    shape = as_shape(shape)
    strides = as_integers(byte_strides, "byte_strides")
    if len(strides) != shape.rank:
        raise LayoutError(f"there must be one stride per dimension, got {len(strides)} for {shape.rank}")
    expected = shape.element_type.nbytes
    for stride, size in zip(reversed(strides), reversed(shape.dimensions), strict=True):
        if stride != expected:
            return False
        expected *= size
    return True
