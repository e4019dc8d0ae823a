"""The numbers of one pass of a relayout, as its kernel finds them: a table of addresses and lengths.

Every kernel that moves data is called alike: two literals that it is compiled for, the addresses of destination and
source, of this table and of memory of its own, and a range of tasks.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.simd import entry

#: Places in the table: how many loops are around the tasks and where they are, an int64 table of (size, source stride,
#: destination stride) in bytes, innermost first; where the tables of offsets are and how long the second is; where the
#: kernel's own numbers are.
LOOPS, OUTER, FIRST, SECOND, SECOND_LENGTH, GEOMETRY = range(6)


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
