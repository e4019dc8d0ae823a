"""The effect of reshapes and transposes on dimensions, and layouts that make them bitcasts.

Source: ``xla/shape_util.h``; the names are XLA's in Python's spelling.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import SupportsIndex

from fastindex.core.integers import as_integers, checked_permutation, common_factors, inverse, permuted, spelled
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape, as_placed, as_shape
from fastindex.errors import LayoutError, UnsupportedError
from fastindex.xla.bitcasts import reshape_is_bitcast
from fastindex.xla.shape_edits import descending_with_same_physical_layout, drop_degenerate_dimensions
from fastindex.xla.shape_queries import is_monotonic_with_dim0_major


def dimensions_unmodified_by_reshape(a: Shape | str, b: Shape | str) -> list[tuple[int, int]]:
    """Return the pairs of dimensions, one of `a` and one of `b`, that a reshape does not modify.

    Raises
    ------
    LayoutError
        The shapes do not hold the same number of elements.
    UnsupportedError
        A shape is not an array, or has an unbounded dimension.

    Examples
    --------
    >>> dimensions_unmodified_by_reshape("f32[2,3,4]", "f32[6,4]")
    [(2, 1)]
    """
    a, b = as_placed(a), as_placed(b)
    bounds = common_factors(a.dimensions, b.dimensions)
    return [begin for begin, end in pairwise(bounds) if (end[0] - begin[0], end[1] - begin[1]) == (1, 1)]


def inserted_or_deleted_1_sized_dimensions(a: Shape | str, b: Shape | str) -> tuple[list[int], list[int]] | None:
    """Return the dimensions of `a` that a reshape deletes and those of `b` that it inserts, all of size 1.

    Return None if the reshape does more than that.

    Raises
    ------
    LayoutError
        The shapes do not hold the same number of elements.
    UnsupportedError
        A shape is not an array, or has an unbounded dimension.

    Examples
    --------
    >>> inserted_or_deleted_1_sized_dimensions("f32[1,3,4]", "f32[3,1,4]")
    ([0], [1])
    """
    a, b = as_shape(a), as_shape(b)
    unmodified = dimensions_unmodified_by_reshape(a, b)
    kept_a, kept_b = {pair[0] for pair in unmodified}, {pair[1] for pair in unmodified}
    deleted = [i for i in range(a.rank) if i not in kept_a]
    inserted = [i for i in range(b.rank) if i not in kept_b]
    if any(a.dimensions[i] > 1 for i in deleted) or any(b.dimensions[i] > 1 for i in inserted):
        return None
    return deleted, inserted


def reshape_leaves_dimensions_unmodified(
    a: Shape | str, b: Shape | str, dimensions: Iterable[SupportsIndex]
) -> tuple[int, ...] | None:
    """Return the dimensions of `b` that `dimensions` of `a` become, or None if the reshape modifies one of them.

    `dimensions` must be in ascending order; otherwise the result is None.

    Raises
    ------
    LayoutError
        The shapes do not hold the same number of elements.
    UnsupportedError
        A shape is not an array, or has an unbounded dimension.

    Examples
    --------
    >>> reshape_leaves_dimensions_unmodified("f32[2,3,4]", "f32[6,4]", (2,))
    (1,)
    """
    a, b = as_shape(a), as_shape(b)
    wanted = as_integers(dimensions, "dimensions")
    becomes = dict(dimensions_unmodified_by_reshape(a, b))
    if list(wanted) != sorted(wanted) or not all(number in becomes for number in wanted):
        return None
    return tuple([becomes[number] for number in wanted])


def normalized_logical_transpose_shape(
    a: Shape | str, b: Shape | str, dimensions: Iterable[SupportsIndex]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the simplest equivalent of a transpose from `a` to `b`: its sizes and its permutation.

    Dimensions of size 1 are dropped, and dimensions that stay adjacent are merged.

    Parameters
    ----------
    a, b : Shape or str
        Arrays in the default order of dimensions.
    dimensions : sequence of int
        Dimension i of `b` is dimension ``dimensions[i]`` of `a`.

    Returns
    -------
    sizes : tuple of int
        Sizes of the result.
    permutation : tuple of int

    Raises
    ------
    LayoutError
        `dimensions` does not take `a` to `b`.
    UnsupportedError
        A layout does not have the default order.

    Examples
    --------
    >>> a, b = "f32[2,3,1,5]", "f32[5,2,3,1]"
    >>> normalized_logical_transpose_shape(a, b, (3, 0, 1, 2))
    ((5, 6), (1, 0))
    """
    a, b = as_shape(a), as_shape(b)
    for shape in (a, b):
        if not is_monotonic_with_dim0_major(shape):
            raise UnsupportedError(f"the layout must have the default order: {shape.cut_text()}")
    order = checked_permutation(dimensions, a.rank)
    if permuted(a.dimensions, order) != b.dimensions:
        raise LayoutError(f"{spelled(order)} does not transpose {a.cut_text()} to {b.cut_text()}")
    kept = [old for old in order if a.dimensions[old] != 1]
    if not kept:
        return (1,), (0,)
    # Each run is adjacent in both shapes.
    larger = [number for number in range(a.rank) if a.dimensions[number] != 1]
    runs = [[kept[0]]]
    for old in kept[1:]:
        if larger.index(old) == larger.index(runs[-1][-1]) + 1:
            runs[-1].append(old)
        else:
            runs.append([old])
    sizes = tuple([math.prod(a.dimensions[old] for old in run) for run in runs])
    in_a = sorted(run[0] for run in runs)
    return sizes, tuple([in_a.index(run[0]) for run in runs])


