"""Sides of a move whose dimensions are made of other coordinates: split, merged, cut or padded.

A relayout counts the elements of both sides by the same dimensions. A rearrangement has separate coordinates, the
*variables*, and each dimension of a side is a sum of their digits: ``(a 32)`` of 70 elements is one variable of 70
values, of which one side has ``x // 32`` and ``x % 32`` as two dimensions. Everything that follows, from the digits of
slots to the kernels, is the same as for a relayout.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastindex.algebra.forms import Check, Form, ProgramBuilder, scaled_sum
from fastindex.core.digits import (
    Digit,
    Digits,
    Names,
    Variable,
    canonical,
    digit,
    divided,
    runs_backwards,
    scaled,
    slot_digits,
)
from fastindex.core.shape import Shape
from fastindex.core.sizes import axes_of
from fastindex.errors import UnsupportedError

Coordinates = tuple[Digits, ...]


@dataclass(frozen=True, slots=True)
class Strides:
    """An array in memory, described by one stride per dimension in elements, as in NumPy."""

    dimensions: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegroupedStrides(Strides):
    """A strided array whose dimensions are sums of digits of variables.

    Attributes
    ----------
    coordinates : tuple of Digits
        One for each dimension.
    variables : tuple of Variable
    """

    coordinates: Coordinates
    variables: tuple[Variable, ...]


class RegroupedShape(Shape):
    """A shape whose dimensions are sums of digits of variables; only the elements that variables count are moved.

    Slots, bytes and text are those of the shape.

    Parameters
    ----------
    shape : Shape
    coordinates : tuple of Digits
        One for each dimension of the shape.
    variables : tuple of Variable

    Examples
    --------
    >>> from fastindex.core.digits import digit
    >>> x = Variable("x", 70, True)
    >>> side = RegroupedShape(Shape.parse("u8[3,32]"), (digit(1, x, 32, None), digit(1, x, 1, 32)), (x,))
    >>> side.element_count, side.slot_count
    (70, 96)
    """

    __slots__ = ("coordinates", "variables")

    coordinates: Coordinates
    variables: tuple[Variable, ...]

    def __init__(self, shape: Shape, coordinates: Coordinates, variables: tuple[Variable, ...]) -> None:
        super().__init__(shape.element_type, shape.dimensions, shape.layout, shape.dynamic_dimensions)
        put = object.__setattr__
        put(self, "coordinates", coordinates)
        put(self, "variables", variables)
        put(self, "_hash", hash((self._hash, coordinates, variables)))

    @property
    def element_count(self) -> int:
        """Number of elements that move."""
        return math.prod(v.extent for v in self.variables)

    @property
    def shape(self) -> Shape:
        """The shape without its variables."""
        return Shape(self.element_type, self.dimensions, self.layout, self.dynamic_dimensions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RegroupedShape):
            return False
        own, others = (self.coordinates, self.variables), (other.coordinates, other.variables)
        return own == others and super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return RegroupedShape, (self.shape, self.coordinates, self.variables)


Regrouped = RegroupedShape | RegroupedStrides


def own_digits(side: Regrouped, names: Names) -> Digits:
    """Return the slot of a side as a sum of digits of its variables."""
    return digits_of(side, side.coordinates, names)


def digits_of(side: Shape | Strides, coordinates: Sequence[Digits], names: Names) -> Digits:
    """Return the slot as a sum of digits; digits that a tile splits without reordering are merged again."""
    if isinstance(side, Shape):
        return canonical(slot_digits(axes_of(side), coordinates, names))
    weighted = zip(coordinates, side.strides, strict=True)
    return canonical(d for digits, stride in weighted if stride for d in scaled(digits, stride))


# Index programs


def variable_forms(
    builder: ProgramBuilder, side: RegroupedShape, coordinates: Sequence[Form]
) -> tuple[dict[Variable, Form], list[Check]]:
    """Return the variables of a side as forms of its dimensions, and the checks that fail where there is no element."""
    if runs_backwards(side.variables):
        raise UnsupportedError("a reversed axis is padded, or split by tiles that do not divide it")
    found: dict[Variable, Form] = dict.fromkeys(side.variables, ())
    checks: list[Check] = []
    for digits, whole, size in zip(side.coordinates, coordinates, side.dimensions, strict=True):
        ordered = sorted(digits, key=lambda one: one.weight)
        # Values below the first digit, and the unused capacity of a digit, belong to no element.
        above = ordered[0].weight if ordered else size
        if above > 1:
            checks.append(Check(_remainder(builder, whole, 1, above, size), 1))
        for one, weight in zip(ordered, [*(d.weight for d in ordered), size][1:], strict=True):
            is_last = one is ordered[-1]
            value = builder.quotient(whole, one.weight, size - 1)
            if not is_last:
                value = _remainder(builder, whole, one.weight, weight, size)
            if is_last or weight > one.weight * (one.largest + 1):
                checks.append(Check(value, one.largest + 1))
            found[one.variable] = scaled_sum((1, found[one.variable]), (one.low, value))
    return found, [*checks, *(Check(form, v.extent) for v, form in found.items())]


def _remainder(builder: ProgramBuilder, whole: Form, low: int, high: int, size: int) -> Form:
    """Return ``whole // low % (high // low)`` for ``whole < size``."""
    inner, outer = (builder.quotient(whole, cut, size - 1) if cut > 1 else whole for cut in (low, high))
    return scaled_sum((1, inner), (-(high // low), outer))


def dimension_forms(builder: ProgramBuilder, side: RegroupedShape, values: dict[Variable, Form]) -> list[Form]:
    """Return the dimensions of a side as forms of its variables."""
    found = []
    for digits in side.coordinates:
        total: Form = ()
        for one in digits:
            whole, limit = values[one.variable], one.variable.extent - 1
            value = builder.quotient(whole, one.low, limit)
            if one.high is not None:
                size = one.high // one.low
                value = scaled_sum((1, value), (-size, builder.quotient(whole, one.high, limit)))
            total = scaled_sum((1, total), (one.weight, value))
        found.append(total)
    return found


# Composition


def substituted(target: RegroupedShape, between: RegroupedShape, first: RegroupedShape) -> RegroupedShape:
    """Express the destination of the second of two moves in the variables of the first.

    Parameters
    ----------
    target, between : RegroupedShape
        The destination and the source of the second move.
    first : RegroupedShape
        The destination of the first move: the same shape as `between`.

    Raises
    ------
    UnsupportedError
        The two moves cut a coordinate unevenly, or the second drops elements that the first writes.
    """
    if runs_backwards((*between.variables, *first.variables)):
        raise UnsupportedError("a plan with a reversed axis is not composed; run one plan after the other")
    names: Names = {}
    values: dict[Variable, Digits] = dict.fromkeys(between.variables, ())
    for digits, known in zip(between.coordinates, first.coordinates, strict=True):
        ordered = sorted(digits, key=lambda one: one.weight)
        for i, one in enumerate(ordered):
            part = divided(known, one.weight, names)[0] if one.weight > 1 else known
            if i + 1 < len(ordered):
                part = divided(part, ordered[i + 1].weight // one.weight, names)[1]
            values[one.variable] += scaled(part, one.low)
    for variable, value in values.items():
        values[variable] = canonical(value)
        if sum(one.weight * one.largest for one in values[variable]) >= variable.extent:
            raise UnsupportedError("the second plan drops elements that the first one writes; run one after the other")
    coordinates = tuple(canonical(_part_of(one, values, names)) for one in target.coordinates)
    if names:
        raise UnsupportedError("the two plans cut a coordinate at places that do not divide each other")
    return RegroupedShape(target.shape, coordinates, first.variables)


def _part_of(digits: Digits, values: dict[Variable, Digits], names: Names) -> Iterable[Digit]:
    for one in digits:
        part = values[one.variable]
        if one.low > 1:
            part = divided(part, one.low, names)[0]
        if one.high is not None:
            part = divided(part, one.high // one.low, names)[1]
        yield from scaled(part, one.weight)


# Variables in canonical form: split and joined until equivalent moves have the same ones.
#
# ``a b -> b a`` of a ``[6, 4]`` array has two variables, ``(x y) b -> b (x y)`` three: x and y are joined where they
# are the digits of one number on both sides. A variable with several digits is split first, where the digits fill it.

Sides = tuple[RegroupedShape, RegroupedShape]


class _Part(NamedTuple):
    """An occurrence of a digit of a variable: the side and the dimension, and its weight there."""

    place: tuple[int, int]
    weight: int
    low: int
    high: int | None


#: The occurrences of the digits of each variable.
_Parts = dict[Variable, list[_Part]]


def joined_variables(sides: Sides) -> Sides:
    """Return the sides of a move with the fewest variables, numbered by where their digits lie.

    Examples
    --------
    >>> x, y, b = (Variable(name, size, True) for name, size in (("x", 2), ("y", 3), ("b", 4)))
    >>> from fastindex.core.shape import Shape
    >>> joined, other = digit(3, x, 1, None) + digit(1, y, 1, None), digit(1, b, 1, None)
    >>> left = RegroupedShape(Shape.parse("u8[6,4]"), (joined, other), (x, y, b))
    >>> right = RegroupedShape(Shape.parse("u8[4,6]"), (other, joined), (x, y, b))
    >>> [v.extent for v in joined_variables((left, right))[0].variables]
    [4, 6]
    """
    parts = _split(sides)
    while (pair := _continued(parts)) is not None:
        _join(parts, *pair)
    coordinates = _coordinates(parts, sides)
    made = [RegroupedShape(s.shape, c, tuple(parts)) for s, c in zip(sides, coordinates, strict=True)]
    names: Names = {}
    where: dict[Variable, list[Any]] = defaultdict(list)
    digits = [own_digits(side, names) for side in made]
    split = {number: key for key, number in names.items()}
    for side, of_side in enumerate(digits):
        for variable, path in _paths(of_side, split, (side,)):
            where[variable].append(path)
    ordered = sorted((v for v in parts if v in where), key=lambda v: (sorted(where[v]), v.extent))
    renamed = {v: Variable(("joined", i), v.extent, True) for i, v in enumerate(ordered)}
    variables = tuple(renamed.values())
    left, right = (
        RegroupedShape(side.shape, tuple(_renamed(d, renamed) for d in side.coordinates), variables) for side in made
    )
    return left, right


def _split(sides: Sides) -> _Parts:
    """Split variables at the cuts of their digits, where these divide each other and the extent."""
    found: _Parts = {}
    for variable in sides[0].variables:
        own = [
            _Part((side, d), one.weight, one.low, one.high)
            for side, shape in enumerate(sides)
            for d, digits in enumerate(shape.coordinates)
            for one in digits
            if one.variable == variable
        ]
        if variable.extent == 1:
            continue
        cuts = sorted({1, variable.extent, *(p.low for p in own), *(p.high for p in own if p.high is not None)})
        cuts = [cut for cut in cuts if cut <= variable.extent]
        if any(more % less for less, more in itertools.pairwise(cuts)):
            found[variable] = own
            continue
        for low, high in itertools.pairwise(cuts):
            part = Variable((variable, low), high // low, True)
            found[part] = [
                _Part(p.place, p.weight * low // p.low, 1, None)
                for p in own
                if p.low <= low and (p.high is None or p.high >= high)
            ]
    return found


def _continued(parts: _Parts) -> tuple[Variable, Variable] | None:
    """Return an outer and an inner variable where the outer one continues the inner one everywhere; None without."""
    lowest = {
        v: sorted((p.place, p.weight) for p in own if p.low == 1) for v, own in parts.items() if _is_whole(own) or own
    }
    by_place = {tuple(places): v for v, places in lowest.items()}
    for inner, own in parts.items():
        if own and _is_whole(own):
            outer = by_place.get(tuple(sorted((p.place, p.weight * inner.extent) for p in own)))
            if outer is not None and outer != inner:
                return outer, inner
    return None


def _is_whole(own: Sequence[_Part]) -> bool:
    return all(p.low == 1 and p.high is None for p in own)


def _join(parts: _Parts, outer: Variable, inner: Variable) -> None:
    size = inner.extent
    joined = Variable((outer, inner), outer.extent * size, True)
    parts[joined] = [
        _Part(p.place, p.weight // size, 1, p.high and p.high * size)
        if p.low == 1
        else _Part(p.place, p.weight, p.low * size, p.high and p.high * size)
        for p in parts.pop(outer)
    ]
    del parts[inner]


def _coordinates(parts: _Parts, sides: Sides) -> tuple[Coordinates, ...]:
    found: list[list[Digits]] = [[() for _ in side.coordinates] for side in sides]
    for variable, own in parts.items():
        for p in own:
            side, d = p.place
            found[side][d] += digit(p.weight, variable, p.low, p.high)
    return tuple(tuple(canonical(digits) for digits in of_side) for of_side in found)


def _paths(
    digits: Digits, split: dict[int, tuple[Digits, int]], path: tuple[int, ...]
) -> Iterator[tuple[Variable, tuple[int, ...]]]:
    """Yield the variable of each digit of a slot, and numbers that locate it, through sums that tiles split."""
    for one in digits:
        here = (*path, one.weight, one.low, one.high or 0)
        if one.variable.is_coordinate:
            yield one.variable, here
            continue
        kind, number = one.variable.key if isinstance(one.variable.key, tuple) else ("", -1)
        remainder, tile = split[number]
        yield from _paths(remainder, split, (*here, int(kind == "quotient"), tile))


def _renamed(digits: Digits, renamed: dict[Variable, Variable]) -> Digits:
    return canonical(Digit(d.weight, renamed[d.variable], d.low, d.high) for d in digits)
