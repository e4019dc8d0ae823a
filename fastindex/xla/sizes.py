"""Sizes of shapes as XLA computes them, and strides, taking tiles and padding into account.

Source: ``ByteSizeOf``, ``ArraySize``, ``ArrayDataSize`` and ``ByteStrides`` in ``xla/shape_util.cc``, ``MaxSplitSize``
in ``xla/layout_util.cc``, ``GetDimensionStride`` in ``xla/index_util.h``. XLA's strides ignore tiles.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import SupportsIndex

from fastindex.core import digits
from fastindex.core.integers import as_integer
from fastindex.core.layout_fields import SplitConfig
from fastindex.core.shape import Shape, as_placed, as_shape
from fastindex.core.sizes import axes_of, bytes_of, check_sized
from fastindex.core.tiles import COMBINE, slot_of
from fastindex.errors import LayoutError, UnsupportedError


def element_count_recursive(shape: Shape | str) -> int:
    """Return the number of logical elements of an array, or of all arrays in a tuple.

    Source: ``ShapeUtil::ElementsInRecursive``.

    Raises
    ------
    UnsupportedError
        `shape` contains something other than arrays and tuples, or a dimension is unbounded.

    Examples
    --------
    >>> element_count_recursive("(f32[2], (s8[3,4]))")
    14
    """
    shape = as_shape(shape)
    return sum(leaf.element_count for leaf in shape.leaves())


def byte_size_of(shape: Shape | str, pointer_size: SupportsIndex = 8) -> int:
    """Return XLA's ``ByteSizeOf``: the bytes without padding, or of a tuple's table of pointers.

    Parameters
    ----------
    shape : Shape or str
    pointer_size : int
        Number of bytes of a pointer.

    Raises
    ------
    UnsupportedError
        A dimension is unbounded.
    LayoutError
        `pointer_size` is not positive.

    Examples
    --------
    >>> byte_size_of("f32[3,5]{1,0:T(2,2)}"), byte_size_of("(f32[3], token[])")
    (60, 16)
    """
    shape = as_shape(shape)
    pointer = as_integer(pointer_size, "pointer_size")
    if pointer < 1:
        raise LayoutError(f"pointer_size must be at least 1, got {pointer}", field="pointer_size")
    if shape.is_tuple:
        return pointer * len(shape.tuple_shapes)
    if shape.element_type == "opaque":
        return pointer
    return shape.logical_nbytes


def array_data_size(shape: Shape | str) -> int:
    """Return the number of bytes from the start of the buffer to the end of the last element.

    Source: ``ShapeUtil::ArrayDataSize``, which only considers the first tile. The last element is the one with the
    largest coordinates; a chain of tiles may place others after it. The result is 0 for an array without elements.

    Raises
    ------
    UnsupportedError
        This is not an array, it is sparse, or a dimension is unbounded.

    Examples
    --------
    >>> array_data_size("f32[3,5]{1,0:T(2,2)}")
    84
    """
    shape = as_placed(shape)
    if shape.element_count == 0:
        return 0
    return bytes_of(shape, slot_of(axes_of(shape), [size - 1 for size in shape.dimensions]) + 1)


def max_split_size(shape: Shape | str, dimension: SupportsIndex) -> int:
    """Return the size of the largest part into which the split configs divide a dimension.

    Source: ``LayoutUtil::MaxSplitSize``.

    Parameters
    ----------
    shape : Shape or str
    dimension : int
        Logical dimension; negative numbers count from the end.

    Raises
    ------
    OutOfBoundsError
        There is no such dimension.
    UnsupportedError
        This is not an array, or a dimension is unbounded.

    Examples
    --------
    >>> max_split_size("f32[150,200,100]{0,1,2:SC(0:30)(1:40,130)}", 1)
    90
    """
    shape = as_shape(shape)
    check_sized(shape)
    layout = shape.layout
    number = shape.dimension_number(dimension)
    size = shape.dimensions[number]
    for split in layout.split_configs:
        if layout.major_to_minor[split.dimension] == number:
            cuts = (0, *split.split_indices, size)
            return max(end - begin for begin, end in pairwise(cuts))
    return size


def max_elements_per_split(shape: Shape | str) -> int:
    """Return the number of elements in the largest part into which the split configs divide an array.

    Source: ``LayoutUtil::MaxElementsInPerSplit``.

    Raises
    ------
    UnsupportedError
        This is not an array, or a dimension is unbounded.

    Examples
    --------
    >>> max_elements_per_split("f32[150,200,100]{0,1,2:SC(0:30)(1:40,130)}")
    945000
    """
    shape = as_shape(shape)
    check_sized(shape)
    return math.prod(max_split_size(shape, i) for i in range(shape.rank))


def split_config(shape: Shape | str) -> SplitConfig | None:
    """Return the split config of a layout, or None if it has none.

    Source: ``LayoutUtil::GetSplitConfig``.

    Raises
    ------
    UnsupportedError
        This is not an array, or the layout has several split configs.

    Examples
    --------
    >>> split_config("f32[8]{0:SC(0:4)}")
    SplitConfig(dimension=0, split_indices=(4,))
    """
    shape = as_shape(shape)
    splits = shape.layout.split_configs
    if len(splits) > 1:
        raise UnsupportedError(f"{shape.cut_text()} has {len(splits)} split configs; read layout.split_configs")
    return splits[0] if splits else None


def xla_array_size(shape: Shape | str) -> int:
    """Return XLA's ``ArraySize``, the number of bytes that a device allocates for an array.

    It differs from `Shape.nbytes`, which follows the definition of a layout. In XLA's formula, only the first tile pads
    (and the second if the first has ``*``), split dimensions count with their largest part, and without tiles the tail
    alignment and the splits have no effect.

    Raises
    ------
    UnsupportedError
        This is not an array, a dimension is unbounded, or there is a ``*`` where XLA's formula needs a size.
    LayoutError
        The number of bytes does not fit int64.

    Examples
    --------
    >>> xla_array_size("bf16[]{:T(512)(2,1)}"), Shape.parse("bf16[]{:T(512)(2,1)}").nbytes
    (1024, 2048)
    """
    shape = as_shape(shape)
    check_sized(shape)
    layout = shape.layout
    if not layout.tiles:
        return bytes_of(shape, shape.element_count)
    sizes = [max_split_size(shape, number) for number in layout.minor_to_major]
    tile = layout.tiles[0][::-1]
    sizes += [1] * (len(tile) - len(sizes))
    second = layout.tiles[1][::-1] if len(layout.tiles) > 1 else ()
    for i, tile_size in enumerate(tile):
        if tile_size == COMBINE:
            tile_size = second[i] if i < len(second) else max(1, 32 // shape.element_bits)
            if tile_size == COMBINE:
                raise UnsupportedError(f"XLA's array size needs a tile size for *: {shape.cut_text()}")
        sizes[i] = -(-sizes[i] // tile_size) * tile_size
    alignment = layout.tail_padding_alignment_in_elements
    return bytes_of(shape, -(-math.prod(sizes) // alignment) * alignment)


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
    return digits.slot_strides(as_shape(shape))


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
