"""Relayouts of packed elements box by box: expanded to bytes, moved as bytes, and compressed, all within the cache.

The three steps are passes of their own; a box is small enough for what they hand on to stay in L2. Runs of the
destination that begin or end within a byte leave single nibbles, which are copied one by one.
"""

from __future__ import annotations

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.memory import entry
from fastindex.kernels.cpu.relayout.passes.runner import call_in_box
from fastindex.kernels.cpu.relayout.passes.table import outer_place, set_end_of_source
from fastindex.tables.boxes import BOX_CALL_BYTES, CALLS, FROM_SCRATCH, READABLE_BYTES, TO_SCRATCH
from fastindex.tables.passes import FIRST, GEOMETRY


@kernel()
def run_boxes(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout box by box.

    Parameters
    ----------
    target, source : int64
        Addresses.
    table : int64
        Address of a `PassTable`; the kernel's own numbers are a `BoxGeometry`. The first table has the rows of a
        `BoxCall`.
    scratch : int64
        Address of memory for this thread alone: what the called kernels need, and behind it two boxes.
    width, ways
        Not used.
    """
    geometry, calls = entry(table, GEOMETRY), entry(table, FIRST)
    count = entry(geometry, CALLS)
    set_end_of_source(scratch, source + entry(geometry, READABLE_BYTES))
    for task in range(first, last):
        at_source, at_target = outer_place(table, task, source, target)
        for i in range(count):
            call = calls + BOX_CALL_BYTES * i
            read = scratch if entry(call, FROM_SCRATCH) else at_source
            written = scratch if entry(call, TO_SCRATCH) else at_target
            call_in_box(call, written, read, scratch)
