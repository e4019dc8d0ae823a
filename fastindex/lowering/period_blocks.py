"""Blocks of a destination without padding, where a source cuts a coordinate apart: counted within one period only.

Blocks of coordinates whose digits the two sides do not share begin at counted places, one for each value. After a
period both sides begin anew, so whole periods are a coordinate of their own, and few places have to be counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastindex.lowering.assembly import assembly
from fastindex.lowering.assembly_passes import assembly_passes
from fastindex.lowering.pass_costs import cost
from fastindex.lowering.pass_form import Draft, Goal
from fastindex.lowering.periods import Joint, joints_of
from fastindex.lowering.shared_digits import Strides, shared_digits
from fastindex.shapes.shape import Shape
from fastindex.tables.assemblies import MOST_BLOCK_BYTES
from fastindex.tiling.digits import Digits, Variable, canonical, digit

# Slots between strides are nobody's, so nothing is filled.
_NO_PADDING = Strides((), ())


def period_block_passes(
    source: Shape, destination: Shape | Strides, width: int, vector_bytes: int, goal: Goal, most_cycles: float
) -> tuple[Draft, ...] | None:
    """Return the passes of a relayout block by block, of elements of `width` bytes.

    None where there is padding to write, where not one coordinate alone is cut apart, where it has but one period, or
    where that takes as long as `most_cycles`, another way to do it.
    """
    if isinstance(destination, Shape) and destination.slot_count != destination.element_count:
        return None
    for variables, left, right in shared_digits(source, destination):
        joints = joints_of(variables, left, right)
        if joints is None or len(joints) != 1 or joints[0].period >= joints[0].variable.extent:
            continue
        joint, found, cycles = joints[0], list[Draft](), 0.0
        whole, rest = divmod(joint.variable.extent, joint.period)
        for periods, extent, first in ((whole, joint.period, 0), (1, rest, whole * joint.period)):
            if not extent:
                continue
            sides = [_split(side, joint, periods, extent) for side in (left, right)]
            others = [v for v in variables if v != joint.variable]
            starts = joint.places(first)
            readable = source.slot_count - starts[0]
            made = _passes_of([*others, *_parts(joint, periods, extent)], sides, width, vector_bytes, goal, readable)
            if made is None:
                return None
            found += [
                one._replace(
                    source_start=one.source_start + starts[0] * width,
                    destination_start=one.destination_start + starts[1] * width,
                )
                for one in made
            ]
            cycles += cost(made)
            if cycles >= most_cycles:
                return None
        return tuple(found)
    return None


def _parts(joint: Joint, periods: int, extent: int) -> tuple[Variable, Variable]:
    """Return the coordinates of whole periods, and of values within one."""
    return Variable(("periods", joint.variable.key), periods, True), Variable(joint.variable.key, extent, True)


def _split(side: Digits, joint: Joint, periods: int, extent: int) -> Digits:
    """Return a sum with digits of whole periods, and of values within one."""
    outer, inner = _parts(joint, periods, extent)
    found: Digits = ()
    for d in side:
        if d.variable != joint.variable:
            found += (d,)
            continue
        found += digit(d.weight, inner, d.low, d.high)
        if d.high is None:
            found += digit(d.weight * (joint.period // d.low), outer, 1, None)
    return canonical(found)


def _passes_of(
    variables: Sequence[Variable], sides: Sequence[Digits], width: int, vector_bytes: int, goal: Goal, readable: int
) -> tuple[Draft, ...] | None:
    bits = 8 * width
    found = assembly(variables, sides[0], sides[1], _NO_PADDING, bits)
    if found is None or any(len(block.sources) * width > MOST_BLOCK_BYTES for block in found.blocks):
        return None
    return assembly_passes(found, (bits, bits), vector_bytes, goal, readable, math.inf)
