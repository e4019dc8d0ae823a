"""Slots as sums of weighted digits: proofs about layouts of any size that do not visit elements; strides and CuTe.

A *variable* is a coordinate, or another number from 0 to its extent (exclusive). A *digit* of it is ``v // low``, or
``v // low % (high // low)``. In most layouts, the slot of an element is a weighted sum of digits of its coordinates. If
a tile splits a digit unevenly, the quotient and the remainder become new variables, identified by the sum that was
split. Layouts with one digit per dimension have strides; those whose digits continue each other are CuTe layouts.

Source: "CuTe Layouts", https://docs.nvidia.com/cutlass/media/docs/cpp/cute/01_layout.html
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from fastindex.core.integers import common_factors
from fastindex.core.sizes import SizedShape, axes_of, check_placed
from fastindex.core.tiles import (
    Axis,
    CountAxis,
    DimensionAxis,
    MergedAxis,
    OffsetAxis,
    axis_strides,
    parts_first,
    slot_of,
)
from fastindex.errors import UnsupportedError


class Variable(NamedTuple):
    """A number from 0 to `extent` (exclusive): a coordinate, or part of a sum that a tile splits unevenly."""

    key: Hashable
    extent: int
    is_coordinate: bool


@dataclass(frozen=True, slots=True)
class Backwards:
    """The key of a variable that counts down on one side of a move: its value v there is ``extent - 1 - v``."""

    key: Hashable


def runs_backwards(variables: Iterable[Variable]) -> bool:
    """Whether any of the variables counts down on one side.

    Examples
    --------
    >>> runs_backwards([Variable(Backwards("n"), 4, True)]), runs_backwards([Variable("n", 4, True)])
    (True, False)
    """
    return any(isinstance(variable.key, Backwards) for variable in variables)


class Digit(NamedTuple):
    """``weight * (variable // low % (high // low))``, without the ``%`` if `high` is None."""

    weight: int
    variable: Variable
    low: int
    high: int | None

    @property
    def largest(self) -> int:
        """The largest value of the digit, without its weight."""
        top = (self.variable.extent - 1) // self.low
        return top if self.high is None else min(top, self.high // self.low - 1)

    def value_of(self, number: Any) -> Any:
        """Return the digit of a number, or of an array of them, with its weight."""
        value = number if self.low == 1 else number // self.low
        if self.high is not None:
            value = value % (self.high // self.low)
        return value if self.weight == 1 else self.weight * value


Digits = tuple[Digit, ...]
#: Numbers assigned to the sums that tiles split unevenly.
Names = dict[tuple[Digits, int], int]


def digit(weight: int, variable: Variable, low: int, high: int | None) -> Digits:
    """Return one digit in its simplest form, or () if it is always 0.

    Examples
    --------
    >>> digit(4, Variable("x", 5, True), 1, 8)
    (Digit(weight=4, variable=Variable(key='x', extent=5, is_coordinate=True), low=1, high=None),)
    """
    if high is not None and high >= variable.extent:
        high = None
    made = Digit(weight, variable, low, high)
    return (made,) if weight and made.largest > 0 else ()


def scaled(digits: Digits, factor: int) -> Digits:
    """Multiply a sum of digits.

    Examples
    --------
    >>> scaled(digit(4, Variable("x", 5, True), 1, None), 3)[0].weight
    12
    """
    return tuple([Digit(d.weight * factor, d.variable, d.low, d.high) for d in digits])


def divided(digits: Digits, tile_size: int, names: Names) -> tuple[Digits, Digits]:
    """Split a sum of digits into its quotient and remainder by `tile_size`.

    Examples
    --------
    >>> quotient, remainder = divided(digit(1, Variable("x", 8, True), 1, None), 4, {})
    >>> quotient[0].low, remainder[0].high
    (4, 4)
    """
    quotient: Digits = ()
    remainder: Digits = ()
    for d in digits:
        if d.weight % tile_size == 0:
            quotient += digit(d.weight // tile_size, d.variable, d.low, d.high)
            continue
        ratio, uneven = divmod(tile_size, d.weight)
        if uneven == 0 and d.largest >= ratio and (d.high is None or d.high // d.low % ratio == 0):
            quotient += digit(1, d.variable, d.low * ratio, d.high)
            remainder += digit(d.weight, d.variable, d.low, d.low * ratio)
        else:
            remainder += (d,)
    if largest_sum(remainder) < tile_size:
        return quotient, remainder
    # This remainder cannot be split into digits: it becomes two variables, the same ones wherever it appears.
    name = names.setdefault((canonical(remainder), tile_size), len(names))
    top = largest_sum(remainder)
    return (
        quotient + digit(1, Variable(("quotient", name), top // tile_size + 1, False), 1, None),
        digit(1, Variable(("remainder", name), min(top + 1, tile_size), False), 1, None),
    )


def largest_sum(digits: Digits) -> int:
    """Return an upper bound on a sum of digits: the sum of their largest values.

    Examples
    --------
    >>> largest_sum(digit(4, Variable("x", 5, True), 1, None))
    16
    """
    return sum(d.weight * d.largest for d in digits)


def canonical(digits: Iterable[Digit]) -> Digits:
    """Merge the digits of a sum, so that sums that only differ in how digits are split become equal.

    Examples
    --------
    >>> x = Variable("x", 8, True)
    >>> cut = digit(4, x, 4, None) + digit(1, x, 1, 4)
    >>> canonical(cut) == canonical(digit(1, x, 1, None))
    True
    """
    merged: dict[tuple[Variable, int, int | None], Digit] = {}
    for d in digits:
        place = d.variable, d.low, d.high
        same = merged.get(place)
        merged[place] = d if same is None else Digit(same.weight + d.weight, *place)
    kept: list[Digit] = []
    for made in sorted(merged.values(), key=_order) if len(merged) > 1 else merged.values():
        last = kept[-1] if kept else None
        if (
            last is not None
            and last.high == made.low
            and last.variable == made.variable
            and last.weight * made.low == made.weight * last.low
        ):
            kept[-1] = Digit(last.weight, last.variable, last.low, made.high)
        else:
            kept.append(made)
    return tuple(kept)


def _order(d: Digit) -> tuple[str, int, int]:
    return str(d.variable.key), d.low, d.high or 0


def dimension_digits(sizes: Iterable[int]) -> tuple[list[Variable], list[Digits]]:
    """Return a variable for each dimension of an array, and the coordinates of an element as digits of them.

    Examples
    --------
    >>> variables, coordinates = dimension_digits((4, 6))
    >>> variables[1].extent, coordinates[1] == digit(1, variables[1], 1, None)
    (6, True)
    """
    variables = [Variable(d, size, True) for d, size in enumerate(sizes)]
    return variables, [digit(1, variable, 1, None) for variable in variables]


def slot_digits(axes: Sequence[Axis], coordinates: Sequence[Digits], names: Names) -> Digits:
    """Return the slot of an element as a sum of digits, given its coordinates as sums of digits.

    Sums to be compared must share `names`.

    Parameters
    ----------
    axes : sequence of Axis
        The axes of the physical array, from `fastindex.core.tiles.physical_axes`.
    coordinates : sequence of sum of digits
        One per dimension.
    names : dict
        The numbers of the sums that tiles split unevenly; new ones are added.

    Examples
    --------
    >>> from fastindex.core.tiles import physical_axes
    >>> x, y = (Variable(name, size, True) for name, size in (("x", 4), ("y", 6)))
    >>> coordinates = [digit(1, x, 1, None), digit(1, y, 1, None)]
    >>> [d.weight for d in slot_digits(physical_axes((4, 6), (1, 0), None, ((2, 3),)), coordinates, {})]
    [12, 6, 3, 1]
    """
    known: dict[Axis, Digits] = {}
    # One division gives both the number of a tile and the offset within it.
    split: dict[tuple[Axis, int], tuple[Digits, Digits]] = {}
    for axis in parts_first(axes):
        if isinstance(axis, DimensionAxis):
            known[axis] = coordinates[axis.dimension]
        elif isinstance(axis, CountAxis | OffsetAxis):
            tile = axis.whole, axis.tile_size if isinstance(axis, CountAxis) else axis.size
            if tile not in split:
                split[tile] = divided(known[axis.whole], tile[1], names)
            known[axis] = split[tile][isinstance(axis, OffsetAxis)]
        elif isinstance(axis, MergedAxis):
            known[axis] = canonical(scaled(known[axis.outer], axis.inner.size) + known[axis.inner])
        else:
            known[axis] = ()
    total: Digits = ()
    for axis, stride in zip(axes, axis_strides(axes), strict=True):
        if known[axis]:
            total += scaled(known[axis], stride)
    return total


def reshaped_digits(
    a: Sequence[int], b: Sequence[int]
) -> tuple[tuple[Variable, ...], tuple[Digits, ...], tuple[Digits, ...]]:
    """Return the coordinates of an element before and after a reshape from `a` to `b`, as digits of common variables.

    There is a variable for each of the shortest runs of dimensions with the same product on both sides.

    Examples
    --------
    >>> variables, before, after = reshaped_digits((4, 6, 5), (24, 5))
    >>> [v.extent for v in variables], len(before), after[1][0].variable.key
    ([24, 5], 3, ('n1',))
    """
    variables: list[Variable] = []
    before: list[Digits] = []
    after: list[Digits] = []
    bounds = [(0, 0), (len(a), len(b))] if 0 in a else common_factors(a, b)
    for begin, end in pairwise(bounds):
        runs = a[begin[0] : end[0]], b[begin[1] : end[1]]
        variable = Variable((f"n{len(variables)}",), math.prod(runs[0]), True)
        variables.append(variable)
        for run, coordinates in zip(runs, (before, after), strict=True):
            weight = variable.extent
            for size in run:
                high, weight = weight, weight // size if size else 0
                coordinates.append(digit(1, variable, weight, high) if weight else ())
    return tuple(variables), tuple(before), tuple(after)


def always_equal(a: Digits, b: Digits) -> bool | None:
    """Whether two sums of digits are equal for all values of their variables, or None if that is not known.

    Examples
    --------
    >>> x = Variable("x", 8, True)
    >>> always_equal(digit(1, x, 1, 4) + digit(4, x, 4, None), digit(1, x, 1, None))
    True
    >>> always_equal(digit(1, x, 1, 4) + digit(8, x, 4, None), digit(1, x, 1, None))
    False
    """
    if canonical(a) == canonical(b):
        return True
    variables = {d.variable for d in (*a, *b)}
    same = [_same_weights(variable, a, b) for variable in variables]
    if all(same):
        return True
    # Variables that are parts of an uneven split depend on the coordinates, so unequal weights prove nothing.
    free = all(variable.is_coordinate for variable in variables)
    return False if free and False in same else None


def _same_weights(variable: Variable, *sums: Digits) -> bool | None:
    left, right = ([d for d in digits if d.variable == variable] for digits in sums)
    cuts = {cut for d in (*left, *right) for cut in (d.low, d.high) if cut is not None}
    ordered = sorted(cut for cut in cuts if cut < variable.extent)
    if any(more % less for less, more in pairwise(ordered)):
        return None
    # Both sums are linear between cuts, and the variable takes the value of every cut.
    return all(_value_at(left, cut) == _value_at(right, cut) for cut in ordered)


def _value_at(digits: list[Digit], cut: int) -> int:
    return sum(d.weight * (cut // d.low) for d in digits if d.high is None or cut < d.high)


#: If digits prove nothing, arrays of up to this many elements are checked element by element.
MOST_ELEMENTS_VISITED = 100_000


def slot_strides(shape: SizedShape) -> tuple[int, ...] | None:
    """Return the distance in slots between neighbours along each dimension, or None if it is not constant.

    It is None if tiles reorder elements. A dimension of size 1 has the stride that it would have if it were longer.

    Raises
    ------
    UnsupportedError
        This is not an array, it is sparse, or a dimension is unbounded.

    Examples
    --------
    >>> from fastindex import Shape
    >>> slot_strides(Shape.parse("f32[3,100]{1,0:T(8,128)}"))
    (128, 1)
    """
    check_placed(shape)
    strides: list[int | None] = [None] * len(shape.dimensions)
    if 0 in shape.dimensions:
        return _closed(shape, strides)
    variables, coordinates = dimension_digits(shape.dimensions)
    digits = slot_digits(axes_of(shape), coordinates, {})
    whole = True
    for d in canonical(digits):
        if d.low == 1 and d.high is None and d.variable.is_coordinate:
            strides[variables.index(d.variable)] = d.weight
        else:
            whole = False
    if whole:
        return _closed(shape, strides)
    if all(d.variable.is_coordinate for d in digits) or math.prod(shape.dimensions) > MOST_ELEMENTS_VISITED:
        return None
    return _strides_of_every_element(shape)


def _closed(shape: SizedShape, strides: list[int | None]) -> tuple[int, ...]:
    """Fill in the strides of dimensions of size 0 or 1."""
    sizes = shape.layout.padded_dimensions or shape.dimensions
    filled = [0] * len(sizes)
    following = 1
    for number in shape.layout.minor_to_major:
        stride = strides[number]
        filled[number] = following if stride is None else stride
        following = filled[number] * sizes[number]
    return tuple(filled)


def _strides_of_every_element(shape: SizedShape) -> tuple[int, ...] | None:
    axes = axes_of(shape)
    strides: list[int | None] = [None] * shape.rank
    for number, size in enumerate(shape.dimensions):
        if size > 1:
            strides[number] = slot_of(axes, [int(other == number) for other in range(shape.rank)])
    for index in itertools.product(*map(range, shape.dimensions)):
        if slot_of(axes, index) != sum(i * (stride or 0) for i, stride in zip(index, strides, strict=True)):
            return None
    return _closed(shape, strides)


CuteTuple = int | tuple["CuteTuple", ...]


@dataclass(frozen=True)
class CuteLayout:
    """A layout in CuTe's notation: nested sizes and their strides, in elements.

    The coordinate of dimension d is split over the sizes in entry d, of which the first varies fastest. Where their
    product is more than the dimension, the layout is padded: coordinates beyond the dimension are padding.

    Attributes
    ----------
    shape, stride : nested tuples of int
    """

    shape: tuple[CuteTuple, ...]
    stride: tuple[CuteTuple, ...]

    def __str__(self) -> str:
        return f"{_cute_text(self.shape)}:{_cute_text(self.stride)}"


def cute_layout(sizes: Sequence[int], axes: Sequence[Axis], what: str) -> CuteLayout:
    """Return a layout as nested sizes and strides in CuTe's notation.

    Parameters
    ----------
    sizes : sequence of int
        Logical sizes, one per dimension.
    axes : sequence of Axis
        The axes of the physical array, from `fastindex.core.tiles.physical_axes`.
    what : str
        The shape, for error messages.

    Raises
    ------
    UnsupportedError
        The digits of a dimension do not continue each other, so sizes and strides cannot describe the layout.

    Examples
    --------
    >>> from fastindex.core.tiles import physical_axes
    >>> str(cute_layout((4, 8), physical_axes((4, 8), (1, 0), None, ((2, 4), (2, 1))), "f32[4,8]"))
    '((2,2),8):((1,16),2)'
    >>> str(cute_layout((4, 6), physical_axes((4, 6), (0, 1), None, ()), "f32[4,6]"))
    '(4,6):(1,4)'
    >>> str(cute_layout((3, 5), physical_axes((3, 5), (1, 0), None, ((2, 2),)), "f32[3,5]"))
    '((2,2),(2,3)):((2,12),(1,4))'
    """
    variables, coordinates = dimension_digits(sizes)
    digits = canonical(slot_digits(axes, coordinates, {}))
    cute_sizes: list[CuteTuple] = []
    strides: list[CuteTuple] = []
    for variable, size in zip(variables, sizes, strict=True):
        mine = sorted((d for d in digits if d.variable == variable), key=lambda d: d.low)
        parts = [(d.high or size) // d.low for d in mine]
        inner = all(d.low * part == d.high for d, part in zip(mine[:-1], parts[:-1], strict=True))
        if mine and mine[-1].high is None:
            # A tile that does not divide the dimension pads it: the last coordinates of the layout are padding.
            parts[-1] = -(-size // mine[-1].low)
        if not inner or (mine and (mine[-1].high is not None or mine[0].low != 1)):
            raise UnsupportedError(f"the digits of dimension {variable.key} of {what} do not continue each other")
        cute_sizes.append(tuple(parts) if len(parts) > 1 else size)
        strides.append(tuple(d.weight for d in mine) if len(mine) > 1 else (mine[0].weight if mine else 0))
    if not all(d.variable.is_coordinate for d in digits):
        raise UnsupportedError(f"the tiles of {what} split combined dimensions unevenly, which CuTe cannot express")
    return CuteLayout(tuple(cute_sizes), tuple(strides))


def _cute_text(value: CuteTuple) -> str:
    if isinstance(value, tuple):
        return f"({','.join(map(_cute_text, value))})"
    return str(value)
