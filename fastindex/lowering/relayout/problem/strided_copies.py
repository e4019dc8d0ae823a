"""A copy between two strided arrays of one shape as a nest of loops, whatever the signs of the strides."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastindex.lowering.relayout.problem.loops import Loop, Nest, coalesced

#: Bytes that a kernel moves as one element, at most.
_MOST_BYTES = 16


def strided_copy(
    dimensions: Sequence[int], itemsize: int, source_strides: Sequence[int], destination_strides: Sequence[int]
) -> tuple[Nest, int]:
    """Express a copy between two strided arrays as loops over units that a kernel moves as one.

    Parameters
    ----------
    dimensions : sequence of int
        Sizes, none of them 0.
    itemsize : int
        Bytes of an element, at least 1.
    source_strides, destination_strides : sequence of int
        Bytes, one per dimension, of any sign. In the source 0 repeats an element; the elements of the destination must
        not overlap.

    Returns
    -------
    nest : Nest
        In units; its starts are where the first loops begin, seen from the first element of each array, and may be
        negative.
    width : int
        Bytes of a unit: the largest power of two, at most 16, that divides the element and every stride.

    Examples
    --------
    >>> strided_copy((2, 3), 12, (36, 12), (12, 24))[1]
    4
    >>> strided_copy((5,), 4, (-4,), (8,))
    (Nest(loops=(Loop(size=5, source_stride=1, destination_stride=-2),), source_start=-4, destination_start=8), 4)
    """
    steps = [step for step in zip(dimensions, source_strides, destination_strides, strict=True) if step[0] > 1]
    width = math.gcd(_MOST_BYTES, itemsize, *(stride for _, *strides in steps for stride in strides))
    loops = [Loop(itemsize // width, 1, 1)]
    source_start = destination_start = 0
    for size, source, destination in steps:
        loop = Loop(size, source // width, destination // width)
        if _runs_backwards(loop):
            source_start += (size - 1) * loop.source_stride
            destination_start += (size - 1) * loop.destination_stride
            loop = Loop(size, -loop.source_stride, -loop.destination_stride)
        loops.append(loop)
    return coalesced(Nest(tuple(loops), source_start, destination_start)), width


def _runs_backwards(loop: Loop) -> bool:
    """Whether a loop is better walked from its end: kernels look for the side whose neighbours are adjacent."""
    if abs(loop.source_stride) < abs(loop.destination_stride) and loop.source_stride:
        return loop.source_stride < 0
    return loop.destination_stride < 0
