"""How threads help with the passes of a relayout: jobs that are posted in memory which both sides look at.

To hand a function to a Python thread pool takes the caller 15 us and more, and its thread begins 40 us later. A helper
that has just worked polls for more for a moment, and begins within a microsecond; only one that sleeps is woken. It
sleeps in native code: woken from a Python lock, it began after 108 us, because it had to wait for the GIL too, and the
caller spent 19 us; with a semaphore 50 and 8.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fastindex.moving.kernels.runner import exchange, run_all
from fastindex.runtime.kernels import instructions, kernel, subroutine
from fastindex.runtime.lines.memory import entry, fence, set_entry
from fastindex.runtime.lines.plain_arrays import plain_addresses
from fastindex.runtime.lines.slices import begin_slice
from fastindex.runtime.numbers import (
    ASLEEP,
    CALL,
    CALL_COUNTERS,
    CLOSED,
    CREW,
    CREW_JOBS,
    JOB,
    MISSING,
    PADDING,
    PASS_COUNT,
    PASSES,
    POSTED,
    REFUSED,
    UNFINISHED,
    WAITING,
    WORKING,
)

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
# How long a caller sleeps at a time while it waits for helpers that are still working.
_NAP_MICROSECONDS = 50
# A value for the counter of a pass: more than the tasks of any pass.
_ALL_TAKEN = 1 << 62


@instructions()
def _call_c(builder: Any, function: Any, number: Any) -> None:
    """Call the C function at an address with a number: an address, or what fits its lower half."""
    builder.call(builder.inttoptr(function, ir.FunctionType(_INT32, [_INT64]).as_pointer()), [number])


@subroutine()
def _sleep(job):  # type: ignore[no-untyped-def]
    """Sleep until a job is in another state; a signal may wake this thread too."""
    while entry(job, JOB.state) == ASLEEP:
        _call_c(entry(job, JOB.sleep), entry(job, JOB.semaphore))


@subroutine()
def _wake(job):  # type: ignore[no-untyped-def]
    """Wake the thread that slept until now."""
    _call_c(entry(job, JOB.wake), entry(job, JOB.semaphore))


@subroutine()
def _tell(job, state):  # type: ignore[no-untyped-def]
    """Set the state of a job whose helper has nothing to do, and wake the helper if it sleeps."""
    while True:
        if exchange(job, WAITING, state) == WAITING:
            return
        if exchange(job, ASLEEP, state) == ASLEEP:
            _wake(job)
            return


@kernel
def serve(job, scratch, spins):  # type: ignore[no-untyped-def]
    """Run what is posted until the job is closed; sleep where nothing has been posted for a while.

    Without a semaphore to sleep on, it returns instead.

    Parameters
    ----------
    job : int64
        Address of a `PassJob`.
    scratch : int64
        As for `run_passes`.
    spins : int64
        How often to poll before it sleeps.
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
    """Wait until a job is in another state, but not for ever; return how often it was polled."""
    for looked in range(spins):
        if entry(job, JOB.state) != state:
            return looked
        # It takes as long as a pause would, and the next look is at memory.
        fence()
    return spins


@subroutine()
def _post(job, passes, count, target, source, padding, counters):  # type: ignore[no-untyped-def]
    """Ask a helper that has nothing to do to take its share."""
    set_entry(job, JOB.passes, passes)
    set_entry(job, JOB.pass_count, count)
    set_entry(job, JOB.target, target)
    set_entry(job, JOB.source, source)
    set_entry(job, JOB.padding, padding)
    set_entry(job, JOB.counters, counters)
    _tell(job, POSTED)


@subroutine()
def _withdrawn(job, spins):  # type: ignore[no-untyped-def]
    """Withdraw a job that has not begun, or wait for its end, but not for ever; return whether the helper is idle."""
    if exchange(job, POSTED, WAITING) == POSTED:
        return True
    _wait_while(job, WORKING, spins)
    return exchange(job, WORKING, WORKING) != WORKING


@subroutine()
def _wait_for_helpers(crew, owner):  # type: ignore[no-untyped-def]
    """Wait for the helpers of a call, but not for ever; free them once none works, and return how many still do."""
    count, left = entry(crew, CREW.size), 0
    for i in range(count):
        job = entry(crew, CREW_JOBS + i)
        if entry(job, JOB.owner) == owner:
            left += not _withdrawn(job, entry(crew, CREW.spins))
    if not left:
        for i in range(count):
            exchange(entry(crew, CREW_JOBS + i) + 8 * JOB.owner, owner, 0)
    return left


@subroutine()
def _lead(crew, helpers, passes, count, target, source, padding, scratch, call):  # type: ignore[no-untyped-def]
    limit, asked, counters = begin_slice(call), 0, call + 8 * CALL_COUNTERS
    for i in range(entry(crew, CREW.size)):
        job = entry(crew, CREW_JOBS + i)
        if asked < helpers and exchange(job + 8 * JOB.owner, 0, call) == 0:
            _post(job, passes, count, target, source, padding, counters)
            asked += 1
    found = (helpers - asked) * MISSING
    if not run_all(passes, count, target, source, padding, scratch, counters, limit):
        return found + UNFINISHED
    return found + _wait_for_helpers(crew, call)


@kernel
def lead(crew, helpers, passes, count, target, source, padding, scratch, call):  # type: ignore[no-untyped-def]
    """Run passes on this thread and on helpers that are free, or go on with them, until a slice of the call is over.

    Parameters
    ----------
    crew : int64
        Address of a `CrewTable`.
    helpers : int64
        The most that are asked; 0 to go on.
    passes, count, target, source, padding, scratch : int64
        As for `run_passes`.
    call : int64
        Address of a `LongCall` with a counter for each pass, 0 at first; helpers belong to it.

    Returns
    -------
    int64
        How many helpers still work, `MISSING` for each one that there was too few, and `UNFINISHED` if a slice was over
        before nothing was left.
    """
    return _lead(crew, helpers, passes, count, target, source, padding, scratch, call)


@kernel
def lead_plain(crew, helpers, source, target, pair, scratch, call):  # type: ignore[no-untyped-def]
    """Run the passes of a relayout between two arrays, as `lead`; return `REFUSED` if they are not what it expects.

    Parameters
    ----------
    crew, helpers, call : int64
        As for `lead`.
    source, target, pair, scratch : int64
        As for `run_plain`.
    """
    begin, place = plain_addresses(source, target, pair)
    if not place:
        return REFUSED
    passes, count, padding = entry(pair, PASSES), entry(pair, PASS_COUNT), entry(pair, PADDING)
    return _lead(crew, helpers, passes, count, place, begin, padding, scratch, call)


@kernel
def dismiss(crew, call, count):  # type: ignore[no-untyped-def]
    """End a call: no task is begun any more, and none of its helpers works when this returns.

    Parameters
    ----------
    crew : int64
        Address of a `CrewTable`.
    call : int64
        Address of a `LongCall`.
    count : int64
        How many counters it has.
    """
    for k in range(count):
        set_entry(call, CALL_COUNTERS + k, _ALL_TAKEN)
    while _wait_for_helpers(crew, call):
        _call_c(entry(call, CALL.nap), _NAP_MICROSECONDS)


@kernel
def close(job):  # type: ignore[no-untyped-def]
    """End a helper if it belongs to no call, and return whether that was so. It then never belongs to one again."""
    if exchange(job + 8 * JOB.owner, 0, job) != 0:
        return False
    _tell(job, CLOSED)
    return True
