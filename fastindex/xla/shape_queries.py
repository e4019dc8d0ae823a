"""Questions about shapes and their layouts, XLA's comparisons of two shapes, and single indices.

`fastindex.linear_index` and others convert indices in bulk.

Source: ``xla/shape_util.h``, ``xla/layout_util.h`` and ``xla/index_util.h``; the names are XLA's in Python's spelling.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import SupportsIndex

from fastindex.core.integers import UNBOUNDED, as_integers, inverse, spelled
from fastindex.core.layout_fields import LAYOUT_PARTS, checked_parts, layouts_equal
from fastindex.core.shape import Shape, as_placed, as_shape
from fastindex.core.shape_fields import same_dimensions as have_same_dimensions
from fastindex.core.shape_fields import same_tree
from fastindex.errors import LayoutError, OutOfBoundsError, UnsupportedError


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


def same_dimensions(a: Shape | str, b: Shape | str) -> bool:
    """Whether two shapes have the same sizes; ``?`` matches any.

    Examples
    --------
    >>> same_dimensions("f32[2,3]", "s8[2,?]")
    True
    """
    return have_same_dimensions(as_shape(a), as_shape(b))


def compatible(a: Shape | str, b: Shape | str) -> bool:
    """Whether two shapes are equal, ignoring layouts and dynamic dimensions.

    Examples
    --------
    >>> compatible("f32[2,3]{1,0}", "f32[<=2,3]{0,1}")
    True
    """
    return as_shape(a).equals(b, ("layout", "dynamic_dimensions"))


def compatible_ignoring_element_type(a: Shape | str, b: Shape | str) -> bool:
    """Whether two shapes are equal, ignoring layouts, dynamic dimensions and element types.

    Examples
    --------
    >>> compatible_ignoring_element_type("f32[2]", "s8[2]")
    True
    """
    return as_shape(a).equals(b, ("layout", "dynamic_dimensions", "element_type"))


def compatible_ignoring_fp_precision(a: Shape | str, b: Shape | str) -> bool:
    """Whether two shapes are equal, ignoring layouts, dynamic dimensions and floating-point precision.

    Examples
    --------
    >>> compatible_ignoring_fp_precision("f32[2]", "bf16[2]")
    True
    """
    return as_shape(a).equals(b, ("layout", "dynamic_dimensions", "fp_precision"))


def compatible_kind(a: Shape | str, b: Shape | str) -> bool:
    """Whether two shapes have the same structure and kinds: arrays of the same rank, tuples, tokens, and so on.

    Examples
    --------
    >>> compatible_kind("(f32[2], token[])", "(s8[9], token[])")
    True
    """
    return as_shape(a).equals(b, ("layout", "dynamic_dimensions", "element_type", "dimensions"))


def equal_structure(a: Shape | str, b: Shape | str) -> bool:
    """Whether two shapes have the same nested tuples, ignoring their leaves.

    Examples
    --------
    >>> equal_structure("(f32[2], ())", "(token[], ())")
    True
    """
    return same_tree(as_shape(a), as_shape(b), lambda left, right: True)


def layouts_in_shapes_equal(a: Shape | str, b: Shape | str, ignore: Collection[str] = ()) -> bool:
    """Whether the arrays of two shapes have the same layouts, ignoring their types and sizes.

    Source: ``LayoutUtil::LayoutsInShapesEqual``. Unlike in XLA, `ignore` also applies inside tuples.

    Parameters
    ----------
    a, b : Shape or str
    ignore : collection of str
        Fields of the layouts to ignore, as for `Layout.equals`.

    Raises
    ------
    FastIndexError
        `ignore` has an unknown name.

    Examples
    --------
    >>> layouts_in_shapes_equal("(f32[2,3]{0,1})", "(s8[4,5]{0,1})")
    True
    """
    ignored = checked_parts(ignore, LAYOUT_PARTS)

    def same_layout(left: Shape, right: Shape) -> bool:
        if not (left.is_array and right.is_array):
            return left.is_array == right.is_array
        return left.rank == right.rank and layouts_equal(left.layout, right.layout, ignored)

    return same_tree(as_shape(a), as_shape(b), same_layout)


def index_in_bounds(shape: Shape | str, multi_index: Iterable[SupportsIndex]) -> bool:
    """Whether `multi_index` is in bounds; negative coordinates are not.

    Raises
    ------
    UnsupportedError
        This is not an array, or a dimension is unbounded.

    Examples
    --------
    >>> s = "f32[3,5]"
    >>> [index_in_bounds(s, index) for index in ((2, 4), (2, 5), (-1, 0), (2,))]
    [True, False, False, False]
    """
    shape = as_placed(shape)
    index = as_integers(multi_index, "multi_index")
    return len(index) == shape.rank and all(0 <= i < size for i, size in zip(index, shape.dimensions, strict=True))


def bump_index(shape: Shape | str, multi_index: Iterable[SupportsIndex]) -> tuple[int, ...] | None:
    """Return the next index, with the last dimension varying fastest, or None after the last index.

    Source: ``IndexUtil::BumpIndices``.

    Raises
    ------
    OutOfBoundsError
        `multi_index` is out of bounds.

    Examples
    --------
    >>> s = "f32[3,5]"
    >>> bump_index(s, (0, 4)), bump_index(s, (2, 4))
    ((1, 0), None)
    """
    shape = as_shape(shape)
    index = list(as_integers(multi_index, "multi_index"))
    if not index_in_bounds(shape, index):
        raise OutOfBoundsError(f"index {spelled(index)} is out of bounds for {shape.cut_text()}")
    for number in range(shape.rank - 1, -1, -1):
        index[number] += 1
        if index[number] < shape.dimensions[number]:
            return tuple(index)
        index[number] = 0
    return None


def indices(
    shape: Shape | str,
    base: Sequence[SupportsIndex] | None = None,
    count: Sequence[SupportsIndex] | None = None,
    step: Sequence[SupportsIndex] | None = None,
) -> Iterator[tuple[int, ...]]:
    """Iterate over the indices of an array in the order of its layout, the most minor dimension varying fastest.

    Source: ``ShapeUtil::ForEachIndex``. Tiles do not affect the order.

    Parameters
    ----------
    shape : Shape or str
    base : sequence of int, optional
        The first index; by default, all 0.
    count : sequence of int, optional
        How far to go in each dimension; by default, to the end. A count of 0 means: stay at `base`.
    step : sequence of int, optional
        By default, 1.

    Raises
    ------
    LayoutError
        There is not one number per dimension, or a step is not positive although its count is not 0.
    OutOfBoundsError
        An index would be out of bounds.
    UnsupportedError
        This is not an array, or a dimension is unbounded.

    Examples
    --------
    >>> list(indices("f32[2,2]{0,1}"))
    [(0, 0), (1, 0), (0, 1), (1, 1)]
    >>> list(indices("f32[4,5]", base=(1, 0), count=(0, 5), step=(0, 2)))
    [(1, 0), (1, 2), (1, 4)]
    """
    shape = as_placed(shape)
    rank = shape.rank
    begins = as_integers(base, "base") if base is not None else (0,) * rank
    steps = as_integers(step, "step") if step is not None else (1,) * rank
    if count is not None:
        counts = as_integers(count, "count")
    else:
        counts = tuple([size - begin for size, begin in zip(shape.dimensions, begins, strict=False)])
    for name, values in (("base", begins), ("count", counts), ("step", steps)):
        if len(values) != rank:
            raise LayoutError(f"{name} must have one number per dimension, got {spelled(values)} for rank {rank}")
    for number, (begin, extent, stride) in enumerate(zip(begins, counts, steps, strict=True)):
        if begin < 0 or extent < 0 or begin + extent > shape.dimensions[number]:
            raise OutOfBoundsError(
                f"base {begin} and count {extent} do not fit dimension {number} of {shape.cut_text()}"
            )
        if stride < (extent > 0):
            raise LayoutError(f"a step must be at least 1 if its count is not 0, got {stride} for dimension {number}")
    return _walk(shape, begins, counts, steps)


def _walk(shape: Shape, base: Sequence[int], count: Sequence[int], step: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if 0 in shape.dimensions:
        return
    index = list(base)
    while True:
        yield tuple(index)
        for number in shape.layout.minor_to_major:
            index[number] += step[number]
            if index[number] < base[number] + count[number]:
                break
            index[number] = base[number]
        else:
            return
