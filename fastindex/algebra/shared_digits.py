"""The digits of coordinates that two sides of a move share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.sides import RegroupedShape, RegroupedStrides, digits_of, own_digits
from fastindex.algebra.sides import Strides as Strides
from fastindex.core.digits import Backwards, Digit, Digits, Names, Variable, canonical, digit, dimension_digits
from fastindex.core.shape import Shape
from fastindex.core.tiles import (
    COMBINE,
    Axis,
    CountAxis,
    DimensionAxis,
    MergedAxis,
    OffsetAxis,
    physical_axes,
    tile_axes,
)


def slots_of(digits: Iterable[Digit], count: int) -> NDArray[np.int64]:
    """Return the slots of the values below `count` of one coordinate, without a division per value.

    Examples
    --------
    >>> from fastindex.core.digits import Digit, Variable
    >>> x = Variable(0, 7, True)
    >>> slots_of((Digit(1, x, 1, 3), Digit(10, x, 3, None)), 7).tolist()
    [0, 1, 2, 10, 11, 12, 20]
    """
    total = np.zeros(count, np.int64)
    for d in digits:
        values = -(-count // d.low) if d.high is None else min(-(-count // d.low), d.high // d.low)
        once = np.repeat(np.arange(0, values * d.weight, d.weight), d.low)
        total += once[:count] if len(once) >= count else np.resize(once, count)
    return total


@lru_cache(maxsize=64)
def shared_digits(
    source: Shape | Strides, destination: Shape | Strides
) -> tuple[tuple[tuple[Variable, ...], Digits, Digits], ...]:
    """Return systems of independent coordinates, with the slots of both sides as sums of their digits.

    Systems in which a slot is no such sum are left out. Cached: both loops and blocks are derived from the result.
    """
    found = []
    for coordinates in coordinate_systems(source, destination):
        names: Names = {}
        left, right = (_digits_of(side, coordinates, names) for side in (source, destination))
        if all(d.variable.is_coordinate for d in (*left, *right)):
            variables = tuple({d.variable: None for d in itertools.chain(*coordinates)})
            found.append(_joined(variables, left, right))
    return tuple(found)


def _joined(
    variables: tuple[Variable, ...], left: Digits, right: Digits
) -> tuple[tuple[Variable, ...], Digits, Digits]:
    """Merge two coordinates wherever both sides continue from one to the other.

    Blocks of one long coordinate leave a smaller remainder than blocks of short ones.
    """
    for inner, outer in itertools.permutations(variables, 2):
        keys = outer.key, inner.key
        backwards = [isinstance(key, Backwards) for key in keys]
        if backwards[0] != backwards[1]:
            continue
        joint = Variable(Backwards(keys) if all(backwards) else keys, outer.extent * inner.extent, True)
        sides = [_with_joint(side, inner, outer, joint) for side in (left, right)]
        if sides[0] is not None and sides[1] is not None:
            others = tuple([joint if v == outer else v for v in variables if v != inner])
            return _joined(others, sides[0], sides[1])
    return variables, left, right


def _with_joint(side: Digits, inner: Variable, outer: Variable, joint: Variable) -> Digits | None:
    """Return a sum with digits of ``outer * inner.extent + inner``; None where one does not continue the other."""
    size = inner.extent
    top = next((d for d in side if d.variable == inner and d.high is None), None)
    bottom = next((d for d in side if d.variable == outer and d.low == 1), None)
    if top is None or bottom is None or bottom.weight * top.low != top.weight * size:
        return None
    found: Digits = ()
    for d in side:
        if d.variable == inner:
            high = d.high or size
            if size % d.low or size % high:
                return None
            found += digit(d.weight, joint, d.low, high)
        elif d.variable == outer:
            found += digit(d.weight, joint, d.low * size, None if d.high is None else d.high * size)
        else:
            found += (d,)
    return canonical(found)


def _digits_of(side: Shape | Strides, coordinates: Sequence[Digits], names: Names) -> Digits:
    if isinstance(side, RegroupedShape | RegroupedStrides):
        return own_digits(side, names)
    return digits_of(side, coordinates, names)


def coordinate_systems(source: Shape | Strides, destination: Shape | Strides) -> Iterator[list[Digits]]:
    """Yield the coordinates as digits: each dimension a variable, then those that `*` merges in one variable.

    Examples
    --------
    >>> shape = Shape.parse("f32[4,6]{1,0:T(*,8)}")
    >>> [len({d.variable for digits in system for d in digits}) for system in coordinate_systems(shape, shape)]
    [2, 1]
    """
    if isinstance(source, RegroupedShape | RegroupedStrides):
        # Each side has its dimensions as digits of the variables.
        yield [digit(1, variable, 1, None) for variable in source.variables]
        return
    sizes = source.dimensions
    yield dimension_digits(sizes)[1]
    groups = _merged_dimensions(source) | _merged_dimensions(destination)
    taken = [d for group in groups for d in group]
    if not groups or len(taken) != len(set(taken)):
        return
    _, coordinates = dimension_digits(sizes)
    for group in groups:
        joint = Variable(group, math.prod(sizes[d] for d in group), True)
        low = 1
        for d in reversed(group):
            coordinates[d] = digit(1, joint, low, low * sizes[d])
            low *= sizes[d]
    yield coordinates


def _merged_dimensions(shape: Shape | Strides) -> set[tuple[int, ...]]:
    """Return the groups of whole dimensions that the first tiles merge, each from major to minor."""
    if isinstance(shape, Strides):
        return set()
    layout = shape.layout
    groups: set[tuple[int, ...]] = set()
    if not any(COMBINE in tile for tile in layout.tiles):
        return groups
    axes = physical_axes(shape.dimensions, layout.minor_to_major, layout.padded_dimensions, ())
    for tile in layout.tiles:
        axes = tile_axes(axes, tile)
        pending = list(axes)
        while pending:
            axis = pending.pop()
            if isinstance(axis, MergedAxis):
                members = _members(axis)
                dimensions = [member.dimension for member in members if isinstance(member, DimensionAxis)]
                if len(dimensions) == len(members):
                    groups.add(tuple(dimensions))
            elif isinstance(axis, CountAxis | OffsetAxis):
                pending.append(axis.whole)
    return groups


def _members(axis: Axis) -> list[Axis]:
    """Return the axes that `*` has merged, from major to minor."""
    members: list[Axis] = []
    while isinstance(axis, MergedAxis):
        members.append(axis.inner)
        axis = axis.outer
    return [axis, *reversed(members)]
