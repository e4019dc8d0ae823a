"""How large boxes of an array should be when each is read, moved and written on its own.

A box of a given size costs less the longer its segments are on both sides; how much fits is given. Starting from the
smallest box, the dimension is doubled that leaves the least cost for each element, while the memory lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fastindex.lowering.subarrays.segments import Grid, box_segments, box_shape
from fastindex.shapes.shape import Shape

#: What one more segment costs, in bytes moved: a system call, and half a page at each end. Measured on an AMD EPYC
#: (family 26), 2026-11-22: a `pread` of 4 KiB takes as long as two thirds of a 12 KiB one.
SEGMENT_COST_BYTES = 8 << 10
#: What one more segment costs where a disk has to find it before anything else can go on. Same machine: 105 us for
#: 32 KiB anywhere, 33 us for the next 32 KiB; two boxes are read at a time.
SOUGHT_SEGMENT_COST_BYTES = 32 << 10

#: Memory and cost of a box of some sizes, both in bytes.
BoxCosts = Callable[[tuple[int, ...]], tuple[int, int]]


def segment_costs(shape: Shape, sizes: tuple[int, ...], segment_cost: int = SEGMENT_COST_BYTES) -> tuple[int, int]:
    """Return the bytes of a box in a layout, and what it costs to read or write its segments.

    Examples
    --------
    >>> shape = Shape.parse("f32[4096,4096]")
    >>> segment_costs(shape, (1, 4096)), segment_costs(shape, (4096, 1))
    ((16384, 24576), (16384, 33570816))
    """
    box = Grid(shape.dimensions, sizes).box((0,) * shape.rank)
    nbytes = box_shape(shape, box).nbytes
    return nbytes, nbytes + segment_cost * sum(run.piece_count for run in box_segments(shape, box))


def box_sizes(
    dimensions: Sequence[int], steps: Sequence[int], costs: BoxCosts, most_bytes: int, counted: int | None = None
) -> tuple[int, ...] | None:
    """Choose the sizes of boxes.

    Parameters
    ----------
    dimensions : sequence of int
        Of the array.
    steps : sequence of int
        Sizes are multiples of these, or the whole dimension.
    costs : callable
        Memory and cost of a box; memory grows with every size.
    most_bytes : int
        The most memory of a box.
    counted : int, optional
        The fewest boxes wanted, so that there is work for several threads and progress to show; fewer where the array
        has no more.

    Returns
    -------
    tuple of int or None
        None where the smallest box takes more memory.

    Examples
    --------
    >>> rows, columns = Shape.parse("f32[4096,4096]{1,0}"), Shape.parse("f32[4096,4096]{0,1}")
    >>> def costs(sizes):
    ...     sides = [segment_costs(shape, sizes) for shape in (rows, columns)]
    ...     return sum(memory for memory, _ in sides), sum(cost for _, cost in sides)
    >>> box_sizes((4096, 4096), (1, 1), costs, 8 << 20)
    (1024, 1024)
    """
    whole = [max(size, 1) for size in dimensions]
    sizes = [min(step, size) for step, size in zip(steps, whole, strict=True)]
    if costs(tuple(sizes))[0] > most_bytes:
        return None
    most_elements = math.prod(whole) // (counted or 1)
    growing = {d for d, size in enumerate(sizes) if size < whole[d]}
    while growing:
        options = []
        for d in growing:
            grown = [*sizes]
            grown[d] = min(2 * sizes[d], whole[d])
            memory, cost = costs(tuple(grown))
            elements = math.prod(grown)
            options.append((cost / elements, memory, d, grown, elements))
        # The dimension whose growth leaves the least cost for each element.
        _, memory, d, grown, elements = min(options)
        if memory > most_bytes or elements > max(most_elements, 1):
            growing.remove(d)
            continue
        sizes = grown
        if sizes[d] == whole[d]:
            growing.remove(d)
    return tuple(sizes)
