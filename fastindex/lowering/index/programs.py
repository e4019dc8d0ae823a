"""Index programs: how coordinates become slots, and back, as sums of floor divisions.

One form serves every direction and every chain of tiles; `fastindex.algebra.forms` describes it.
"""

from __future__ import annotations

import math
from functools import lru_cache

from fastindex.algebra.forms import Check, Form, IndexProgram, ProgramBuilder, scaled_sum
from fastindex.algebra.sides import RegroupedShape, dimension_forms, variable_forms
from fastindex.core.shape import Shape
from fastindex.core.sizes import axes_of
from fastindex.errors import LayoutError
from fastindex.lowering.index.axis_forms import Undoing, digits_of_slot, slot_form
from fastindex.lowering.index.units import bits_of_unit, require_one_element, units_in_buffer


@lru_cache(maxsize=1024)
def linear_program(shape: Shape, simplify: bool = True, unit: str = "slot") -> IndexProgram:
    """Return the program from the coordinates of an element, one per dimension, to its slot, first byte or bit.

    Raises
    ------
    UnsupportedError
        `shape` is no array, is sparse, or has an unbounded dimension.
    LayoutError
        The slots, or the units of the buffer, do not fit int64.
    FastIndexError
        Not a unit.
    """
    bits_of_unit(shape, unit)
    builder = ProgramBuilder(shape.dimensions, simplify)
    if shape.slot_count == 0:
        return builder.program([()])
    coordinates = [builder.variable(d) for d in range(shape.rank)]
    return builder.program([_in_unit(builder, shape, slot_form(builder, axes_of(shape), coordinates), unit)])


@lru_cache(maxsize=1024)
def multi_program(shape: Shape, simplify: bool = True, unit: str = "slot") -> IndexProgram:
    """Return the program from a slot, byte or bit to the coordinates of its element, with checks that fail for padding.

    Raises
    ------
    UnsupportedError, LayoutError, FastIndexError
        As `linear_program`; bytes of elements that do not begin and end with one.

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
    builder = ProgramBuilder((units_in_buffer(shape, unit),), simplify)
    if shape.slot_count == 0:
        return builder.program([()] * shape.rank)
    slot, last = _slot_of_unit(builder, shape, unit)
    return builder.program(*coordinate_forms(builder, shape, slot, last, every_check=not simplify))


@lru_cache(maxsize=1024)
def conversion_program(source: Shape, destination: Shape, simplify: bool = True, unit: str = "slot") -> IndexProgram:
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
    bits_of_unit(destination, unit)
    builder = ProgramBuilder((units_in_buffer(source, unit),), simplify)
    if source.slot_count == 0:
        return builder.program([()])
    slot, last = _slot_of_unit(builder, source, unit)
    coordinates, checks = coordinate_forms(builder, source, slot, last, every_check=not simplify)
    if destination.slot_count == 0:
        return builder.program([()], checks)
    if isinstance(source, RegroupedShape) and isinstance(destination, RegroupedShape):
        values, more = variable_forms(builder, source, coordinates)
        coordinates, checks = dimension_forms(builder, destination, values), [*checks, *more]
        slot = slot_form(builder, axes_of(destination), coordinates)
    elif not simplify or source.layout != destination.layout:
        slot = slot_form(builder, axes_of(destination), coordinates)
    return builder.program([_in_unit(builder, destination, slot, unit)], checks)


def coordinate_forms(
    builder: ProgramBuilder, shape: Shape, slot: Form, last_slot: int | None = None, every_check: bool = False
) -> tuple[list[Form], list[Check]]:
    """Return the coordinates of a slot, one per dimension, and the checks that fail for padding."""
    axes = axes_of(shape)
    last_slot = shape.slot_count - 1 if last_slot is None else last_slot
    if not axes:
        return [], [Check(slot, 1)]
    undoing = Undoing(builder, axes, *digits_of_slot(builder, axes, slot, last_slot))
    return undoing.coordinates(shape.rank), undoing.checks(every_check)


def _in_unit(builder: ProgramBuilder, shape: Shape, slot: Form, unit: str) -> Form:
    """Return where a slot begins."""
    common = math.gcd(shape.element_bits, bits_of_unit(shape, unit))
    factor, divisor = shape.element_bits // common, bits_of_unit(shape, unit) // common
    last = (shape.slot_count - 1) * factor
    return builder.quotient(scaled_sum((factor, slot)), divisor, last) if divisor > 1 else scaled_sum((factor, slot))


def _slot_of_unit(builder: ProgramBuilder, shape: Shape, unit: str) -> tuple[Form, int]:
    """Return the slot that holds the input, and the last there may be: the last byte may have bits to spare."""
    divisor = shape.element_bits // bits_of_unit(shape, unit)
    last = units_in_buffer(shape, unit) - 1
    place = builder.variable(0)
    return (place if divisor == 1 else builder.quotient(place, divisor, last)), last // divisor
