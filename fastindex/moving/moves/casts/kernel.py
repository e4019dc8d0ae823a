"""Runs of elements converted to another type.

Elements are prefetched some distance ahead, in their run or in a later one: short runs that are pages apart would
otherwise wait for memory.
"""

from __future__ import annotations

from fastindex.algebra.cast_numbers import (
    CAST,
    CAST_LANES,
)
from fastindex.moving.kernels.table import outer_place
from fastindex.moving.lines.cast_values import cast_elements, cast_lines, read_bytes, together, written_bytes
from fastindex.moving.numbers import FIRST, GEOMETRY
from fastindex.runtime.kernels import kernel, subroutine
from fastindex.runtime.lines.lines import copy_run, prefetch_ends
from fastindex.runtime.lines.memory import entry, fence
from fastindex.runtime.numbers import LINE_BYTES

#: Bytes of scratch memory that this kernel needs: a vector of results of which only a part is written.
SCRATCH_BYTES = CAST_LANES * 8


@subroutine("code", inline=True)
def _one_by_one(code, target, source, begin, end, strides, results):  # type: ignore[no-untyped-def]
    read, written = strides
    for i in range(begin, end):
        cast_elements(code, 1, target + i * written, source + i * read, results)


@subroutine("code", "streams", inline=True)
def _in_lines(code, streams, target, source, begin, end, ahead, results):  # type: ignore[no-untyped-def]
    """Convert elements of a dense run from `begin` in whole lines; return the first element of the remainder."""
    read, written, step = read_bytes(code), written_bytes(code), together(code)
    behind = end - (end - begin) % step
    for i in range(begin, behind, step):
        cast_lines(code, streams, target + i * written, source + i * read, ahead, results)
    return behind


@subroutine("code", inline=True)
def _in_vectors(code, target, source, begin, end, count, results, scratch):  # type: ignore[no-untyped-def]
    """Convert the elements from `begin` to `end` of a dense run of `count`, and write no others."""
    read, written = read_bytes(code), written_bytes(code)
    behind = end - (end - begin) % CAST_LANES
    for i in range(begin, behind, CAST_LANES):
        cast_elements(code, CAST_LANES, target + i * written, source + i * read, results)
    if behind == end:
        return
    if count < CAST_LANES:
        _one_by_one(code, target, source, behind, end, (read, written), results)
        return
    first = min(behind, count - CAST_LANES)
    cast_elements(code, CAST_LANES, scratch, source + first * read, results)
    copy_run(target + behind * written, scratch + (behind - first) * written, (end - behind) * written, 0)


@subroutine("code", "streams", inline=True)
def _dense_run(code, streams, target, source, count, ahead, results, scratch):  # type: ignore[no-untyped-def]
    written, done = written_bytes(code), 0
    if streams and target % written == 0:
        done = min(((-target) & (LINE_BYTES - 1)) // written, count)
        _in_vectors(code, target, source, 0, done, count, results, scratch)
        done = _in_lines(code, 1, target, source, done, count, ahead, results)
    else:
        done = _in_lines(code, 0, target, source, done, count, ahead, results)
    _in_vectors(code, target, source, done, count, count, results, scratch)


@kernel
def cast_runs(code, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a cast.

    Parameters
    ----------
    code : literal int
        The conversion, as `fastindex.algebra.cast_numbers.conversion_code` numbers them.
    target, source, table
        As for `copy_chunks`; the kernel's own numbers are a `CastGeometry`. The first table holds results.
    scratch : int64
        Address of `SCRATCH_BYTES` bytes, for this thread alone.
    ways
        Not used.
    """
    geometry, results = entry(table, GEOMETRY), entry(table, FIRST)
    count, runs = entry(geometry, CAST.elements), entry(geometry, CAST.runs)
    strides = entry(geometry, CAST.source_stride), entry(geometry, CAST.target_stride)
    ahead, streams = entry(geometry, CAST.ahead), entry(geometry, CAST.streams)
    is_dense = entry(geometry, CAST.is_dense)
    for task in range(first, last):
        at_source, at_target = outer_place(table, task, source, target)
        for _ in range(runs):
            if streams:
                prefetch_ends(at_target + 8 * entry(geometry, CAST.run_target_stride), count * strides[1])
            if is_dense:
                _dense_run(code, streams, at_target, at_source, count, ahead, results, scratch)
            else:
                _one_by_one(code, at_target, at_source, 0, count, strides, results)
            at_source += entry(geometry, CAST.run_source_stride)
            at_target += entry(geometry, CAST.run_target_stride)
    if streams:
        fence()
