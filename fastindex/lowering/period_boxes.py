"""Relayouts whose sides cut a coordinate at places that do not divide each other: box by box, through the cache.

A tile that merges dimensions, as (2,*,128) does, counts their joint coordinate in pieces of 128, and the other side
turns to its next row every 100, say. No loops serve both sides. But every 3200 values both begin anew, so boxes of
whole periods follow each other at regular distances on both sides. A box is copied to scratch memory where the
coordinate is linear, by loops that the source shares with it, and from there by loops that the destination shares.

Left to looking every slot up: sides that merge dimensions in two ways of which none continues the other, digits of sums
that a tile splits unevenly, and periods that scratch memory does not hold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from fastindex.lowering.pass_costs import cost
from fastindex.lowering.pass_form import Draft, Goal, iterations, no_tables
from fastindex.lowering.passes import copying_passes, fill_pass
from fastindex.lowering.relayout_loops import (
    Loop,
    Nest,
    coalesced,
    cut_into_boxes,
    in_bytes,
    padding_nests,
    products,
    shared_levels,
)
from fastindex.lowering.shared_digits import Strides, shared_digits
from fastindex.lowering.tuning import Tuning
from fastindex.shapes.shape import Shape
from fastindex.tables.boxes import BOX_BYTES, BoxGeometry
from fastindex.tables.cache_lines import LINE_BYTES
from fastindex.tiling.digits import Digit, Digits, Variable

# What a box has at most, if a period is not larger, and at all; what it has at least, if there is so much.
_MOST_BYTES, _LARGEST_BYTES, _LEAST_BYTES = 256 << 10, 2 * BOX_BYTES, 32 << 10
# Runs of the source and of the destination that are long enough.
_RUN_BYTES = 256, 512
# A line of a box waits for memory apart from what is written, so less is hidden. Fractions of a copy by columns, of 22
# cycles a line, and in boxes, of 18: f64[1228,50,100] reversed out of T(2,*,128) 0.75 and 0.18, c128[12288,50,3] 0.68
# and 0.48; in blocks of 38 and in boxes of 31: f32[14043,8,100] to it, minor two swapped, 0.52 and 0.39 (2026-11-23).
_WAITING_CYCLES = 16
# More kinds of boxes than this take longer to plan than to move.
_MOST_KINDS = 32


class _Joint(NamedTuple):
    """A coordinate that the two sides cut apart, and after how many values both begin anew."""

    variable: Variable
    left: tuple[Digit, ...]
    right: tuple[Digit, ...]
    period: int

    def side(self, which: int) -> tuple[Digit, ...]:
        """Return the digits of the source, 0, or of the destination, 1."""
        return self.right if which else self.left

    def places(self, value: int) -> tuple[int, int]:
        """Return where a value lies on both sides."""
        return sum(d.value_of(value) for d in self.left), sum(d.value_of(value) for d in self.right)


class _Part(NamedTuple):
    """A part of a loop, or of a joint coordinate, that boxes take: so many values each, from `start` on both sides."""

    size: int
    steps: Loop
    start: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How much a box has of each loop, and of each joint coordinate."""

    loops: dict[Loop, int]
    joints: dict[_Joint, int]

    @property
    def elements(self) -> int:
        return math.prod(self.loops.values()) * math.prod(self.joints.values())

    def with_more(self, of: Loop | _Joint) -> _Sizes:
        """Return sizes with twice as much of one."""
        if isinstance(of, Loop):
            return _Sizes({**self.loops, of: min(2 * self.loops[of], of.size)}, self.joints)
        return _Sizes(self.loops, {**self.joints, of: min(2 * self.joints[of], of.variable.extent)})


def period_box_passes(
    source: Shape | Strides, destination: Shape | Strides, width: int, tuning: Tuning
) -> tuple[Draft, ...] | None:
    """Return the passes of a relayout, of elements of `width` bytes, box by box; None where there are none.

    Examples
    --------
    >>> from fastindex.lowering.tuning import TUNING
    >>> a, b = Shape.parse("u8[50,40,100]{1,2,0}"), Shape.parse("u8[50,40,100]{2,1,0:T(2,*,128)}")
    >>> print(period_box_passes(a, b, 1, TUNING)[0].why)
    boxes of 56000 elements, after which both sides begin anew, by way of the cache
    """
    if 0 in source.dimensions:
        return None
    slots = destination.slot_count if isinstance(destination, Shape) else math.prod(destination.dimensions)
    goal = Goal(width, slots * width >= tuning.streamed_bytes, tuning)
    # In the cache, any order is as good as that of the source.
    within = replace(tuning, by_source_bytes=1, by_source_line_bytes=1, gathered_run_bytes=1)
    goals = Goal(width, False, within), goal
    for variables, left, right in shared_digits(source, destination):
        if any(d.weight < 0 for d in (*left, *right)):
            continue
        apart = _apart(variables, left, right)
        fills = padding_nests(variables, right, destination) if isinstance(destination, Shape) else []
        if apart is None or fills is None:
            continue
        found = [_boxes_of(nest, apart[1], goals) for nest in apart[0]]
        made = [one for one in found if one is not None]
        if len(made) == len(found) and sum(map(len, made)) <= _MOST_KINDS:
            filling = (fill_pass(in_bytes(coalesced(nest), width), goal) for nest in fills)
            return (*itertools.chain(*made), *filling)
    return None


