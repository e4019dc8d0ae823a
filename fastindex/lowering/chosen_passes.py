"""The passes of a relayout: by loops where these serve well, else put together block by block."""

from __future__ import annotations

import math
from typing import NamedTuple

from fastindex.lowering.assembly import Assembly, assembly
from fastindex.lowering.assembly_bounds import least_cycles
from fastindex.lowering.assembly_passes import assembly_passes
from fastindex.lowering.boxed_passes import boxed_passes
from fastindex.lowering.collected_passes import collected_passes
from fastindex.lowering.counted_passes import counted_passes
from fastindex.lowering.packed_period_boxes import packed_period_passes
from fastindex.lowering.pass_costs import cost, hidden_cycles
from fastindex.lowering.pass_form import Draft, Goal, Pass, with_tables
from fastindex.lowering.passes import drafts, packed_drafts
from fastindex.lowering.period_blocks import period_block_passes
from fastindex.lowering.period_boxes import period_box_passes, waiting_cycles
from fastindex.lowering.relayout_loops import RelayoutLoops
from fastindex.lowering.row_boxes import row_box_drafts
from fastindex.lowering.shared_digits import Strides, shared_digits
from fastindex.lowering.slot_moves import UNIT_BYTES, SlotMove
from fastindex.lowering.tuning import Tuning
from fastindex.shapes.shape import Shape
from fastindex.tables.assemblies import HALF_BITS, MOST_BLOCK_BYTES

# Slots that become values first, and values that become slots last, take so many cycles each.
_APART_CYCLES = 1
# Lines that nests share make them take up to so many times as long as what they cost.
_SHARED_LINES = 1.5
# Blocks that are put together straight from memory wait for its lines: so many times as long as what they cost.
_FROM_MEMORY = 1.5
# Boxes take so many cycles for an element and less, if they are any good.
_BOXED_CYCLES = 0.5


def chosen_passes(
    source: Shape | Strides, destination: Shape | Strides, slots: SlotMove, vector_bytes: int, tuning: Tuning
) -> tuple[tuple[Pass, ...] | None, bool]:
    """Choose the passes of a relayout, and say whether they convert packed slots themselves.

    Parameters
    ----------
    source, destination : Shape or Strides
    slots : SlotMove
    vector_bytes : int
        What the machine permutes with one instruction.
    tuning : Tuning

    Returns
    -------
    tuple of Pass or None
        None where every slot has to be looked up.
    bool
    """
    best = _chosen_way(source, destination, slots, vector_bytes, tuning)
    return None if best.drafts is None else with_tables(best.drafts), best.converts


class _Way(NamedTuple):
    """One way to do it: its passes if there are any, whether they convert packed slots themselves, and their cycles."""

    drafts: tuple[Draft, ...] | None
    converts: bool
    cycles: float


def _chosen_way(
    source: Shape | Strides, destination: Shape | Strides, slots: SlotMove, vector_bytes: int, tuning: Tuning
) -> _Way:
    """Choose among loops, boxes and blocks by their costs; each is drafted only as far as it may be the cheapest."""
    best = _by_loops(source, destination, slots, tuning)
    if 0 in source.dimensions:
        # There is padding to write, and not one element to read.
        return best
    slot_bits = slots.source.bits, slots.destination.bits
    if any(bits != HALF_BITS and (bits % 8 or bits > 128) for bits in slot_bits):
        return best
    steps_apart = slots.unit == "value" and not best.converts and slot_bits != (8 * slots.width,) * 2
    forms = slots.source, slots.destination
    if steps_apart and (HALF_BITS not in slot_bits or not all(form.is_plain or form.is_packed for form in forms)):
        # Slots wider than their values are packed last: their padding is not a value repeated.
        return best
    nbytes, element_bytes = _written_bytes(destination, slots), _element_bytes(destination, slots)
    if steps_apart:
        apart = (side for side, form in zip((source, destination), forms, strict=True) if not form.is_plain)
        slot_count = sum(side.slot_count for side in apart if isinstance(side, Shape))
        best = best._replace(cycles=best.cycles + _APART_CYCLES * slot_count)
    elif best.cycles <= hidden_cycles(element_bytes, nbytes):
        return best
    goal = Goal(1, nbytes >= tuning.streamed_bytes, tuning)
    least = least_cycles(source, destination, nbytes, slot_bits, vector_bytes)
    # What is likely to be the cheapest comes first.
    boxes_first = nbytes == element_bytes and least > _BOXED_CYCLES * math.prod(destination.dimensions)
    if steps_apart and boxes_first:
        best = _boxed(source, destination, slots, goal, best)
    put = _put_together(source, destination, slots, vector_bytes, goal, best) if best.cycles > least else best
    if slot_bits == (HALF_BITS, HALF_BITS) and isinstance(source, Shape) and isinstance(destination, Shape):
        most_cycles = min(best.cycles, put.cycles * _FROM_MEMORY)
        collected = collected_passes(source, destination, vector_bytes, goal, most_cycles)
        if collected is not None and (cycles := cost(collected)) < most_cycles:
            put = _Way(collected, True, cycles)
    return _boxed(source, destination, slots, goal, put) if steps_apart and not boxes_first else put


