"""Run the passes of a relayout one after the other, without returning to Python in between.

A call from Python takes at least 0.3 us, and 20 us where two threads compete for the interpreter. So a whole relayout
is one native call on each thread; threads take tasks by incrementing a shared counter.

Helper threads get these calls as jobs, posted in shared memory that they poll: submitting a function to a Python thread
pool costs the caller 15 us or more, and the thread starts 40 us later. A helper that has just finished polls for a
moment, and starts within a microsecond; only a sleeping helper is woken. It sleeps in native code, on a semaphore: it
then starts after 50 us, and waking it costs the caller 8 us. With a Python lock these were 108 us, because the helper
also had to wait for the GIL, and 19 us.
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
from fastindex.runtime.lines.calls import begin_slice, plain_addresses, slice_is_over
from fastindex.runtime.lines.memory import entry, fence, set_entry
from fastindex.runtime.numbers import (
    ASLEEP,
    CALL,
    CALL_COUNTERS,
    CLOSED,
    JOB,
    MISSING,
    PAIR_CALL,
    POOL,
    POOL_JOBS,
    POSTED,
    REFUSED,
    UNFINISHED,
    WAITING,
    WORKING,
)


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


_INT32 = ir.IntType(32)
# Sleep interval of a caller that waits for working helpers.
_NAP_MICROSECONDS = 50
# Counter value that ends a pass: more than the tasks of any pass.
_ALL_TAKEN = 1 << 62


@instructions()
def _call_c(builder: Any, function: Any, number: Any) -> None:
    """Call the C function at an address with one int64 argument: an address, or an int in its lower half."""
    builder.call(builder.inttoptr(function, ir.FunctionType(_INT32, [_INT64]).as_pointer()), [number])


@subroutine()
def _sleep(job):  # type: ignore[no-untyped-def]
    """Sleep until the state of a job changes; loop, because a signal may end the wait early."""
    while entry(job, JOB.state) == ASLEEP:
        _call_c(entry(job, JOB.sleep), entry(job, JOB.semaphore))


@subroutine()
def _wake(job):  # type: ignore[no-untyped-def]
    """Wake the sleeping helper of a job."""
    _call_c(entry(job, JOB.wake), entry(job, JOB.semaphore))


@subroutine()
def _tell(job, state):  # type: ignore[no-untyped-def]
    """Set the state of a job whose helper is idle, and wake the helper if it sleeps."""
    while True:
        if exchange(job, WAITING, state) == WAITING:
            return
        if exchange(job, ASLEEP, state) == ASLEEP:
            _wake(job)
            return


@kernel
def serve(job, scratch, spins):  # type: ignore[no-untyped-def]
    """Run posted passes until the job is closed; sleep after `spins` polls without a job.

    Without a semaphore to sleep on, return instead.

    Parameters
    ----------
    job : int64
        Address of a `PassJob`.
    scratch : int64
        As for `run_passes`.
    spins : int64
        Number of polls before sleeping.
    """
    left = spins
    while True:
        found = exchange(job, POSTED, WORKING)
        if found == POSTED:
            passes, count = entry(job, JOB.passes), entry(job, JOB.pass_count)
            target, source = entry(job, JOB.target), entry(job, JOB.source)
            run_all(passes, count, target, source, entry(job, JOB.padding), scratch, entry(job, JOB.counters), 0)
            exchange(job, WORKING, WAITING)
            left = spins
        elif found == CLOSED:
            return
        left -= _wait_while(job, WAITING, left)
        if left == 0 and exchange(job, WAITING, ASLEEP) == WAITING:
            if not entry(job, JOB.sleep):
                return
            _sleep(job)
            left = spins


@subroutine()
def _wait_while(job, state, spins):  # type: ignore[no-untyped-def]
    """Poll until the state of a job changes, at most `spins` times; return the number of polls."""
    for looked in range(spins):
        if entry(job, JOB.state) != state:
            return looked
        # As long as a pause instruction; makes the next poll read memory.
        fence()
    return spins


@subroutine()
def _post(job, passes, count, target, source, padding, counters):  # type: ignore[no-untyped-def]
    """Post passes to an idle helper."""
    set_entry(job, JOB.passes, passes)
    set_entry(job, JOB.pass_count, count)
    set_entry(job, JOB.target, target)
    set_entry(job, JOB.source, source)
    set_entry(job, JOB.padding, padding)
    set_entry(job, JOB.counters, counters)
    _tell(job, POSTED)


@subroutine()
def _withdrawn(job, spins):  # type: ignore[no-untyped-def]
    """Withdraw a job that has not started, or poll `spins` times for its end; return whether the helper is idle."""
    if exchange(job, POSTED, WAITING) == POSTED:
        return True
    _wait_while(job, WORKING, spins)
    return exchange(job, WORKING, WORKING) != WORKING


@subroutine()
def _wait_for_helpers(pool, owner):  # type: ignore[no-untyped-def]
    """Wait a limited time for the helpers of a call; free them once all are idle, and return how many still work."""
    count, left = entry(pool, POOL.size), 0
    for i in range(count):
        job = entry(pool, POOL_JOBS + i)
        if entry(job, JOB.owner) == owner:
            left += not _withdrawn(job, entry(pool, POOL.spins))
    if not left:
        for i in range(count):
            exchange(entry(pool, POOL_JOBS + i) + 8 * JOB.owner, owner, 0)
    return left


@subroutine()
def _lead(pool, helpers, passes, count, target, source, padding, scratch, call):  # type: ignore[no-untyped-def]
    limit, asked, counters = begin_slice(call), 0, call + 8 * CALL_COUNTERS
    for i in range(entry(pool, POOL.size)):
        job = entry(pool, POOL_JOBS + i)
        if asked < helpers and exchange(job + 8 * JOB.owner, 0, call) == 0:
            _post(job, passes, count, target, source, padding, counters)
            asked += 1
    found = (helpers - asked) * MISSING
    if not run_all(passes, count, target, source, padding, scratch, counters, limit):
        return found + UNFINISHED
    return found + _wait_for_helpers(pool, call)


@kernel
def lead(pool, helpers, passes, count, target, source, padding, scratch, call):  # type: ignore[no-untyped-def]
    """Run or resume passes on this thread and on free helpers, until all tasks are done or the time slice ends.

    Parameters
    ----------
    pool : int64
        Address of a `PoolTable`.
    helpers : int64
        The most helpers to use; 0 to resume a call.
    passes, count, target, source, padding, scratch : int64
        As for `run_passes`.
    call : int64
        Address of a `LongCall` with a counter for each pass, initially 0; it owns its helpers.

    Returns
    -------
    int64
        Number of helpers that still work, plus `MISSING` for each helper that was not available, plus `UNFINISHED` if
        the time slice ended with tasks left.
    """
    return _lead(pool, helpers, passes, count, target, source, padding, scratch, call)


@kernel
def lead_plain(pool, helpers, source, target, pair, scratch, call):  # type: ignore[no-untyped-def]
    """Run the passes of a relayout between two arrays, as `lead`; return `REFUSED` for arrays of another kind.

    Parameters
    ----------
    pool, helpers, call : int64
        As for `lead`.
    source, target, pair, scratch : int64
        As for `run_plain`.
    """
    begin, place = plain_addresses(source, target, pair)
    if not place:
        return REFUSED
    passes, count, padding = (
        entry(pair, PAIR_CALL.passes),
        entry(pair, PAIR_CALL.pass_count),
        entry(pair, PAIR_CALL.padding),
    )
    return _lead(pool, helpers, passes, count, place, begin, padding, scratch, call)


@kernel
def dismiss(pool, call, count):  # type: ignore[no-untyped-def]
    """End a call: start no further task, and return once none of its helpers works.

    Parameters
    ----------
    pool : int64
        Address of a `PoolTable`.
    call : int64
        Address of a `LongCall`.
    count : int64
        Number of its counters.
    """
    for k in range(count):
        set_entry(call, CALL_COUNTERS + k, _ALL_TAKEN)
    while _wait_for_helpers(pool, call):
        _call_c(entry(call, CALL.nap), _NAP_MICROSECONDS)


@kernel
def close(job):  # type: ignore[no-untyped-def]
    """End a helper unless a call owns it; return whether it was ended. No call can own it afterwards."""
    if exchange(job + 8 * JOB.owner, 0, job) != 0:
        return False
    _tell(job, CLOSED)
    return True
