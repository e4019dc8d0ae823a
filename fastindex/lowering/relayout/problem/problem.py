"""The problem that candidates solve: two sides and how slots move between them; and the context that passes share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastindex.algebra.shared_digits import Strides
from fastindex.core.shape import Shape
from fastindex.lazy import lazy_property
from fastindex.lowering.machine import Machine
from fastindex.lowering.relayout.problem.slot_moves import SlotMove
from fastindex.lowering.tuning import Tuning
from fastindex.tables.assemblies import NIBBLE_BITS


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
