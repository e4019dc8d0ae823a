"""The passes of a relayout: by loops where these serve well, else put together block by block."""

from __future__ import annotations

import math

from fastindex.lowering.assembly import Assembly, assembly
from fastindex.lowering.assembly_bounds import least_cycles
from fastindex.lowering.assembly_passes import assembly_passes
from fastindex.lowering.boxed_passes import boxed_passes
from fastindex.lowering.collected_passes import collected_passes
from fastindex.lowering.counted_passes import counted_passes
from fastindex.lowering.pass_costs import cost, hidden_cycles
from fastindex.lowering.pass_form import Draft, Goal, Pass, with_tables
from fastindex.lowering.passes import drafts, packed_drafts
from fastindex.lowering.relayout_loops import Strides, shared_digits
from fastindex.lowering.row_boxes import row_box_drafts
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
    found, converts = _chosen_drafts(source, destination, slots, vector_bytes, tuning)
    return None if found is None else with_tables(found), converts


def _chosen_drafts(
    source: Shape | Strides, destination: Shape | Strides, slots: SlotMove, vector_bytes: int, tuning: Tuning
) -> tuple[tuple[Draft, ...] | None, bool]:
    """Choose among loops, boxes and blocks by their costs; each is drafted only where it may be the cheapest."""
    by_loops, converts = _loop_passes(source, destination, slots, tuning)
    if 0 in source.dimensions:
        # There is padding to write, and not one element to read.
        return by_loops, converts
    slot_bits = slots.source.bits, slots.destination.bits
    if any(bits != HALF_BITS and (bits % 8 or bits > 128) for bits in slot_bits):
        return by_loops, converts
    steps_apart = slots.unit == "value" and not converts and slot_bits != (8 * slots.width,) * 2
    forms = slots.source, slots.destination
    if steps_apart and (HALF_BITS not in slot_bits or not all(form.is_plain or form.is_packed for form in forms)):
        # Slots wider than their values are packed last: their padding is not a value repeated.
        return by_loops, converts
    nbytes = _written_bytes(destination, slots)
    by_loops_cost = float("inf") if by_loops is None else cost(by_loops)
    if steps_apart:
        by_loops_cost += _APART_CYCLES * sum(
            side.slot_count
            for side, form in ((source, slots.source), (destination, slots.destination))
            if isinstance(side, Shape) and not form.is_plain
        )
    if by_loops_cost <= hidden_cycles(_element_bytes(destination, slots), nbytes) and not steps_apart:
        return by_loops, converts
    goal = Goal(1, nbytes >= tuning.streamed_bytes, tuning)
    put, put_cost = _put_together(source, destination, slot_bits, vector_bytes, goal, (nbytes, by_loops_cost))
    # Boxes are drafted as far as they may be better, and what is collected first too, which reads from the cache.
    most = min(by_loops_cost, put_cost * _FROM_MEMORY)
    if steps_apart and slots.loops is not None:
        count = destination.slot_count if isinstance(destination, Shape) else 0
        readable = source.nbytes if isinstance(source, Shape) else 0
        boxed = boxed_passes(slots.loops, forms, goal, count, readable, most)
        if boxed is not None and (boxed_cost := cost(boxed)) < most:
            by_loops, converts, by_loops_cost, most = boxed, True, boxed_cost, boxed_cost
    if slot_bits == (HALF_BITS, HALF_BITS) and isinstance(source, Shape) and isinstance(destination, Shape):
        collected = collected_passes(source, destination, vector_bytes, goal, most)
        if collected is not None and (collected_cost := cost(collected)) < most:
            by_loops, converts, by_loops_cost = collected, True, collected_cost / _FROM_MEMORY
    return (put, HALF_BITS in slot_bits) if put is not None and put_cost < by_loops_cost else (by_loops, converts)


def _put_together(
    source: Shape | Strides,
    destination: Shape | Strides,
    slot_bits: tuple[int, int],
    vector_bytes: int,
    goal: Goal,
    written: tuple[int, float],
) -> tuple[tuple[Draft, ...] | None, float]:
    """Return the passes that put blocks together, and their cost; None and infinity where loops do as well.

    `written` is how many bytes are written, and what that costs by loops.
    """
    nbytes, most_cycles = written
    nothing = None, float("inf")
    if most_cycles <= least_cycles(source, destination, nbytes, slot_bits, vector_bytes):
        return nothing
    for variables, left, right in shared_digits(source, destination):
        found = assembly(variables, left, right, destination, slot_bits[1])
        if found is not None and _fits(found, slot_bits[1]):
            readable = source.slot_count if isinstance(source, Shape) else 0
            made = assembly_passes(found, slot_bits, vector_bytes, goal, readable, most_cycles)
            if made is not None:
                return made, cost(made)
    return nothing


def _fits(found: Assembly, slot_bits: int) -> bool:
    """Whether every block fits the scratch memory that kernels have for one."""
    return all(len(block.sources) * slot_bits <= 8 * MOST_BLOCK_BYTES for block in found.blocks)


def _loop_passes(
    source: Shape | Strides, destination: Shape | Strides, slots: SlotMove, tuning: Tuning
) -> tuple[tuple[Draft, ...] | None, bool]:
    if slots.loops is None:
        return counted_passes(source, destination, slots.width, tuning) if slots.width in UNIT_BYTES else None, False
    if slots.conversion is not None:
        packed = slots.source if slots.source.is_packed else slots.destination
        converting = packed_drafts(slots.loops, 8 // packed.bits, slots.conversion, tuning)
        if converting is not None:
            return converting, True
    plain, rows = drafts(slots.loops, slots.width, tuning), row_box_drafts(slots.loops, slots.width, tuning)
    return (plain if rows is None or cost(rows) > _SHARED_LINES * cost(plain) else rows), False


def _written_bytes(destination: Shape | Strides, slots: SlotMove) -> int:
    if isinstance(destination, Shape):
        return destination.slot_count * slots.destination.bits // 8
    return _element_bytes(destination, slots)


def _element_bytes(destination: Shape | Strides, slots: SlotMove) -> int:
    return math.prod(destination.dimensions) * slots.destination.bits // 8