def align_layouts(a: Shape | str, b: Shape | str) -> Shape | None:
    """Return `b` in the layout that makes reshaping `a` to `b` a bitcast, or None if there is none.

    The result has no tiles or padding, so it is None for an array whose tiles have an effect.

    Raises
    ------
    LayoutError
        The shapes do not hold the same number of elements.
    UnsupportedError
        A shape is not an array, is sparse, or has an unbounded dimension.

    Examples
    --------
    >>> str(align_layouts("f32[4,6,5]{1,0,2}", "f32[24,5]"))
    'f32[24,5]{0,1}'
    """
    a, b = as_placed(a), as_placed(b)
    small_a, small_b = drop_degenerate_dimensions(a), drop_degenerate_dimensions(b)
    bounds = common_factors(small_a.dimensions, small_b.dimensions)
    starts = {begin[0]: (begin, end) for begin, end in pairwise(bounds)}
    # The runs in the order of memory, most major first.
    order: list[int] = []
    for number in small_a.layout.major_to_minor:
        if number in starts:
            begin, end = starts[number]
            order += range(begin[1], end[1])
    larger = [number for number, size in enumerate(b.dimensions) if size != 1]
    ones = [number for number, size in enumerate(b.dimensions) if size == 1]
    minor_to_major = (*[larger[number] for number in reversed(order)], *reversed(ones))
    aligned = b.with_layout(Layout(minor_to_major, element_size_in_bits=a.layout.element_size_in_bits))
    return aligned if reshape_is_bitcast(a, aligned) else None


@dataclass(frozen=True, slots=True)
class BitcastDecomposition:
    """A bitcast as a sequence of a transpose, a reshape and a transpose, each a bitcast.

    Attributes
    ----------
    transpose1_dimensions : tuple of int
    transpose1_shape : Shape
        With a descending layout, and the tiles of the source.
    reshape_shape : Shape
        With a descending layout, and the tiles of the result.
    transpose2_dimensions : tuple of int
    """

    transpose1_dimensions: tuple[int, ...]
    transpose1_shape: Shape
    reshape_shape: Shape
    transpose2_dimensions: tuple[int, ...]

    @property
    def is_transpose1_identity(self) -> bool:
        """Whether the first transpose is the identity.

        Examples
        --------
        >>> found = decompose_bitcast("f32[2,3]{1,0}", "f32[6]")
        >>> found.is_transpose1_identity, found.is_transpose2_identity
        (True, True)
        """
        return self.transpose1_dimensions == tuple(range(len(self.transpose1_dimensions)))

    @property
    def is_transpose2_identity(self) -> bool:
        """Whether the second transpose is the identity.

        Examples
        --------
        >>> decompose_bitcast("f32[2]", "f32[2,1]{0,1}").is_transpose2_identity
        False
        """
        return self.transpose2_dimensions == tuple(range(len(self.transpose2_dimensions)))


def decompose_bitcast(a: Shape | str, b: Shape | str) -> BitcastDecomposition | None:
    """Decompose a bitcast from `a` to `b` into a transpose, a reshape and a transpose.

    Tiles and padding are taken into account: each step leaves every element in its slot. Return None if there are no
    such steps: the two differ in the number or width of their elements, or their layouts differ in another way.

    Source: ``ShapeUtil::DecomposeBitcastToTrt``, which ignores tiles.

    Raises
    ------
    UnsupportedError
        A shape is not an array, is sparse, or has an unbounded dimension.

    Examples
    --------
    >>> found = decompose_bitcast("f32[2,3]{0,1}", "f32[6]{0}")
    >>> found.transpose1_dimensions, str(found.transpose1_shape), str(found.reshape_shape)
    ((1, 0), 'f32[3,2]{1,0}', 'f32[6]{0}')
    >>> found = decompose_bitcast("f32[2,6,64,129]{3,2,1,0:T(8,128)}", "f32[2,129,384]{1,2,0:T(8,128)}")
    >>> str(found.reshape_shape), found.transpose2_dimensions
    ('f32[2,384,129]{2,1,0:T(8,128)}', (0, 2, 1))
    """
    a, b = as_placed(a), as_placed(b)
    if a.element_count != b.element_count or a.element_bits != b.element_bits:
        return None
    before, after = descending_with_same_physical_layout(a), descending_with_same_physical_layout(b)
    # Only the width of elements matters for their slots, not their type.
    same_type = Shape(a.element_type, after.dimensions, after.layout, after.dynamic_dimensions)
    if not reshape_is_bitcast(before, same_type):
        return None
    return BitcastDecomposition(a.layout.major_to_minor, before, after, inverse(b.layout.major_to_minor))
