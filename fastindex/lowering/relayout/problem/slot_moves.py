"""How the slots of one side become those of the other: decided here, for every backend.

Packed slots move by whole bytes where bytes stay together, and slots of 1, 2, 4, 8 or 16 bytes as they are. Everything
else moves as values, which the source unpacks first and the destination packs last: on processors within blocks or
boxes that the cache holds, where passes can.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced, grouped, relayout_loops
from fastindex.algebra.shared_digits import Strides
from fastindex.core.shape import Shape
from fastindex.core.slot_format import SlotFormat, slot_format

#: Bytes of the units that kernels move.
UNIT_BYTES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class SlotMove:
    """How slots move.

    Attributes
    ----------
    unit : {"byte", "slot", "value"}
        What moves as one: a byte of packed slots, a slot, or an unpacked value.
    width : int
        Bytes of a unit.
    loops : RelayoutLoops or None
        In units. None where the two sides share no loops, so every slot has to be looked up.
    source, destination : SlotFormat
    """

    unit: Literal["byte", "slot", "value"]
    width: int
    loops: RelayoutLoops | None
    source: SlotFormat
    destination: SlotFormat

    @property
    def slots_per_unit(self) -> int:
        return 8 // self.source.bits if self.unit == "byte" else 1

    @property
    def conversion(self) -> Literal["expand", "compress"] | None:
        """What a kernel may do to packed slots while they move, instead of before or after."""
        if self.unit != "value":
            return None
        if self.source.is_packed and self.destination.is_plain:
            return "expand"
        return "compress" if self.source.is_plain and self.destination.is_packed else None

    def padding(self, pattern: bytes) -> bytes:
        """Return the bytes of one unit of padding, for the bytes of one unpacked value.

        Examples
        --------
        >>> packed = Shape.parse("s4[8]{0:E(4)}")
        >>> slot_move(packed, packed).padding(b"\\x0c").hex()
        'cc'
        """
        if self.unit == "byte":
            return packed_byte(pattern, self.destination.bits)
        return pattern.ljust(self.width, b"\0")


def packed_byte(pattern: bytes, bits: int) -> bytes:
    """Return the byte whose slots of `bits` bits all hold the low bits of a value.

    Examples
    --------
    >>> packed_byte(b"\\xf9", 4).hex()
    '99'
    """
    value = pattern[0] & (1 << bits) - 1
    return bytes([sum(value << low for low in range(0, 8, bits))])


@lru_cache(maxsize=512)
def slot_move(source: Shape | Strides, destination: Shape | Strides) -> SlotMove:
    """Decide how slots move from one side to the other; strides hold plain values of the other side.

    Parameters
    ----------
    source, destination : Shape or Strides
        Two layouts of one array, at least one a shape.

    Raises
    ------
    UnsupportedError
        As `slot_format`.

    Examples
    --------
    >>> packed, plain = Shape.parse("s4[2,8]{1,0:E(4)}"), Shape.parse("s4[2,8]")
    >>> slot_move(packed, packed).unit, slot_move(packed, plain).conversion
    ('byte', 'expand')
    """
    formats = _format(source, destination), _format(destination, source)
    loops = relayout_loops(source, destination)
    if formats[0] == formats[1]:
        bits = formats[0].bits
        whole = grouped(loops, 8 // bits) if loops is not None and formats[0].is_packed else None
        if whole is not None:
            return SlotMove("byte", 1, whole, *formats)
        if bits % 8 == 0 and bits // 8 in UNIT_BYTES:
            return SlotMove("slot", bits // 8, loops, *formats)
    return SlotMove("value", formats[0].value_bytes, loops, *formats)


def _format(side: Shape | Strides, other: Shape | Strides) -> SlotFormat:
    if isinstance(side, Shape):
        return slot_format(side)
    assert isinstance(other, Shape), "strides alone do not tell the element type"
    value_bytes = slot_format(other).value_bytes
    return SlotFormat(value_bytes, 8 * value_bytes)


def loops_of_values(source: Shape | Strides, destination: Shape | Strides) -> RelayoutLoops | None:
    """Return the loops that two sides share, None where there are none, or slots are more or less than values.

    Examples
    --------
    >>> values, packed = Shape.parse("f32[4]"), Shape.parse("s4[4]{0:E(4)}")
    >>> loops_of_values(values, Shape.parse("s4[4]")) is None, loops_of_values(values, packed) is None
    (False, True)
    """
    for side in (source, destination):
        if isinstance(side, Shape) and not slot_format(side).is_plain:
            return None
    return relayout_loops(source, destination)


def unpacking_loops(slots: SlotFormat, count: int) -> RelayoutLoops:
    """Return how `count` slots wider than a value become values, in bytes.

    Examples
    --------
    >>> unpacking_loops(SlotFormat(1, 24), 5).copies[0].loops
    (Loop(size=5, source_stride=3, destination_stride=1),)
    """
    value, slot = slots.value_bytes, slots.bits // 8
    return RelayoutLoops((coalesced(Nest((Loop(value, 1, 1), Loop(count, slot, value)))),), ())


def packing_loops(slots: SlotFormat, count: int) -> RelayoutLoops:
    """Return how `count` values become slots wider than a value, in bytes; the rest of a slot is filled.

    Examples
    --------
    >>> packing_loops(SlotFormat(1, 24), 5).fills[0].destination_start
    1
    """
    value, slot = slots.value_bytes, slots.bits // 8
    copies = Nest((Loop(value, 1, 1), Loop(count, value, slot)))
    fills = Nest((Loop(slot - value, 0, 1), Loop(count, 0, slot)), 0, value)
    return RelayoutLoops((coalesced(copies),), (coalesced(fills),))
