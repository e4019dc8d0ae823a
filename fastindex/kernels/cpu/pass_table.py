"""The numbers of one pass of a relayout, as its kernel finds them: a table of addresses and lengths.

Every kernel that moves data is called alike: two literals that it is compiled for, the addresses of destination and
source, of this table and of memory of its own, and a range of tasks.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.cpu.vectors import entry, set_entry

#: Places in the table: how many loops are around the tasks and where they are, an int64 table of (size, source stride,
#: destination stride) in bytes, innermost first; where the tables of offsets are and how long the second is; where the
#: kernel's own numbers are.
LOOPS, OUTER, FIRST, SECOND, SECOND_LENGTH, GEOMETRY = range(6)


#: Bytes in front of a kernel's scratch memory.
SCRATCH_FRONT_BYTES = 64


@njit(nogil=True)
def with_padding(scratch, pattern):  # type: ignore[no-untyped-def]
    """Give a kernel's scratch memory within a thread's, and note the address of padding in front of it."""
    set_entry(scratch, 0, pattern)
    return scratch + SCRATCH_FRONT_BYTES


@njit(nogil=True)
def padding_of(scratch):  # type: ignore[no-untyped-def]
    """Give the address of 128 bytes of padding."""
    return entry(scratch - SCRATCH_FRONT_BYTES, 0)


@njit(nogil=True)
def outer_place(table, step, source, target):  # type: ignore[no-untyped-def]
    """Give where source and destination are at a step of the loops around the tasks."""
    outer = entry(table, OUTER)
    for loop in range(entry(table, LOOPS)):
        row = outer + 24 * loop
        step, place = divmod(step, entry(row, 0))
        source += place * entry(row, 1)
        target += place * entry(row, 2)
    return source, target
