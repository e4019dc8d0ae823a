"""In what places in a buffer are counted: slots, bytes or bits.

An element of `E` bits begins at bit ``slot * E``; the first element of a byte is in its low bits (XLA's ``PackIntN``).
"""

from __future__ import annotations

from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError, LayoutError, UnsupportedError

UNITS = ("slot", "byte", "bit")

_LARGEST = 2**63 - 1


def bits_of_unit(shape: Shape, unit: str) -> int:
    """Return how many bits a unit has; a slot of `shape` as many as its elements.

    Raises
    ------
    FastIndexError
        Not a unit.
    UnsupportedError
        `shape` has no slots.
    LayoutError
        The units of the buffer do not fit int64.

    Examples
    --------
    >>> bits_of_unit(Shape.parse("s4[8]{0:E(4)}"), "slot")
    4
    """
    if unit == "slot":
        return shape.element_bits
    if unit not in UNITS:
        raise FastIndexError(f"unit must be 'slot', 'byte' or 'bit', got {unit!r}")
    bits = 8 if unit == "byte" else 1
    if shape.nbytes * 8 // bits > _LARGEST:
        raise LayoutError(f"the {unit}s of {shape.cut_text()} do not fit int64; ask for a larger unit")
    return bits


def count_of_units(shape: Shape, unit: str) -> int:
    """Return how many units the slots of a shape take; errors as `bits_of_unit`.

    Examples
    --------
    >>> count_of_units(Shape.parse("s4[8]{0:E(4)}"), "byte")
    4
    """
    return shape.slot_count * shape.element_bits // bits_of_unit(shape, unit)


def require_one_element(shape: Shape, unit: str) -> None:
    """Raise where a unit of a buffer may belong to several elements.

    Raises
    ------
    UnsupportedError
        A byte, of elements that do not begin and end with one.

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
