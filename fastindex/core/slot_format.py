"""The widths of values and of their slots in a buffer."""

from __future__ import annotations

from dataclasses import dataclass

from fastindex.core.shape import Shape
from fastindex.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class SlotFormat:
    """How a buffer stores one value.

    Attributes
    ----------
    value_bytes : int
        Bytes of an unpacked value.
    bits : int
        Bits of a slot: 1, 2 or 4 where values are packed into bytes, else a whole number of bytes.
    """

    value_bytes: int
    bits: int

    @property
    def is_packed(self) -> bool:
        return self.bits < 8

    @property
    def is_plain(self) -> bool:
        """Whether a slot has the width of an unpacked value."""
        return self.bits == 8 * self.value_bytes

    def nbytes(self, slots: int) -> int:
        return -(-slots * self.bits // 8)


def slot_format(shape: Shape) -> SlotFormat:
    """Return how the buffer of a shape stores its values.

    Raises
    ------
    UnsupportedError
        ``E`` is not 1, 2, 4 or a whole number of bytes, or too small for the element type.

    Examples
    --------
    >>> slot_format(Shape.parse("s4[8]{0:E(4)}")), slot_format(Shape.parse("s4[8]"))
    (SlotFormat(value_bytes=1, bits=4), SlotFormat(value_bytes=1, bits=8))
    """
    element_type, bits = shape.element_type, shape.element_bits
    if bits < element_type.bits or (bits not in (1, 2, 4) and bits % 8):
        raise UnsupportedError(
            f"E({bits}): data moves only where an element takes 1, 2, 4 or a multiple of 8 bits, and at least the "
            f"{element_type.bits} bits of {element_type}; in {shape.cut_text()!r}"
        )
    return SlotFormat(element_type.nbytes or 1, bits)
