"""Queries about single indices; `fastindex.linear_index` and others convert in bulk.

Source: ``xla/index_util.h``; the names are XLA's in Python's spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import SupportsIndex

from fastindex.core.integers import as_integers, spelled
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import check_placed
from fastindex.errors import LayoutError, OutOfBoundsError


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
    shape = as_shape(shape)
    check_placed(shape)
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
    shape = as_shape(shape)
    check_placed(shape)
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
