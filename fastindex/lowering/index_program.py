"""Index programs: how coordinates become slots, and back, as sums of floor divisions.

One form serves every direction and every chain of tiles; `fastindex.lowering.index_form` describes it. Why it is
enough: a tile cuts an axis ``x`` into ``x // t`` and ``x - t * (x // t)``, merging makes ``outer * size + inner``,
and both undo each other. Chains of tiles that divide each other need one division per tile and nothing nested.

Source of the rule: `fastindex.tiling.definition`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from fastindex.errors import LayoutError
from fastindex.lowering.index_form import Check, Form, IndexProgram, ProgramBuilder, scaled_sum
from fastindex.shapes.shape import Shape
from fastindex.tiling.definition import (
    COMBINE,
    Axis,
    CountAxis,
    DimensionAxis,
    MergedAxis,
    OffsetAxis,
    axis_strides,
    physical_axes,
)

# From coordinates to slots


def _origins(axis: Axis) -> tuple[Axis, ...]:
    if isinstance(axis, CountAxis | OffsetAxis):
        return (axis.whole,)
    if isinstance(axis, MergedAxis):
        return (axis.outer, axis.inner)
    return ()


def _origins_first(axes: Iterable[Axis]) -> list[Axis]:
    """Return `axes` and all the axes they are derived from, each after its own sources."""
    ordered: dict[Axis, None] = {}
    pending = list(reversed(list(axes)))
    while pending:
        axis = pending[-1]
        missing = [origin for origin in _origins(axis) if origin not in ordered]
        if missing:
            pending.extend(missing)
        else:
            ordered[pending.pop()] = None
    return list(ordered)


def _axis_values(builder: ProgramBuilder, axes: Sequence[Axis], coordinates: Sequence[Form]) -> dict[Axis, Form]:
    """Return the value of every axis as a combination of the coordinates."""
    values: dict[Axis, Form] = {}

    def count(whole: Axis, tile_size: int) -> Form:
        return builder.quotient(values[whole], tile_size, max(whole.size - 1, 0))

    for axis in _origins_first(axes):
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
    values = _axis_values(builder, axes, coordinates)
    return scaled_sum(*zip(axis_strides(axes), [values[axis] for axis in axes], strict=True))


# From slots to coordinates


class _Undoing:
    """The value of each axis as a combination of quotients of a slot, from the last tile to the first."""

    def __init__(self, builder: ProgramBuilder, axes: Sequence[Axis], slot: Form, last_slot: int) -> None:
        self._builder = builder
        self.values: dict[Axis, Form] = {}
        self.limits: dict[Axis, int] = {}
        self._take_digits(axes, slot, last_slot)
        self._parts: dict[Axis, tuple[Axis, Axis]] = {}
        self._merged: dict[Axis, MergedAxis] = {}
        ordered = _origins_first(axes)
        for axis in ordered:
            self._note_what_it_is_made_of(axis)
        for axis in reversed(ordered):
            if axis not in self.values:
                self._undo(axis)

    def _take_digits(self, axes: Sequence[Axis], slot: Form, last_slot: int) -> None:
        for i, (axis, stride) in enumerate(zip(axes, axis_strides(axes), strict=True)):
            value = self._builder.quotient(slot, stride, last_slot)
            limit = last_slot // stride
            # The most major axis keeps what lies beyond it: the tail of the buffer.
            if i > 0:
                above = self._builder.quotient(slot, stride * axis.size, last_slot)
                value = scaled_sum((1, value), (-axis.size, above))
                limit = min(limit, axis.size - 1)
            self.values[axis] = value
            self.limits[axis] = limit

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


def _bound(axis: Axis) -> int:
    return axis.extent if isinstance(axis, DimensionAxis) else axis.size


def coordinate_forms(
    builder: ProgramBuilder, shape: Shape, slot: Form, every_check: bool = False
) -> tuple[list[Form], list[Check]]:
    """Return the coordinates of a slot below the slot count, one per dimension, and the padding checks."""
    axes = _axes(shape)
    if not axes:
        return [], [Check(slot, 1)]
    undoing = _Undoing(builder, axes, slot, shape.slot_count - 1)
    by_dimension = {a.dimension: v for a, v in undoing.values.items() if isinstance(a, DimensionAxis)}
    return [by_dimension[d] for d in range(shape.rank)], undoing.checks(every_check)


def _axes(shape: Shape, tile_count: int | None = None) -> list[Axis]:
    layout = shape.layout
    tiles = layout.tiles[:tile_count]
    return physical_axes(shape.dimensions, layout.minor_to_major, layout.padded_dimensions, tiles)


# The programs


@lru_cache(maxsize=1024)
def linear_program(shape: Shape, simplify: bool = True) -> IndexProgram:
    """Return the program from the coordinates of an element, one per dimension, to its slot.

    Raises
    ------
    UnsupportedError
        `shape` is no array, is sparse, or has an unbounded dimension.
    LayoutError
        The slots do not fit int64.
    """
    builder = ProgramBuilder(shape.dimensions, simplify)
    if shape.slot_count == 0:
        return builder.program([()])
    coordinates = [builder.variable(d) for d in range(shape.rank)]
    return builder.program([slot_form(builder, _axes(shape), coordinates)])


@lru_cache(maxsize=1024)
def multi_program(shape: Shape, simplify: bool = True) -> IndexProgram:
    """Return the program from a slot to the coordinates of its element, with checks that fail for padding.

    Raises
    ------
    UnsupportedError, LayoutError
        As `linear_program`.

    Examples
    --------
    >>> print(multi_program(Shape.parse("f32[3,5]{1,0:T(2,2)}")).describe())
    x0 < 24
    q0 = x0 // 12
    q1 = x0 // 4
    q2 = x0 // 2
    y0 = 2 q0 - 2 q1 + q2
    y1 = x0 - 6 q0 + 2 q1 - 2 q2
    padding unless 2 q0 - 2 q1 + q2 < 3
    padding unless x0 - 6 q0 + 2 q1 - 2 q2 < 5
    """
    builder = ProgramBuilder((shape.slot_count,), simplify)
    if shape.slot_count == 0:
        return builder.program([()] * shape.rank)
    return builder.program(*coordinate_forms(builder, shape, builder.variable(0), every_check=not simplify))


@lru_cache(maxsize=1024)
def tile_program(shape: Shape, level: int, simplify: bool = True) -> IndexProgram:
    """Return the program from coordinates to all axes after tile number `level` has been applied.

    Raises
    ------
    UnsupportedError, LayoutError
        As `linear_program`.
    """
    builder = ProgramBuilder(shape.dimensions, simplify)
    axes = _axes(shape, level + 1)
    if shape.slot_count == 0:
        return builder.program([()] * len(axes))
    values = _axis_values(builder, axes, [builder.variable(d) for d in range(shape.rank)])
    return builder.program([values[axis] for axis in axes])


def within_tile_count(shape: Shape, level: int) -> int:
    """Return how many axes of `tile_program`, counted from the last, lie within the tile."""
    return sum(size != COMBINE for size in shape.layout.tiles[level])


@lru_cache(maxsize=1024)
def conversion_program(source: Shape, destination: Shape, simplify: bool = True) -> IndexProgram:
    """Return the program from a slot of `source` to the slot of the same element in `destination`.

    Raises
    ------
    LayoutError
        The dimensions differ, or as `linear_program`.
    UnsupportedError
        As `linear_program`.
    """
    if source.dimensions != destination.dimensions:
        raise LayoutError(f"both layouts must be of one array: the dimensions of {source} and {destination} differ")
    builder = ProgramBuilder((source.slot_count,), simplify)
    if source.slot_count == 0:
        return builder.program([()])
    slot = builder.variable(0)
    coordinates, checks = coordinate_forms(builder, source, slot, every_check=not simplify)
    if destination.slot_count == 0:
        return builder.program([()], checks)
    if simplify and source.layout == destination.layout:
        return builder.program([slot], checks)
    return builder.program([slot_form(builder, _axes(destination), coordinates)], checks)
