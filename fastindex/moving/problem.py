"""The problem that candidates solve: two sides, and how the slots of one become those of the other.

Packed slots move by whole bytes where bytes stay together, and slots of 1, 2, 4, 8 or 16 bytes as they are. Everything
else moves as values, which the source unpacks first and the destination packs last: on processors within blocks or
boxes that the cache holds, where passes can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from fastindex.algebra.casts import of_type
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced, grouped, relayout_loops
from fastindex.algebra.shared_digits import Strides
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape
from fastindex.core.slot_format import SlotFormat, slot_format
from fastindex.lazy import lazy_property
from fastindex.moving.assembly_numbers import NIBBLE_BITS
from fastindex.runtime.machine import Machine
from fastindex.runtime.tuning import Tuning

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
def slot_move(
    source: Shape | Strides, destination: Shape | Strides, element_type: ElementType | None = None
) -> SlotMove:
    """Decide how slots move from one side to the other; strides hold plain values of the other side.

    Parameters
    ----------
    source, destination : Shape or Strides
        Two layouts of one array, at least one a shape.
    element_type : ElementType, optional
        What the elements of the source, a shape, have been cast to, where they lie.

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
    if element_type is not None:
        assert isinstance(source, Shape)
        source = of_type(source, element_type)
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


@dataclass(frozen=True, slots=True)
class Context:
    """What the passes of a relayout have in common.

    Attributes
    ----------
    width : int
        Bytes of what moves as one, an element in most moves.
    streamed : bool
        Whether the destination is large enough to be written past the cache.
    tuning : Tuning
    machine : Machine
        Whose caches keep what is read again.
    at_hand : bool
        Whether source and destination are in L1 already, so that nothing is prefetched.
    gathers : bool, optional
        True to gather elements one by one wherever that is possible, False nowhere, None where it is cheaper.
    """

    width: int
    streamed: bool
    tuning: Tuning
    machine: Machine
    at_hand: bool = False
    gathers: bool | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """What a candidate has to find passes for.

    Attributes
    ----------
    source, destination : Shape or Strides
    slots : SlotMove
        What moves as one, its bytes (`width`), and the loops that both sides share (`loops`), None if there are none.
    machine : Machine
        That the passes are for.
    tuning : Tuning
        Thresholds.
    """

    source: Shape | Strides
    destination: Shape | Strides
    slots: SlotMove
    machine: Machine
    tuning: Tuning

    @lazy_property
    def slot_bits(self) -> tuple[int, int]:
        return self.slots.source.bits, self.slots.destination.bits

    @lazy_property
    def is_plain(self) -> bool:
        """Whether loops move slots as they are, so that nothing is expanded before or compressed after."""
        return self.slot_bits == (8 * self.slots.width,) * 2

    @lazy_property
    def slots_apart(self) -> int:
        """How many slots are unpacked before anything moves, and packed after, where passes do not do that."""
        if self.slots.unit != "value":
            return 0
        sides = (self.source, self.slots.source), (self.destination, self.slots.destination)
        return sum(side.slot_count for side, form in sides if isinstance(side, Shape) and not form.is_plain)

    @lazy_property
    def element_bytes(self) -> int:
        """Bytes of the destination that hold elements."""
        return math.prod(self.destination.dimensions) * self.slots.destination.bits // 8

    @lazy_property
    def written_bytes(self) -> int:
        """Bytes of the destination that are written, with padding."""
        if isinstance(self.destination, Shape):
            return self.destination.slot_count * self.slots.destination.bits // 8
        return self.element_bytes

    @lazy_property
    def context(self) -> Context:
        """The context of passes that move single bytes; `replace` its `width` for those that move more at a time."""
        return Context(1, self.written_bytes >= self.tuning.streamed_bytes, self.tuning, self.machine)

    @lazy_property
    def may_permute(self) -> bool:
        """Whether slots are of widths that permutations can move, and there is an element to read."""
        if 0 in self.source.dimensions:
            return False
        return all(bits == NIBBLE_BITS or (bits % 8 == 0 and bits <= 128) for bits in self.slot_bits)

    @lazy_property
    def may_convert(self) -> bool:
        """Whether elements of four bits, packed on one side at least, move to others of four bits or to bytes."""
        formats = self.slots.source, self.slots.destination
        is_known = all(form.is_plain or form.is_packed for form in formats)
        return self.slots.unit == "value" and self.may_permute and NIBBLE_BITS in self.slot_bits and is_known
