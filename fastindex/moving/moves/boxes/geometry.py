"""Coordinates that two sides tile by sizes that do not divide each other, and boxes of whole periods of them.

After a period, the least common multiple of all tile sizes of both sides, both sides realign. So boxes of periods have
a constant stride on each side, and within a box each side shares loops with scratch memory, where the coordinate is
linear. With rows of 4 on one side and tiles of 6 on the other::

    source         |0 1 2 3|4 5 6 7|8 9 . .|. . . .|
    destination    |0 1 2 3 4 5|6 7 8 9 . .|. . . .
    period         |---- lcm(4, 6) = 12 ---|---- next period
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fastindex.algebra.loops import (
    Levels,
    Loop,
    Nest,
    coalesced,
    cut_into_boxes,
    padding_nests,
    products,
    shared_levels,
)
from fastindex.algebra.shared_digits import Strides, shared_digits
from fastindex.core.digits import Digit, Digits, Variable, runs_backwards
from fastindex.core.shape import Shape

# Runs of this many bytes are long enough; the most parts that a period is split into.
_RUN_BYTES, _MOST_PARTS = 512, 16
#: More kinds of boxes than this take longer to plan than to move.
MOST_KINDS = 48


class Joint(NamedTuple):
    """A coordinate that the two sides tile differently, and the period (lcm) after which both realign."""

    variable: Variable
    left: tuple[Digit, ...]
    right: tuple[Digit, ...]
    period: int

    @property
    def size(self) -> int:
        return self.variable.extent

    def side(self, which: int) -> tuple[Digit, ...]:
        """Return the digits of the source, 0, or of the destination, 1."""
        return self.right if which else self.left

    def places(self, value: int) -> tuple[int, int]:
        """Return the places of a value on both sides."""
        return sum(d.value_of(value) for d in self.left), sum(d.value_of(value) for d in self.right)


class _Part(NamedTuple):
    """A part of a loop, or of a joint coordinate, that is split into boxes of one size.

    Attributes
    ----------
    values : range
        The values in the first box; for a joint coordinate, counted from the start of a period.
    steps : Loop
        Number of boxes, and strides from one to the next.
    start : (int, int)
        Offset on both sides; for a joint coordinate, of the whole periods before these values.
    """

    values: range
    steps: Loop
    start: tuple[int, int]


#: The size of a box along each loop, and along each joint coordinate.
Sizes = dict[Loop | Joint, int]

#: Nests of the coordinates that both sides tile alike, the joint coordinates, and nests of padding.
System = tuple[list[Nest], list[Joint], list[Nest]]


def split_systems(source: Shape | Strides, destination: Shape | Strides, rest_slots: int) -> Iterator[System]:
    """Yield splits of a relayout.

    Coordinates with a remainder (digits that do not fill the extent) are joint coordinates too, if they span at most
    `rest_slots` of the destination.
    """
    if 0 in source.dimensions:
        return
    for variables, left, right in shared_digits(source, destination):
        if runs_backwards(variables) or any(d.weight < 0 for d in (*left, *right)):
            continue
        fills = padding_nests(variables, right, destination) if isinstance(destination, Shape) else []
        found = _split_coordinates(variables, left, right, rest_slots)
        if found is not None and fills is not None:
            yield *found, fills


def _split_coordinates(
    variables: Sequence[Variable], left: Digits, right: Digits, rest_slots: int
) -> tuple[list[Nest], list[Joint]] | None:
    """Return the nests of the coordinates that both sides tile alike, and the joint coordinates; None if none fit."""
    joints = _joints_of(variables, left, right, rest_slots)
    if not joints:
        return None
    pieces: list[list[Nest]] = []
    for variable in variables:
        if all(variable != joint.variable for joint in joints):
            levels = shared_levels(*_own(variable, left, right), variable.extent)
            assert levels is not None, "it is not a joint coordinate"
            pieces.append(list(cut_into_boxes(variable.extent, levels)))
    if math.prod(map(len, pieces)) > MOST_KINDS:
        return None
    return [coalesced(nest) for nest in products(pieces)], joints


def _joints_of(variables: Sequence[Variable], left: Digits, right: Digits, rest_slots: int) -> list[Joint] | None:
    """Return the coordinates that the two sides tile differently; None if a side has no loops along one of them."""
    joints = []
    for variable in variables:
        own = _own(variable, left, right)
        levels = shared_levels(*own, variable.extent)
        if levels is not None and not _leaves_remainder(variable, levels, own[1], rest_slots):
            continue
        if any(shared_levels(side, _linear(variable), variable.extent) is None for side in own):
            return None
        period = math.lcm(*(d.low for side in own for d in side), *(d.high or 1 for side in own for d in side))
        joints.append(Joint(variable, *own, period))
    return joints


def _leaves_remainder(variable: Variable, levels: Levels, right: Digits, most_slots: int) -> bool:
    """Whether digits leave a remainder of a coordinate that spans at most `most_slots` of the destination."""
    span = variable.extent * min([d.weight for d in right], default=0)
    return span <= most_slots and len(list(cut_into_boxes(variable.extent, levels))) > 1


def _own(variable: Variable, left: Digits, right: Digits) -> tuple[Digits, Digits]:
    """Return the digits of a coordinate on both sides."""
    return tuple(d for d in left if d.variable == variable), tuple(d for d in right if d.variable == variable)


def _linear(variable: Variable) -> tuple[Digit, ...]:
    return (Digit(1, variable, 1, None),)


def box_sizes(loops: Sequence[Loop], joints: Sequence[Joint], width: int, largest: int, least: int) -> Sizes | None:
    """Choose the sizes of a box: runs of both sides grow together, as long as scratch memory holds the box.

    A box has at least `least` bytes, unless the nest has fewer, and at most `largest`. If a period is too large for
    that, a box has a part of it, and each part is a separate kind of box.
    """
    for parts in range(1, _MOST_PARTS + 1):
        smallest = [_part_of(joint, parts) for joint in joints]
        sizes: Sizes = dict.fromkeys(loops, 1)
        sizes |= {joint: size for joint, size in zip(joints, smallest, strict=True) if size is not None}
        if None not in smallest and math.prod(sizes.values()) * width <= largest:
            return _grown(sizes, width, largest, least)
    return None


def _part_of(joint: Joint, parts: int) -> int | None:
    """Return the size of one of `parts` parts of a period or coordinate; None if it splits rows of both sides."""
    if parts == 1:
        return min(joint.period, joint.variable.extent)
    size, remainder = divmod(joint.period, parts)
    largest = (max(d.low for d in side) for side in (joint.left, joint.right))
    whole = not remainder and size % 2 == 0 and size < joint.variable.extent and any(size % low == 0 for low in largest)
    return size if whole else None


def _grown(sizes: Sizes, width: int, most: int, least: int) -> Sizes:
    """Return sizes grown until runs are long enough and the box has `least` bytes, or at most `most`."""
    while True:
        runs = sorted(_runs(sizes), key=lambda run: run[0])
        short = [more for length, more in runs if length * width < _RUN_BYTES and more is not None]
        if not short and math.prod(sizes.values()) * width < least:
            steps = sorted((step for step in _steps(sizes, 1) if not step[3]), key=lambda step: step[0])
            short = [of for _, _, of, _ in steps]
        for more in short:
            larger = _with_more(sizes, more)
            if math.prod(larger.values()) * width <= most:
                sizes = larger
                break
        else:
            return sizes


def _with_more(sizes: Sizes, of: Loop | Joint) -> Sizes:
    """Return sizes with one of them doubled."""
    return {**sizes, of: min(2 * sizes[of], of.size)}


def _runs(sizes: Sizes) -> Iterator[tuple[int, Loop | Joint | None]]:
    """Yield for each side the length of a run of a box, and the loop or coordinate that would make it longer."""
    for side in (0, 1):
        length, more = 1, None
        for stride, size, of, is_whole in sorted(_steps(sizes, side), key=lambda step: step[0]):
            if stride != length:
                break
            length *= size
            more = None if is_whole else of
            if not is_whole:
                break
        yield length, more


def _steps(sizes: Sizes, side: int) -> Iterator[tuple[int, int, Loop | Joint, bool]]:
    """Yield the loops of a box on a side: stride, size, its whole loop or coordinate, and whether it is all of that."""
    for of, size in sizes.items():
        if isinstance(of, Loop):
            yield (of.destination_stride if side else of.source_stride), size, of, size == of.size
            continue
        loops = _cut(of, range(size), side)[0].loops
        for k in loops:
            yield k.source_stride, k.size, of, k is not loops[-1] or size == of.size


def _cut(joint: Joint, values: range, side: int) -> list[Nest]:
    """Return the nests between a side, as the source, and consecutive values, as the destination; the largest first.

    Starts in the source are places of the whole coordinate; starts in the destination count from the first value.
    """
    digits = joint.side(side)
    levels = shared_levels(digits, _linear(joint.variable), values.stop)
    assert levels is not None, "the cuts of one side divide each other"
    units = [low for low, _, _ in levels]
    found = []
    for first, count, i in _units(values.start, values.stop, units):
        inner = [Loop(levels[j + 1][0] // levels[j][0], *levels[j][1:]) for j in range(i)]
        start = sum(d.value_of(first) for d in digits)
        found.append(Nest((*inner, Loop(count, *levels[i][1:])), start, first - values.start))
    return sorted(found, key=lambda nest: -nest.element_count)


def _units(first: int, end: int, units: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Split a range at multiples of units, each a multiple of the one before; yield (start, count, index of unit)."""
    i = len(units) - 1
    begin, last = -(-first // units[i]) * units[i], end // units[i] * units[i]
    if begin > last:
        yield from _units(first, end, units[:i])
        return
    if first < begin:
        yield from _units(first, begin, units[:i])
    if begin < last:
        yield begin, (last - begin) // units[i], i
    if last < end:
        yield from _units(last, end, units[:i])


def order_on(sizes: Sizes, side: int) -> tuple[Loop | Joint, ...]:
    """Return loops and joint coordinates in the order of a side, minor first."""
    nearest: dict[Loop | Joint, int] = {}
    for stride, _, of, _ in _steps(sizes, side):
        nearest[of] = min(stride, nearest.get(of, stride))
    return tuple(sorted(nearest, key=lambda of: nearest[of]))


def _parts(of: Loop | Joint, size: int) -> Iterator[_Part]:
    """Yield the parts of a loop or a joint coordinate: full boxes, and the remainder."""
    if isinstance(of, Loop):
        period = size
        step = size * of.source_stride, size * of.destination_stride
    else:
        period = max(size, of.period)
        step = of.places(period)
    for begin in range(0, min(period, of.size), size):
        count, remainder = divmod(of.size - begin, period)
        if count + (remainder >= size):
            yield _Part(range(begin, begin + size), Loop(count + (remainder >= size), *step), (0, 0))
    if remainder := of.size % size:
        before = (of.size - remainder) // period
        values = range((of.size - remainder) % period, (of.size - remainder) % period + remainder)
        yield _Part(values, Loop(1, 0, 0), (before * step[0], before * step[1]))


def kinds_of_boxes(nest: Nest, sizes: Sizes) -> Iterator[tuple[dict[Loop | Joint, range], Nest]]:
    """Yield, for each kind of box, its values along each loop and coordinate, and the nest of these boxes."""
    for parts in itertools.product(*(_parts(of, size) for of, size in sizes.items())):
        outer = Nest(
            tuple(part.steps for part in parts if part.steps.size > 1),
            nest.source_start + sum(part.start[0] for part in parts),
            nest.destination_start + sum(part.start[1] for part in parts),
        )
        yield dict(zip(sizes, (part.values for part in parts), strict=True)), outer


def nests_to_scratch(order: Sequence[Loop | Joint], box: dict[Loop | Joint, range], side: int) -> Iterator[Nest]:
    """Yield the nests from a side, as the source, to scratch memory."""
    pieces: list[list[Nest]] = []
    step = 1
    for of in order:
        size = len(box[of])
        if isinstance(of, Loop):
            stride = of.destination_stride if side else of.source_stride
            pieces.append([Nest((Loop(size, stride, step),))])
        else:
            pieces.append([_scaled(nest, step) for nest in _cut(of, box[of], side)])
        step *= size
    return (coalesced(nest) for nest in products(pieces))


def _scaled(nest: Nest, step: int) -> Nest:
    """Return a nest with offsets and strides in its destination multiplied by `step`."""
    loops = tuple(Loop(k.size, k.source_stride, k.destination_stride * step) for k in nest.loops)
    return Nest(loops, nest.source_start, nest.destination_start * step)
