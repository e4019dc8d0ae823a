"""Boxes of whole periods of packed elements of four bits, which move as bytes within the cache.

As `period_boxes`, but that what is packed is expanded to bytes where a box is read, and compressed where it is written:
straight to where coordinates are linear, and from there, where that side has runs in common with it, else by way of an
image of the side. Boxes that begin within a byte of the destination are left to other ways.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from fastindex.lowering.relayout.moves.box_parts import PER_BYTE, by_parity, moving_passes, pass_over
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
from fastindex.lowering.relayout.moves.nest_passes import fill_pass
from fastindex.lowering.relayout.moves.nibble_images import FRONT_BYTES, expanding, source_image
from fastindex.lowering.relayout.moves.stream_passes import packed_run_passes
from fastindex.lowering.relayout.passes.calibration import cost
from fastindex.lowering.relayout.passes.form import Draft, Goal
from fastindex.lowering.relayout.problem.loops import Loop, Nest, RelayoutLoops, coalesced, grouped
from fastindex.lowering.relayout.problem.shared_digits import Strides
from fastindex.shapes.shape import Shape
from fastindex.shapes.slot_format import SlotFormat
from fastindex.tables.assemblies import HALF_BITS
from fastindex.tables.boxes import BOX_BYTES

# Images have gaps between their spans, so a box takes less than the memory for it.
_MOST_ELEMENTS = BOX_BYTES // 4 * 3
# Where the image of a side begins, and where coordinates are linear.
_IMAGE, _LINEAR = FRONT_BYTES, BOX_BYTES + FRONT_BYTES

#: Passes with whether they read from scratch memory, and write to it.
_Steps = list[tuple[Draft, bool, bool]]


def packed_period_passes(
    source: Shape | Strides, destination: Shape | Strides, formats: tuple[SlotFormat, SlotFormat], goal: Goal
) -> tuple[Draft, ...] | None:
    """Return the passes that move packed elements box by box, or None where there are none.

    Parameters
    ----------
    source, destination : Shape or Strides
    formats : (SlotFormat, SlotFormat)
        Of source and destination: four bits, or bytes.
    goal : Goal
    """
    packed = formats[0].is_packed, formats[1].is_packed
    if not any(packed) or any(
        form.bits != (HALF_BITS if one else 8) for form, one in zip(formats, packed, strict=True)
    ):
        return None
    readable = source.nbytes if isinstance(source, Shape) else 0
    for nests, joints, fills in systems_apart(source, destination):
        padding = RelayoutLoops((), tuple(coalesced(nest) for nest in fills))
        whole = grouped(padding, PER_BYTE) if packed[1] else padding
        if whole is None:
            continue
        found = [_boxes_of(nest, joints, packed, goal, readable) for nest in nests]
        made = [one for one in found if one is not None]
        if len(made) == len(found) and sum(map(len, made)) <= MOST_KINDS:
            return (*itertools.chain(*made), *(fill_pass(nest, goal) for nest in whole.fills))
    return None


def _boxes_of(
    nest: Nest, joints: Sequence[Joint], packed: tuple[bool, bool], goal: Goal, readable: int
) -> list[Draft] | None:
    """Return the passes over the boxes of a nest of the other coordinates; None where they do not begin with bytes."""
    sizes = box_sizes(nest.loops, joints, 1, _MOST_ELEMENTS)
    if sizes is None:
        return None
    kinds = []
    for box, outer in itertools.islice(kinds_of_boxes(nest, sizes), MOST_KINDS):
        if packed[1] and _is_odd(outer, 1):
            return None
        kinds += [(box, part) for part in by_parity(outer, (packed[0], False))]
    best: list[Draft] | None = None
    for order in dict.fromkeys(order_on(sizes, side) for side in (0, 1)):
        made: list[Draft] = []
        for box, part in kinds:
            steps = _steps_of(order, box, packed, part.source_start % PER_BYTE, goal)
            if steps is None:
                break
            whole = (Loop(math.prod(map(len, box.values())), 1, 1),)
            made.append(pass_over(whole, part, packed, tuple(steps), readable))
        if len(made) == len(kinds) and (best is None or cost(made) < cost(best)):
            best = made
    return best


def _is_odd(nest: Nest, side: int) -> bool:
    """Whether some steps of a nest, or its start, are within a byte of a side."""
    numbers = [(k.source_stride, k.destination_stride)[side] for k in nest.loops]
    return any(number % PER_BYTE for number in (*numbers, (nest.source_start, nest.destination_start)[side]))


def _steps_of(
    order: Sequence[Loop | Joint], box: dict[Loop | Joint, range], packed: tuple[bool, bool], odd: int, goal: Goal
) -> _Steps | None:
    """Return the steps of a box that begins with the half `odd` of a byte of the source; None where it is too large."""
    kept = Goal(1, False, goal.tuning)
    found: _Steps = []
    for nest in nests_to_scratch(order, box, 0):
        begin = nest.source_start + (odd if packed[0] else 0)
        read = Nest(nest.loops, begin, nest.destination_start + _LINEAR)
        steps = _expanded(read, kept) if packed[0] else [(one, False, True) for one in moving_passes(read, kept)]
        if steps is None:
            return None
        found += steps
    for nest in map(turned, nests_to_scratch(order, box, 1)):
        written = Nest(nest.loops, nest.source_start + _LINEAR, nest.destination_start)
        steps = (
            _compressed(written, goal) if packed[1] else [(one, True, False) for one in moving_passes(written, goal)]
        )
        if steps is None:
            return None
        found += steps
    return found


def _expanded(nest: Nest, goal: Goal) -> _Steps | None:
    """Return the steps from the packed source to scratch memory."""
    run = _common_run(nest)
    if run is not None and not _is_odd(_without(nest, run), 0):
        return [(one, False, True) for one in packed_run_passes(nest, run, PER_BYTE, "expand", goal)]
    image = source_image(nest.loops)
    if image.nbytes > BOX_BYTES:
        return None
    odd = nest.source_start % PER_BYTE
    loops = tuple(Loop(k.size, image.strides[k], k.destination_stride) for k in nest.loops)
    moved = coalesced(Nest(loops, _IMAGE + odd, nest.destination_start))
    steps: _Steps = [(one, False, True) for one in expanding(image, nest.source_start, goal)]
    return [*steps, *((one, True, True) for one in moving_passes(moved, goal))]


def _compressed(nest: Nest, goal: Goal) -> _Steps | None:
    """Return the steps from scratch memory to the packed destination; None where runs are not whole bytes."""
    run = _common_run(nest)
    if run is not None:
        if run.size % PER_BYTE or _is_odd(_without(nest, run), 1):
            return None
        return [(one, True, False) for one in packed_run_passes(nest, run, PER_BYTE, "compress", goal)]
    image = source_image(turned(nest).loops, with_gaps=False)
    apart = Nest(tuple(Loop(k.size, image.strides[k], k.source_stride) for k in image.apart), 0, nest.destination_start)
    if image.nbytes > BOX_BYTES or image.length % PER_BYTE or _is_odd(apart, 1):
        return None
    strides = {k: image.strides[Loop(k.size, k.destination_stride, k.source_stride)] for k in nest.loops}
    moved = coalesced(
        Nest(tuple(Loop(k.size, k.source_stride, strides[k]) for k in nest.loops), nest.source_start, _IMAGE)
    )
    steps: _Steps = [(one, True, True) for one in moving_passes(moved, Goal(1, False, goal.tuning))]
    long = Loop(image.length, 1, 1)
    runs = Nest((long, *apart.loops), _IMAGE, nest.destination_start)
    return [*steps, *((one, True, False) for one in packed_run_passes(runs, long, PER_BYTE, "compress", goal))]


def _common_run(nest: Nest) -> Loop | None:
    return next((k for k in nest.loops if k.source_stride == k.destination_stride == 1), None)


def _without(nest: Nest, run: Loop) -> Nest:
    return Nest(tuple(k for k in nest.loops if k is not run), nest.source_start, nest.destination_start)
