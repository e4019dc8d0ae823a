"""Array shapes with dimensions permuted, moved, inserted or deleted.

Source: ``xla/shape_util.h`` and ``xla/layout_util.h``; the names are XLA's in Python's spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import SupportsIndex

from fastindex.core.integers import as_integer, as_integers, checked_permutation, permuted
from fastindex.core.layout import Layout
from fastindex.core.layout_fields import SplitConfig
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import OutOfBoundsError, UnsupportedError


def descending_with_same_physical_layout(shape: Shape | str) -> Shape:
    """Permute the dimensions of an array to major-to-minor order, so that its layout is descending.

    The rest of the layout is unchanged, and every element keeps its slot.

    Source: ``ShapeUtil::MakeShapeWithDescendingLayoutAndSamePhysicalLayout``.

    Examples
    --------
    >>> str(descending_with_same_physical_layout("f32[2,3,5]{0,2,1:T(2)}"))
    'f32[3,5,2]{2,1,0:T(2)}'
    """
    shape = as_shape(shape)
    return shape.transposed(shape.layout.major_to_minor)


def permute_dimensions_ignoring_layout(shape: Shape | str, permutation: Iterable[SupportsIndex]) -> Shape:
    """Permute the dimensions of an array without changing its layout.

    Raises
    ------
    LayoutError
        `permutation` is not a permutation, or the layout no longer fits.
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> str(permute_dimensions_ignoring_layout("f32[2,3]{0,1}", (1, 0)))
    'f32[3,2]{0,1}'
    """
    shape = as_shape(shape)
    order = checked_permutation(permutation, shape.layout.rank)
    dynamic = permuted(shape.dynamic_dimensions, order)
    return Shape(shape.element_type, permuted(shape.dimensions, order), shape.layout, dynamic)


def _relisted(shape: Shape, sizes: Sequence[int], sources: Sequence[int | None], order: Sequence[int]) -> Shape:
    """Return an array whose dimension i is dimension ``sources[i]`` of `shape`, or new if that is None."""
    layout = shape.layout
    if layout.dimension_levels:
        raise UnsupportedError(f"dimensions of a sparse array cannot be changed: {shape.cut_text()}")
    padded = layout.padded_dimensions
    if padded is not None:
        padded = tuple([size if old is None else padded[old] for size, old in zip(sizes, sources, strict=True)])
    major_to_minor = list(order)[::-1]
    splits = []
    for split in layout.split_configs:
        old = layout.major_to_minor[split.dimension]
        if old in sources:
            splits.append(SplitConfig(major_to_minor.index(sources.index(old)), split.split_indices))
    return Shape(
        shape.element_type,
        sizes,
        replace(layout, minor_to_major=tuple(order), padded_dimensions=padded, split_configs=tuple(splits)),
        [old is not None and shape.dynamic_dimensions[old] for old in sources],
    )


def move_dimension_to_major(shape: Shape | str, dimension: SupportsIndex) -> Shape:
    """Make a dimension the most major in memory, keeping the order of the others and the tiles.

    Source: ``LayoutUtil::MoveDimToMajor``.

    Raises
    ------
    OutOfBoundsError
        There is no such dimension.
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> str(move_dimension_to_major("f32[2,3,5]{2,1,0:T(2)}", 1))
    'f32[2,3,5]{2,0,1:T(2)}'
    """
    shape = as_shape(shape)
    order = shape.layout.minor_to_major
    number = shape.dimension_number(dimension)
    others = [other for other in order if other != number]
    return _relisted(shape, shape.dimensions, range(shape.rank), (*others, number))


def move_dimension_to_minor(shape: Shape | str, dimension: SupportsIndex) -> Shape:
    """Make a dimension the most minor in memory, keeping the order of the others and the tiles.

    Source: ``LayoutUtil::MoveDimToMinor``.

    Raises
    ------
    OutOfBoundsError
        There is no such dimension.
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> str(move_dimension_to_minor("f32[2,3,5]{2,1,0:T(2)}", 1))
    'f32[2,3,5]{1,2,0:T(2)}'
    """
    shape = as_shape(shape)
    order = shape.layout.minor_to_major
    number = shape.dimension_number(dimension)
    others = [other for other in order if other != number]
    return _relisted(shape, shape.dimensions, range(shape.rank), (number, *others))


def append_major_dimension(shape: Shape | str, size: SupportsIndex) -> Shape:
    """Append a dimension that is the most major in memory.

    Raises
    ------
    LayoutError
        `size` is negative.
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> str(append_major_dimension("f32[2,3]{1,0:T(2,4)}", 7))
    'f32[2,3,7]{1,0,2:T(2,4)}'
    """
    shape = as_shape(shape)
    rank = shape.layout.rank
    sizes = (*shape.dimensions, as_integer(size, "size"))
    return _relisted(shape, sizes, (*range(rank), None), (*shape.layout.minor_to_major, rank))


def prepend_major_dimension(shape: Shape | str, size: SupportsIndex) -> Shape:
    """Prepend a dimension that is the most major in memory. Unlike XLA, keep the tiles.

    Raises
    ------
    LayoutError
        `size` is negative.
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> str(prepend_major_dimension("f32[2,3]{1,0:T(2,4)}", 7))
    'f32[7,2,3]{2,1,0:T(2,4)}'
    """
    shape = as_shape(shape)
    rank = shape.layout.rank
    sizes = (as_integer(size, "size"), *shape.dimensions)
    order = (*[dimension + 1 for dimension in shape.layout.minor_to_major], 0)
    return _relisted(shape, sizes, (None, *range(rank)), order)


def append_minor_dimension(shape: Shape | str, size: SupportsIndex) -> Shape:
    """Append a dimension that is the most minor in memory.

    Raises
    ------
    LayoutError
        `size` is negative.
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> str(append_minor_dimension("f32[2,3]{0,1}", 7))
    'f32[2,3,7]{2,0,1}'
    """
    shape = as_shape(shape)
    rank = shape.layout.rank
    sizes = (*shape.dimensions, as_integer(size, "size"))
    return _relisted(shape, sizes, (*range(rank), None), (rank, *shape.layout.minor_to_major))


def insert_dimensions(shape: Shape | str, at: SupportsIndex, sizes: Iterable[SupportsIndex]) -> Shape:
    """Insert dimensions before dimension `at`, next to it on the major side in memory; at the end, the most minor.

    The layout of the result has only an order.

    Source: ``ShapeUtil::InsertDimensionsAtIndex``.

    Raises
    ------
    OutOfBoundsError
        `at` is not between 0 and the rank.
    LayoutError
        A size is negative.
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> str(insert_dimensions("f32[2,3]{0,1}", 1, (7, 8)))
    'f32[2,7,8,3]{0,3,2,1}'
    """
    shape = as_shape(shape)
    place = as_integer(at, "at")
    new = as_integers(sizes, "sizes")
    if not 0 <= place <= shape.layout.rank:
        raise OutOfBoundsError(f"dimensions can be inserted at 0 to {shape.rank}, not at {place}")
    count = len(new)
    inserted = list(range(place + count - 1, place - 1, -1))
    order = list(inserted) if place == shape.rank else []
    for dimension in shape.layout.minor_to_major:
        order.append(dimension + count if dimension >= place else dimension)
        if dimension == place:
            order += inserted
    dynamic = (*shape.dynamic_dimensions[:place], *[False] * count, *shape.dynamic_dimensions[place:])
    dimensions = (*shape.dimensions[:place], *new, *shape.dimensions[place:])
    return Shape(shape.element_type, dimensions, Layout(tuple(order)), dynamic)


def delete_dimensions(shape: Shape | str, dimensions: Iterable[SupportsIndex]) -> Shape:
    """Delete dimensions, keeping the order of the others and the tiles.

    Raises
    ------
    OutOfBoundsError
        There is no such dimension.
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> str(delete_dimensions("f32[2,3,5]{0,2,1:T(2,4)}", (1,)))
    'f32[2,5]{0,1:T(2,4)}'
    """
    shape = as_shape(shape)
    deleted = {shape.dimension_number(number) for number in as_integers(dimensions, "dimensions")}
    return filter_dimensions(shape, lambda number: number not in deleted)


def filter_dimensions(shape: Shape | str, keep: Callable[[int], bool]) -> Shape:
    """Delete the dimensions for whose number `keep` returns false.

    Raises
    ------
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> str(filter_dimensions("f32[2,3,5]{0,2,1}", lambda number: number != 0))
    'f32[3,5]{1,0}'
    """
    shape = as_shape(shape)
    kept = [number for number in range(shape.layout.rank) if keep(number)]
    sizes = [shape.dimensions[number] for number in kept]
    order = [kept.index(number) for number in shape.layout.minor_to_major if number in kept]
    return _relisted(shape, sizes, kept, order)


def drop_degenerate_dimensions(shape: Shape | str) -> Shape:
    """Delete the dimensions of size 1.

    Raises
    ------
    UnsupportedError
        This is not an array.

    Examples
    --------
    >>> str(drop_degenerate_dimensions("f32[1,3,1]{0,2,1}"))
    'f32[3]{0}'
    """
    shape = as_shape(shape)
    sizes = shape.dimensions
    return filter_dimensions(shape, lambda number: sizes[number] != 1)
