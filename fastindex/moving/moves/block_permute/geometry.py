"""Block permutes: split the destination into blocks that are the same permutation of the source, with padding.

The slots of the destination are numbered by digits (a mixed radix), each with a capacity above its number of values if
there is padding. `_chosen_block` splits the digits: the innermost, together some hundred bytes, are the slots of a
block; the outer ones number the blocks. In the literature this is loop tiling with a table-driven shuffle as its
micro-kernel::

    digits of a slot     d5  d4  d3 | d2  d1  d0          (minor on the right)
                       number of the | slot in the block
                       block: loops  | block: one table
    table of a block     slot       0   1   2   3   4   5   6   7
                         source     0   9   1  10   2  11   -   -        (- padding: used < capacity)

All blocks share the table, except partial blocks at the end of a coordinate that does not fill its last block: each
kind of these has a separate table. So values and padding are written together, and every line once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import (
    MOST_NESTS,
    Loop,
    Nest,
    Place,
    coalesced,
    cut_into_boxes,
    padding_boxes,
    products,
    shared_levels,
)
from fastindex.algebra.shared_digits import Strides, slots_of
from fastindex.core.digits import Digit, Digits, Variable, digit
from fastindex.core.shape import Shape
from fastindex.core.sizes import slots_before_tail
from fastindex.moving.moves.block_permute import MOST_BLOCK_BYTES, MOST_ROWS
from fastindex.moving.passes import Offsets
from fastindex.runtime.numbers import LINE_BYTES

_LINE_BITS = 8 * LINE_BYTES
# A block ends with the first digit that gives it `_ENOUGH_BITS` of elements. A digit that would give it more than
# `_MOST_BITS` is cut, so that the block has about `_CUT_BITS`.
_ENOUGH_BITS, _MOST_BITS, _CUT_BITS = 8 * 512, 8 * 8192, 8 * 1024
# The factor by which padding may enlarge a block: with fewer elements the fixed cost of a block would show.
_MOST_SPARSE = 4
#: The most bits of a block.
_LARGEST_BITS = 8 * MOST_BLOCK_BYTES
_MOST_TABLES = 16
_MOST_STARTS = 1 << 16
# The most slots of the source that a block spans: offsets of all of its vectors side by side must fit int64.
_MOST_SPAN = 1 << 46


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One table, and the blocks that use it.

    Attributes
    ----------
    sources : int64 array
        For each slot of the block, the offset of its element from the start of the block in the source, in elements;
        meaningless where `is_padding`.
    is_padding : bool array
    nests : tuple of Nest
        The blocks, in elements and slots.
    starts : int64 array of (starts, 2)
        Offsets in the source and in the destination. Each nest is run once for each pair, added to its starts:
        coordinates whose digits the two sides do not share are enumerated, value by value.
    """

    sources: Offsets
    is_padding: NDArray[np.bool_]
    nests: tuple[Nest, ...]
    starts: Offsets


@dataclass(frozen=True, slots=True, eq=False)
class PermutedBlocks:
    """Blocks that together hold every element once, and nests that fill the slots between the blocks."""

    blocks: tuple[Block, ...]
    fills: tuple[Nest, ...]


