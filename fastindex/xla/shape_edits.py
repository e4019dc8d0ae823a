"""Shapes with other layouts, other element types or without dynamic dimensions.

Source: ``xla/shape_util.h`` and ``xla/layout_util.h``; the names are XLA's in Python's spelling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fastindex.core.element_types import ElementType
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import LayoutError
from fastindex.xla.equality import equal_structure
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
    shape = as_shape(shape)
    return _map_layouts(shape, lambda array: Layout.descending(array.rank))


def clear_tiles(shape: Shape | str) -> Shape:
    """Remove the tiles from every array in `shape`.

    Examples
    --------
    >>> str(clear_tiles("f32[2,3]{0,1:T(2)S(1)}"))
    'f32[2,3]{0,1:S(1)}'
    """
    shape = as_shape(shape)
    return _map_layouts(shape, lambda array: replace(array.layout, tiles=()))


def device_shape_to_host_shape(shape: Shape | str) -> Shape:
    """Remove tiles, tail alignment, element size, memory space and metadata prefix from every array in `shape`.

    Examples
    --------
    >>> str(device_shape_to_host_shape("s4[2,3]{0,1:T(2)L(8)E(4)S(1)M(4)}"))
    's4[2,3]{0,1}'
    """
    shape = as_shape(shape)
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

    shape = as_shape(shape)

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

    shape = as_shape(shape)

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
