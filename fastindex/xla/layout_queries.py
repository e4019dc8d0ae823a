"""Questions about the order of dimensions in a layout.

Source: ``xla/layout_util.h``; the names are its own in Python's spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, SupportsIndex

from fastindex.errors import LayoutError, OutOfBoundsError
from fastindex.shapes.element_types import ElementType
from fastindex.shapes.integers import as_integer, as_integers
from fastindex.shapes.layout import Layout
from fastindex.xla.permutations import inverse

if TYPE_CHECKING:
    from fastindex.shapes.shape import Shape


def _physical(layout: Layout, number: SupportsIndex) -> int:
    checked = as_integer(number, "physical dimension")
    if not 0 <= checked < layout.rank:
        raise OutOfBoundsError(f"physical dimension {checked} is out of bounds for {layout} of rank {layout.rank}")
    return checked


def minor(layout: Layout, physical: SupportsIndex) -> int:
    """Give the dimension that is the `physical`-th most minor; 0 is the most minor.

    Raises
    ------
    OutOfBoundsError
        No such dimension.

    Examples
    --------
    >>> minor(Layout((1, 2, 0)), 0)
    1
    """
    return layout.minor_to_major[_physical(layout, physical)]


def major(layout: Layout, physical: SupportsIndex) -> int:
    """Give the dimension that is the `physical`-th most major; 0 is the most major.

    Raises
    ------
    OutOfBoundsError
        No such dimension.

    Examples
    --------
    >>> major(Layout((1, 2, 0)), 0)
    0
    """
    return layout.minor_to_major[layout.rank - 1 - _physical(layout, physical)]


def logical_to_physical(layout: Layout) -> tuple[int, ...]:
    """Give the physical number of each dimension; 0 is the most major.

    Examples
    --------
    >>> logical_to_physical(Layout((1, 2, 0)))
    (0, 2, 1)
    """
    return inverse(layout.major_to_minor)


def is_monotonic_with_dim0_minor(layout: Layout) -> bool:
    """Tell whether dimension 0 is the most minor, 1 the next, and so on.

    Examples
    --------
    >>> is_monotonic_with_dim0_minor(Layout((0, 1)))
    True
    """
    return layout.minor_to_major == tuple(range(layout.rank))


def is_monotonic_with_dim0_major(layout: Layout) -> bool:
    """Tell whether dimension 0 is the most major, 1 the next, and so on: the default order.

    Examples
    --------
    >>> is_monotonic_with_dim0_major(Layout((1, 0)))
    True
    """
    return layout.major_to_minor == tuple(range(layout.rank))


def are_dimensions_consecutive(layout: Layout, dimensions: Iterable[SupportsIndex]) -> bool:
    """Tell whether `dimensions` are neighbours in the layout, in any order.

    Raises
    ------
    OutOfBoundsError
        No such dimension.

    Examples
    --------
    >>> layout = Layout((1, 0, 2))
    >>> are_dimensions_consecutive(layout, (0, 1)), are_dimensions_consecutive(layout, (1, 2))
    (True, False)
    """
    places = inverse(layout.minor_to_major)
    found = sorted([places[_dimension(layout, number)] for number in as_integers(dimensions, "dimensions")])
    return all(found[i] == found[0] + i for i in range(len(found)))


def _dimension(layout: Layout, number: SupportsIndex) -> int:
    checked = as_integer(number, "dimension")
    if not 0 <= checked < layout.rank:
        raise OutOfBoundsError(f"dimension {checked} is out of bounds for {layout} of rank {layout.rank}")
    return checked


def has_custom_element_size(shape: Shape) -> bool:
    """Tell whether an array anywhere in `shape` sets its element size in bits.

    Examples
    --------
    >>> from fastindex import Shape
    >>> has_custom_element_size(Shape.parse("(s4[8]{0:E(4)}, f32[])"))
    True
    """
    return any(leaf.is_array and leaf.layout.element_size_in_bits != 0 for leaf in shape.leaves())


def byte_strides_are_major_to_minor(
    byte_strides: Sequence[SupportsIndex],
    dimensions: Sequence[SupportsIndex],
    element_type: ElementType | str,
) -> bool:
    """Tell whether strides are those of an array without padding whose last dimension is the most minor.

    Raises
    ------
    LayoutError
        There is not one stride per dimension.

    Examples
    --------
    >>> byte_strides_are_major_to_minor((20, 4), (3, 5), "f32")
    True
    """
    strides, sizes = as_integers(byte_strides, "byte_strides"), as_integers(dimensions, "dimensions")
    if len(strides) != len(sizes):
        raise LayoutError(f"there must be one stride per dimension, got {len(strides)} for {len(sizes)}")
    expected = ElementType.of(element_type).nbytes
    for stride, size in zip(reversed(strides), reversed(sizes), strict=True):
        if stride != expected:
            return False
        expected *= size
    return True
