"""Runs of elements converted to another type.

Elements are prefetched some way ahead, in their run or in one further on: short runs that are pages apart would wait
for memory otherwise.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.memory import entry, fence, prefetch_to_l2
from fastindex.kernels.cpu.relayout.lines.cast_values import cast_elements, cast_line
from fastindex.kernels.cpu.relayout.passes.table import outer_place
from fastindex.tables.cache_lines import LINE_BYTES
from fastindex.tables.casts import (
    CAST_AHEAD,
    CAST_ELEMENTS,
    CAST_IS_DENSE,
    CAST_LANES,
    CAST_RUN_SOURCE_STRIDE,
    CAST_RUN_TARGET_STRIDE,
    CAST_RUNS,
    CAST_SOURCE_STRIDE,
    CAST_STREAMS,
    CAST_TARGET_STRIDE,
)
from fastindex.tables.passes import FIRST, GEOMETRY

_IN_LINE = LINE_BYTES - 1


@njit(nogil=True, inline="always")
def _one_by_one(code, target, source, begin, end, strides, results):  # type: ignore[no-untyped-def]
    read, written = strides
    for i in range(begin, end):
        cast_elements(code, 1, target + i * written, source + i * read, results)


@njit(nogil=True, inline="always")
def _in_vectors(code, target, source, count, strides, ahead, results):  # type: ignore[no-untyped-def]
    """Convert a dense run, and return how many elements of it."""
    read, written = strides
    together = count - count % CAST_LANES
    for i in range(0, together, CAST_LANES):
        at = source + i * read
        if (i * read) & _IN_LINE == 0:
            prefetch_to_l2(at + ahead)
            if CAST_LANES * read > LINE_BYTES:
                prefetch_to_l2(at + ahead + LINE_BYTES)
        cast_elements(code, CAST_LANES, target + i * written, at, results)
    return together


@njit(nogil=True, inline="always")
def _in_lines(code, target, source, count, strides, ahead, results):  # type: ignore[no-untyped-def]
    """Convert a dense run whose target is written past the cache, line by line; return how many elements of it."""
    read, written = strides
    begin = min(((-target) & _IN_LINE) // written, count)
    _one_by_one(code, target, source, 0, begin, strides, results)
    per_line = LINE_BYTES // written
    end = begin + (count - begin) // per_line * per_line
    for i in range(begin, end, per_line):
        at = source + i * read
        for part in range(0, per_line * read, LINE_BYTES):
            prefetch_to_l2(at + ahead + part)
        cast_line(code, target + i * written, at, results)
    return end


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
    strides = entry(geometry, CAST_SOURCE_STRIDE), entry(geometry, CAST_TARGET_STRIDE)
    ahead, streams = entry(geometry, CAST_AHEAD), entry(geometry, CAST_STREAMS)
    for task in range(first, last):
        at_source, at_target = outer_place(table, task, source, target)
        for _ in range(runs):
            done = 0
            if streams and at_target % strides[1] == 0:
                done = _in_lines(code, at_target, at_source, count, strides, ahead, results)
            elif entry(geometry, CAST_IS_DENSE):
                done = _in_vectors(code, at_target, at_source, count, strides, ahead, results)
            _one_by_one(code, at_target, at_source, done, count, strides, results)
            at_source += entry(geometry, CAST_RUN_SOURCE_STRIDE)
            at_target += entry(geometry, CAST_RUN_TARGET_STRIDE)
    if streams:
        fence()
