"""Relayouts box by box: read to scratch memory that fits the cache, and written from there.

In the literature this is cache blocking (loop tiling) with a packing buffer. A box is a part of both sides::

    source  --- loops of the source --->  scratch memory (L2)  --- loops of the destination --->  destination
                                          linear coordinates

Boxes are used in three cases.

Tile sizes that do not divide each other: a tile that merges dimensions, as (2,*,128) does, splits their joint
coordinate into parts of 128, and the other side begins a new row every 100 values, say. No loops serve both sides. But
both sides realign every lcm(100, 128) = 3200 values, so boxes of whole periods have a constant stride on both sides. A
box is copied to scratch memory, where the coordinate is linear, by loops shared with the source, and from there by
loops shared with the destination.

Rows of the destination that several nests write, because a tile does not divide them: run one after the other, the
nests would share lines of the destination, which would be evicted from the cache in between. A box has all values of
such a coordinate: all nests write their part of it to scratch memory, and from there it is written by loops again.

Packed elements: a box is unpacked as it is read, or packed as it is written, and moves as bytes; within scratch memory
if both sides are packed. Without boxes, the whole array would be unpacked to separate memory.

Slots are still looked up one by one if the sides merge dimensions in two ways of which neither continues the other, if
a tile splits digits of sums unevenly, or if scratch memory does not hold a sixteenth of a period.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced, exchanged, grouped, in_bytes
from fastindex.algebra.shared_digits import Strides
from fastindex.core.shape import Shape
from fastindex.moving.counts import Counts, total
from fastindex.moving.moves.boxes.geometry import (
    MOST_KINDS,
    Joint,
    System,
    box_sizes,
    kinds_of_boxes,
    nests_to_scratch,
    order_on,
    split_systems,
)
from fastindex.moving.moves.nests.plan import copying_passes, fill_pass, packed_nest_passes
from fastindex.moving.moves.transposes import TransposeGeometry
from fastindex.moving.moves.transposes.plan import is_few
from fastindex.moving.numbers import BOX_BYTES, BoxGeometry
from fastindex.moving.passes import Draft, cost, iterations, without
from fastindex.moving.problem import UNIT_BYTES, Context, Problem
from fastindex.runtime.machine import Machine
from fastindex.runtime.numbers import LINE_BYTES
from fastindex.runtime.tuning import Tuning

#: The least bytes of a box in scratch memory, unless the nest has fewer. Microseconds with at least 32, 64, 128 and 256
#: KiB: bf16[1000,300,100] out of T(2,*,128), 18147, 12117, 11983 and 12043; u8[500,400,200] to it, 13338, 13287, 9139
#: and 9124; f32[4096,3000] cast to bf16, T(8,128)(2,1), 6881, 3779, 3693 and 3617 (2026-11-24).
LEAST_BOX_BYTES = 128 << 10
# The most bytes of the destination that a row spans whose tiles leave a remainder: a box has whole rows of these.
_MOST_ROW_BYTES = 128 << 10

_Kind = tuple[dict[Loop | Joint, range], Nest]
_Order = tuple[Loop | Joint, ...]

#: A pass within a box, whether it reads from scratch memory, and whether it writes to it.
Step = tuple[Draft, bool, bool]


def box_pass(
    elements: int,
    outer: Nest,
    bits: tuple[int, int],
    steps: Sequence[Step],
    why: str,
    counts: Counts,
    by_source: bool = False,
    readable_bytes: int = 0,
) -> Draft:
    """Return the pass that runs `steps` within each box.

    Parameters
    ----------
    elements : int
        Elements of a box.
    outer : Nest
        The boxes, in elements; they are taken in the order of the destination, or of the source if `by_source`.
    bits : (int, int)
        Bits of an element on both sides.
    steps, why, counts
        The passes within a box, the reason, and what all of them count.
    by_source : bool
    readable_bytes : int
        As of a `BoxGeometry`.
    """
    read, written = bits
    loops = [Loop(k.size, k.source_stride * read // 8, k.destination_stride * written // 8) for k in outer.loops]
    starts = outer.source_start * read // 8, outer.destination_start * written // 8
    return Draft(
        "boxes",
        1,
        Nest(tuple(without(loops, (), by_source)), *starts),
        BoxGeometry(len(steps), readable_bytes),
        max(elements * written // 8, 1),
        f"boxes of {elements} elements, {why}",
        counts,
        inner=tuple(steps),
    )


def boxes(problem: Problem) -> tuple[Draft, ...] | None:
    """Return the passes over boxes, or None if `box_drafts` does, or elements are not whole units."""
    slots = problem.slots
    # Boxes count elements, which are less than a byte if bytes of packed elements move.
    if slots.width not in UNIT_BYTES or slots.unit == "byte":
        return None
    return box_drafts(problem.source, problem.destination, slots.width, problem.machine, problem.tuning, slots.loops)


def packed_boxes(problem: Problem) -> tuple[Draft, ...] | None:
    """Return the passes over boxes that unpack elements as they are read, or pack them as they are written."""
    slots, context, bits = problem.slots, problem.context, problem.slot_bits
    formats = slots.source, slots.destination
    if slots.unit != "value" or min(bits) >= 8 or not all(form.is_plain or form.is_packed for form in formats):
        return None
    systems: Iterable[System] = split_systems(problem.source, problem.destination, 0)
    if slots.loops is not None:
        systems = [(list(slots.loops.copies), [], list(slots.loops.fills))]
    return _drafts_of(systems, context, bits)


def box_drafts(
    source: Shape | Strides,
    destination: Shape | Strides,
    width: int,
    machine: Machine,
    tuning: Tuning,
    loops: RelayoutLoops | None,
) -> tuple[Draft, ...] | None:
    """Return the passes of a relayout of elements of `width` bytes, box by box; None if there are none.

    `loops` are the loops that the two sides share, if any: then there are boxes only for rows whose tiles leave a
    remainder, of a destination that is written with non-temporal stores.

    Examples
    --------
    >>> from fastindex.runtime.machine import EPYC_1M
    >>> from fastindex.runtime.tuning import TUNING
    >>> a, b = Shape.parse("u8[50,40,100]{1,2,0}"), Shape.parse("u8[50,40,100]{2,1,0:T(2,*,128)}")
    >>> print(box_drafts(a, b, 1, EPYC_1M, TUNING, None)[0].why)
    boxes of 200000 elements, after which both sides realign
    """
    slots = destination.slot_count if isinstance(destination, Shape) else math.prod(destination.dimensions)
    context = Context(width, slots * width >= tuning.streamed_bytes, tuning, machine)
    if loops is not None and (loops.fills or slots * width < max(tuning.streamed_bytes, tuning.shifted_bytes)):
        return None
    systems = split_systems(source, destination, 0 if loops is None else _MOST_ROW_BYTES // width)
    return _drafts_of(systems, context, (8 * width, 8 * width))


def _drafts_of(systems: Iterable[System], context: Context, bits: tuple[int, int]) -> tuple[Draft, ...] | None:
    """Return the passes over boxes of the first system that has any; `bits` are those of an element on both sides."""
    for nests, joints, fills in systems:
        found = [_boxes_of(nest, joints, context, bits) for nest in nests]
        made = [one for one in found if one is not None]
        padding = RelayoutLoops((), tuple(coalesced(nest) for nest in fills))
        whole = grouped(padding, 8 // bits[1]) if bits[1] < 8 else padding
        if whole is not None and len(made) == len(found) and sum(map(len, made)) <= MOST_KINDS:
            filling = (fill_pass(in_bytes(nest, context.width), context) for nest in whole.fills)
            return (*itertools.chain(*made), *filling)
    return None


def within(context: Context) -> Context:
    """Return the context of passes that write to scratch memory, in the order of the source: any order is as good."""
    tuning = replace(context.tuning, by_source_bytes=1, gathered_chunk_bytes=1)
    return Context(context.width, False, tuning, context.machine)


def _boxes_of(nest: Nest, joints: Sequence[Joint], context: Context, bits: tuple[int, int]) -> list[Draft] | None:
    """Return the passes over the boxes of joint coordinates and a nest of the others; None if a period is too large.

    `bits` are the bits of an element on both sides: runs of a packed side must be whole bytes. If both sides are
    packed, elements are reordered within scratch memory.
    """
    are_packed = max(bits) < 8
    sizes = box_sizes(nest.loops, joints, context.width, (1 if are_packed else 2) * BOX_BYTES, LEAST_BOX_BYTES)
    if sizes is None:
        return None
    kinds = list(itertools.islice(kinds_of_boxes(nest, sizes), MOST_KINDS + 1))
    if len(kinds) > MOST_KINDS:
        return None
    sides = order_on(sizes, 0), order_on(sizes, 1)
    tried = [sides] if are_packed else [(sides[k], sides[k]) for k in (0, 1) if bits[k] <= bits[1 - k]]
    # The best order for the first kind of box, the largest, is good for the others.
    costs = []
    for orders in dict.fromkeys(tried):
        first = _box_of(kinds[0], orders, context, bits)
        costs.append((math.inf if first is None else cost([first]), orders))
    _, best = min(costs, key=lambda one: one[0])
    found = [_box_of(kind, best, context, bits) for kind in kinds]
    made = [one for one in found if one is not None]
    return made if len(made) == len(found) else None


def _box_of(kind: _Kind, orders: tuple[_Order, _Order], context: Context, bits: tuple[int, int]) -> Draft | None:
    """Return the pass over boxes of one kind; None if boxes, or runs in them, begin within a byte.

    `orders` are the orders of scratch memory as it is written, and as it is read.
    """
    parts, outer = kind
    places = (outer.source_start, *(k.source_stride for k in outer.loops))
    targets = (outer.destination_start, *(k.destination_stride for k in outer.loops))
    if any(place * size % 8 for side, size in zip((places, targets), bits, strict=True) for place in side):
        return None
    steps: list[Step] = []
    read, begin = within(context), 0
    for side, inner in enumerate((read, context)):
        if side and orders[0] != orders[1]:
            begin = BOX_BYTES // context.width
            turning = _between(parts, orders)._replace(destination_start=begin)
            steps += [(one, True, True) for one in moving_passes(turning, read)]
        for nest in nests_to_scratch(orders[side], parts, side):
            moved = exchanged(nest)._replace(source_start=nest.destination_start + begin) if side else nest
            packed = bits[side] < 8
            kernel = "compress" if side else "expand"
            made = packed_nest_passes(moved, 8 // bits[side], kernel, inner) if packed else moving_passes(moved, inner)
            if made is None:
                return None
            steps += [(one, side == 1, side == 0) for one in made]
    counts = counts_of_boxes(steps, iterations(outer.loops), context.streamed)
    why = "after which both sides realign" if min(bits) >= 8 else "which are unpacked within the cache"
    return box_pass(math.prod(map(len, parts.values())), outer, bits, steps, why, counts)


def _between(parts: dict[Loop | Joint, range], orders: tuple[_Order, _Order]) -> Nest:
    """Return the nest that reorders a box from one order to another."""
    strides = []
    for order in orders:
        sizes = [len(parts[of]) for of in order]
        strides.append(dict(zip(order, itertools.accumulate(sizes, operator.mul, initial=1), strict=False)))
    return coalesced(Nest(tuple(Loop(len(values), strides[0][of], strides[1][of]) for of, values in parts.items())))


def counts_of_boxes(steps: Iterable[Step], tasks: int, streamed: bool) -> Counts:
    """Count the work of the passes within boxes; `streamed` says whether the destination is too large for the cache."""
    found = total(_to_scratch(one) if to_scratch else _through_the_cache(one, streamed) for one, _, to_scratch in steps)
    return found._replace(tasks=found.tasks + 1).times(tasks)


def _to_scratch(one: Draft) -> Counts:
    """Return the counts of a pass that writes to scratch memory; its lines are read from there again.

    Runs that a transpose writes to scratch memory hit the cache, and do not wait for their lines.
    """
    counts = one.counts._replace(ends=0, lines=0, scratch=one.counts.scratch + 2 * one.counts.lines)
    return counts._replace(elements=0) if isinstance(one.geometry, TransposeGeometry) else counts


def _through_the_cache(one: Draft, streamed: bool) -> Counts:
    """Return the counts of a pass that writes to the destination; lines written with ordinary stores are read first.

    A transpose of few columns moves elements one by one; no wait for memory hides that here.
    """
    counts, geometry = one.counts, one.geometry
    if not isinstance(geometry, TransposeGeometry):
        return counts
    if streamed and not geometry.streamed:
        counts = counts._replace(missed=counts.missed + counts.lines)
    if is_few(geometry.column_count, one.width):
        counts = counts._replace(gathered=2 * counts.lines * LINE_BYTES / one.width)
    return counts


@lru_cache(maxsize=64)
def moving_passes(nest: Nest, context: Context) -> tuple[Draft, ...]:
    """Return the passes of a nest in units of the context; cached, because several kinds of boxes share nests."""
    return tuple(copying_passes(in_bytes(nest, context.width), context))
