"""The variables of a move in canonical form: split and joined until equivalent moves have the same ones.

``a b -> b a`` of a ``[6, 4]`` array has two variables, ``(x y) b -> b (x y)`` three: x and y are joined where they
are the digits of one number on both sides. A variable with several digits is split first, where the digits fill it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fastindex.algebra.sides import Coordinates, RegroupedShape, own_digits
from fastindex.core.digits import Digit, Digits, Names, Variable, canonical, digit

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
