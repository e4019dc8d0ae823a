"""Worker threads for the passes of a relayout: jobs posted in shared memory that helpers poll.

Submitting a function to a Python thread pool costs the caller 15 us or more, and the thread starts 40 us later. A
helper that has just finished polls for a moment, and starts within a microsecond; only a sleeping helper is woken. It
sleeps in native code, on a semaphore: it then starts after 50 us, and waking it costs the caller 8 us. With a Python
lock these were 108 us, because the helper also had to wait for the GIL, and 19 us.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fastindex.moving.kernels.passes import exchange, run_all
from fastindex.runtime.kernels import instructions, kernel, subroutine
from fastindex.runtime.lines.calls import begin_slice, plain_addresses
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

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
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
