"""Passes for packed elements of four bits in sparse tiles: the spans that hold elements are collected, then permuted.

Where a tiled source has few elements in each row of a tile, a vector of the destination takes pieces of many lines.
Slab by slab of the dimension that is outermost on both sides, the spans of the source that hold elements are copied to
scratch memory without the gaps between them; there blocks are put together of few pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fastindex.lowering.index.regrouped import RegroupedShape
from fastindex.lowering.relayout.moves.block_permute import assembly
from fastindex.lowering.relayout.moves.block_permute_passes import assembly_passes
from fastindex.lowering.relayout.moves.box_parts import PER_BYTE, pass_over
from fastindex.lowering.relayout.moves.stream_passes import copy_passes
from fastindex.lowering.relayout.passes.form import Draft, Goal
from fastindex.lowering.relayout.problem.loops import Loop, Nest, coalesced
from fastindex.lowering.relayout.problem.shared_digits import shared_digits
from fastindex.shapes.shape import Shape
from fastindex.tables.assemblies import HALF_BITS, MOST_BLOCK_BYTES
from fastindex.tables.boxes import BOX_BYTES
from fastindex.tables.cache_lines import LINE_BYTES
from fastindex.tiling.digits import Digit, Digits

# The most bytes of collected spans: they, and the lines that they come from, stay in L2.
_MOST_BYTES = 32 << 10
# Spans of so many bytes and more. Of 64 bytes, collected and not: s4[98304,3,127] out of T(8,128) 18 and 29 GB/s.
_LONG_SPAN = LINE_BYTES // 2
# Gaps of fewer elements stay.
_LEAST_GAP = 16
# Fewer tasks leave threads idle at the end.
_LEAST_TASKS = 16
# Slabs of so many steps of any number of packed elements end with a line.
_STEPS = LINE_BYTES * PER_BYTE


@dataclass(frozen=True, slots=True)
class _Collected:
    """Where the elements of a slab are once they are collected.

    Attributes
    ----------
    digits : tuple of Digit
        As those of the source, with the weights that they have there.
    spans : Nest
        How spans are copied, in bytes.
    nbytes : int
    is_sparse : bool
        Whether there is more than one span, and all are short. Longer ones are read well enough where they are.
    """

    digits: Digits
    spans: Nest
    nbytes: int
    is_sparse: bool


def collected_passes(
    source: Shape, destination: Shape, vector_bytes: int, goal: Goal, most_cycles: float = math.inf
) -> tuple[Draft, ...] | None:
    """Return the passes of packed elements of four bits.

    None where no slabs of sparse spans are to be had, or they take as long as `most_cycles`, another way to do it.

    Parameters
    ----------
    source, destination : Shape
    vector_bytes : int
        What the machine permutes with one instruction.
    goal : Goal
    most_cycles : float, optional
    """
    outer = _outermost(source)
    if outer is None or outer != _outermost(destination):
        return None
    count = source.dimensions[outer]
    steps = [side.slot_count // count for side in (source, destination)]
    if count < _STEPS or [step * count for step in steps] != [side.slot_count for side in (source, destination)]:
        return None
    some = _collected(source, destination, outer, _STEPS)
    if some is None or not some.is_sparse or some.nbytes > BOX_BYTES:
        return None
    most = max(min(_MOST_BYTES // some.nbytes, count // (_LEAST_TASKS * _STEPS)), 1) * _STEPS
    found: list[Draft] = []
    for first, slab, slabs in ((0, most, count // most), (count // most * most, count % most, 1)):
        if slab and slabs:
            sides = _with_steps(source, outer, slab), _with_steps(destination, outer, slab)
            made = _slab_passes(sides, vector_bytes, goal, most_cycles / slabs)
            if made is None:
                return None
            loops = (Loop(slabs, slab * steps[0], slab * steps[1]),) if slabs > 1 else ()
            around = Nest(loops, first * steps[0], first * steps[1])
            box = (Loop(slab * math.prod(source.dimensions) // count, 1, 1),)
            found.append(pass_over(box, around, (True, True), made, source.nbytes))
    return tuple(found)


def _outermost(shape: Shape) -> int | None:
    """Return the dimension that no tile splits and no other is around, if there is one."""
    if isinstance(shape, RegroupedShape):
        return None
    layout = shape.layout
    tile = layout.tiles[0] if layout.tiles else ()
    if len(tile) >= len(layout.minor_to_major) or layout.padded_dimensions:
        return None
    return layout.minor_to_major[-1]


def _with_steps(shape: Shape, dimension: int, count: int) -> Shape:
    """Return the shape of a slab of so many steps."""
    sizes = list(shape.dimensions)
    sizes[dimension] = count
    # Where a layout is split may lie beyond a slab, and moves nothing.
    return Shape(shape.element_type, tuple(sizes), replace(shape.layout, split_configs=()))


def _slab_passes(
    sides: tuple[Shape, Shape], vector_bytes: int, goal: Goal, most_cycles: float
) -> tuple[tuple[Draft, bool, bool], ...] | None:
    """Return the passes of one slab, with whether they read from scratch memory, and write to it."""
    systems = shared_digits(*sides)
    if not systems:
        return None
    variables, left, right = systems[0]
    collected = _without_gaps(left, sides[0].slot_count)
    if collected is None or collected.nbytes > BOX_BYTES:
        return None
    found = assembly(variables, collected.digits, right, sides[1], HALF_BITS)
    if found is None or any(len(block.sources) * HALF_BITS > 8 * MOST_BLOCK_BYTES for block in found.blocks):
        return None
    readable = PER_BYTE * collected.nbytes
    moving = assembly_passes(found, (HALF_BITS, HALF_BITS), vector_bytes, goal, readable, most_cycles)
    if moving is None or any(one.kernel == "fill" for one in moving):
        # What it fills with is not at hand within a box.
        return None
    collecting = copy_passes(collected.spans, Goal(1, False, goal.tuning))
    return (
        *((one, False, True) for one in collecting),
        *((one, True, False) for one in moving),
    )


def _collected(source: Shape, destination: Shape, outer: int, slab: int) -> _Collected | None:
    """Return where the elements of a slab come to be."""
    sides = [_with_steps(side, outer, slab) for side in (source, destination)]
    systems = shared_digits(sides[0], sides[1])
    return _without_gaps(systems[0][1], sides[0].slot_count) if systems else None


def _without_gaps(left: Digits, slots: int) -> _Collected | None:
    """Close the gaps between spans, but for those of some bytes; None where spans begin within a byte.

    `slots` is how many the source has.
    """
    ordered = sorted(left, key=lambda d: d.weight)
    digits: list[Digit] = []
    span = 1
    while ordered and ordered[0].weight < span + _LEAST_GAP:
        digits.append(ordered.pop(0))
        span += digits[-1].weight * digits[-1].largest
    run = room = -(-span // PER_BYTE)
    if room > 8:
        # Not to be cut by more lines than need be.
        room = -(-room // 8) * 8
    is_short, last = run < _LONG_SPAN, sum(one.weight * one.largest for one in ordered)
    if ordered and room * PER_BYTE <= min(ordered[0].weight, slots - last):
        # Copied with what is behind them, spans follow each other: s4[98304,2,5] out of T(8,128)(8,1) in half the time.
        run = room
    loops = [Loop(run, 1, 1)]
    for one in ordered:
        if one.weight % PER_BYTE:
            return None
        loops.append(Loop(one.largest + 1, one.weight // PER_BYTE, room))
        digits.append(one._replace(weight=room * PER_BYTE))
        room *= one.largest + 1
    return _Collected(tuple(digits), coalesced(Nest(tuple(loops))), room + LINE_BYTES, bool(ordered) and is_short)
