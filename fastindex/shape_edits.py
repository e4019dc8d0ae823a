"""Shapes made from shapes: other layouts, other element types, dimensions permuted, inserted or deleted.

Source: ``xla/shape_util.h`` and ``xla/layout_util.h``; the names are its own in Python's spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import SupportsIndex

from fastindex.element_types import ElementType
from fastindex.errors import LayoutError, OutOfBoundsError, UnsupportedError
from fastindex.integers import as_integer, as_integers
from fastindex.layout import Layout, SplitConfig
from fastindex.permutations import checked_permutation, inverse, permuted
from fastindex.shape import Shape
from fastindex.shape_trees import map_leaves


def with_layout(shape: Shape, layout: Layout) -> Shape:
    """Give an array the layout `layout`.

    Raises
    ------
    LayoutError
        It does not fit.
    UnsupportedError
        Not an array.

    Examples
    --------
    >>> str(with_layout(Shape("f32", (2, 3)), Layout((0, 1))))
    'f32[2,3]{0,1}'
    """
    if not shape.is_array:
        raise UnsupportedError(f"only arrays have a layout, not {shape.cut_text()}")
    return Shape(shape.element_type, shape.dimensions, layout, shape.dynamic_dimensions)


def _map_arrays(shape: Shape, change: Callable[[Shape], Shape]) -> Shape:
    def change_array(leaf: Shape) -> Shape:
        if leaf.is_buffer:
            return Shape.buffer(change(leaf.tuple_shapes[0]))
        return change(leaf) if leaf.is_array else leaf

    return map_leaves(shape, change_array)


def _map_layouts(shape: Shape, change: Callable[[Shape], Layout]) -> Shape:
    return _map_arrays(shape, lambda array: with_layout(array, change(array)))


def with_default_layout(shape: Shape) -> Shape:
    """Give every array in `shape` the default layout: the last dimension the most minor, nothing else.

    Source: ``LayoutUtil::GetWithDefaultLayout``.

    Examples
    --------
    >>> str(with_default_layout(Shape.parse("(f32[2,3]{0,1:T(2)}, token[])")))
    '(f32[2,3]{1,0}, token[])'
    """
    return _map_layouts(shape, lambda array: Layout.descending(array.rank))


def clear_tiles(shape: Shape) -> Shape:
    """Take the tiles off every array in `shape`.

    Examples
    --------
    >>> str(clear_tiles(Shape.parse("f32[2,3]{0,1:T(2)S(1)}")))
    'f32[2,3]{0,1:S(1)}'
    """
    return _map_layouts(shape, lambda array: replace(array.layout, tiles=()))


def device_shape_to_host_shape(shape: Shape) -> Shape:
    """Take tiles, tail alignment, element size, memory space and metadata prefix off every array in `shape`.

    Examples
    --------
    >>> str(device_shape_to_host_shape(Shape.parse("s4[2,3]{0,1:T(2)L(8)E(4)S(1)M(4)}")))
    's4[2,3]{0,1}'
    """
    return _map_layouts(
        shape,
        lambda array: replace(
            array.layout,
            tiles=(),
            tail_padding_alignment_in_elements=1,
            element_size_in_bits=0,
            memory_space=0,
            dynamic_shape_metadata_prefix_bytes=0,
        ),
    )


def update_element_size(shape: Shape, *, pack: bool) -> Shape:
    """Set the element size in bits of every array: that of sub-byte types if `pack`, else none.

    Source: ``ShapeUtil::UpdateElementSizeInBits``.

    Examples
    --------
    >>> str(update_element_size(Shape.parse("(s4[8], f32[8]{0:E(32)})"), pack=True))
    '(s4[8]{0:E(4)}, f32[8]{0})'
    """

    def resized(array: Shape) -> Layout:
        bits = array.element_type.bits if pack and array.element_type.is_sub_byte else 0
        return replace(array.layout, element_size_in_bits=bits)

    return _map_layouts(shape, resized)


def change_element_type(shape: Shape, element_type: ElementType | str) -> Shape:
    """Change the element type of every array; the element size in bits stays only for sub-byte types.

    Raises
    ------
    LayoutError
        `element_type` is not one of arrays.

    Examples
    --------
    >>> str(change_element_type(Shape.parse("s4[8]{0:T(8)E(4)}"), "f32"))
    'f32[8]{0:T(8)}'
    """
    kind = ElementType.of(element_type)
    bits_stay = kind.is_sub_byte

    def changed(array: Shape) -> Shape:
        layout = array.layout if bits_stay else replace(array.layout, element_size_in_bits=0)
        return Shape(kind, array.dimensions, layout, array.dynamic_dimensions)

    return _map_arrays(shape, changed)


def static_shape(shape: Shape) -> Shape:
    """Make every upper bound a size, and drop the metadata prefix; ``?`` cannot be made one.

    Source: ``ShapeUtil::MakeStaticShape``.

    Raises
    ------
    LayoutError
        A dimension is unbounded.

    Examples
    --------
    >>> str(static_shape(Shape.parse("f32[<=8,3]{1,0:M(16)}")))
    'f32[8,3]{1,0}'
    """

    def fixed(array: Shape) -> Shape:
        layout = replace(array.layout, dynamic_shape_metadata_prefix_bytes=0)
        return Shape(array.element_type, array.dimensions, layout, [False] * array.rank)

    return _map_arrays(shape, fixed)


def copy_layouts(source: Shape, destination: Shape) -> Shape:
    """Give the arrays of `destination` the layouts of those of `source`, which must be the same tree.

    Source: ``LayoutUtil::CopyLayoutBetweenShapes``.

    Raises
    ------
    LayoutError
        Another tree of tuples, or a layout does not fit.

    Examples
    --------
    >>> str(copy_layouts(Shape.parse("(f32[2,3]{0,1})"), Shape.parse("(s8[4,5])")))
    '(s8[4,5]{0,1})'
    """
    from fastindex.equality import equal_structure

    if not equal_structure(source, destination):
        raise LayoutError(
            f"layouts cannot be copied from {source.cut_text()} to {destination.cut_text()}: other tuples"
        )
    sources = iter(list(source.leaves()))

    def copied(leaf: Shape) -> Shape:
        model = next(sources)
        if model.is_array != leaf.is_array:
            raise LayoutError(f"layouts cannot be copied from {model.cut_text()} to {leaf.cut_text()}")
        return with_layout(leaf, model.layout) if leaf.is_array else leaf

    return map_leaves(destination, copied)


def descending_with_same_physical_layout(shape: Shape) -> Shape:
    """List the dimensions of an array from most major to most minor, so that its layout is descending.

    Tiles, element size, tail alignment, padding, splits and memory space stay: every element keeps its slot.

    Source: ``ShapeUtil::MakeShapeWithDescendingLayoutAndSamePhysicalLayout``.

    Examples
    --------
    >>> str(descending_with_same_physical_layout(Shape.parse("f32[2,3,5]{0,2,1:T(2)}")))
    'f32[3,5,2]{2,1,0:T(2)}'
    """
    return permute_dimensions(shape.layout.major_to_minor, shape)


def permute_dimensions(permutation: Iterable[SupportsIndex], shape: Shape) -> Shape:
    """Permute the dimensions of an array and its layout with them, so that every element keeps its slot.

    Dimension i of the result is dimension ``permutation[i]`` of `shape`.

    Raises
    ------
    LayoutError
        Not a permutation.
    UnsupportedError
        Not an array.

    Examples
    --------
    >>> str(permute_dimensions((2, 0, 1), Shape.parse("f32[2,3,5]{2,1,0:T(2,4)}")))
    'f32[5,2,3]{0,2,1:T(2,4)}'
    """
    order = checked_permutation(permutation, shape.layout.rank)
    places = inverse(order)
    layout = shape.layout
    padded = layout.padded_dimensions
    moved = replace(
        layout,
        minor_to_major=tuple([places[i] for i in layout.minor_to_major]),
        padded_dimensions=None if padded is None else permuted(padded, order),
    )
    return Shape(
        shape.element_type,
        permuted(shape.dimensions, order),
        moved,
        permuted(shape.dynamic_dimensions, order),
    )


def permute_dimensions_ignoring_layout(permutation: Iterable[SupportsIndex], shape: Shape) -> Shape:
    """Permute the dimensions of an array and leave its layout as it is.

    Raises
    ------
    LayoutError
        Not a permutation, or the layout no longer fits.
    UnsupportedError
        Not an array.

    Examples
    --------
    >>> str(permute_dimensions_ignoring_layout((1, 0), Shape.parse("f32[2,3]{0,1}")))
    'f32[3,2]{0,1}'
    """
    order = checked_permutation(permutation, shape.layout.rank)
    dynamic = permuted(shape.dynamic_dimensions, order)
    return Shape(shape.element_type, permuted(shape.dimensions, order), shape.layout, dynamic)


def _relisted(shape: Shape, sizes: Sequence[int], sources: Sequence[int | None], order: Sequence[int]) -> Shape:
    """Give an array whose dimension i is dimension ``sources[i]`` of `shape`, or new; what else it has stays."""
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


def move_dimension_to_major(shape: Shape, dimension: SupportsIndex) -> Shape:
    """Make a dimension the most major in memory; the order of the others and the tiles stay.

    Source: ``LayoutUtil::MoveDimToMajor``.

    Raises
    ------
    OutOfBoundsError
        No such dimension.
    UnsupportedError
        Not an array.

    Examples
    --------
    >>> str(move_dimension_to_major(Shape.parse("f32[2,3,5]{2,1,0:T(2)}"), 1))
    'f32[2,3,5]{2,0,1:T(2)}'
    """
    order = shape.layout.minor_to_major
    number = shape.dimension_number(dimension)
    others = [other for other in order if other != number]
    return _relisted(shape, shape.dimensions, range(shape.rank), (*others, number))


def move_dimension_to_minor(shape: Shape, dimension: SupportsIndex) -> Shape:
    """Make a dimension the most minor in memory; the order of the others and the tiles stay.

    Source: ``LayoutUtil::MoveDimToMinor``.

    Raises
    ------
    OutOfBoundsError
        No such dimension.
    UnsupportedError
        Not an array.

    Examples
    --------
    >>> str(move_dimension_to_minor(Shape.parse("f32[2,3,5]{2,1,0:T(2)}"), 1))
    'f32[2,3,5]{1,2,0:T(2)}'
    """
    order = shape.layout.minor_to_major
    number = shape.dimension_number(dimension)
    others = [other for other in order if other != number]
    return _relisted(shape, shape.dimensions, range(shape.rank), (number, *others))


def append_major_dimension(size: SupportsIndex, shape: Shape) -> Shape:
    """Add a dimension at the end of the list that is the most major in memory.

    Raises
    ------
    LayoutError
        `size` is negative.
    UnsupportedError
        Not an array.

    Examples
    --------
    >>> str(append_major_dimension(7, Shape.parse("f32[2,3]{1,0:T(2,4)}")))
    'f32[2,3,7]{1,0,2:T(2,4)}'
    """
    rank = shape.layout.rank
    sizes = (*shape.dimensions, as_integer(size, "size"))
    return _relisted(shape, sizes, (*range(rank), None), (*shape.layout.minor_to_major, rank))


def prepend_major_dimension(size: SupportsIndex, shape: Shape) -> Shape:
    """Add a dimension at the front of the list that is the most major in memory; tiles stay, unlike in XLA.

    Raises
    ------
    LayoutError
        `size` is negative.
    UnsupportedError
        Not an array.

    Examples
    --------
    >>> str(prepend_major_dimension(7, Shape.parse("f32[2,3]{1,0:T(2,4)}")))
    'f32[7,2,3]{2,1,0:T(2,4)}'
    """
    rank = shape.layout.rank
    sizes = (as_integer(size, "size"), *shape.dimensions)
    order = (*[dimension + 1 for dimension in shape.layout.minor_to_major], 0)
    return _relisted(shape, sizes, (None, *range(rank)), order)


def append_minor_dimension(size: SupportsIndex, shape: Shape) -> Shape:
    """Add a dimension at the end of the list that is the most minor in memory.

    Raises
    ------
    LayoutError
        `size` is negative.
    UnsupportedError
        Not an array.

    Examples
    --------
    >>> str(append_minor_dimension(7, Shape.parse("f32[2,3]{0,1}")))
    'f32[2,3,7]{2,0,1}'
    """
    rank = shape.layout.rank
    sizes = (*shape.dimensions, as_integer(size, "size"))
    return _relisted(shape, sizes, (*range(rank), None), (rank, *shape.layout.minor_to_major))


def insert_dimensions(shape: Shape, at: SupportsIndex, sizes: Iterable[SupportsIndex]) -> Shape:
    """Insert dimensions before dimension `at`, next more major in memory; at the end, the most minor.

    The layout of the result has an order and nothing else.

    Source: ``ShapeUtil::InsertDimensionsAtIndex``.

    Raises
    ------
    OutOfBoundsError
        `at` is not from 0 to the rank.
    LayoutError
        A size is negative.
    UnsupportedError
        Not an array.

    Examples
    --------
    >>> str(insert_dimensions(Shape.parse("f32[2,3]{0,1}"), 1, (7, 8)))
    'f32[2,7,8,3]{0,3,2,1}'
    """
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


def delete_dimensions(dimensions: Iterable[SupportsIndex], shape: Shape) -> Shape:
    """Delete dimensions; the order of the others and the tiles stay.

    Raises
    ------
    OutOfBoundsError
        No such dimension.
    UnsupportedError
        Not an array.

    Examples
    --------
    >>> str(delete_dimensions((1,), Shape.parse("f32[2,3,5]{0,2,1:T(2,4)}")))
    'f32[2,5]{0,1:T(2,4)}'
    """
    deleted = {shape.dimension_number(number) for number in as_integers(dimensions, "dimensions")}
    return filter_dimensions(lambda number: number not in deleted, shape)


def filter_dimensions(keep: Callable[[int], bool], shape: Shape) -> Shape:
    """Delete the dimensions whose number `keep` refuses.

    Raises
    ------
    UnsupportedError
        Not an array.

    Examples
    --------
    >>> str(filter_dimensions(lambda number: number != 0, Shape.parse("f32[2,3,5]{0,2,1}")))
    'f32[3,5]{1,0}'
    """
    kept = [number for number in range(shape.layout.rank) if keep(number)]
    sizes = [shape.dimensions[number] for number in kept]
    order = [kept.index(number) for number in shape.layout.minor_to_major if number in kept]
    return _relisted(shape, sizes, kept, order)


def drop_degenerate_dimensions(shape: Shape) -> Shape:
    """Delete the dimensions of size 1.

    Raises
    ------
    UnsupportedError
        Not an array.

    Examples
    --------
    >>> str(drop_degenerate_dimensions(Shape.parse("f32[1,3,1]{0,2,1}")))
    'f32[3]{0}'
    """
    return filter_dimensions(lambda number: shape.dimensions[number] != 1, shape)
