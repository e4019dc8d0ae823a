"""The slot of a single element, in Python integers."""

from __future__ import annotations

from collections.abc import Sequence

from fastindex.tiling.definition import (
    Axis,
    CountAxis,
    DimensionAxis,
    MergedAxis,
    OffsetAxis,
    axis_strides,
    parts_first,
)


def axis_values(axes: Sequence[Axis], multi_index: Sequence[int]) -> list[int]:
    """Return the coordinates along `axes` of the element at `multi_index`.

    Examples
    --------
    >>> axis_values([CountAxis(3, DimensionAxis(5, 0, 5), 2)], [4])
    [2]
    """
    known: dict[Axis, int] = {}
    for axis in parts_first(axes):
        match axis:
            case DimensionAxis(dimension=dimension):
                known[axis] = multi_index[dimension]
            case MergedAxis(outer=outer, inner=inner):
                known[axis] = known[outer] * inner.size + known[inner]
            case CountAxis(whole=whole, tile_size=tile_size):
                known[axis] = known[whole] // tile_size
            case OffsetAxis(whole=whole):
                known[axis] = known[whole] % axis.size
            case _:
                known[axis] = 0
    return [known[axis] for axis in axes]


def slot_of(axes: Sequence[Axis], multi_index: Sequence[int]) -> int:
    """Return the slot of the element at `multi_index`, which must be in bounds.

    Parameters
    ----------
    axes : sequence of Axis
        The axes of the physical array, from `fastindex.tiling.definition.physical_axes`.
    multi_index : sequence of int
        One coordinate per dimension.

    Examples
    --------
    >>> from fastindex.tiling.definition import physical_axes
    >>> slot_of(physical_axes((3, 5), (1, 0), None, ((2, 2),)), [2, 3])
    17
    """
    values = axis_values(axes, multi_index)
    return sum(stride * value for stride, value in zip(axis_strides(axes), values, strict=True))
