"""Shapes with other layouts or element types, and with dimensions permuted, moved, inserted or deleted.

Source: ``xla/shape_util.h`` and ``xla/layout_util.h``; the names are XLA's in Python's spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import SupportsIndex

from fastindex.core.element_types import ElementType
from fastindex.core.integers import as_integer, as_integers, checked_permutation, permuted
from fastindex.core.layout import Layout
from fastindex.core.layout_fields import SplitConfig
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import LayoutError, OutOfBoundsError, UnsupportedError
from fastindex.xla.shape_queries import equal_structure
from fastindex.xla.shape_trees import map_leaves


def _map_arrays(shape: Shape | str, change: Callable[[Shape], Shape]) -> Shape:
    def change_array(leaf: Shape) -> Shape:
        if leaf.is_buffer:
            return Shape.buffer(change(leaf.tuple_shapes[0]))
        return change(leaf) if leaf.is_array else leaf

    return map_leaves(shape, change_array)


def _map_layouts(shape: Shape | str, change: Callable[[Shape], Layout]) -> Shape:
    return _map_arrays(shape, lambda array: array.with_layout(change(array)))


def with_default_layout(shape: Shape | str) -> Shape:
    """Return `shape` with the default layout in every array.

    Source: ``LayoutUtil::GetWithDefaultLayout``.

    Examples
    --------
    >>> str(with_default_layout("(f32[2,3]{0,1:T(2)}, token[])"))
    '(f32[2,3]{1,0}, token[])'
    """
    return _map_layouts(shape, lambda array: Layout.descending(array.rank))


def clear_tiles(shape: Shape | str) -> Shape:
    """Remove the tiles from every array in `shape`.

    Examples
    --------
    >>> str(clear_tiles("f32[2,3]{0,1:T(2)S(1)}"))
    'f32[2,3]{0,1:S(1)}'
    """
    return _map_layouts(shape, lambda array: replace(array.layout, tiles=()))


def device_shape_to_host_shape(shape: Shape | str) -> Shape:
    """Remove tiles, tail alignment, element size, memory space and metadata prefix from every array in `shape`.

    Examples
    --------
    >>> str(device_shape_to_host_shape("s4[2,3]{0,1:T(2)L(8)E(4)S(1)M(4)}"))
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


def update_element_size(shape: Shape | str, *, pack: bool) -> Shape:
    """Set the element size in bits of every array: the width of sub-byte types if `pack`, otherwise none.

    Source: ``ShapeUtil::UpdateElementSizeInBits``.

    Examples
    --------
    >>> str(update_element_size("(s4[8], f32[8]{0:E(32)})", pack=True))
    '(s4[8]{0:E(4)}, f32[8]{0})'
    """

    def resized(array: Shape) -> Layout:
        bits = array.element_type.bits if pack and array.element_type.is_sub_byte else 0
        return replace(array.layout, element_size_in_bits=bits)

    return _map_layouts(shape, resized)


def change_element_type(shape: Shape | str, element_type: ElementType | str) -> Shape:
    """Change the element type of every array. The element size in bits is kept only for sub-byte types.

    Raises
    ------
    LayoutError
        Arrays cannot have this element type.

    Examples
    --------
    >>> str(change_element_type("s4[8]{0:T(8)E(4)}", "f32"))
    'f32[8]{0:T(8)}'
    """
    shape = as_shape(shape)
    kind = ElementType.of(element_type)
    return _map_arrays(shape, lambda array: array.with_element_type(kind))


def static_shape(shape: Shape | str) -> Shape:
    """Make every dynamic dimension static at its upper bound, and remove the metadata prefix.

    Source: ``ShapeUtil::MakeStaticShape``.

    Raises
    ------
    LayoutError
        A dimension is unbounded.

    Examples
    --------
    >>> str(static_shape("f32[<=8,3]{1,0:M(16)}"))
    'f32[8,3]{1,0}'
    """

    def fixed(array: Shape) -> Shape:
        layout = replace(array.layout, dynamic_shape_metadata_prefix_bytes=0)
        return Shape(array.element_type, array.dimensions, layout, [False] * array.rank)

    return _map_arrays(shape, fixed)


def copy_layouts(source: Shape | str, destination: Shape | str) -> Shape:
    """Return `destination` with the layouts of the corresponding arrays in `source`.

    Source: ``LayoutUtil::CopyLayoutBetweenShapes``.

    Raises
    ------
    LayoutError
        The nested tuples differ, or a layout does not fit.

    Examples
    --------
    >>> str(copy_layouts("(f32[2,3]{0,1})", "(s8[4,5])"))
    '(s8[4,5]{0,1})'
    """
    source, destination = as_shape(source), as_shape(destination)
    if not equal_structure(source, destination):
        raise LayoutError(
            f"layouts cannot be copied from {source.cut_text()} to {destination.cut_text()}: their tuples differ"
        )
    sources = iter(list(source.leaves()))

    def copied(leaf: Shape) -> Shape:
        model = next(sources)
        if model.is_array != leaf.is_array:
            raise LayoutError(f"layouts cannot be copied from {model.cut_text()} to {leaf.cut_text()}")
        return leaf.with_layout(model.layout) if leaf.is_array else leaf

    return map_leaves(destination, copied)


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
