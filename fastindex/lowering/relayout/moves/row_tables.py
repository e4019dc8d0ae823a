"""Transposes along a coordinate whose digits the two sides do not share: its places in the source are counted.

A tile that merges dimensions cuts their joint coordinate every 128 values, say, and the source turns to its next row
every 123. The destination is still contiguous along 128 values of it, and the source along another coordinate, so this
is a transpose; only where its rows are in the source has to be written down row by row.
"""

from __future__ import annotations

import math

from fastindex.lowering.relayout.moves.nest_passes import fill_pass
from fastindex.lowering.relayout.moves.transpose_passes import column_panels, counts_of_transpose
from fastindex.lowering.relayout.passes.blocks import without
from fastindex.lowering.relayout.passes.form import Draft, Goal, Tables, iterations
from fastindex.lowering.relayout.problem.digit_places import slots_of
from fastindex.lowering.relayout.problem.loops import (
    MOST_NESTS,
    Loop,
    Nest,
    coalesced,
    cut_into_boxes,
    in_bytes,
    padding_nests,
    products,
    shared_levels,
)
from fastindex.lowering.relayout.problem.shared_digits import Strides, shared_digits
from fastindex.lowering.tuning import Tuning
from fastindex.shapes.shape import Shape
from fastindex.tables.transposes import TransposeGeometry
from fastindex.tiling.digits import Digits, Variable

# Rows that are written down, eight bytes each.
_MOST_ROWS = 1 << 18


def counted_passes(
    source: Shape | Strides, destination: Shape | Strides, width: int, tuning: Tuning
) -> tuple[Draft, ...] | None:
    """Return the passes of a relayout, of elements of `width` bytes, whose two sides do not share one coordinate.

    None where that is not all, or where neither side is contiguous as a transpose needs it.
    """
    if not isinstance(destination, Shape) or 0 in source.dimensions:
        return None
    goal = Goal(width, destination.slot_count * width >= tuning.streamed_bytes, tuning)
    for variables, left, right in shared_digits(source, destination):
        counted: list[Variable] = []
        pieces: list[list[Nest]] = []
        for variable in variables:
            sides = [[d for d in digits if d.variable == variable] for digits in (left, right)]
            levels = shared_levels(sides[0], sides[1], variable.extent)
            if levels is None:
                counted.append(variable)
            else:
                pieces.append(list(cut_into_boxes(variable.extent, levels)))
        if len(counted) != 1 or counted[0].extent > _MOST_ROWS or math.prod(map(len, pieces)) > MOST_NESTS:
            continue
        fills = padding_nests(variables, right, destination)
        nests = [coalesced(nest) for nest in products(pieces)]
        if fills is None or not any(k.source_stride == 1 for nest in nests for k in nest.loops):
            continue
        found = [_counted_pass(nest, counted[0], left, right, goal) for nest in nests]
        made = [one for one in found if one is not None]
        if len(made) == len(found):
            return (*made, *(fill_pass(in_bytes(coalesced(nest), width), goal) for nest in fills))
    return None


def _counted_pass(nest: Nest, counted: Variable, left: Digits, right: Digits, goal: Goal) -> Draft | None:
    """Return the pass over a nest of the other coordinates, with all values of one as its rows."""
    width = goal.width
    runs = sorted((d for d in right if d.variable == counted), key=lambda d: d.low)
    if len(runs) != 2 or runs[0].weight != 1 or runs[0].low != 1 or runs[1].low != runs[0].high:
        return None
    if runs[1].high is not None:
        return None
    row_block, row_stride = runs[1].low, runs[1].weight * width
    nest = in_bytes(nest, width)
    columns = _columns(nest.loops, width)
    others = without(nest.loops, columns)
    found, aligned = column_panels(columns, goal)
    outer = (*others, *found.outer)

    def tables() -> Tables:
        return width * slots_of((d for d in left if d.variable == counted), counted.extent), found.targets()

    geometry = TransposeGeometry(
        row_block=row_block,
        row_count=counted.extent,
        row_source_stride=0,
        column_block=found.places,
        column_count=found.count,
        column_target_stride=found.destination_stride,
        columns_aligned=aligned,
        columns_joined=False,
        streamed=goal.streamed,
        readable_bytes=0,
        row_target_stride=row_stride,
        row_table_step=row_block,
        inner_iterations=1,
    )
    row_blocks = -(-counted.extent // row_block)
    return Draft(
        "transpose",
        width,
        1,
        outer,
        geometry,
        tables,
        row_blocks * found.number * iterations(outer),
        row_block * found.places * width,
        nest.source_start,
        nest.destination_start,
        f"{row_block * width} bytes contiguous in the destination; the rows of the source are counted",
        counts=counts_of_transpose(nest, (row_block * width, width * iterations(columns), width), 0)
        .times(counted.extent)
        ._replace(tasks=row_blocks * found.number * iterations(outer)),
    )


def _columns(loops: tuple[Loop, ...], width: int) -> tuple[Loop, ...]:
    """Return the loops along which the source is contiguous, minor first; none at the end of a coordinate, maybe."""
    columns: list[Loop] = []
    size = width
    for loop in sorted(loops, key=lambda k: abs(k.source_stride)):
        if loop.source_stride == size:
            columns.append(loop)
            size *= loop.size
    return tuple(columns)
