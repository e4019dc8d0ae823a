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
    FOLLOWING,
    JOB_BYTES,
    JOB_COUNT,
    JOB_COUNTERS,
    JOB_PADDING,
    JOB_PASSES,
    JOB_SLEEP,
    JOB_SOURCE,
    JOB_TARGET,
    JOB_WAKE,
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
    """Call the C function at an address with another address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        declared = ir.FunctionType(_INT32, [_INT64])
        builder.call(builder.inttoptr(arguments[0], declared.as_pointer()), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@njit(nogil=True)
def _sleep(job):  # type: ignore[no-untyped-def]
    """Sleep until a job is in another state; a signal may wake this thread too."""
    while entry(job, STATE) == ASLEEP:
        _call_c(entry(job, JOB_SLEEP), job + JOB_BYTES)


@njit(nogil=True)
def _wake(job):  # type: ignore[no-untyped-def]
    """Wake the thread that slept until now."""
    _call_c(entry(job, JOB_WAKE), job + JOB_BYTES)


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
    while True:
        if exchange(job, WAITING, POSTED) == WAITING:
            return
        if exchange(job, ASLEEP, POSTED) == ASLEEP:
            _wake(job)
            return


@njit(nogil=True)
def _withdrawn(job, spins):  # type: ignore[no-untyped-def]
    """Take back what a helper has not begun, or wait for its end, but not for ever; return whether it does nothing."""
    if exchange(job, POSTED, WAITING) == POSTED:
        return True
    _wait_while(job, WORKING, spins)
    return exchange(job, WORKING, WORKING) != WORKING


@njit(nogil=True)
def _lead(jobs, spins, passes, count, target, source, padding, scratch):  # type: ignore[no-untyped-def]
    counters = entry(jobs, JOB_COUNTERS) if jobs else 0
    if counters:
        for i in range(count):
            set_entry(counters, i, 0)
    job = jobs
    while job:
        _post(job, passes, count, target, source, padding, counters)
        job = entry(job, FOLLOWING)
    run_all(passes, count, target, source, padding, scratch, counters)
    left, job = 0, jobs
    while job:
        left += not _withdrawn(job, spins)
        job = entry(job, FOLLOWING)
    return left


@kernel("int64(int64,int64,int64,int64,int64,int64,int64,int64)")
def lead(jobs, spins, passes, count, target, source, padding, scratch):  # type: ignore[no-untyped-def]
    """Run passes on this thread and on helpers; return how many of these still work.

    Parameters
    ----------
    jobs : int64
        Address of the first `PassJob`, 0 without helpers; each names the one that follows it. The first says where the
        counters are.
    spins : int64
        How often to look whether a helper has ended.
    passes, count, target, source, padding, scratch : int64
        As for `run_passes`.
    """
    return _lead(jobs, spins, passes, count, target, source, padding, scratch)


@kernel("int64(int64,int64,int64,int64,int64,int64)")
def lead_plain(jobs, spins, source, target, call, scratch):  # type: ignore[no-untyped-def]
    """Run the passes of a relayout between two arrays, as `lead`; return `REFUSED` if they are not what it expects.

    Parameters
    ----------
    jobs, spins : int64
        As for `lead`.
    source, target, call, scratch : int64
        As for `run_plain`.
    """
    begin, place = plain_addresses(source, target, call)
    if not place:
        return REFUSED
    passes, count, padding = entry(call, PASSES), entry(call, PASS_COUNT), entry(call, PADDING)
    return _lead(jobs, spins, passes, count, place, begin, padding, scratch)


@kernel("boolean(int64,int64)")
def withdraw(job, spins):  # type: ignore[no-untyped-def]
    """Take back what a helper has not begun, or wait for its end, but not for ever; return whether it does nothing.

    Parameters
    ----------
    job : int64
        Address of a `PassJob`.
    spins : int64
        How often to look.
    """
    return _withdrawn(job, spins)


@kernel("void(int64)")
def close(job):  # type: ignore[no-untyped-def]
    """Have a helper that does nothing end; one that works goes on."""
    if exchange(job, ASLEEP, CLOSED) == ASLEEP:
        _wake(job)
    else:
        exchange(job, WAITING, CLOSED)
