"""Whether two moves take every slot to the same place: compared digit by digit, not slot by slot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from fastindex.lowering.index.regrouped import RegroupedShape, own_digits
from fastindex.lowering.relayout.problem.loops import MOST_NESTS, Loop, Nest, coalesced, relayout_loops
from fastindex.tiling.digits import Names, always_equal

Sides = tuple[RegroupedShape, RegroupedShape]


def same_moves(a: Sides, b: Sides) -> bool:
    """Whether two moves between buffers of the same sizes put the same slots to the same places.

    Where a move has no loops, the digits of its sides are compared by their own variables: then moves that are spelled
    differently count as different.

    Examples
    --------
    >>> from fastindex.shapes.shape import Shape
    >>> from fastindex.tiling.digits import Variable, digit
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
    copies = [{coalesced(nest) for nest in found.copies} for found in loops if found is not None]
    if copies[0] == copies[1]:
        return True
    counts = [sum(nest.element_count for nest in nests) for nests in copies]
    if counts[0] != counts[1]:
        return False
    units = _units((*copies[0], *copies[1]))
    if units is None:
        return _same_digits(a, b)
    return _boxes_agree(*([_Box(nest, units) for nest in nests] for nests in copies))


def _same_digits(a: Sides, b: Sides) -> bool:
    if a[0].variables != b[0].variables:
        return False
    names: Names = {}
    pairs = zip(a, b, strict=True)
    return all(always_equal(own_digits(left, names), own_digits(right, names)) for left, right in pairs)


def _units(nests: Sequence[Nest]) -> list[int] | None:
    """Return the places of the destination between which all nests are linear; None where they do not divide."""
    cuts = {1}
    for nest in nests:
        for loop in nest.loops:
            cuts |= {abs(loop.destination_stride), abs(loop.destination_stride) * loop.size}
        cuts |= {math.gcd(nest.destination_start, max(cuts))} if nest.destination_start else set()
    units = sorted(cuts)
    return None if any(more % less for less, more in itertools.pairwise(units)) else units


class _Box:
    """A nest as digits of the destination: where each begins, how many it has, and the source stride of one."""

    def __init__(self, nest: Nest, units: Sequence[int]) -> None:
        self.source = nest.source_start
        self.first: list[int] = []
        self.count: list[int] = []
        self.stride: list[int] = []
        rest = nest.destination_start
        for i in range(len(units) - 1, -1, -1):
            begin, rest = divmod(rest, units[i])
            size, stride = _along(nest.loops, units[i], units[i + 1] if i + 1 < len(units) else None)
            self.first.append(begin)
            self.count.append(size)
            self.stride.append(stride)

    def overlap(self, other: _Box) -> Iterator[tuple[int, int, int]]:
        """Yield for each digit where both have it, from and to, and by how much the sources differ at its begin."""
        for i in range(len(self.first)):
            begin = max(self.first[i], other.first[i])
            end = min(self.first[i] + self.count[i], other.first[i] + other.count[i])
            apart = (begin - self.first[i]) * self.stride[i] - (begin - other.first[i]) * other.stride[i]
            yield begin, end, apart


def _along(loops: Sequence[Loop], unit: int, above: int | None) -> tuple[int, int]:
    """Return how many steps of a unit of the destination loops make before the next unit, and their source stride."""
    for loop in loops:
        stride, size = loop.destination_stride, loop.size
        if stride <= unit < stride * size:
            steps = stride * size // unit if above is None else min(stride * size, above) // unit
            return steps, loop.source_stride * (unit // stride)
    return 1, 0


def _boxes_agree(left: Sequence[_Box], right: Sequence[_Box]) -> bool:
    """Whether boxes of the same number of elements cover each other with the same sources."""
    if len(left) * len(right) > MOST_NESTS**2:
        return False
    covered = 0
    for one in left:
        for other in right:
            shared = list(one.overlap(other))
            if any(begin >= end for begin, end, _ in shared):
                continue
            if one.source - other.source + sum(apart for _, _, apart in shared):
                return False
            lengths = [end - begin for begin, end, _ in shared]
            if any(n > 1 and a != b for n, a, b in zip(lengths, one.stride, other.stride, strict=True)):
                return False
            covered += math.prod(lengths)
    return covered == sum(math.prod(box.count) for box in left)
