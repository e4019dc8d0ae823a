"""What the index functions say of the first element that cannot be converted."""

from __future__ import annotations

from fastindex.arrays.index_arguments import Offender
from fastindex.core.shape import Shape
from fastindex.errors import OutOfBoundsError
from fastindex.index.programs import units_in_buffer


def out_of_bounds(offender: Offender, shape: Shape) -> OutOfBoundsError:
    """Return the error for a coordinate outside its dimension."""
    # Without checks for padding, it is an input that is out of bounds.
    number = offender.number or 0
    return OutOfBoundsError(
        f"coordinate {offender.values[number]}{position_text(offender)} is out of bounds for dimension {number} "
        f"of size {shape.dimensions[number]} of {shape}"
    )


def bad_place(offender: Offender, shape: Shape, unit: str = "slot") -> OutOfBoundsError:
    """Return the error for a slot, byte or bit that is outside the buffer, or padding."""
    (place,) = offender.values
    where = f"{unit} {place}{position_text(offender)}"
    if offender.number is None:
        return OutOfBoundsError(f"{where} is padding of {shape} and holds no element")
    return OutOfBoundsError(f"{where} is out of bounds for the {units_in_buffer(shape, unit)} {unit}s of {shape}")


def position_text(offender: Offender) -> str:
    """Return where in the caller's arrays the element is, to be put behind it."""
    if not offender.position:
        return ""
    return f" at position {offender.position if len(offender.position) > 1 else offender.position[0]}"
