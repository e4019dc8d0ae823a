"""Runs of elements converted to another type."""

from __future__ import annotations

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.memory import entry
from fastindex.kernels.cpu.relayout.lines.cast_values import cast_elements
from fastindex.kernels.cpu.relayout.passes.table import outer_place
from fastindex.tables.casts import (
    CAST_ELEMENTS,
    CAST_IS_DENSE,
    CAST_LANES,
    CAST_RUN_SOURCE_STRIDE,
    CAST_RUN_TARGET_STRIDE,
    CAST_RUNS,
    CAST_SOURCE_STRIDE,
    CAST_TARGET_STRIDE,
)
from fastindex.tables.passes import FIRST, GEOMETRY


@kernel()
def cast_runs(code, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a cast.

    Parameters
    ----------
    code : literal int
        The conversion, as `fastindex.tables.casts.conversion_code` numbers them.
    target, source, table
        As for `copy_chunks`; the kernel's own numbers are a `CastGeometry`. The first table holds results.
    ways, scratch
        Not used.
    """
    geometry, results = entry(table, GEOMETRY), entry(table, FIRST)
    count, runs = entry(geometry, CAST_ELEMENTS), entry(geometry, CAST_RUNS)
    source_stride, target_stride = entry(geometry, CAST_SOURCE_STRIDE), entry(geometry, CAST_TARGET_STRIDE)
    together = count - count % CAST_LANES if entry(geometry, CAST_IS_DENSE) else 0
    for task in range(first, last):
        at_source, at_target = outer_place(table, task, source, target)
        for _ in range(runs):
            for i in range(0, together, CAST_LANES):
                cast_elements(code, CAST_LANES, at_target + i * target_stride, at_source + i * source_stride, results)
            for i in range(together, count):
                cast_elements(code, 1, at_target + i * target_stride, at_source + i * source_stride, results)
            at_source += entry(geometry, CAST_RUN_SOURCE_STRIDE)
            at_target += entry(geometry, CAST_RUN_TARGET_STRIDE)
