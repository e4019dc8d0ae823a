"""How threads help with the passes of a relayout: jobs that are posted in memory which both sides look at.

To hand a function to a pool of Python's takes the caller 15 us and more, and its thread begins 40 us later. A helper
that has just worked looks out for more for a moment, and begins within a microsecond; only one that sleeps is woken.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.memory import entry, fence, set_entry
from fastindex.kernels.cpu.pass_runner import exchange, run_all
from fastindex.tables.pass_jobs import (
    ASLEEP,
    CLOSED,
    JOB_COUNT,
    JOB_COUNTERS,
    JOB_PADDING,
    JOB_PASSES,
    JOB_SOURCE,
    JOB_TARGET,
    POSTED,
    STATE,
    WAITING,
    WORKING,
)


@kernel("int64(int64,int64,int64)")
def serve(job, scratch, spins):  # type: ignore[no-untyped-def]
    """Run what is posted, until nothing has been for a while; return the state it leaves behind.

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
            return CLOSED
        left -= _wait_while(job, WAITING, left)
        if left == 0 and exchange(job, WAITING, ASLEEP) == WAITING:
            return ASLEEP


@njit(nogil=True)
def _wait_while(job, state, spins):  # type: ignore[no-untyped-def]
    """Wait until a job is in another state, but not for ever; return how often it was looked at."""
    for looked in range(spins):
        if entry(job, STATE) != state:
            return looked
        # It takes as long as a pause would, and the next look is at memory.
        fence()
    return spins


@kernel("boolean(int64,int64,int64,int64,int64,int64,int64)")
def post(job, passes, count, target, source, padding, counters):  # type: ignore[no-untyped-def]
    """Ask a helper that has nothing to do to take its share; return whether it has to be woken.

    Parameters
    ----------
    job : int64
        Address of a `PassJob`.
    passes, count, target, source, padding, counters : int64
        As for `run_passes`.
    """
    set_entry(job, JOB_PASSES, passes)
    set_entry(job, JOB_COUNT, count)
    set_entry(job, JOB_TARGET, target)
    set_entry(job, JOB_SOURCE, source)
    set_entry(job, JOB_PADDING, padding)
    set_entry(job, JOB_COUNTERS, counters)
    while True:
        if exchange(job, WAITING, POSTED) == WAITING:
            return False
        if exchange(job, ASLEEP, POSTED) == ASLEEP:
            return True


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
    if exchange(job, POSTED, WAITING) == POSTED:
        return True
    _wait_while(job, WORKING, spins)
    return exchange(job, WORKING, WORKING) != WORKING


@kernel("int64(int64)")
def close(job):  # type: ignore[no-untyped-def]
    """Have a helper that does nothing end; return the state it was in, which is another one if it works."""
    found = exchange(job, ASLEEP, CLOSED)
    return exchange(job, WAITING, CLOSED) if found == WAITING else found
