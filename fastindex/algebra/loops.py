"""A relayout as loop nests: some copy every element once, others fill every slot of padding once.

A nest is a box of loops, each with a stride in the source and in the destination. Where the tiles of both layouts
divide each other, the slot of an element is a sum of digits of its coordinates, and both sides can share their loops;
padding is the capacity that digits do not use.
A coordinate whose digits do not fill their box (7 = 4 + 2 + 1) becomes one box for each part.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastindex.algebra.shared_digits import Strides, shared_digits
from fastindex.core.digits import Backwards, Digit, Digits, Variable
from fastindex.core.shape import Shape
from fastindex.core.sizes import slots_before_tail

_BY_STRIDES = operator.attrgetter("destination_stride", "source_stride")

#: With more boxes than this, looking up every slot is faster.
MOST_NESTS = 512


class Loop(NamedTuple):
    """``size`` iterations with a stride on each side, in elements, or in bytes after `in_bytes`."""

    size: int
    source_stride: int
    destination_stride: int


class Nest(NamedTuple):
    """Nested loops in no particular order, and the start on each side; in elements, or in bytes after `in_bytes`."""

    loops: tuple[Loop, ...]
    source_start: int = 0
    destination_start: int = 0

    @property
    def element_count(self) -> int:
        return math.prod([loop.size for loop in self.loops])

    def loop_of(self, source: int | None = None, destination: int | None = None) -> Loop | None:
        """Return the loop with these strides, or None."""
        for loop in self.loops:
            if source in (None, loop.source_stride) and destination in (None, loop.destination_stride):
                return loop
        return None

    def adjacent(self, length: int) -> list[Loop]:
        """Return the loops that continue each other in the destination, innermost first, from stride `length` on.

        Examples
        --------
        >>> Nest((Loop(5, 1, 24), Loop(6, 100, 4), Loop(2, 50, 1000))).adjacent(4)
        [Loop(size=6, source_stride=100, destination_stride=4), Loop(size=5, source_stride=1, destination_stride=24)]
        """
        found: list[Loop] = []
        while True:
            following = next((k for k in self.loops if k.destination_stride == length and k not in found), None)
            if following is None:
                return found
            found.append(following)
            length *= following.size


@dataclass(frozen=True, slots=True)
class RelayoutLoops:
    """The work of a relayout, in elements: `copies` move data, `fills` write padding (source strides are 0)."""

    copies: tuple[Nest, ...]
    fills: tuple[Nest, ...]

    @property
    def keeps_places(self) -> bool:
        """Whether every element has the same slot on both sides."""
        return all(
            nest.source_start == nest.destination_start
            and all(loop.source_stride == loop.destination_stride for loop in nest.loops)
            for nest in self.copies
        )


def relayout_loops(source: Shape | Strides, destination: Shape | Strides) -> RelayoutLoops | None:
    """Express a relayout as loops.

    Parameters
    ----------
    source, destination : Shape or Strides
        Two layouts of one array. Gaps between strided elements are not padding and are not filled.

    Returns
    -------
    RelayoutLoops or None
        None where the two sides share no loops, since their tile sizes do not divide each other.

    Examples
    --------
    >>> a, b = Shape.parse("f32[4,6]{1,0}"), Shape.parse("f32[4,6]{0,1}")
    >>> for loop in relayout_loops(a, b).copies[0].loops:
    ...     print(loop)
    Loop(size=4, source_stride=6, destination_stride=1)
    Loop(size=6, source_stride=1, destination_stride=4)
    """
    if 0 in destination.dimensions or 0 in source.dimensions:
        if isinstance(destination, Strides):
            return RelayoutLoops((), ())
        whole = Nest((Loop(destination.slot_count, 0, 1),)) if destination.slot_count else None
        return RelayoutLoops((), (whole,) if whole else ())
    for variables, left, right in shared_digits(source, destination):
        found = _loops_of(variables, left, right, destination)
        if found is not None:
            return found
    return None


def _loops_of(
    variables: Sequence[Variable], left: Digits, right: Digits, destination: Shape | Strides
) -> RelayoutLoops | None:
    pieces: list[list[Nest]] = []
    for variable in variables:
        own = [[d for d in side if d.variable == variable] for side in (left, right)]
        levels = shared_levels(own[0], own[1], variable.extent)
        if levels is None:
            return None
        boxes = list(cut_into_boxes(variable.extent, levels))
        if isinstance(variable.key, Backwards):
            if len(boxes) > 1:
                # The digits of a number and of its complement differ.
                return None
            boxes = [_source_reversed(box) for box in boxes]
        pieces.append(boxes)
    if math.prod(len(of_variable) for of_variable in pieces) > MOST_NESTS:
        return None
    copies = tuple(coalesced(nest) for nest in products(pieces))
    if any(loop.source_stride < 0 for nest in copies for loop in nest.loops):
        copies = tuple(_forwards(nest) for nest in copies)
    if isinstance(destination, Strides):
        return RelayoutLoops(copies, ())
    fills = padding_nests(variables, right, destination)
    return None if fills is None else RelayoutLoops(copies, tuple(coalesced(nest) for nest in fills))


def exchanged(nest: Nest) -> Nest:
    """Return a nest with source and destination exchanged."""
    loops = tuple(Loop(k.size, k.destination_stride, k.source_stride) for k in nest.loops)
    return Nest(loops, nest.destination_start, nest.source_start)


def _source_reversed(nest: Nest) -> Nest:
    """Return a nest that reads its source in reverse order, in all its loops."""
    start = nest.source_start + sum((loop.size - 1) * loop.source_stride for loop in nest.loops)
    loops = tuple(Loop(loop.size, -loop.source_stride, loop.destination_stride) for loop in nest.loops)
    return Nest(loops, start, nest.destination_start)


def _forwards(nest: Nest) -> Nest:
    """Reverse the loops whose side with the smaller stride runs backwards; no element changes place.

    Examples
    --------
    >>> _forwards(Nest((Loop(5, -1, 8), Loop(3, -5, 1)), 14, 0))
    Nest(loops=(Loop(size=5, source_stride=1, destination_stride=-8), Loop(size=3, source_stride=-5, \
destination_stride=1)), source_start=10, destination_start=32)
    """
    loops = []
    source_start, destination_start = nest.source_start, nest.destination_start
    for loop in nest.loops:
        # Kernels look for loops whose side with the smaller stride runs forwards.
        is_source = 0 < abs(loop.source_stride) < abs(loop.destination_stride)
        if (loop.source_stride if is_source else loop.destination_stride) < 0:
            source_start += (loop.size - 1) * loop.source_stride
            destination_start += (loop.size - 1) * loop.destination_stride
            loop = Loop(loop.size, -loop.source_stride, -loop.destination_stride)
        loops.append(loop)
    return Nest(tuple(loops), source_start, destination_start)


#: ``(low, source stride, destination stride)`` of each digit that both sides share, most minor first.
Levels = list[tuple[int, int, int]]


def shared_levels(left: Sequence[Digit], right: Sequence[Digit], extent: int) -> Levels | None:
    """Return the digits that both sides of one coordinate share, or None where their sizes do not divide each other."""
    cuts = {1}
    for d in (*left, *right):
        cuts.add(d.low)
        cuts.add(d.high or extent)
    levels: Levels = []
    before = 1
    for cut in sorted([cut for cut in cuts if cut < extent]) or [1]:
        if cut % before:
            return None
        before = cut
        source_stride, destination_stride = stride_at(cut, left), stride_at(cut, right)
        if levels:
            low, source, destination = levels[-1]
            if source_stride == source * (cut // low) and destination_stride == destination * (cut // low):
                continue
        levels.append((cut, source_stride, destination_stride))
    return levels


def stride_at(cut: int, side: Sequence[Digit]) -> int:
    """Return the distance in slots between consecutive multiples of `cut` of a coordinate."""
    stride = 0
    for d in side:
        if d.low <= cut and (d.high is None or cut < d.high):
            stride += d.weight * cut // d.low
    return stride


def cut_into_boxes(extent: int, levels: Levels) -> Iterator[Nest]:
    """Cut ``range(extent)`` into boxes of digits."""
    source_start = destination_start = 0
    remainder = extent
    for i in range(len(levels) - 1, -1, -1):
        low, source_stride, destination_stride = levels[i]
        count, remainder = divmod(remainder, low)
        if count:
            inner = [Loop(levels[j + 1][0] // levels[j][0], levels[j][1], levels[j][2]) for j in range(i)]
            loops = (*inner, Loop(count, source_stride, destination_stride))
            yield Nest(loops, source_start, destination_start)
            source_start += count * source_stride
            destination_start += count * destination_stride


def products(pieces: Sequence[Sequence[Nest]]) -> Iterator[Nest]:
    """Yield the product nest of one box per coordinate, for each choice of boxes."""
    for chosen in itertools.product(*pieces):
        loops: tuple[Loop, ...] = ()
        source_start = destination_start = 0
        for nest in chosen:
            loops += nest.loops
            source_start += nest.source_start
            destination_start += nest.destination_start
        yield Nest(loops, source_start, destination_start)


def coalesced(nest: Nest) -> Nest:
    """Drop loops of size 1 and merge loops that continue each other on both sides; no element changes place.

    Examples
    --------
    >>> coalesced(Nest((Loop(4, 6, 6), Loop(1, 9, 9), Loop(6, 1, 1))))
    Nest(loops=(Loop(size=24, source_stride=1, destination_stride=1),), source_start=0, destination_start=0)
    """
    kept: list[Loop] = []
    for loop in sorted([loop for loop in nest.loops if loop.size > 1], key=_BY_STRIDES):
        for i, inner in enumerate(kept):
            if (
                loop.destination_stride == inner.destination_stride * inner.size
                and loop.source_stride == inner.source_stride * inner.size
            ):
                kept[i] = Loop(inner.size * loop.size, inner.source_stride, inner.destination_stride)
                break
        else:
            kept.append(loop)
    return Nest(tuple(kept), nest.source_start, nest.destination_start)


def grouped(loops: RelayoutLoops, per_byte: int) -> RelayoutLoops | None:
    """Return loops that move whole bytes of packed elements, or None where the elements of a byte are separated.

    Examples
    --------
    >>> grouped(RelayoutLoops((Nest((Loop(6, 1, 1), Loop(4, 6, 8))),), ()), 2).copies[0].loops[1]
    Loop(size=4, source_stride=3, destination_stride=4)
    """
    copies = [_grouped_nest(nest, per_byte, 1) for nest in loops.copies]
    fills = [_grouped_nest(nest, per_byte, 0) for nest in loops.fills]
    whole_copies, whole_fills = (tuple(n for n in nests if n is not None) for nests in (copies, fills))
    if len(whole_copies) < len(copies) or len(whole_fills) < len(fills):
        return None
    return RelayoutLoops(whole_copies, whole_fills)


def _grouped_nest(nest: Nest, per_byte: int, source_stride: int) -> Nest | None:
    run = next((k for k in nest.loops if (k.source_stride, k.destination_stride) == (source_stride, 1)), None)
    if run is None or run.size % per_byte:
        return None
    others = in_units_of(nest._replace(loops=tuple(k for k in nest.loops if k is not run)), per_byte, per_byte)
    if others is None:
        return None
    return coalesced(others._replace(loops=(Loop(run.size // per_byte, source_stride, 1), *others.loops)))


def in_units_of(nest: Nest, source: int, destination: int) -> Nest | None:
    """Return a nest with the strides and starts of each side in larger units; None where one is not a multiple.

    Examples
    --------
    >>> in_units_of(Nest((Loop(3, 4, 8),), 0, 16), 4, 8)
    Nest(loops=(Loop(size=3, source_stride=1, destination_stride=1),), source_start=0, destination_start=2)
    """
    pairs = [nest[1:], *(loop[1:] for loop in nest.loops)]
    if any(here % source or there % destination for here, there in pairs):
        return None
    loops = tuple(Loop(k.size, k.source_stride // source, k.destination_stride // destination) for k in nest.loops)
    return Nest(loops, nest.source_start // source, nest.destination_start // destination)


class Place(NamedTuple):
    """A digit in a buffer: `used` values of a `capacity`, `stride` slots apart, in multiples of `low`."""

    stride: int
    low: int
    used: int
    capacity: int


def digit_places(digits: Digits, slot_count: int) -> list[tuple[Variable, Place]] | None:
    """Return the digits whose sum is a slot below `slot_count`, most major first, or None where they do not nest.

    They do not where a stride is not a multiple of the next, where a digit has more values than its capacity, or where
    the digits of a coordinate do not continue each other.

    Examples
    --------
    >>> from fastindex.core.digits import Digit, Variable
    >>> rows, columns = Variable(0, 3, True), Variable(1, 5, True)
    >>> [place for _, place in digit_places((Digit(8, rows, 1, None), Digit(1, columns, 1, None)), 24)]
    [Place(stride=8, low=1, used=3, capacity=3), Place(stride=1, low=1, used=5, capacity=8)]
    """
    found: list[tuple[Variable, Place]] = []
    above = slot_count
    for d in sorted(digits, key=lambda d: -d.weight):
        capacity, uneven = divmod(above, d.weight)
        used = d.largest + 1
        if uneven or capacity < used:
            return None
        found.append((d.variable, Place(d.weight, d.low, used, capacity)))
        above = d.weight
    for variable, places in by_variable(found).items():
        if places[0].low != 1 or any(a.low * a.used != b.low for a, b in itertools.pairwise(places)):
            return None
        if places[-1].low * places[-1].used < variable.extent:
            return None
    return found


def by_variable(places: list[tuple[Variable, Place]]) -> dict[Variable, list[Place]]:
    """Return the digits of each coordinate, minor first."""
    found: dict[Variable, list[Place]] = {}
    for variable, place in places:
        found.setdefault(variable, []).append(place)
    for of_one in found.values():
        of_one.sort(key=lambda place: place.low)
    return found


def padding_nests(variables: Sequence[Variable], digits: Digits, shape: Shape) -> list[Nest] | None:
    """Return boxes that cover every slot without an element exactly once.

    Parameters
    ----------
    variables : sequence of Variable
        The independent coordinates.
    digits : Digits
        The slot as a sum of their digits.
    shape : Shape

    Returns
    -------
    list of Nest or None
        None where the digits leave gaps that are not boxes.
    """
    before_tail = slots_before_tail(shape)
    tail = shape.slot_count - before_tail
    nests = [Nest((Loop(tail, 0, 1),), 0, before_tail)] if tail else []
    if before_tail == shape.element_count:
        return nests
    places = digit_places(digits, before_tail)
    if places is None:
        return None
    gap = places[-1][1].stride if places else before_tail
    if gap > 1:
        # Slots below the most minor digit: padding of a dimension of size 1.
        capacities = (Loop(place.capacity, 0, place.stride) for _, place in places)
        nests.append(Nest((Loop(gap - 1, 0, 1), *capacities), 0, 1))
    of_one = by_variable(places)
    boxes = padding_boxes([v.extent for v in variables], [of_one.get(v, []) for v in variables])
    return None if boxes is None else nests + boxes


def padding_boxes(extents: Sequence[int], places: Sequence[Sequence[Place]]) -> list[Nest] | None:
    """Return boxes of the slots that no coordinates below their extents have, or None where there are too many.

    Parameters
    ----------
    extents : sequence of int
        The extent of each coordinate.
    places : sequence of sequences of Place
        The digits of each coordinate, minor first.
    """
    nests: list[Nest] = []
    valid: list[list[Nest]] = []
    capacities = [[Loop(p.capacity, 0, p.stride) for p in of_one] for of_one in places]
    holes = [list(_holes(extent, of_one)) for extent, of_one in zip(extents, places, strict=True)]
    while holes and not holes[-1]:
        # Coordinates after the last one with holes add nothing.
        holes.pop()
    for i, (extent, of_one, missing) in enumerate(zip(extents, places, holes, strict=False)):
        if math.prod([len(v) for v in valid]) * len(missing) > MOST_NESTS:
            return None
        if missing:
            after = tuple(itertools.chain(*capacities[i + 1 :]))
            nests += [Nest((*nest.loops, *after), 0, nest.destination_start) for nest in products([*valid, missing])]
        levels = [(p.low, 0, p.stride) for p in of_one]
        valid.append(list(cut_into_boxes(extent, levels)) if of_one else [Nest(())])
    return nests


def _holes(extent: int, places: Sequence[Place]) -> Iterator[Nest]:
    """Yield boxes of the digit values that no value of a variable below `extent` has."""
    for i, place in enumerate(places):
        if place.capacity > place.used:
            inner = tuple(Loop(p.used, 0, p.stride) for p in places[:i])
            outer = tuple(Loop(p.capacity, 0, p.stride) for p in places[i + 1 :])
            yield Nest(
                (*inner, Loop(place.capacity - place.used, 0, place.stride), *outer), 0, place.used * place.stride
            )
    full = math.prod(p.used for p in places)
    start = extent
    for i, place in enumerate(places):
        # Up to the next multiple of the next digit's unit.
        upper = places[i + 1].low if i + 1 < len(places) else full
        end = min(-(-start // upper) * upper, full)
        count = (end - start) // place.low
        if count:
            inner = tuple(Loop(p.used, 0, p.stride) for p in places[:i])
            slot = sum(start // p.low % p.used * p.stride for p in places)
            yield Nest((*inner, Loop(count, 0, place.stride)), 0, slot)
        start = end


def in_bytes(nest: Nest, width: int, written: int | None = None) -> Nest:
    """Return a nest of elements of `width` bytes with its strides and starts in bytes.

    In the destination, elements have `written` bytes, if that is given.

    Examples
    --------
    >>> in_bytes(Nest((Loop(3, 1, 2),), 0, 5), 4)
    Nest(loops=(Loop(size=3, source_stride=4, destination_stride=8),), source_start=0, destination_start=20)
    """
    written = width if written is None else written
    loops = tuple([Loop(k.size, k.source_stride * width, k.destination_stride * written) for k in nest.loops])
    return Nest(loops, nest.source_start * width, nest.destination_start * written)


#: The widest element that a kernel moves, in bytes.
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
        Bytes, one per dimension, of any sign. A source stride of 0 repeats an element; the elements of the destination
        must not overlap.

    Returns
    -------
    nest : Nest
        In units; its starts are relative to the first element of each array, and may be negative.
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
    loops = [Loop(size, source // width, destination // width) for size, source, destination in steps]
    return coalesced(_forwards(Nest((Loop(itemsize // width, 1, 1), *loops)))), width
