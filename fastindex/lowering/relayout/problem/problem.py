"""What the planner has to find passes for: two sides, how slots move between them, and what passes have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastindex.lazy import lazy_property
from fastindex.lowering.relayout.problem.shared_digits import Strides
from fastindex.lowering.relayout.problem.slot_moves import SlotMove
from fastindex.lowering.tuning import Tuning
from fastindex.shapes.shape import Shape
from fastindex.tables.assemblies import HALF_BITS


@dataclass(frozen=True, slots=True)
class Context:
    """What the passes of a relayout have in common.

    Attributes
    ----------
    width : int
        Bytes of an element.
    streamed : bool
        Whether the destination is large enough to be written past the cache.
    tuning : Tuning
    at_hand : bool
        Whether source and destination are in L1 already, so that nothing is asked for ahead.
    gathers : bool, optional
        Whether elements are gathered one by one wherever that is possible, or nowhere; without it, where that is
        cheaper.
    """

    width: int
    streamed: bool
    tuning: Tuning
    at_hand: bool = False
    gathers: bool | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """What the planner has to find passes for.

    Attributes
    ----------
    source, destination : Shape or Strides
    slots : SlotMove
    vector_bytes : int
        What the machine permutes with one instruction.
    tuning : Tuning
    """

    source: Shape | Strides
    destination: Shape | Strides
    slots: SlotMove
    vector_bytes: int
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
        """How many slots become values before anything moves, and values slots after, where passes do not do that."""
        if self.slots.unit != "value":
            return 0
        sides = (self.source, self.slots.source), (self.destination, self.slots.destination)
        return sum(side.slot_count for side, form in sides if isinstance(side, Shape) and not form.is_plain)

    @lazy_property
    def element_bytes(self) -> int:
        """How much of the destination is elements."""
        return math.prod(self.destination.dimensions) * self.slots.destination.bits // 8

    @lazy_property
    def written_bytes(self) -> int:
        """How much of the destination is written, padding and all."""
        if isinstance(self.destination, Shape):
            return self.destination.slot_count * self.slots.destination.bits // 8
        return self.element_bytes

    @lazy_property
    def context(self) -> Context:
        """What the passes over bytes have in common."""
        return Context(1, self.written_bytes >= self.tuning.streamed_bytes, self.tuning)

    @lazy_property
    def may_permute(self) -> bool:
        """Whether slots are of widths that permutations know, and there is an element to read."""
        if 0 in self.source.dimensions:
            return False
        return all(bits == HALF_BITS or (bits % 8 == 0 and bits <= 128) for bits in self.slot_bits)

    @lazy_property
    def may_convert(self) -> bool:
        """Whether packed elements of four bits move to or from such, or bytes."""
        formats = self.slots.source, self.slots.destination
        is_known = all(form.is_plain or form.is_packed for form in formats)
        return self.slots.unit == "value" and self.may_permute and HALF_BITS in self.slot_bits and is_known
