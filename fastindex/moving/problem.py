"""The problem that candidates solve: two sides, and the unit and the loops in which slots move.

Packed slots move as whole bytes where the slots of a byte stay together, and slots of 1, 2, 4, 8 or 16 bytes as they
are. All others move as values, unpacked from the source first and packed into the destination last: on CPUs within
blocks or boxes that fit in the cache, where passes support it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from fastindex.algebra.casts import Cast
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced, grouped, relayout_loops
from fastindex.algebra.shared_digits import Strides
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape
from fastindex.core.sizes import SlotFormat, slot_format
from fastindex.lazy import lazy_property
from fastindex.moving.numbers import NIBBLE_BITS
from fastindex.runtime.machine import Machine
from fastindex.runtime.tuning import Tuning

#: Sizes of the units that kernels move, in bytes.
UNIT_BYTES = (1, 2, 4, 8, 16)

#: Entries of each cache of plans. The tables of a plan take 60 KiB on average, and up to 3 MiB.
PLANS_KEPT = 128


@dataclass(frozen=True, slots=True)
class SlotMove:
    """How slots move.

    Attributes
    ----------
    unit : {"byte", "slot", "value"}
        The unit of the move: a byte of packed slots, a slot, or an unpacked value.
    width : int
        Bytes of a unit.
    loops : RelayoutLoops or None
        In units. None where the two sides share no loops, so that every slot has to be looked up.
    source, destination : SlotFormat
        If elements are cast, that of the source is for their type before the cast.
    """

    unit: Literal["byte", "slot", "value"]
    width: int
    loops: RelayoutLoops | None
    source: SlotFormat
    destination: SlotFormat

    @property
    def conversion(self) -> Literal["expand", "compress"] | None:
        """The conversion of packed slots that a kernel may do during the move, instead of before or after it."""
        if self.unit != "value":
            return None
        if self.source.is_packed and self.destination.is_plain:
            return "expand"
        return "compress" if self.source.is_plain and self.destination.is_packed else None

    @property
    def loops_of_values(self) -> RelayoutLoops | None:
        """The loops if the slots of both sides are plain values, else None."""
        return self.loops if self.source.is_plain and self.destination.is_plain else None

    def padding(self, pattern: bytes) -> bytes:
        """Return one unit of padding, given the bytes of one unpacked value.

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


@lru_cache(maxsize=PLANS_KEPT)
def slot_move(source: Shape | Strides, destination: Shape | Strides, cast: Cast | None = None) -> SlotMove:
    """Choose the unit and the loops of a move; a side given as strides holds plain values.

    Parameters
    ----------
    source, destination : Shape or Strides
        Two layouts of one array, at least one a shape.
    cast : Cast, optional
        The cast of the elements, which then move as values of the target type.

    Raises
    ------
    UnsupportedError
        As for `slot_format`.

    Examples
    --------
    >>> packed, plain = Shape.parse("s4[2,8]{1,0:E(4)}"), Shape.parse("s4[2,8]")
    >>> slot_move(packed, packed).unit, slot_move(packed, plain).conversion
    ('byte', 'expand')
    """
    side = source if isinstance(source, Shape) else destination
    assert isinstance(side, Shape), "strides alone do not tell the element type"
    types = (side.element_type,) * 2 if cast is None else (cast.source, cast.target)
    formats = _format(source, types[0]), _format(destination, types[1])
    loops = relayout_loops(source, destination)
    if cast is None and formats[0] == formats[1]:
        bits = formats[0].bits
        whole = grouped(loops, 8 // bits) if loops is not None and formats[0].is_packed else None
        if whole is not None:
            return SlotMove("byte", 1, whole, *formats)
        if bits % 8 == 0 and bits // 8 in UNIT_BYTES:
            return SlotMove("slot", bits // 8, loops, *formats)
    return SlotMove("value", formats[1].value_bytes, loops, *formats)


def _format(side: Shape | Strides, element_type: ElementType) -> SlotFormat:
    return slot_format(side) if isinstance(side, Shape) else SlotFormat(element_type.nbytes, 8 * element_type.nbytes)


def unpacking_loops(slots: SlotFormat, count: int) -> RelayoutLoops:
    """Return the loops that unpack `count` slots wider than a value, in bytes.

    Examples
    --------
    >>> unpacking_loops(SlotFormat(1, 24), 5).copies[0].loops
    (Loop(size=5, source_stride=3, destination_stride=1),)
    """
    value, slot = slots.value_bytes, slots.bits // 8
    return RelayoutLoops((coalesced(Nest((Loop(value, 1, 1), Loop(count, slot, value)))),), ())


def packing_loops(slots: SlotFormat, count: int) -> RelayoutLoops:
    """Return the loops that pack `count` values into wider slots, in bytes; the remainder of a slot is filled.

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
    """Parameters that all passes of a relayout share.

    Attributes
    ----------
    width : int
        Bytes of the unit of the move, an element in most moves.
    streamed : bool
        Whether the destination is large enough for non-temporal stores.
    tuning : Tuning
    machine : Machine
        The machine whose cache sizes are used.
    """

    width: int
    streamed: bool
    tuning: Tuning
    machine: Machine


@dataclass(frozen=True, eq=False)
class Problem:
    """A relayout for which candidates draft passes.

    Attributes
    ----------
    source, destination : Shape or Strides
    slots : SlotMove
        The unit of the move, its bytes (`width`), and the loops that both sides share (`loops`), None without any.
    machine : Machine
        The machine that the passes are for.
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
        """Whether loops move slots as they are, with no unpacking before and no packing after the move."""
        return self.slot_bits == (8 * self.slots.width,) * 2

    @lazy_property
    def converted_slots(self) -> int:
        """Number of slots that separate passes unpack before the move and pack after it."""
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
        """Bytes of the destination that are written, padding included."""
        if isinstance(self.destination, Shape):
            return self.destination.slot_count * self.slots.destination.bits // 8
        return self.element_bytes

    @lazy_property
    def context(self) -> Context:
        """The context of passes that move single bytes; `replace` its `width` for wider units."""
        return Context(1, self.written_bytes >= self.tuning.streamed_bytes, self.tuning, self.machine)

    @lazy_property
    def may_permute(self) -> bool:
        """Whether permutations support the slot widths, and there is an element to read."""
        if 0 in self.source.dimensions:
            return False
        return all(bits == NIBBLE_BITS or (bits % 8 == 0 and bits <= 128) for bits in self.slot_bits)

    @lazy_property
    def may_convert(self) -> bool:
        """Whether nibbles are converted: packed on at least one side, nibbles or whole bytes on the other."""
        formats = self.slots.source, self.slots.destination
        is_known = all(form.is_plain or form.is_packed for form in formats)
        return self.slots.unit == "value" and self.may_permute and NIBBLE_BITS in self.slot_bits and is_known
