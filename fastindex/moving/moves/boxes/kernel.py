"""Relayouts box by box (cache blocking): read to scratch memory and written from there, all within the cache.

The steps are separate passes; a box is small enough for data between them to stay in L2.
"""

from __future__ import annotations

from fastindex.moving.kernels.passes import call_in_box, outer_place, set_end_of_source
from fastindex.moving.numbers import BOX, BOX_CALL, BOX_CALL_BYTES, TABLE
from fastindex.runtime.kernels import unrolled_kernel
from fastindex.runtime.lines.memory import entry


@unrolled_kernel
def run_boxes(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout box by box.

    Parameters
    ----------
    target, source : int64
        Addresses.
    table : int64
        Address of a `PassTable`; the kernel's own numbers are a `BoxGeometry`. The first table has a `BoxCall` in each
        row.
    scratch : int64
        Address of memory for this thread alone: scratch memory of the called kernels, followed by two boxes.
    width, ways
        Not used.
    """
    geometry, calls = entry(table, TABLE.geometry), entry(table, TABLE.first)
    count = entry(geometry, BOX.calls)
    set_end_of_source(scratch, source + entry(geometry, BOX.readable_bytes))
    for task in range(first, last):
        at_source, at_target = outer_place(table, task, source, target)
        for i in range(count):
            call = calls + BOX_CALL_BYTES * i
            read = scratch if entry(call, BOX_CALL.from_scratch) else at_source
            written = scratch if entry(call, BOX_CALL.to_scratch) else at_target
            call_in_box(call, written, read, scratch)
