"""Loop nests that copy a box of one array into a box of another, for any two layouts.

Each dimension is analysed separately: between two tile boundaries, slots on both sides have a constant stride, and such
fragments repeat with constant strides themselves. Dimensions that `*` has merged cannot be separated; there, every
element is enumerated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Loop, Nest, coalesced, products
from fastindex.algebra.strided_runs import progressions
from fastindex.core.shape import Shape
from fastindex.core.sizes import axes_of
from fastindex.core.tiles import Axis, CountAxis, DimensionAxis, MergedAxis, OffsetAxis
from fastindex.errors import UnsupportedError
from fastindex.index.programs import linear_program

Numbers = NDArray[np.int64]

#: Most elements of a box that are enumerated: some gigabytes of offsets.
_MOST_LISTED = 1 << 27


@dataclass(frozen=True, slots=True)
class Cuts:
    """The tile boundaries of a dimension.

    Attributes
    ----------
    step : int
        Divisor of all boundaries; 0 where there are none.
    period : int
        Increment of the coordinate that always changes the slot by the same amount.
    """

    step: int
    period: int


@lru_cache(maxsize=256)
def cuts_of(shape: Shape) -> tuple[Cuts, ...] | None:
    """Return the tile boundaries of each dimension, or None where `*` has merged dimensions.

    Examples
    --------
    >>> cuts_of(Shape.parse("bf16[64,256]{1,0:T(8,128)(2,1)}"))
    (Cuts(step=2, period=8), Cuts(step=128, period=128))
    """
    sizes: list[list[int]] = [[] for _ in range(shape.rank)]
    periods = [1] * shape.rank
    for axis in axes_of(shape):
        found = _axis_cuts(axis)
        if found is None:
            return None
        dimension, of_axis, period, _ = found
        if dimension is not None:
            sizes[dimension] += of_axis
            periods[dimension] = math.lcm(periods[dimension], period)
    return tuple(Cuts(math.gcd(*of_dimension), period) for of_dimension, period in zip(sizes, periods, strict=True))


def _axis_cuts(axis: Axis) -> tuple[int | None, list[int], int, int] | None:
    """Return an axis's dimension, its tile sizes, its period, and its increment from period to period."""
    if isinstance(axis, DimensionAxis):
        return axis.dimension, [], 1, 1
    if isinstance(axis, CountAxis | OffsetAxis):
        found = _axis_cuts(axis.whole)
        if found is None:
            return None
        dimension, sizes, period, step = found
        size = axis.tile_size if isinstance(axis, CountAxis) else axis.size
        times = size // math.gcd(size, step)
        after = step * times // size if isinstance(axis, CountAxis) else 0
        return dimension, [*sizes, size] if size > 1 else sizes, period * times, after
    return None if isinstance(axis, MergedAxis) else (None, [], 1, 0)


def slots_along(shape: Shape, dimension: int, coordinates: Numbers) -> Numbers:
    """Return the contribution of coordinates of one dimension to the slot; only without merged dimensions."""
    inputs = [np.zeros(1, np.int64)] * shape.rank
    inputs[dimension] = coordinates
    (slots,), _ = linear_program(shape).evaluate(inputs)
    return np.broadcast_to(np.asarray(slots, np.int64), coordinates.shape)


