"""What all kernels of passes share: where a task begins, and where padding is.

Every kernel that moves data is called alike: two literals that it is compiled for, the addresses of destination and
source, of a `PassTable` and of memory of its own, and a range of tasks. Both addresses are where the pass starts: a
kernel adds only `outer_place`. One that writes past the cache ends with `fence()`.
"""

from __future__ import annotations

from fastindex.moving.numbers import GEOMETRY, LOOPS, OUTER, OUTER_LOOP, OUTER_LOOP_BYTES, SCRATCH_FRONT_BYTES, STREAM
from fastindex.runtime.kernels import subroutine
from fastindex.runtime.lines.memory import entry, set_entry


@subroutine()
def with_padding(scratch, pattern):  # type: ignore[no-untyped-def]
    """Return a kernel's part of a thread's scratch memory, after storing the address of padding in front of it."""
    set_entry(scratch, 0, pattern)
    return scratch + SCRATCH_FRONT_BYTES


@subroutine()
def padding_of(scratch):  # type: ignore[no-untyped-def]
    """Return the address of 128 bytes of padding."""
    return entry(scratch - SCRATCH_FRONT_BYTES, 0)


@subroutine()
def set_end_of_source(scratch, end):  # type: ignore[no-untyped-def]
    """Store where the source ends, for the kernels that run within a box."""
    set_entry(scratch - SCRATCH_FRONT_BYTES, 1, end)


@subroutine()
def end_of_source(scratch):  # type: ignore[no-untyped-def]
    """Return where the source ends; only kernels within a box know."""
    return entry(scratch - SCRATCH_FRONT_BYTES, 1)


@subroutine()
def outer_place(table, iteration, source, target):  # type: ignore[no-untyped-def]
    """Return where source and destination are at an iteration of the loops around the tasks."""
    outer = entry(table, OUTER)
    for loop in range(entry(table, LOOPS)):
        row = outer + OUTER_LOOP_BYTES * loop
        iteration, place = divmod(iteration, entry(row, OUTER_LOOP.size))
        source += place * entry(row, OUTER_LOOP.source_stride)
        target += place * entry(row, OUTER_LOOP.target_stride)
    return source, target


@subroutine(inline=True)
def start_of_block(source, target, table, task):  # type: ignore[no-untyped-def]
    """Return where the chunks of a task start, and how many it has."""
    geometry = entry(table, GEOMETRY)
    block, chunk_count = entry(geometry, STREAM.chunk_block), entry(geometry, STREAM.chunk_count)
    rest, index = divmod(task, (chunk_count + block - 1) // block)
    source += index * entry(geometry, STREAM.chunk_source_stride)
    target += index * entry(geometry, STREAM.chunk_target_stride)
    source, target = outer_place(table, rest, source, target)
    return source, target, min(block, chunk_count - index * block)