def _by_loops(source: Shape | Strides, destination: Shape | Strides, slots: SlotMove, tuning: Tuning) -> _Way:
    if slots.loops is None:
        return _without_loops(source, destination, slots, tuning)
    found, converts = _loop_passes(slots.loops, slots, tuning)
    return _Way(found, converts, math.inf if found is None else cost(found))


def _without_loops(source: Shape | Strides, destination: Shape | Strides, slots: SlotMove, tuning: Tuning) -> _Way:
    """Choose what is fastest where the two sides share no loops, but may share all of them save for a coordinate."""
    best = _Way(None, False, math.inf)
    if slots.width not in UNIT_BYTES:
        return best
    for way in (counted_passes, period_box_passes):
        found = way(source, destination, slots.width, tuning)
        if found is not None:
            best = min(best, _Way(found, False, cost(found) + waiting_cycles(found)), key=lambda way: way.cycles)
    return best


def _boxed(source: Shape | Strides, destination: Shape | Strides, slots: SlotMove, goal: Goal, best: _Way) -> _Way:
    """Return the way box by box where it is better than the best so far, else that."""
    if slots.loops is None:
        apart = packed_period_passes(source, destination, (slots.source, slots.destination), goal)
        cycles = math.inf if apart is None else cost(apart) + waiting_cycles(apart)
        return _Way(apart, True, cycles) if cycles < best.cycles else best
    count = destination.slot_count if isinstance(destination, Shape) else 0
    readable = source.nbytes if isinstance(source, Shape) else 0
    boxed = boxed_passes(slots.loops, (slots.source, slots.destination), goal, count, readable, best.cycles)
    if boxed is None or (cycles := cost(boxed)) >= best.cycles:
        return best
    return _Way(boxed, True, cycles)


def _put_together(
    source: Shape | Strides, destination: Shape | Strides, slots: SlotMove, vector_bytes: int, goal: Goal, best: _Way
) -> _Way:
    """Return the way block by block where it is better than the best so far, else that."""
    slot_bits = slots.source.bits, slots.destination.bits
    readable = source.slot_count if isinstance(source, Shape) else 0
    has_blocks = False
    for variables, left, right in shared_digits(source, destination):
        found = assembly(variables, left, right, destination, slot_bits[1])
        if found is not None and _fits(found, slot_bits[1]):
            made = assembly_passes(found, slot_bits, vector_bytes, goal, readable, best.cycles)
            if made is not None:
                # Of two ways that take as long, blocks come second, in whatever order they are drafted.
                return _Way(made, HALF_BITS in slot_bits, math.nextafter(cost(made), math.inf))
            has_blocks = True
    if slots.loops is None and not has_blocks and isinstance(source, Shape) and slot_bits == (8 * slots.width,) * 2:
        apart = period_block_passes(source, destination, slots.width, vector_bytes, goal, best.cycles)
        if apart is not None:
            return _Way(apart, False, cost(apart))
    return best


def _fits(found: Assembly, slot_bits: int) -> bool:
    """Whether every block fits the scratch memory that kernels have for one."""
    return all(len(block.sources) * slot_bits <= 8 * MOST_BLOCK_BYTES for block in found.blocks)


def _loop_passes(loops: RelayoutLoops, slots: SlotMove, tuning: Tuning) -> tuple[tuple[Draft, ...] | None, bool]:
    if slots.conversion is not None:
        packed = slots.source if slots.source.is_packed else slots.destination
        converting = packed_drafts(loops, 8 // packed.bits, slots.conversion, tuning)
        if converting is not None:
            return converting, True
    plain, rows = drafts(loops, slots.width, tuning), row_box_drafts(loops, slots.width, tuning)
    return (plain if rows is None or cost(rows) > _SHARED_LINES * cost(plain) else rows), False


def _written_bytes(destination: Shape | Strides, slots: SlotMove) -> int:
    if isinstance(destination, Shape):
        return destination.slot_count * slots.destination.bits // 8
    return _element_bytes(destination, slots)


def _element_bytes(destination: Shape | Strides, slots: SlotMove) -> int:
    return math.prod(destination.dimensions) * slots.destination.bits // 8