def box_nests(
    source: Shape, target: Shape, source_start: Sequence[int], target_start: Sequence[int], sizes: Sequence[int]
) -> tuple[Nest, ...]:
    """Return the loop nests that copy a box, in elements, relative to the slot of its first element on both sides.

    Parameters
    ----------
    source, target : Shape
    source_start, target_start : sequence of int
        Start of the box in either array.
    sizes : sequence of int
        Sizes of the box, at least 1 each.

    Raises
    ------
    UnsupportedError
        A tile merges dimensions and the box has more than 2**27 elements.

    Examples
    --------
    >>> plain, tiled = Shape.parse("f32[4,256]"), Shape.parse("f32[8,128]{1,0:T(8,128)}")
    >>> box_nests(plain, tiled, (0, 100), (2, 0), (4, 128))[0].loops
    (Loop(size=128, source_stride=1, destination_stride=1), Loop(size=4, source_stride=256, destination_stride=128))
    """
    cuts = cuts_of(source), cuts_of(target)
    if cuts[0] is None or cuts[1] is None:
        along = [_merged_nests(source, target, source_start, target_start, sizes)]
    else:
        along = [
            _nests_along((source, cuts[0][d], d, source_start[d]), (target, cuts[1][d], d, target_start[d]), size)
            for d, size in enumerate(sizes)
        ]
    return tuple(coalesced(nest) for nest in products(along))


@dataclass(frozen=True, slots=True)
class _Fragments:
    """The parts of a dimension within which slots on both sides have a constant stride.

    Attributes
    ----------
    lengths : int64 array
    slots : two int64 arrays
        Slot of the first element of each fragment on both sides, relative to that of the first fragment.
    steps : tuple of int
        Distance of neighbours within a fragment on both sides.
    """

    lengths: Numbers
    slots: tuple[Numbers, Numbers]
    steps: tuple[int, int]

    def begins(self) -> Numbers:
        """Return the position of each fragment."""
        return np.cumsum(self.lengths) - self.lengths

    def nests(self, chosen: slice, moved: tuple[int, int] = (0, 0)) -> list[Nest]:
        """Return the loops over fragments, shifted by `moved` on both sides."""
        lengths, starts, ends = self.lengths[chosen], self.slots[0][chosen] + moved[0], self.slots[1][chosen] + moved[1]
        found = []
        for length in np.unique(lengths).tolist():
            inner = (Loop(length, *self.steps),) if length > 1 else ()
            alike = table_nests(starts[lengths == length], ends[lengths == length])
            found += [nest._replace(loops=inner + nest.loops) for nest in alike]
        return found


