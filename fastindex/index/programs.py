"""Index programs: how coordinates become slots, and back, as sums of floor divisions.

Why sums of floor divisions are enough: a tile splits an axis ``x`` into ``x // t`` and ``x - t * (x // t)``, merging
computes ``outer * size + inner``, and each inverts the other. Chains of tiles that divide each other need one division
per tile, and no nested ones.

`fastindex.core.tiles` defines the tiles.

An element of `E` bits begins at bit ``slot * E``; the first element of a byte is in its low bits (XLA's ``PackIntN``).

`fastindex.algebra.forms` describes the one form that serves every direction and every chain of tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from fastindex.algebra.forms import Check, Form, IndexProgram, ProgramBuilder, scaled_sum
from fastindex.algebra.sides import RegroupedShape, dimension_forms, variable_forms
from fastindex.core.integers import INT64_MAX
from fastindex.core.shape import Shape
from fastindex.core.sizes import axes_of
from fastindex.core.tiles import (
    COMBINE,
    Axis,
    CountAxis,
    DimensionAxis,
    MergedAxis,
    OffsetAxis,
    axis_strides,
    parts_first,
)
from fastindex.errors import LayoutError, UnsupportedError, check_option

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
    """The value of each axis as a combination of quotients, computed from the last tile back to the first.

    Starts from the values of the axes after the last tile, and the maximum of each.
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

    def checks(self) -> list[Check]:
        """Return checks that all hold for a slot that holds an element; at least one fails for any other slot.

        A value out of range carries over: from a count to the whole axis, from a merged axis to its outer part. So
        counts and merged axes need no check.
        """
        checks: list[Check] = []
        suspects = [axis for axis in self.values if self.limits[axis] >= _bound(axis)]
        seen: set[Axis] = set()
        while suspects:
            axis = suspects.pop()
            if axis in seen:
                continue
            seen.add(axis)
            if isinstance(axis, CountAxis):
                suspects.append(axis.whole)
            elif isinstance(axis, MergedAxis):
                suspects.append(axis.outer)
            else:
                checks.append(Check(self.values[axis], _bound(axis)))
        return checks


def digits_of_slot(
    builder: ProgramBuilder, axes: Sequence[Axis], slot: Form, last_slot: int
) -> tuple[dict[Axis, Form], dict[Axis, int]]:
    """Return the value of each axis for a slot, and the maximum of each value."""
    values: dict[Axis, Form] = {}
    limits: dict[Axis, int] = {}
    for i, (axis, stride) in enumerate(zip(axes, axis_strides(axes), strict=True)):
        value = builder.quotient(slot, stride, last_slot)
        limit = last_slot // stride
        # The most major axis takes no remainder: in the tail of the buffer, its value exceeds its size.
        if i > 0:
            above = builder.quotient(slot, stride * axis.size, last_slot)
            value = scaled_sum((1, value), (-axis.size, above))
            limit = min(limit, axis.size - 1)
        values[axis] = value
        limits[axis] = limit
    return values, limits


def _bound(axis: Axis) -> int:
    return axis.extent if isinstance(axis, DimensionAxis) else axis.size


UNITS = ("slot", "byte", "bit")


def bits_of_unit(shape: Shape, unit: str) -> int:
    """Return the number of bits in a unit; a slot of `shape` has the bits of one element.

    Raises
    ------
    FastIndexError
        `unit` is unknown.
    UnsupportedError
        `shape` has no slots.
    LayoutError
        The number of units in the buffer does not fit int64.

    Examples
    --------
    >>> bits_of_unit(Shape.parse("s4[8]{0:E(4)}"), "slot")
    4
    """
    check_option("unit", unit, UNITS)
    if unit == "slot":
        return shape.element_bits
    bits = 8 if unit == "byte" else 1
    if shape.nbytes * 8 // bits > INT64_MAX:
        raise LayoutError(f"the {unit}s of {shape.cut_text()} do not fit int64; ask for a larger unit")
    return bits


def count_of_units(shape: Shape, unit: str) -> int:
    """Return the number of units that the slots of a shape take; errors as in `bits_of_unit`.

    Examples
    --------
    >>> count_of_units(Shape.parse("s4[8]{0:E(4)}"), "byte")
    4
    """
    return shape.slot_count * shape.element_bits // bits_of_unit(shape, unit)


def require_one_element(shape: Shape, unit: str) -> None:
    """Raise if one unit of a buffer may belong to several elements.

    Raises
    ------
    UnsupportedError
        The unit is a byte, and elements are not a whole number of bytes.

    Examples
    --------
    >>> require_one_element(Shape.parse("f32[8]"), "byte")
    """
    if unit == "byte" and shape.element_bits % 8:
        raise UnsupportedError(
            f"a byte of {shape.cut_text()} may belong to several elements of {shape.element_bits} bits; use unit='bit'"
        )


def units_in_buffer(shape: Shape, unit: str) -> int:
    """Return the size of the buffer in units.

    Raises
    ------
    FastIndexError, UnsupportedError, LayoutError
        As `bits_of_unit`.

    Examples
    --------
    >>> units_in_buffer(Shape.parse("s4[3]{0:E(4)}"), "bit")
    16
    """
    bits = bits_of_unit(shape, unit)
    return shape.slot_count if unit == "slot" else shape.nbytes * 8 // bits


