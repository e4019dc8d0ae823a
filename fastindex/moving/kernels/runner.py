"""Run the passes of a relayout one after the other, without returning to Python in between.

A call from Python takes at least 0.3 us, and 20 us where two threads compete for the interpreter. So a whole relayout
is one native call on each thread; threads take tasks by incrementing a shared counter.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from fastindex.moving.kernels.table import with_padding
from fastindex.moving.numbers import (
    CALL_KERNEL,
    CALL_SOURCE_START,
    CALL_TABLE,
    CALL_TARGET_START,
    CALL_TASKS,
    PASS_CALL,
    PASS_CALL_BYTES,
)
from fastindex.runtime.kernels import instructions, kernel, subroutine
from fastindex.runtime.lines.calls import plain_addresses, slice_is_over
from fastindex.runtime.lines.memory import entry
from fastindex.runtime.numbers import PAIR_CALL

_INT64 = ir.IntType(64)
# While many tasks are left, a thread takes a 16th of them, up to `MOST_AT_ONCE`.
_LEFT_BITS = 4


@instructions()
def call_kernel(
    builder: Any, address: Any, target: Any, source: Any, table: Any, scratch: Any, first: Any, last: Any
) -> None:
    """Call the kernel at an address; its two literals are compiled in."""
    # Numba's C signature: every argument is an int64, and None is returned as a pointer.
    declared = ir.FunctionType(ir.IntType(8).as_pointer(), [_INT64] * 8)
    compiled = builder.inttoptr(address, declared.as_pointer())
    builder.call(compiled, [_INT64(0), _INT64(0), target, source, table, scratch, first, last])


@subroutine(inline=True)
def call_in_box(call, target, source, scratch):  # type: ignore[no-untyped-def]
    """Run all tasks of a pass within a box; `call` is the address of a `BoxCall`."""
    written, read = target + entry(call, CALL_TARGET_START), source + entry(call, CALL_SOURCE_START)
    call_kernel(entry(call, CALL_KERNEL), written, read, entry(call, CALL_TABLE), scratch, 0, entry(call, CALL_TASKS))


@instructions(result=types.int64)
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
        behind = min(first + count, tasks)
        found = exchange(counter, first, behind)
        if found == first:
            return first, behind
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
    first, behind = _take(counter, tasks, at_once, most)
    while first < tasks:
        call_kernel(compiled, target, source, table, scratch, first, behind)
        if call and slice_is_over(call):
            return False
        first, behind = _take(counter, tasks, at_once, most)
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
