"""Run the passes of a relayout one after the other, without returning to Python in between.

A call from Python takes at least 0.3 us, and 20 us where two threads compete for the interpreter. So a whole relayout
is one native call on each thread; threads take tasks by incrementing a shared counter.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fastindex.moving.numbers import (
    BOX_CALL,
    CHUNKS,
    OUTER_LOOP,
    OUTER_LOOP_BYTES,
    PASS_CALL,
    PASS_CALL_BYTES,
    SCRATCH_FRONT_BYTES,
    TABLE,
)
from fastindex.runtime.kernels import instructions, kernel, subroutine
from fastindex.runtime.lines.calls import plain_addresses, slice_is_over
from fastindex.runtime.lines.memory import entry, set_entry
from fastindex.runtime.numbers import PAIR_CALL


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
    outer = entry(table, TABLE.outer)
    for loop in range(entry(table, TABLE.loops)):
        row = outer + OUTER_LOOP_BYTES * loop
        iteration, place = divmod(iteration, entry(row, OUTER_LOOP.size))
        source += place * entry(row, OUTER_LOOP.source_stride)
        target += place * entry(row, OUTER_LOOP.target_stride)
    return source, target


@subroutine(inline=True)
def start_of_block(source, target, table, task):  # type: ignore[no-untyped-def]
    """Return the source and destination addresses of the chunks of a task, and their number."""
    geometry = entry(table, TABLE.geometry)
    block, chunk_count = entry(geometry, CHUNKS.per_task), entry(geometry, CHUNKS.total)
    outer, index = divmod(task, (chunk_count + block - 1) // block)
    source += index * entry(geometry, CHUNKS.source_stride)
    target += index * entry(geometry, CHUNKS.target_stride)
    source, target = outer_place(table, outer, source, target)
    return source, target, min(block, chunk_count - index * block)


_INT64 = ir.IntType(64)
# While many tasks are left, a thread takes a 16th of them, up to `MOST_AT_ONCE`.
_LEFT_BITS = 4


@instructions()
def call_kernel(
    builder: Any, address: Any, target: Any, source: Any, table: Any, scratch: Any, first: Any, last: Any
) -> None:
    """Call the kernel at an address; its two literals are compiled in."""
    # The signature of `FOR_C`.
    declared = ir.FunctionType(_INT64, [_INT64] * 8)
    compiled = builder.inttoptr(address, declared.as_pointer())
    builder.call(compiled, [_INT64(0), _INT64(0), target, source, table, scratch, first, last])


@subroutine(inline=True)
def call_in_box(call, target, source, scratch):  # type: ignore[no-untyped-def]
    """Run all tasks of a pass within a box; `call` is the address of a `BoxCall`."""
    written, read = target + entry(call, BOX_CALL.target_start), source + entry(call, BOX_CALL.source_start)
    call_kernel(
        entry(call, BOX_CALL.kernel),
        written,
        read,
        entry(call, BOX_CALL.table),
        scratch,
        0,
        entry(call, BOX_CALL.tasks),
    )


@instructions()
def exchange(builder: Any, counter: Any, expected: Any, wanted: Any) -> Any:
    """Compare and exchange a shared int64: write `wanted` if it equals `expected`; return its previous value."""
    place = builder.inttoptr(counter, _INT64.as_pointer())
    return builder.extract_value(builder.cmpxchg(place, expected, wanted, "seq_cst", "seq_cst"), 0)


@subroutine()
def _take(counter, tasks, at_once, most):  # type: ignore[no-untyped-def]
    """Take the next tasks for this thread; return their first and their end, both `tasks` if none are left.

    Adjacent tasks are faster on one thread; the last shares are small, so that all threads end at about the same time.
    """
    first = 0
    while first < tasks:
        count = min(max((tasks - first) >> _LEFT_BITS, at_once), most)
        task_end = min(first + count, tasks)
        found = exchange(counter, first, task_end)
        if found == first:
            return first, task_end
        first = found
    return tasks, tasks


@subroutine()
def _run_pass(one, target, source, padding, scratch, counter, call):  # type: ignore[no-untyped-def]
    """Run a pass, or this thread's share of it; return False where the time slice ended with tasks left."""
    target += entry(one, PASS_CALL.target_start)
    source = padding if entry(one, PASS_CALL.fills) else source + entry(one, PASS_CALL.source_start)
    scratch = with_padding(scratch, padding)
    compiled, table, tasks = entry(one, PASS_CALL.kernel), entry(one, PASS_CALL.table), entry(one, PASS_CALL.tasks)
    if not counter:
        call_kernel(compiled, target, source, table, scratch, 0, tasks)
        return True
    at_once, most = entry(one, PASS_CALL.tasks_at_once), entry(one, PASS_CALL.most_at_once)
    first, task_end = _take(counter, tasks, at_once, most)
    while first < tasks:
        call_kernel(compiled, target, source, table, scratch, first, task_end)
        if call and slice_is_over(call):
            return False
        first, task_end = _take(counter, tasks, at_once, most)
    return True


@subroutine()
def run_all(passes, count, target, source, padding, scratch, counters, call):  # type: ignore[no-untyped-def]
    """Run the passes of a relayout, as `run_passes`; return whether all tasks are done.

    `call` is the address of a `LongCall`, which limits the time slice, or 0.
    """
    for i in range(count):
        counter = counters + 8 * i if counters else 0
        if not _run_pass(passes + PASS_CALL_BYTES * i, target, source, padding, scratch, counter, call):
            return False
    return True


@kernel
def run_passes(passes, count, target, source, padding, scratch, counters):  # type: ignore[no-untyped-def]
    """Run the passes of a relayout, or this thread's share of them.

    Parameters
    ----------
    passes : int64
        Address of an array of `count` `PassCall` records.
    target, source : int64
        Addresses.
    padding : int64
        Address of 128 bytes of padding.
    scratch : int64
        Address of this thread's scratch memory: `SCRATCH_FRONT_BYTES`, then what the kernels need.
    counters : int64
        Address of an int64 for each pass, initially 0, shared by all threads of a call; 0 for a single thread.
    """
    run_all(passes, count, target, source, padding, scratch, counters, 0)


@kernel
def run_plain(source, target, call, scratch):  # type: ignore[no-untyped-def]
    """Run the passes of a relayout between two arrays of the expected kind; return whether they were.

    Parameters
    ----------
    source, target : int64
        Addresses of two Python objects, as given by ``id``.
    call : int64
        Address of a `PlainPair`, directly followed by a `PairCall`.
    scratch : int64
        As for `run_passes`.
    """
    begin, place = plain_addresses(source, target, call)
    if not place:
        return False
    passes, padding = entry(call, PAIR_CALL.passes), entry(call, PAIR_CALL.padding)
    for i in range(entry(call, PAIR_CALL.pass_count)):
        _run_pass(passes + PASS_CALL_BYTES * i, place, begin, padding, scratch, 0, 0)
    return True
