"""Relayouts whose sides cut a coordinate in sizes that do not divide each other: box by box, through the cache.

A tile that merges dimensions, as (2,*,128) does, counts their joint coordinate in pieces of 128, and the other side
begins a new row every 100, say. No loops serve both sides. But every 3200 values both begin anew, so boxes of whole
periods follow each other at regular distances on both sides. A box is copied to scratch memory where the coordinate is
linear, by loops that the source shares with it, and from there by loops that the destination shares.

Every slot is still looked up for sides that merge dimensions in two ways of which none continues the other, digits of
sums that a tile splits unevenly, and periods of which scratch memory does not hold a sixteenth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from fastindex.lowering.relayout.moves.box_parts import counts_of_boxes
from fastindex.lowering.relayout.moves.lcm_blocks import (
    MOST_KINDS,
    Joint,
    box_sizes,
    kinds_of_boxes,
    nests_to_scratch,
    order_on,
    systems_apart,
    turned,
)
from fastindex.lowering.relayout.moves.nest_passes import copying_passes, fill_pass
from fastindex.lowering.relayout.passes.calibration import cost
from fastindex.lowering.relayout.passes.form import Draft, iterations, no_tables
from fastindex.lowering.relayout.problem.loops import Loop, Nest, coalesced, in_bytes
from fastindex.lowering.relayout.problem.problem import Context, Problem
from fastindex.lowering.relayout.problem.shared_digits import Strides
from fastindex.lowering.relayout.problem.slot_moves import UNIT_BYTES
from fastindex.lowering.tuning import Tuning
from fastindex.shapes.shape import Shape
from fastindex.tables.boxes import BOX_BYTES, BoxGeometry


def lcm_boxes(problem: Problem) -> tuple[Draft, ...] | None:
    """Return the passes of a relayout whose sides share no loops, box by box; None where there are none."""
    slots = problem.slots
    if slots.loops is not None or slots.width not in UNIT_BYTES or 0 in problem.source.dimensions:
        return None
    return period_box_passes(problem.source, problem.destination, slots.width, problem.tuning)


def period_box_passes(
    source: Shape | Strides, destination: Shape | Strides, width: int, tuning: Tuning
) -> tuple[Draft, ...] | None:
    """Return the passes of a relayout, of elements of `width` bytes, box by box; None where there are none.

    Examples
    --------
    >>> from fastindex.lowering.tuning import TUNING
    >>> a, b = Shape.parse("u8[50,40,100]{1,2,0}"), Shape.parse("u8[50,40,100]{2,1,0:T(2,*,128)}")
    >>> print(period_box_passes(a, b, 1, TUNING)[0].why)
    boxes of 56000 elements, after which both sides begin anew, by way of the cache
    """
    slots = destination.slot_count if isinstance(destination, Shape) else math.prod(destination.dimensions)
    context = Context(width, slots * width >= tuning.streamed_bytes, tuning)
    # In the cache, any order is as good as that of the source.
    within = replace(tuning, by_source_bytes=1, gathered_chunk_bytes=1)
    contexts = Context(width, False, within), context
    for nests, joints, fills in systems_apart(source, destination):
        found = [_boxes_of(nest, joints, contexts) for nest in nests]
        made = [one for one in found if one is not None]
        if len(made) == len(found) and sum(map(len, made)) <= MOST_KINDS:
            filling = (fill_pass(in_bytes(coalesced(nest), width), context) for nest in fills)
            return (*itertools.chain(*made), *filling)
    return None


def _boxes_of(nest: Nest, joints: Sequence[Joint], contexts: tuple[Context, Context]) -> list[Draft] | None:
    """Return the passes over the boxes of a nest of the other coordinates; None where a period is too large."""
    sizes = box_sizes(nest.loops, joints, contexts[0].width, 2 * BOX_BYTES)
    if sizes is None:
        return None
    kinds = list(itertools.islice(kinds_of_boxes(nest, sizes), MOST_KINDS + 1))
    if len(kinds) > MOST_KINDS:
        return None
    orders = tuple(dict.fromkeys(order_on(sizes, side) for side in (0, 1)))
    # What is best for the first kind of box, the largest one, is good for the others.
    best = (
        min(orders, key=lambda order: cost((_box_pass(order, *kinds[0], contexts),))) if len(orders) > 1 else orders[0]
    )
    return [_box_pass(best, *kind, contexts) for kind in kinds]


def _box_pass(
    order: Sequence[Loop | Joint], box: dict[Loop | Joint, range], outer: Nest, contexts: tuple[Context, Context]
) -> Draft:
    """Return the pass over boxes of one kind, whose loops scratch memory has in an order, minor first.

    The contexts are those of what is written to scratch memory, and to the destination.
    """
    elements = math.prod(map(len, box.values()))
    reading = [(one, False, True) for nest in nests_to_scratch(order, box, 0) for one in _moving(nest, contexts[0])]
    writing = [
        (one, True, False) for nest in nests_to_scratch(order, box, 1) for one in _moving(turned(nest), contexts[1])
    ]
    outer = in_bytes(outer, contexts[0].width)
    ordered = sorted(outer.loops, key=lambda k: (k.destination_stride, k.source_stride))
    return Draft(
        "boxes",
        1,
        1,
        ordered,
        BoxGeometry(len(reading) + len(writing), 0),
        no_tables,
        iterations(ordered),
        elements * contexts[0].width,
        outer.source_start,
        outer.destination_start,
        f"boxes of {elements} elements, after which both sides begin anew, by way of the cache",
        counts_of_boxes((*reading, *writing), iterations(ordered), contexts[1].streamed),
        (*reading, *writing),
    )


@lru_cache(maxsize=64)
def _moving(nest: Nest, context: Context) -> tuple[Draft, ...]:
    """Return the passes of a nest in elements; boxes of several kinds have nests in common, so they are kept."""
    return tuple(copying_passes(in_bytes(nest, context.width), context))