class _Step(NamedTuple):
    """A digit of the destination: it takes `used` of `capacity` values, with a stride of `stride` slots."""

    variable: Variable
    low: int
    used: int
    capacity: int
    stride: int

    def part(self, values: int) -> _Step:
        """Return the upper part of the digit, split above its lowest `values` values."""
        capacity = self.capacity // values if self.capacity > self.used else -(-self.used // values)
        return _Step(self.variable, self.low * values, -(-self.used // values), capacity, self.stride * values)


def permuted_blocks(
    variables: Sequence[Variable], left: Digits, right: Digits, destination: Shape | Strides, bits: int
) -> PermutedBlocks | None:
    """Choose blocks of the destination, and describe the source of each slot.

    Parameters
    ----------
    variables : sequence of Variable
        The independent coordinates.
    left, right : Digits
        The slots of source and destination as sums of their digits.
    destination : Shape or Strides
    bits : int
        Bits of a slot.

    Returns
    -------
    PermutedBlocks or None
        None if the destination has no contiguous blocks with regular places in the source.
    """
    steps, slots = _steps(right, destination)
    if steps is None:
        return None
    chosen = _chosen_block(steps, left, bits)
    if chosen is None:
        return None
    inside, outside = chosen
    moduli = dict.fromkeys(variables, 1) | _moduli(inside)
    if any(s.low % moduli[s.variable] for s in outside):
        return None
    blocks = _blocks(inside, outside, moduli, left, _is_cut_at_the_top(steps, inside, outside))
    if blocks is None or (bits < 8 and not _in_whole_bytes(blocks, 8 // bits, slots)):
        return None
    if isinstance(destination, Strides) or destination.slot_count == destination.element_count:
        return PermutedBlocks(blocks, ())
    fills = _fills(steps, inside, outside, variables)
    if fills is None:
        return None
    tail = destination.slot_count - slots
    if tail * bits % 8 or (tail and slots * bits % 8):
        return None
    return PermutedBlocks(blocks, (*fills, *([Nest((Loop(tail, 0, 1),), 0, slots)] if tail else [])))


def _moduli(inside: Sequence[_Step]) -> dict[Variable, int]:
    """Return how many values of each coordinate a block spans."""
    return {s.variable: s.low * s.used for s in inside}


def _steps(right: Digits, destination: Shape | Strides) -> tuple[list[_Step] | None, int]:
    """Return the digits of the destination, minor first, and the number of slots that they span."""
    ordered = sorted(right, key=lambda d: d.weight)
    if isinstance(destination, Shape):
        slots = slots_before_tail(destination)
    else:
        slots = ordered[-1].weight * _used(ordered[-1]) if ordered else 1
    weights = [d.weight for d in ordered] + [slots]
    steps = []
    if weights[0] > 1 and isinstance(destination, Shape):
        # Padding of dimensions of size 1.
        steps.append(_Step(Variable("gap", 1, True), 1, 1, weights[0], 1))
    for d, (stride, next_stride) in zip(ordered, itertools.pairwise(weights), strict=True):
        used, (capacity, uneven) = _used(d), divmod(next_stride, stride) if stride > 0 else (0, 1)
        if isinstance(destination, Strides) and stride > 0:
            # Gaps between strided elements are not written.
            capacity, uneven = used, 0
        if uneven or capacity < used:
            return None, slots
        steps.append(_Step(d.variable, d.low, used, capacity, stride))
    return steps, slots


def _used(d: Digit) -> int:
    return -(-d.variable.extent // d.low) if d.high is None else d.high // d.low


def _is_regular(left: Digits, variable: Variable, modulus: int) -> bool:
    """Whether source offsets between multiples of `modulus` are sums of digits: no digit straddles it."""
    cuts = {cut for d in left if d.variable == variable for cut in (d.low, d.high) if cut is not None}
    return modulus >= variable.extent or all(modulus % cut == 0 or cut % modulus == 0 for cut in cuts)


def _chosen_block(steps: Sequence[_Step], left: Digits, bits: int) -> tuple[list[_Step], list[_Step]] | None:
    """Return the digits within a block, and those around it.

    Digits are added, minor first, until the block has enough elements, is whole lines, and `_is_regular` holds for each
    coordinate. A digit that would make the block too large is split by `_cut_of`.
    """
    inside: list[_Step] = []
    moduli: dict[Variable, int] = {}
    size, used = 1, 1
    # Elements that are each on a separate line of the source are best read column by column.
    first = {d.weight for d in left if steps and d.variable == steps[0].variable and d.low == 1}
    scattered = bool(first) and min(first) * bits >= _LINE_BITS

    def is_regular() -> bool:
        return all(_is_regular(left, v, m) for v, m in moduli.items())

    def is_complete() -> bool:
        return size * bits % 8 == 0 and is_regular()

    for i, step in enumerate(steps):
        enough = _ENOUGH_BITS * min(size // used, _MOST_SPARSE)
        if size * bits >= enough and size * bits % _LINE_BITS == 0 and is_complete():
            return inside, list(steps[i:])
        if step.low != moduli.get(step.variable, 1) or step.stride != size:
            return (inside, list(steps[i:])) if size * bits >= _LINE_BITS and is_complete() else None
        sparse = min(size // used, _MOST_SPARSE)
        if size * step.capacity * bits > min(_MOST_BITS, MOST_ROWS * bits * sparse):
            most_bits = MOST_ROWS * bits * sparse if scattered else 8 * _CUT_BITS
            part = _cut_of(step, left, size, bits, most_bits, min(_CUT_BITS, MOST_ROWS * bits) * sparse)
            others = all(_is_regular(left, v, m) for v, m in moduli.items() if v != step.variable)
            if part and others:
                cut = _Step(step.variable, step.low, part, part, step.stride)
                return [*inside, cut], [step.part(part), *steps[i + 1 :]]
            if size * bits >= _LINE_BITS and is_complete():
                return inside, list(steps[i:])
            if size * step.capacity * bits > _LARGEST_BITS:
                return None
        inside.append(step)
        moduli[step.variable] = step.low * step.used
        size, used = size * step.capacity, used * step.used
    # The only block may end within a byte.
    return (inside, []) if is_regular() else None


def _cut_of(step: _Step, left: Digits, size: int, bits: int, most_bits: int, cut_bits: int) -> int:
    """Return the number of values of a digit to take into a block, 0 if no number is possible.

    The block then has about `cut_bits`, and at most `most_bits`, unless one value has more.
    """
    is_top = step.low * step.used >= step.variable.extent
    lines, whole_bytes = (unit // math.gcd(unit, size * bits) for unit in (_LINE_BITS, 8))
    for unit, most in ((lines, 4 * cut_bits), (whole_bytes, 8 * cut_bits)):
        wanted = max(1, cut_bits // (size * bits * unit))
        largest = min(most, most_bits) // (size * bits * unit)
        if unit == whole_bytes or size * bits * unit <= most_bits:
            largest = max(largest, 1)
        for count in (*range(wanted, largest + 1), *range(wanted - 1, 0, -1)):
            values: int = count * unit
            fits = values < step.capacity and (step.capacity == step.used or step.capacity % values == 0)
            fits = fits and (is_top or step.used % values == 0)
            if fits and _is_regular(left, step.variable, step.low * values):
                return values
    return 0


def _blocks(
    inside: Sequence[_Step], outside: Sequence[_Step], moduli: Mapping[Variable, int], left: Digits, is_cut: bool
) -> tuple[Block, ...] | None:
    """Describe the blocks: full ones, and partial ones at the ends of coordinates."""
    last = inside[-1] if inside and is_cut else None
    coarse = {v: Variable(v.key, -(-v.extent // m), True) for v, m in moduli.items()}
    source = _coarse_source(left, moduli, coarse)
    target = _coarse_target(outside, moduli, coarse)
    blocks = []
    for ends in itertools.product(*(_ends(v, m) for v, m in moduli.items())):
        found = _nests_of(dict(zip(moduli, ends, strict=True)), moduli, coarse, source, target)
        if found is None:
            return None
        rests = {v: v.extent % m for (v, m), is_rest in zip(moduli.items(), ends, strict=True) if is_rest}
        size = math.prod(s.capacity for s in inside)
        if last is not None and last.variable in rests:
            # The block ends with its coordinate: other slots of the destination follow there.
            size = last.stride * -(-rests[last.variable] // last.low)
        blocks.append(_block(inside, rests, left, size, *found))
        if blocks[-1].sources.max(initial=0) >= _MOST_SPAN:
            return None
    if len(blocks) > _MOST_TABLES or sum(len(block.nests) for block in blocks) > MOST_NESTS:
        return None
    return tuple(blocks)


def _is_cut_at_the_top(steps: Sequence[_Step], inside: Sequence[_Step], outside: Sequence[_Step]) -> bool:
    """Whether the last digit of a block was split off the highest digit of a coordinate, and that has no padding."""
    if not inside or inside[-1] in steps:
        return False
    above = outside[0]
    return above.capacity == above.used and above.low == max(s.low for s in outside if s.variable == above.variable)


def _in_whole_bytes(blocks: Sequence[Block], per_byte: int, slots: int) -> bool:
    """Whether every block begins on a byte boundary, and ends on one or at the end of the buffer."""
    for block in blocks:
        if (block.starts[:, 1] % per_byte).any():
            return False
        for nest in block.nests:
            numbers = nest.destination_start, *(k.destination_stride for k in nest.loops)
            if any(number % per_byte for number in numbers):
                return False
            alone = len(block.starts) == 1 and not nest.loops
            is_last = alone and nest.destination_start + len(block.sources) == slots
            # A vector of only padding would also write padding to the unused bits of the last byte.
            if len(block.sources) % per_byte and (not is_last or block.is_padding[-1]):
                return False
    return True


def _ends(variable: Variable, modulus: int) -> list[bool]:
    """Return the kinds of blocks along a coordinate: False for full ones, True for a partial one at its end."""
    count, remainder = divmod(variable.extent, modulus)
    return [False] * (count > 0) + [True] * (remainder > 0)


def _coarse_source(left: Digits, moduli: Mapping[Variable, int], coarse: Mapping[Variable, Variable]) -> Digits:
    """Return the place of a block in the source, as digits of block numbers along each coordinate."""
    found: Digits = ()
    for d in left:
        modulus = moduli[d.variable]
        if d.high is None or d.high > modulus:
            low = max(d.low, modulus)
            high = None if d.high is None else d.high // modulus
            if low < d.variable.extent:
                found += digit(d.weight * (low // d.low), coarse[d.variable], low // modulus, high)
    return found


def _coarse_target(
    outside: Sequence[_Step], moduli: Mapping[Variable, int], coarse: Mapping[Variable, Variable]
) -> Digits:
    """Return the place of a block in the destination, as digits of block numbers along each coordinate."""
    highest: dict[Variable, int] = {}
    for s in outside:
        highest[s.variable] = max(s.low, highest.get(s.variable, 0))
    # A digit of one value, the capacity left above a split, has no effect.
    return tuple(
        [
            Digit(
                s.stride,
                coarse[s.variable],
                s.low // moduli[s.variable],
                None if s.low == highest[s.variable] else s.low * s.used // moduli[s.variable],
            )
            for s in outside
            if s.used > 1
        ]
    )


def _nests_of(
    ends: Mapping[Variable, bool],
    moduli: Mapping[Variable, int],
    coarse: Mapping[Variable, Variable],
    source: Digits,
    target: Digits,
) -> tuple[tuple[Nest, ...], Offsets] | None:
    """Return the nests of the blocks that are partial along the coordinates where `ends`, and their `Block.starts`."""
    boxes: list[list[Nest]] = []
    counted = np.zeros((1, 2), np.int64)
    for variable, modulus in moduli.items():
        count = variable.extent // modulus
        if count == 1 - ends[variable]:
            # The only block along this coordinate is the first.
            continue
        sides = [[d for d in digits if d.variable == coarse[variable]] for digits in (source, target)]
        if ends[variable]:
            starts = [sum(d.value_of(count) for d in side) for side in sides]
            boxes.append([Nest((), starts[0], starts[1])])
            continue
        levels = shared_levels(sides[0], sides[1], count)
        if levels is None:
            if len(counted) * count > _MOST_STARTS:
                return None
            along = np.stack([slots_of(side, count) for side in sides], 1)
            counted = (along[:, None] + counted).reshape(-1, 2)
            continue
        boxes.append(list(cut_into_boxes(count, levels)))
    if math.prod(map(len, boxes)) > MOST_NESTS:
        return None
    return tuple(coalesced(nest) for nest in products(boxes)), counted


def _block(
    inside: Sequence[_Step],
    rests: Mapping[Variable, int],
    left: Digits,
    size: int,
    nests: tuple[Nest, ...],
    starts: Offsets,
) -> Block:
    """Return the block, with its table, that has only `rests[v]` values of each coordinate `v` in `rests`."""
    # One axis for each digit: arrays stay small until they are broadcast together.
    axes = tuple(s.capacity for s in reversed(inside))
    values: dict[Variable, Offsets] = {}
    is_padding = np.zeros(axes, bool)
    for i, s in enumerate(inside):
        number = np.arange(s.capacity).reshape(-1, *(1,) * i)
        if s.capacity > s.used:
            is_padding |= number >= s.used
        value = number if s.low == 1 else number * s.low
        values[s.variable] = values[s.variable] + value if s.variable in values else value
    sources = np.zeros(axes, np.int64)
    for variable, value in values.items():
        if variable in rests:
            is_padding |= value >= rests[variable]
        own = [d.value_of(value) for d in left if d.variable == variable]
        if own:
            sources += sum(own[1:], own[0])
    # The block at the end of a coordinate may be shorter.
    return Block(sources.reshape(-1)[:size], is_padding.reshape(-1)[:size], nests, starts)


def _fills(
    steps: Sequence[_Step], inside: Sequence[_Step], outside: Sequence[_Step], variables: Sequence[Variable]
) -> list[Nest] | None:
    """Return nests of the slots that belong to no block; None if digits are not consecutive, or nests too many."""
    if _is_cut_at_the_top(steps, inside, outside):
        # The digit was split and has no padding: its last block may be shorter.
        inside, outside = inside[:-1], [s for s in steps if s.stride >= inside[-1].stride]
    moduli = dict.fromkeys(variables, 1) | _moduli(inside)
    size = math.prod(s.capacity for s in inside)
    ordered = sorted(outside, key=lambda s: s.low)
    places = [
        [Place(s.stride, s.low // m, s.used, s.capacity) for s in ordered if s.variable == v] for v, m in moduli.items()
    ]
    if any(of_one and not _is_chain(of_one) for of_one in places):
        return None
    boxes = padding_boxes([-(-v.extent // m) for v, m in moduli.items()], places)
    if boxes is None:
        return None
    return [coalesced(Nest((Loop(size, 0, 1), *nest.loops), 0, nest.destination_start)) for nest in boxes]


def _is_chain(places: Sequence[Place]) -> bool:
    """Whether the digits of a coordinate are consecutive: each begins where the one before ends."""
    return places[0].low == 1 and all(a.low * a.used == b.low for a, b in itertools.pairwise(places))
