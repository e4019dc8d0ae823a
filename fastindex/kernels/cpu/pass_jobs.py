"""How threads help with the passes of a relayout: jobs that are posted in memory which both sides look at.

To hand a function to a pool of Python's takes the caller 15 us and more, and its thread begins 40 us later. A helper
that has just worked looks out for more for a moment, and begins within a microsecond; only one that sleeps is woken. It
sleeps in native code: woken from a lock of Python's, it began after 108 us, the GIL being the second thing to wait for,
and the caller spent 19 us; with a semaphore 50 and 8.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.memory import entry, fence, set_entry
from fastindex.kernels.cpu.pass_runner import exchange, run_all
from fastindex.kernels.cpu.plain_arrays import plain_addresses
from fastindex.tables.pass_jobs import (
    ASLEEP,
    CLOSED,
    CREW_JOBS,
    CREW_SIZE,
    CREW_SPINS,
    JOB_COUNT,
    JOB_COUNTERS,
    JOB_PADDING,
    JOB_PASSES,
    JOB_SEMAPHORE,
    JOB_SLEEP,
    JOB_SOURCE,
    JOB_TARGET,
    JOB_WAKE,
    MISSING,
    OWN_COUNTERS,
    OWNER,
    POSTED,
    REFUSED,
    STATE,
    WAITING,
    WORKING,
)
from fastindex.tables.plain_arrays import PADDING, PASS_COUNT, PASSES

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)


@intrinsic  # type: ignore[untyped-decorator]
def _call_c(typingctx: Any, function: Any, address: Any) -> Any:
    """Call the C function at an address with a number: an address, or what fits its lower half."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        declared = ir.FunctionType(_INT32, [_INT64])
        builder.call(builder.inttoptr(arguments[0], declared.as_pointer()), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@njit(nogil=True)
def _sleep(job):  # type: ignore[no-untyped-def]
    """Sleep until a job is in another state; a signal may wake this thread too."""
    while entry(job, STATE) == ASLEEP:
        _call_c(entry(job, JOB_SLEEP), entry(job, JOB_SEMAPHORE))


@njit(nogil=True)
def _wake(job):  # type: ignore[no-untyped-def]
    """Wake the thread that slept until now."""
    _call_c(entry(job, JOB_WAKE), entry(job, JOB_SEMAPHORE))


@njit(nogil=True)
def _tell(job, state):  # type: ignore[no-untyped-def]
    """Set the state of a job whose helper has nothing to do, and wake the helper if it sleeps."""
    while True:
        if exchange(job, WAITING, state) == WAITING:
            return
        if exchange(job, ASLEEP, state) == ASLEEP:
            _wake(job)
            return


@kernel("void(int64,int64,int64)")
def serve(job, scratch, spins):  # type: ignore[no-untyped-def]
    """Run what is posted until the job is closed; sleep where nothing has been posted for a while.

    Where there is nothing to sleep with, it returns instead.

    Parameters
    ----------
    job : int64
        Address of a `PassJob`.
    scratch : int64
        As for `run_passes`.
    spins : int64
        How often to look before it falls asleep.
    """
    left = spins
    while True:
        found = exchange(job, POSTED, WORKING)
        if found == POSTED:
            passes, count = entry(job, JOB_PASSES), entry(job, JOB_COUNT)
            target, source = entry(job, JOB_TARGET), entry(job, JOB_SOURCE)
            run_all(passes, count, target, source, entry(job, JOB_PADDING), scratch, entry(job, JOB_COUNTERS))
            exchange(job, WORKING, WAITING)
            left = spins
        elif found == CLOSED:
            return
        left -= _wait_while(job, WAITING, left)
        if left == 0 and exchange(job, WAITING, ASLEEP) == WAITING:
            if not entry(job, JOB_SLEEP):
                return
            _sleep(job)
            left = spins


@njit(nogil=True)
def _wait_while(job, state, spins):  # type: ignore[no-untyped-def]
    """Wait until a job is in another state, but not for ever; return how often it was looked at."""
    for looked in range(spins):
        if entry(job, STATE) != state:
            return looked
        # It takes as long as a pause would, and the next look is at memory.
        fence()
    return spins


@njit(nogil=True)
def _post(job, passes, count, target, source, padding, counters):  # type: ignore[no-untyped-def]
    """Ask a helper that has nothing to do to take its share."""
    set_entry(job, JOB_PASSES, passes)
    set_entry(job, JOB_COUNT, count)
    set_entry(job, JOB_TARGET, target)
    set_entry(job, JOB_SOURCE, source)
    set_entry(job, JOB_PADDING, padding)
    set_entry(job, JOB_COUNTERS, counters)
    _tell(job, POSTED)


@njit(nogil=True)
def _withdrawn(job, spins):  # type: ignore[no-untyped-def]
    """Take back what a helper has not begun, or wait for its end, but not for ever; return whether it does nothing."""
    if exchange(job, POSTED, WAITING) == POSTED:
        return True
    _wait_while(job, WORKING, spins)
    return exchange(job, WORKING, WORKING) != WORKING


@njit(nogil=True)
def _wait_for_helpers(crew, owner):  # type: ignore[no-untyped-def]
    """Wait for those of a call, but not for ever; free all of them once none works, and return how many still do."""
    count, left = entry(crew, CREW_SIZE), 0
    for i in range(count):
        job = entry(crew, CREW_JOBS + i)
        if entry(job, OWNER) == owner:
            left += not _withdrawn(job, entry(crew, CREW_SPINS))
    if not left:
        for i in range(count):
            exchange(entry(crew, CREW_JOBS + i) + 8 * OWNER, owner, 0)
    return left


@njit(nogil=True)
def _lead(crew, helpers, passes, count, target, source, padding, scratch):  # type: ignore[no-untyped-def]
    counters, asked = 0, 0
    for i in range(entry(crew, CREW_SIZE)):
        job = entry(crew, CREW_JOBS + i)
        if asked < helpers and exchange(job + 8 * OWNER, 0, scratch) == 0:
            if not asked:
                counters = entry(job, OWN_COUNTERS)
                for k in range(count):
                    set_entry(counters, k, 0)
            _post(job, passes, count, target, source, padding, counters)
            asked += 1
    run_all(passes, count, target, source, padding, scratch, counters)
    left = _wait_for_helpers(crew, scratch) if asked else 0
    return left + (helpers - asked) * MISSING


@kernel("int64(int64,int64,int64,int64,int64,int64,int64,int64)")
def lead(crew, helpers, passes, count, target, source, padding, scratch):  # type: ignore[no-untyped-def]
    """Run passes on this thread and on helpers that are free.

    Parameters
    ----------
    crew : int64
        Address of a `CrewTable`.
    helpers : int64
        The most that are asked.
    passes, count, target, source, padding, scratch : int64
        As for `run_passes`, but of at most `MOST_COUNTERS` passes.

    Returns
    -------
    int64
        How many helpers still work, and `MISSING` for each one that there was too few.
    """
    return _lead(crew, helpers, passes, count, target, source, padding, scratch)


@kernel("int64(int64,int64,int64,int64,int64,int64)")
def lead_plain(crew, helpers, source, target, call, scratch):  # type: ignore[no-untyped-def]
    """Run the passes of a relayout between two arrays, as `lead`; return `REFUSED` if they are not what it expects.

    Parameters
    ----------
    crew, helpers : int64
        As for `lead`.
    source, target, call, scratch : int64
        As for `run_plain`.
    """
    begin, place = plain_addresses(source, target, call)
    if not place:
        return REFUSED
    passes, count, padding = entry(call, PASSES), entry(call, PASS_COUNT), entry(call, PADDING)
    return _lead(crew, helpers, passes, count, place, begin, padding, scratch)


@kernel("int64(int64,int64)")
def dismiss(crew, owner):  # type: ignore[no-untyped-def]
    """Take back what the helpers of a call have not begun, wait for their end, but not for ever.

    Parameters
    ----------
    crew : int64
        Address of a `CrewTable`.
    owner : int64
        Address of the scratch memory of the thread that has made the call.

    Returns
    -------
    int64
        How many still work; none of the call's helpers is free before all are.
    """
    return _wait_for_helpers(crew, owner)


@kernel("boolean(int64)")
def close(job):  # type: ignore[no-untyped-def]
    """Have a helper that belongs to no call end; return whether it does. It then never belongs to one again."""
    if exchange(job + 8 * OWNER, 0, job) != 0:
        return False
    _tell(job, CLOSED)
    return True
