"""Loop nests that copy a box of one array into a box of another, for any two layouts.

Each dimension is analysed separately: between two tile boundaries, slots on both sides have a constant stride, and such
fragments repeat with constant strides themselves. Dimensions that `*` has merged cannot be separated; there, every
element is enumerated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Loop, Nest, coalesced
from fastindex.algebra.strided_runs import progressions
from fastindex.core.shape import Shape
from fastindex.core.sizes import axes_of
from fastindex.core.tiles import Axis, CountAxis, DimensionAxis, MergedAxis, OffsetAxis
from fastindex.index.programs import linear_program

Numbers = NDArray[np.int64]

#: Fragments by kind: the loops within a fragment, and the start of each fragment on both sides.
Pieces = dict[tuple[Loop, ...], tuple[Numbers, Numbers]]


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
    (Cuts(step=2, period=16), Cuts(step=128, period=128))
    """
    events: set[tuple[Axis, int]] = set()
    for axis in axes_of(shape):
        while isinstance(axis, CountAxis | OffsetAxis):
            events.add((axis.whole, axis.tile_size if isinstance(axis, CountAxis) else axis.size))
            axis = axis.whole
        if isinstance(axis, MergedAxis):
            return None
    sizes: list[list[int]] = [[] for _ in range(shape.rank)]
    for whole, size in events:
        axis = whole
        while isinstance(axis, CountAxis | OffsetAxis):
            axis = axis.whole
        if isinstance(axis, DimensionAxis) and size > 1:
            sizes[axis.dimension].append(size)
    return tuple(Cuts(math.gcd(*of_dimension), math.prod(of_dimension)) for of_dimension in sizes)


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

    Examples
    --------
    >>> plain, tiled = Shape.parse("f32[4,256]"), Shape.parse("f32[8,128]{1,0:T(8,128)}")
    >>> box_nests(plain, tiled, (0, 100), (2, 0), (4, 128))[0].loops
    (Loop(size=128, source_stride=1, destination_stride=1), Loop(size=4, source_stride=256, destination_stride=128))
    """
    cuts = cuts_of(source), cuts_of(target)
    if cuts[0] is None or cuts[1] is None:
        pieces = [_merged_pieces(source, target, source_start, target_start, sizes)]
    else:
        pieces = [
            _pieces_along((source, cuts[0][d], d, source_start[d]), (target, cuts[1][d], d, target_start[d]), size)
            for d, size in enumerate(sizes)
        ]
    nests = []
    for chosen in itertools.product(*map(nests_of, pieces)):
        loops = tuple(loop for nest in chosen for loop in nest.loops)
        starts = sum(nest.source_start for nest in chosen), sum(nest.destination_start for nest in chosen)
        nests.append(coalesced(Nest(loops, *starts)))
    return tuple(nests)


def nests_of(pieces: Pieces) -> list[Nest]:
    """Return the loop nest of each fragment."""
    return [
        Nest(loops, int(begin), int(end))
        for loops, (begins, ends) in pieces.items()
        for begin, end in zip(begins, ends, strict=True)
    ]


def _pieces_along(source: tuple[Shape, Cuts, int, int], target: tuple[Shape, Cuts, int, int], size: int) -> Pieces:
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
        begins = begins[heads]
        lengths = np.diff(begins, append=size)
        slots = [side[heads] for side in slots]
    pieces: Pieces = {}
    for length in np.unique(lengths).tolist():
        chosen = lengths == length
        loops = (Loop(length, steps[0], steps[1]),) if length > 1 else ()
        pieces[loops] = slots[0][chosen] - first[0], slots[1][chosen] - first[1]
    return gathered(pieces)


def _merged_pieces(
    source: Shape, target: Shape, source_start: Sequence[int], target_start: Sequence[int], sizes: Sequence[int]
) -> Pieces:
    slots = []
    for shape, start in ((source, source_start), (target, target_start)):
        axes = np.ix_(*(np.arange(begin, begin + size) for begin, size in zip(start, sizes, strict=True)))
        (found,), _ = linear_program(shape).evaluate(axes)
        flat = np.broadcast_to(np.asarray(found, np.int64), tuple(sizes)).reshape(-1)
        slots.append(flat - flat[0])
    order = np.argsort(slots[1], kind="stable")
    return gathered({(): (slots[0][order], slots[1][order])})


def gathered(pieces: Pieces) -> Pieces:
    """Merge fragments of one kind with a constant stride into a loop, until nothing more can be merged.

    Examples
    --------
    >>> list(gathered({(): (np.array([0, 1, 8, 9]), np.array([0, 2, 4, 6]))}))
    [(Loop(size=2, source_stride=1, destination_stride=2), Loop(size=2, source_stride=8, destination_stride=4))]
    """
    while True:
        found: dict[tuple[Loop, ...], list[tuple[int, int]]] = {}
        shorter = False
        for loops, (starts, ends) in pieces.items():
            for at, count, steps in progressions(starts, ends):
                kind = (*loops, Loop(count, *steps)) if count > 1 else loops
                shorter = shorter or count > 1
                found.setdefault(kind, []).append((int(starts[at]), int(ends[at])))
        if not shorter:
            return pieces
        pieces = {}
        for kind, places in found.items():
            table = np.array(sorted(places, key=lambda place: place[1]), np.int64)
            pieces[kind] = table[:, 0], table[:, 1]


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