def waiting_cycles(found: Iterable[Draft]) -> float:
    """Return how many cycles boxes wait for memory, beside what their passes cost."""
    nbytes = sum(one.tasks * one.task_bytes for one in found if one.kernel == "boxes")
    return nbytes / LINE_BYTES * _WAITING_CYCLES


def _apart(variables: Sequence[Variable], left: Digits, right: Digits) -> tuple[list[Nest], list[_Joint]] | None:
    """Return the nests of the coordinates that both sides cut alike, and the other coordinates, one at least."""
    joints: list[_Joint] = []
    pieces: list[list[Nest]] = []
    for variable in variables:
        own = [tuple(d for d in side if d.variable == variable) for side in (left, right)]
        levels = shared_levels(own[0], own[1], variable.extent)
        if levels is not None:
            pieces.append(list(cut_into_boxes(variable.extent, levels)))
            continue
        if any(shared_levels(side, _linear(variable), variable.extent) is None for side in own):
            return None
        period = math.lcm(*(d.low for side in own for d in side), *(d.high or 1 for side in own for d in side))
        joints.append(_Joint(variable, own[0], own[1], period))
    if not joints or math.prod(map(len, pieces)) > _MOST_KINDS:
        return None
    return [coalesced(nest) for nest in products(pieces)], joints


def _linear(variable: Variable) -> tuple[Digit, ...]:
    return (Digit(1, variable, 1, None),)


def _boxes_of(nest: Nest, joints: Sequence[_Joint], goals: tuple[Goal, Goal]) -> list[Draft] | None:
    """Return the passes over the boxes of a nest of the other coordinates; None where a period is too large."""
    sizes = _sizes(nest.loops, joints, goals[0].width)
    if sizes is None:
        return None
    kinds = list(itertools.islice(_kinds(nest, sizes, goals[0].width), _MOST_KINDS + 1))
    if len(kinds) > _MOST_KINDS:
        return None
    orders = tuple(dict.fromkeys(_order(sizes, side) for side in (0, 1)))
    # What is best for the first kind of box, the largest one, is good for the others.
    best = min(orders, key=lambda order: cost((_box_pass(order, *kinds[0], goals),))) if len(orders) > 1 else orders[0]
    return [_box_pass(best, *kind, goals) for kind in kinds]


def _sizes(loops: Sequence[Loop], joints: Sequence[_Joint], width: int) -> _Sizes | None:
    """Choose how much a box has: runs of both sides that get longer together, as long as scratch memory holds them."""
    sizes = _Sizes(dict.fromkeys(loops, 1), {j: min(j.period, j.variable.extent) for j in joints})
    if sizes.elements * width > _LARGEST_BYTES:
        return None
    while True:
        runs = [(length * width / wanted, more) for length, more, wanted in _growing(sizes, width)]
        short = sorted((run for run in runs if run[0] < 1 and run[1] is not None), key=lambda run: run[0])
        if not short and sizes.elements * width < _LEAST_BYTES:
            short = [(1, more) for more in _any_more(sizes)]
        for _, more in short:
            assert more is not None
            larger = sizes.with_more(more)
            if larger.elements * width <= _MOST_BYTES:
                sizes = larger
                break
        else:
            return _rounded(sizes, width)


def _growing(sizes: _Sizes, width: int) -> Iterator[tuple[int, Loop | _Joint | None, int]]:
    """Yield for each side the length of a run of a box, what would make it longer, and the bytes that are enough."""
    for side in (0, 1):
        length, more = 1, None
        for stride, size, of, is_whole in sorted(_steps(sizes, side), key=lambda step: step[0]):
            if stride != length:
                break
            length *= size
            more = None if is_whole else of
            if not is_whole:
                break
        yield length, more, _RUN_BYTES[side]


def _steps(sizes: _Sizes, side: int) -> Iterator[tuple[int, int, Loop | _Joint, bool]]:
    """Yield the loops of a box on a side: stride, size, what it is a part of, and whether it is all of that."""
    for loop, size in sizes.loops.items():
        yield (loop.destination_stride if side else loop.source_stride), size, loop, size == loop.size
    for joint, size in sizes.joints.items():
        inner = _cut(joint, size, side)[0].loops
        for k in inner[:-1]:
            yield k.source_stride, k.size, joint, True
        yield inner[-1].source_stride, inner[-1].size, joint, size == joint.variable.extent


def _any_more(sizes: _Sizes) -> Iterator[Loop | _Joint]:
    """Yield what a box may have more of, the nearest in the destination first."""
    steps = sorted((step for step in _steps(sizes, 1) if not step[3]), key=lambda step: step[0])
    yield from (of for _, _, of, _ in steps)


