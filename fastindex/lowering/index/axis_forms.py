"""The values of the axes of a physical array as sums of floor divisions, from the coordinates and back.

Why sums of floor divisions are enough: a tile cuts an axis ``x`` into ``x // t`` and ``x - t * (x // t)``, merging
makes ``outer * size + inner``, and both undo each other. Chains of tiles that divide each other need one division per
tile and nothing nested.

Source of the rule: `fastindex.core.tiles`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastindex.algebra.forms import Check, Form, ProgramBuilder, scaled_sum
from fastindex.core.tiles import Axis, CountAxis, DimensionAxis, MergedAxis, OffsetAxis, axis_strides, parts_first

# From coordinates to slots


def axis_values(builder: ProgramBuilder, axes: Sequence[Axis], coordinates: Sequence[Form]) -> dict[Axis, Form]:
    """Return the value of every axis as a combination of the coordinates."""
    values: dict[Axis, Form] = {}

    def count(whole: Axis, tile_size: int) -> Form:
        return builder.quotient(values[whole], tile_size, max(whole.size - 1, 0))

    for axis in parts_first(axes):
        if isinstance(axis, DimensionAxis):
            values[axis] = coordinates[axis.dimension]
        elif isinstance(axis, MergedAxis):
            values[axis] = scaled_sum((axis.inner.size, values[axis.outer]), (1, values[axis.inner]))
        elif isinstance(axis, CountAxis):
            values[axis] = count(axis.whole, axis.tile_size)
        elif isinstance(axis, OffsetAxis):
            values[axis] = scaled_sum((1, values[axis.whole]), (-axis.size, count(axis.whole, axis.size)))
        else:
            values[axis] = ()
    return values


def slot_form(builder: ProgramBuilder, axes: Sequence[Axis], coordinates: Sequence[Form]) -> Form:
    values = axis_values(builder, axes, coordinates)
    return scaled_sum(*zip(axis_strides(axes), [values[axis] for axis in axes], strict=True))


# From slots to coordinates


class Undoing:
    """The value of each axis as a combination of quotients, from the last tile to the first.

    It begins with the values of the axes after the last tile, and the largest that each takes.
    """

    def __init__(
        self, builder: ProgramBuilder, axes: Sequence[Axis], values: Mapping[Axis, Form], limits: Mapping[Axis, int]
    ) -> None:
        self._builder = builder
        self.values = dict(values)
        self.limits = dict(limits)
        self._parts: dict[Axis, tuple[Axis, Axis]] = {}
        self._merged: dict[Axis, MergedAxis] = {}
        ordered = parts_first(axes)
        for axis in ordered:
            self._note_what_it_is_made_of(axis)
        for axis in reversed(ordered):
            if axis not in self.values:
                self._undo(axis)

    def _note_what_it_is_made_of(self, axis: Axis) -> None:
        if isinstance(axis, CountAxis):
            _, offset = self._parts.get(axis.whole, (axis, axis))
            self._parts[axis.whole] = (axis, offset)
        elif isinstance(axis, OffsetAxis):
            count, _ = self._parts.get(axis.whole, (axis, axis))
            self._parts[axis.whole] = (count, axis)
        elif isinstance(axis, MergedAxis):
            self._merged[axis.outer] = self._merged[axis.inner] = axis

    def _undo(self, axis: Axis) -> None:
        if axis in self._parts:
            count, offset = self._parts[axis]
            self.values[axis] = scaled_sum((offset.size, self.values[count]), (1, self.values[offset]))
            self.limits[axis] = offset.size * self.limits[count] + self.limits[offset]
            return
        merged = self._merged[axis]
        whole, limit, inner_size = self.values[merged], self.limits[merged], merged.inner.size
        outer = self._builder.quotient(whole, inner_size, limit)
        if axis is merged.outer:
            self.values[axis], self.limits[axis] = outer, limit // inner_size
        else:
            self.values[axis] = scaled_sum((1, whole), (-inner_size, outer))
            self.limits[axis] = min(limit, inner_size - 1)

    def coordinates(self, rank: int) -> list[Form]:
        """Return the coordinates, one per dimension."""
        by_dimension = {a.dimension: v for a, v in self.values.items() if isinstance(a, DimensionAxis)}
        return [by_dimension[d] for d in range(rank)]

    def checks(self, every: bool) -> list[Check]:
        """Return checks that all hold for a slot with an element, and of which one fails for any other slot.

        A value beyond its axis also shows where the axis came from: that of a count in the whole, that of a
        merged axis in its outer part. So only the other axes are checked, unless `every` one is asked for.
        """
        checks: list[Check] = []
        suspects = [axis for axis in self.values if self.limits[axis] >= _bound(axis)]
        seen: set[Axis] = set()
        while suspects:
            axis = suspects.pop()
            if axis in seen:
                continue
            seen.add(axis)
            implied = isinstance(axis, CountAxis | MergedAxis)
            if isinstance(axis, CountAxis):
                suspects.append(axis.whole)
            elif isinstance(axis, MergedAxis):
                suspects.append(axis.outer)
            if every or not implied:
                checks.append(Check(self.values[axis], _bound(axis)))
        return checks


def digits_of_slot(
    builder: ProgramBuilder, axes: Sequence[Axis], slot: Form, last_slot: int
) -> tuple[dict[Axis, Form], dict[Axis, int]]:
    """Return the value of each axis in a slot, and the largest that it takes."""
    values: dict[Axis, Form] = {}
    limits: dict[Axis, int] = {}
    for i, (axis, stride) in enumerate(zip(axes, axis_strides(axes), strict=True)):
        value = builder.quotient(slot, stride, last_slot)
        limit = last_slot // stride
        # The most major axis keeps what lies beyond it: the tail of the buffer.
        if i > 0:
            above = builder.quotient(slot, stride * axis.size, last_slot)
            value = scaled_sum((1, value), (-axis.size, above))
            limit = min(limit, axis.size - 1)
        values[axis] = value
        limits[axis] = limit
    return values, limits


def _bound(axis: Axis) -> int:
    return axis.extent if isinstance(axis, DimensionAxis) else axis.size