def _nests_along(source: tuple[Shape, Cuts, int, int], target: tuple[Shape, Cuts, int, int], size: int) -> list[Nest]:
    # Both sides repeat: three periods and the remainder show the fragments of any number of periods.
    period = math.lcm(source[1].period, target[1].period)
    skipped = max(size // period - 3, 0)
    found = _fragments(source, target, size - skipped * period)
    if not skipped:
        return found.nests(slice(None))
    if len(found.lengths) == 1:
        return [Nest((Loop(size, *found.steps),))]
    begins = found.begins()
    jumps = [
        np.abs(np.diff(slots) - found.lengths[:-1] * step) for slots, step in zip(found.slots, found.steps, strict=True)
    ]
    # A period that begins at the farthest jump of the target splits no tile.
    within = begins[1:] <= period
    first = 1 + int(np.lexsort((jumps[0][within], jumps[1][within]))[-1])
    first = 0 if begins[first] == period else first
    count = (size - int(begins[first])) // period
    second, last = np.searchsorted(begins, begins[first] + period * np.array([1, count - skipped])).tolist()
    step = int(found.slots[0][second] - found.slots[0][first]), int(found.slots[1][second] - found.slots[1][first])
    repeated = [nest._replace(loops=(*nest.loops, Loop(count, *step))) for nest in found.nests(slice(first, second))]
    after = found.nests(slice(last, None), (skipped * step[0], skipped * step[1]))
    return [*found.nests(slice(0, first)), *repeated, *after]


def _fragments(source: tuple[Shape, Cuts, int, int], target: tuple[Shape, Cuts, int, int], size: int) -> _Fragments:
    edges = {0}
    for _, cuts, _, start in (source, target):
        if cuts.step:
            edges.update(range(-start % cuts.step, size, cuts.step))
    begins = np.array(sorted(edges), np.int64)
    lengths = np.diff(begins, append=size)
    slots = [slots_along(shape, d, begins + start) for shape, _, d, start in (source, target)]
    steps = [0, 0]
    longest = int(np.argmax(lengths))
    if lengths[longest] > 1:
        second = begins[longest : longest + 1] + 1
        for side, (shape, _, d, start) in enumerate((source, target)):
            steps[side] = int(slots_along(shape, d, second + start)[0] - slots[side][longest])
    first = [int(side[0]) for side in slots]
    if len(begins) > 1 and lengths[longest] > 1:
        goes_on = np.ones(len(begins) - 1, np.bool_)
        for side in range(2):
            goes_on &= slots[side][1:] == slots[side][:-1] + lengths[:-1] * steps[side]
        heads = np.flatnonzero(np.concatenate([[True], ~goes_on]))
        lengths = np.diff(begins[heads], append=size)
        slots = [side[heads] for side in slots]
    return _Fragments(lengths, (slots[0] - first[0], slots[1] - first[1]), (steps[0], steps[1]))


def _merged_nests(
    source: Shape, target: Shape, source_start: Sequence[int], target_start: Sequence[int], sizes: Sequence[int]
) -> list[Nest]:
    if math.prod(sizes) > _MOST_LISTED:
        raise UnsupportedError(
            f"a tile of {source} or {target} merges dimensions by *, which would list {math.prod(sizes)} elements of a"
            f" box one by one, more than {_MOST_LISTED}; use layouts without *"
        )
    slots = []
    for shape, start in ((source, source_start), (target, target_start)):
        axes = np.ix_(*(np.arange(begin, begin + size) for begin, size in zip(start, sizes, strict=True)))
        (found,), _ = linear_program(shape).evaluate(axes)
        flat = np.broadcast_to(np.asarray(found, np.int64), tuple(sizes)).reshape(-1)
        slots.append(flat - flat[0])
    order = np.argsort(slots[1], kind="stable")
    return table_nests(slots[0][order], slots[1][order])


def table_nests(starts: Numbers, ends: Numbers) -> list[Nest]:
    """Return a table of offsets on both sides as loops.

    Examples
    --------
    >>> table_nests(np.array([0, 1, 8, 9]), np.array([0, 2, 4, 6]))[0].loops
    (Loop(size=2, source_stride=1, destination_stride=2), Loop(size=2, source_stride=8, destination_stride=4))
    """
    return joined_nests(list(_progressions((), starts, ends)))


def joined_nests(nests: list[Nest]) -> list[Nest]:
    """Merge nests with the same loops and a constant stride into loops, until nothing more can be merged."""
    while True:
        kinds: dict[tuple[Loop, ...], list[tuple[int, int]]] = {}
        for nest in nests:
            kinds.setdefault(nest.loops, []).append((nest.source_start, nest.destination_start))
        found: list[Nest] = []
        for loops, places in kinds.items():
            table = np.array(sorted(places, key=lambda place: place[1]), np.int64)
            found += _progressions(loops, table[:, 0], table[:, 1])
        if len(found) == len(nests):
            return found
        nests = found


def _progressions(loops: tuple[Loop, ...], starts: Numbers, ends: Numbers) -> Iterator[Nest]:
    for at, count, steps in progressions(starts, ends):
        outer = (Loop(count, *steps),) if count > 1 else ()
        yield Nest(loops + outer, int(starts[at]), int(ends[at]))


def nest_offsets(nest: Nest) -> Numbers:
    """Return the offsets of every iteration of a nest on both sides, as pairs; the last loop is the innermost.

    Examples
    --------
    >>> nest_offsets(Nest((Loop(2, 8, 1), Loop(2, 1, 4)), 100, 0)).tolist()
    [[100, 0], [101, 4], [108, 1], [109, 5]]
    """
    offsets = np.array([[nest.source_start, nest.destination_start]], np.int64)
    for size, source, destination in nest.loops:
        steps = np.arange(size)[:, None] * np.array([source, destination])
        offsets = (offsets[:, None] + steps).reshape(-1, 2)
    return offsets
