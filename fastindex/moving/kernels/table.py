"""Subroutines that all kernels of passes share: the start of a task, and the address of padding.

Every kernel that moves data has the same signature: two literals that it is compiled for, the addresses of destination,
source, a `PassTable` and scratch memory, and a range of tasks. Source and destination are the start of the pass: a
kernel adds only `outer_place`. A kernel with non-temporal stores ends with `fence()`.
"""

from __future__ import annotations

from fastindex.moving.numbers import GEOMETRY, LOOPS, OUTER, OUTER_LOOP, OUTER_LOOP_BYTES, SCRATCH_FRONT_BYTES, STREAM
from fastindex.runtime.kernels import subroutine
from fastindex.runtime.lines.memory import entry, set_entry


@subroutine()
def with_padding(scratch, pattern):  # type: ignore[no-untyped-def]
    """Store the address of padding in a thread's scratch memory; return the address after it, for a kernel."""
    set_entry(scratch, 0, pattern)
    return scratch + SCRATCH_FRONT_BYTES


@subroutine()
def padding_of(scratch):  # type: ignore[no-untyped-def]
    """Return the address of 128 bytes of padding."""
    return entry(scratch - SCRATCH_FRONT_BYTES, 0)


@subroutine()
def set_end_of_source(scratch, end):  # type: ignore[no-untyped-def]
    """Store the end address of the source, for kernels that run within a box."""
    set_entry(scratch - SCRATCH_FRONT_BYTES, 1, end)


@subroutine()
def end_of_source(scratch):  # type: ignore[no-untyped-def]
    """Return the end address of the source; set only for kernels within a box."""
    return entry(scratch - SCRATCH_FRONT_BYTES, 1)


@subroutine()
def outer_place(table, iteration, source, target):  # type: ignore[no-untyped-def]
    """Return the source and destination addresses at an iteration of the loops around the tasks."""
    outer = entry(table, OUTER)
    for loop in range(entry(table, LOOPS)):
        row = outer + OUTER_LOOP_BYTES * loop
        iteration, place = divmod(iteration, entry(row, OUTER_LOOP.size))
        source += place * entry(row, OUTER_LOOP.source_stride)
        target += place * entry(row, OUTER_LOOP.target_stride)
    return source, target


@subroutine(inline=True)
def start_of_block(source, target, table, task):  # type: ignore[no-untyped-def]
    """Return the source and destination addresses of the chunks of a task, and their number."""
    geometry = entry(table, GEOMETRY)
    block, chunk_count = entry(geometry, STREAM.chunk_block), entry(geometry, STREAM.chunk_count)
    rest, index = divmod(task, (chunk_count + block - 1) // block)
    source += index * entry(geometry, STREAM.chunk_source_stride)
    target += index * entry(geometry, STREAM.chunk_target_stride)
    source, target = outer_place(table, rest, source, target)
    return source, target, min(block, chunk_count - index * block)
