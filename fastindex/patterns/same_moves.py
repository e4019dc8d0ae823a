"""Equality of moves: whether two moves copy the same slots, compared by digits instead of slots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from fastindex.algebra.loops import MOST_NESTS, Loop, Nest, coalesced, relayout_loops
from fastindex.algebra.sides import RegroupedShape, joined_variables, own_digits
from fastindex.core.digits import Names, always_equal

Sides = tuple[RegroupedShape, RegroupedShape]


def same_moves(a: Sides, b: Sides) -> bool:
    """Whether two moves between buffers of the same sizes copy the same source slots to the same destination slots.

    If the moves have no loop form, the digits of their sides are compared, after their variables are split and joined
    in the same way.

    Examples
    --------
    >>> from fastindex.core.shape import Shape
    >>> from fastindex.core.digits import Variable, digit
    >>> x, y = Variable("x", 4, True), Variable("y", 6, True)
    >>> whole = Variable("n", 24, True)
    >>> one = RegroupedShape(Shape.parse("u8[4,6]"), (digit(1, x, 1, None), digit(1, y, 1, None)), (x, y))
    >>> other = RegroupedShape(Shape.parse("u8[24]"), (digit(1, whole, 1, None),), (whole,))
    >>> same_moves((one, one), (other, other))
    True
    """
    loops = [relayout_loops(*sides) for sides in (a, b)]
    if loops[0] is None or loops[1] is None:
        return loops[0] is loops[1] and _same_digits(a, b)
    same = same_nests(loops[0].copies, loops[1].copies)
    return _same_digits(a, b) if same is None else same


def same_nests(a: Collection[Nest], b: Collection[Nest]) -> bool | None:
    """Whether two sets of nests copy the same source slots to the same destination slots.

    The nests of a set write disjoint slots.

    Returns
    -------
    bool or None
        None if the destination strides do not divide each other, or there are too many nests.

    Examples
    --------
    >>> whole = Nest((Loop(6, 2, 1),))
    >>> same_nests([whole], [Nest((Loop(4, 2, 1),)), Nest((Loop(2, 2, 1),), 8, 4)])
    True
    """
    a, b = ({coalesced(nest) for nest in nests} for nests in (a, b))
    if a == b:
        return True
    if sum(nest.element_count for nest in a) != sum(nest.element_count for nest in b):
        return False
    units = _units((*a, *b))
    if units is None or len(a) * len(b) > MOST_NESTS**2:
        return None
    boxes = [[_Box(nest, units) for nest in nests] for nests in (a, b)]
    if any(not box.fits(units) for box in (*boxes[0], *boxes[1])):
        return None
    return _boxes_agree(*boxes)


def _same_digits(a: Sides, b: Sides) -> bool:
    left, right = joined_variables(a), joined_variables(b)
    if left[0].variables != right[0].variables:
        return False
    names: Names = {}
    pairs = zip(left, right, strict=True)
    return all(always_equal(own_digits(one, names), own_digits(other, names)) for one, other in pairs)


def _units(nests: Iterable[Nest]) -> list[int] | None:
    """Return the destination strides, ascending, as place values of mixed-radix digits; None if they do not divide."""
    loops = [loop for nest in nests for loop in nest.loops]
    units = sorted({1, *(loop.destination_stride for loop in loops)})
    if units[0] < 1 or any(more % less for less, more in itertools.pairwise(units)):
        return None
    for stride, end in ((loop.destination_stride, loop.destination_stride * loop.size) for loop in loops):
        if end % max([unit for unit in units if unit <= end], default=stride):
            return None
    return units


class _Box:
    """A nest as a box of destination digits: first value, count and source stride of each digit."""

    def __init__(self, nest: Nest, units: Sequence[int]) -> None:
        self.source = nest.source_start
        self.first: list[int] = []
        self.count: list[int] = []
        self.stride: list[int] = []
        remainder = nest.destination_start
        for i in range(len(units) - 1, -1, -1):
            begin, remainder = divmod(remainder, units[i])
            size, stride = _along(nest.loops, units[i], units[i + 1] if i + 1 < len(units) else None)
            self.first.append(begin)
            self.count.append(size)
            self.stride.append(stride)

    def fits(self, units: Sequence[int]) -> bool:
        """Whether no digit carries into the next one, so that digits and destination slots correspond one to one."""
        capacities = [more // less for less, more in itertools.pairwise(units)]
        spans = zip(self.first[:0:-1], self.count[:0:-1], capacities, strict=True)
        return all(begin + count <= capacity for begin, count, capacity in spans)

    def overlap(self, other: _Box) -> Iterator[tuple[int, int, int]]:
        """Yield, per digit, the start and end of the overlap and the difference of the source offsets at the start."""
        for i in range(len(self.first)):
            begin = max(self.first[i], other.first[i])
            end = min(self.first[i] + self.count[i], other.first[i] + other.count[i])
            source_difference = (begin - self.first[i]) * self.stride[i] - (begin - other.first[i]) * other.stride[i]
            yield begin, end, source_difference


def _along(loops: Sequence[Loop], unit: int, above: int | None) -> tuple[int, int]:
    """Return the number of steps of destination stride `unit` below stride `above`, and their source stride."""
    for loop in loops:
        stride, size = loop.destination_stride, loop.size
        if stride <= unit < stride * size:
            steps = stride * size // unit if above is None else min(stride * size, above) // unit
            return steps, loop.source_stride * (unit // stride)
    return 1, 0


def _boxes_agree(left: Sequence[_Box], right: Sequence[_Box]) -> bool:
    """Whether two sets of boxes with equal element counts cover the same destinations from the same sources."""
    covered = 0
    for one in left:
        for other in right:
            shared = list(one.overlap(other))
            if any(begin >= end for begin, end, _ in shared):
                continue
            if one.source - other.source + sum(source_difference for _, _, source_difference in shared):
                return False
            lengths = [end - begin for begin, end, _ in shared]
            if any(n > 1 and a != b for n, a, b in zip(lengths, one.stride, other.stride, strict=True)):
                return False
            covered += math.prod(lengths)
    return covered == sum(math.prod(box.count) for box in left)
