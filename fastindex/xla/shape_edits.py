"""Shapes made from shapes: other layouts, other element types, no bounds.

Source: ``xla/shape_util.h`` and ``xla/layout_util.h``; the names are its own in Python's spelling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fastindex.errors import LayoutError, UnsupportedError
from fastindex.shapes.element_types import ElementType
from fastindex.shapes.layout import Layout
from fastindex.shapes.shape import Shape
from fastindex.xla.shape_trees import map_leaves


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
    from fastindex.xla.equality import equal_structure

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