@lru_cache(maxsize=1024)
def linear_program(shape: Shape, unit: str = "slot") -> IndexProgram:
    """Return the program from the coordinates of an element, one per dimension, to its slot, first byte or bit.

    Raises
    ------
    UnsupportedError
        `shape` is not an array, is sparse, or has an unbounded dimension.
    LayoutError
        The number of slots, or of units in the buffer, does not fit int64.
    FastIndexError
        `unit` is unknown.
    """
    bits = bits_of_unit(shape, unit)
    builder = ProgramBuilder(shape.dimensions)
    if shape.slot_count == 0:
        return builder.program([()])
    slot = slot_form(builder, axes_of(shape), [builder.variable(d) for d in range(shape.rank)])
    return builder.program([builder.in_units(slot, shape.element_bits, bits, shape.slot_count - 1)])


@lru_cache(maxsize=1024)
def multi_program(shape: Shape, unit: str = "slot") -> IndexProgram:
    """Return the program from a slot, byte or bit to the coordinates of its element, with checks that fail for padding.

    Raises
    ------
    UnsupportedError, LayoutError, FastIndexError
        As `linear_program`; also bytes of elements that are not a whole number of bytes.

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
    require_one_element(shape, unit)
    builder = ProgramBuilder((units_in_buffer(shape, unit),))
    if shape.slot_count == 0:
        return builder.program([()] * shape.rank)
    slot, last = _slot_of_unit(builder, shape, unit)
    return builder.program(*coordinate_forms(builder, shape, slot, last))


@lru_cache(maxsize=1024)
def conversion_program(source: Shape, destination: Shape, unit: str = "slot") -> IndexProgram:
    """Return the program from a slot, byte or bit of `source` to where the same element begins in `destination`.

    Raises
    ------
    LayoutError
        The dimensions differ, or as `linear_program`.
    UnsupportedError, FastIndexError
        As `multi_program`.
    """
    regrouped = isinstance(source, RegroupedShape) and isinstance(destination, RegroupedShape)
    if not regrouped and source.dimensions != destination.dimensions:
        raise LayoutError(f"both layouts must be of one array: the dimensions of {source} and {destination} differ")
    require_one_element(source, unit)
    bits = bits_of_unit(destination, unit)
    builder = ProgramBuilder((units_in_buffer(source, unit),))
    if source.slot_count == 0:
        return builder.program([()])
    slot, last = _slot_of_unit(builder, source, unit)
    coordinates, checks = coordinate_forms(builder, source, slot, last)
    if destination.slot_count == 0:
        return builder.program([()], checks)
    if isinstance(source, RegroupedShape) and isinstance(destination, RegroupedShape):
        values, more = variable_forms(builder, source, coordinates)
        coordinates, checks = dimension_forms(builder, destination, values), [*checks, *more]
        slot = slot_form(builder, axes_of(destination), coordinates)
    elif source.layout != destination.layout:
        slot = slot_form(builder, axes_of(destination), coordinates)
    last = destination.slot_count - 1
    return builder.program([builder.in_units(slot, destination.element_bits, bits, last)], checks)


def coordinate_forms(
    builder: ProgramBuilder, shape: Shape, slot: Form, last_slot: int | None = None
) -> tuple[list[Form], list[Check]]:
    """Return the coordinates of a slot, one per dimension, and the checks that fail for padding."""
    axes = axes_of(shape)
    last_slot = shape.slot_count - 1 if last_slot is None else last_slot
    if not axes:
        return [], [Check(slot, 1)]
    undoing = Undoing(builder, axes, *digits_of_slot(builder, axes, slot, last_slot))
    return undoing.coordinates(shape.rank), undoing.checks()


def _slot_of_unit(builder: ProgramBuilder, shape: Shape, unit: str) -> tuple[Form, int]:
    """Return the slot that holds the input, and the largest slot possible: the last byte may have unused bits."""
    bits, last = bits_of_unit(shape, unit), units_in_buffer(shape, unit) - 1
    return builder.in_units(builder.variable(0), bits, shape.element_bits, last), last * bits // shape.element_bits


# To tiles and back


def within_tile_count(shape: Shape, level: int) -> int:
    """Return the number of trailing axes of `tile_program` that lie within the tile."""
    return sum(size != COMBINE for size in shape.layout.tiles[level])


@lru_cache(maxsize=1024)
def tile_program(shape: Shape, level: int) -> IndexProgram:
    """Return the program from coordinates to all axes after tile number `level` has been applied.

    Raises
    ------
    UnsupportedError, LayoutError
        As `linear_program`.
    """
    builder = ProgramBuilder(shape.dimensions)
    axes = axes_of(shape, level + 1)
    if shape.slot_count == 0:
        return builder.program([()] * len(axes))
    values = axis_values(builder, axes, [builder.variable(d) for d in range(shape.rank)])
    return builder.program([values[axis] for axis in axes])


@lru_cache(maxsize=1024)
def from_tile_program(shape: Shape, level: int) -> IndexProgram:
    """Return the inverse program, from all axes after tile number `level`, with checks that fail for padding.

    Raises
    ------
    UnsupportedError, LayoutError
        As `linear_program`.

    Examples
    --------
    >>> print(from_tile_program(Shape.parse("f32[3,5]{1,0:T(2,2)}"), 0).describe())
    x0 < 2, x1 < 3, x2 < 2, x3 < 2
    y0 = 2 x0 + x2
    y1 = 2 x1 + x3
    padding unless 2 x0 + x2 < 3
    padding unless 2 x1 + x3 < 5
    """
    axes = axes_of(shape, level + 1)
    builder = ProgramBuilder([axis.size for axis in axes])
    if shape.slot_count == 0:
        return builder.program([()] * shape.rank)
    values = {axis: builder.variable(i) for i, axis in enumerate(axes)}
    undoing = Undoing(builder, axes, values, {axis: axis.size - 1 for axis in axes})
    return builder.program(undoing.coordinates(shape.rank), undoing.checks())