def _cut(joint: _Joint, size: int, side: int) -> list[Nest]:
    """Return the nests between a side, as the source, and a stretch of `size` values where they are linear."""
    levels = shared_levels(joint.side(side), _linear(joint.variable), size)
    assert levels is not None, "the cuts of one side divide each other"
    return list(cut_into_boxes(size, levels))


def _rounded(sizes: _Sizes, width: int) -> _Sizes:
    """Take parts of loops that leave nothing over, or make whole lines."""
    loops = {}
    for loop, size in sizes.loops.items():
        if 1 < size < loop.size and 1 not in (loop.source_stride, loop.destination_stride):
            size = -(-loop.size // -(-loop.size // size))
        loops[loop] = size
    return _Sizes(loops, sizes.joints)


def _order(sizes: _Sizes, side: int) -> tuple[Loop | _Joint, ...]:
    """Return loops and joint coordinates as a side has them, minor first."""
    nearest: dict[Loop | _Joint, int] = {}
    for stride, _, of, _ in _steps(sizes, side):
        nearest[of] = min(stride, nearest.get(of, stride))
    return tuple(sorted(nearest, key=lambda of: nearest[of]))


def _parts(of: Loop | _Joint, size: int) -> list[_Part]:
    """Return the parts of a loop or a joint coordinate: whole ones, and what is left over."""
    if isinstance(of, Loop):
        extent, step = of.size, (size * of.source_stride, size * of.destination_stride)
    else:
        extent, step = of.variable.extent, of.places(size)
    count, rest = divmod(extent, size)
    found = [_Part(size, Loop(count, *step), (0, 0))]
    if rest:
        start = (count * step[0], count * step[1])
        found.append(_Part(rest, Loop(1, 0, 0), start))
    return found


def _kinds(nest: Nest, sizes: _Sizes, width: int) -> Iterator[tuple[dict[Loop | _Joint, int], Nest]]:
    """Yield what each kind of box has, and the nest of such boxes, in bytes."""
    of_each = [_parts(of, size) for sized in (sizes.loops, sizes.joints) for of, size in sized.items()]
    for parts in itertools.product(*of_each):
        outer = Nest(
            tuple(part.steps for part in parts if part.steps.size > 1),
            nest.source_start + sum(part.start[0] for part in parts),
            nest.destination_start + sum(part.start[1] for part in parts),
        )
        yield (
            dict(zip((*sizes.loops, *sizes.joints), (part.size for part in parts), strict=True)),
            in_bytes(outer, width),
        )


def _box_pass(
    order: Sequence[Loop | _Joint], box: dict[Loop | _Joint, int], outer: Nest, goals: tuple[Goal, Goal]
) -> Draft:
    """Return the pass over boxes of one kind, whose loops scratch memory has in an order, minor first.

    The goals are those of what is written to scratch memory, and to the destination.
    """
    elements = math.prod(box.values())
    reading = [(one, False, True) for nest in _nests(order, box, 0) for one in _moving(nest, goals[0])]
    writing = [(one, True, False) for nest in _nests(order, box, 1) for one in _moving(_turned(nest), goals[1])]
    ordered = sorted(outer.loops, key=lambda k: (k.destination_stride, k.source_stride))
    return Draft(
        "boxes",
        1,
        1,
        ordered,
        BoxGeometry(len(reading) + len(writing), 0),
        no_tables,
        iterations(ordered),
        elements * goals[0].width,
        outer.source_start,
        outer.destination_start,
        f"boxes of {elements} elements, after which both sides begin anew, by way of the cache",
        (*reading, *writing),
    )


@lru_cache(maxsize=64)
def _moving(nest: Nest, goal: Goal) -> tuple[Draft, ...]:
    """Return the passes of a nest in elements; boxes of several kinds have nests in common, so they are kept."""
    return tuple(copying_passes(in_bytes(nest, goal.width), goal))


def _nests(order: Sequence[Loop | _Joint], box: dict[Loop | _Joint, int], side: int) -> Iterator[Nest]:
    """Yield the nests between a side, as the source, and scratch memory."""
    pieces: list[list[Nest]] = []
    step = 1
    for of in order:
        size = box[of]
        if isinstance(of, Loop):
            stride = of.destination_stride if side else of.source_stride
            pieces.append([Nest((Loop(size, stride, step),))])
        else:
            pieces.append([_scaled(nest, step) for nest in _cut(of, size, side)])
        step *= size
    return (coalesced(nest) for nest in products(pieces))


def _scaled(nest: Nest, step: int) -> Nest:
    """Return a nest with everything in its destination `step` times as far apart."""
    loops = tuple(Loop(k.size, k.source_stride, k.destination_stride * step) for k in nest.loops)
    return Nest(loops, nest.source_start, nest.destination_start * step)


def _turned(nest: Nest) -> Nest:
    """Return a nest from its destination to its source."""
    loops = tuple(Loop(k.size, k.destination_stride, k.source_stride) for k in nest.loops)
    return Nest(loops, nest.destination_start, nest.source_start)
