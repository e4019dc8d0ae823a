"""What the caller of a relayout and the threads that help it know of each other: a few numbers in shared memory."""

from __future__ import annotations

from typing import NamedTuple


class PassJob(NamedTuple):
    """What a helping thread is asked to take a share of.

    Attributes
    ----------
    state : int
        One of those below.
    owner : int
        The address of the scratch memory of the thread whose call it belongs to; 0 while it is free.
    passes, pass_count, target, source, padding, counters : int
        As `run_passes` has them.
    own_counters : int
        The address of `MOST_COUNTERS` counters, for a call whose first helper this is.
    sleep, wake : int
        Addresses of C functions that wait for a semaphore, and raise it; 0 where nobody sleeps.
    semaphore : int
        What they take.
    """

    state: int
    owner: int
    passes: int
    pass_count: int
    target: int
    source: int
    padding: int
    counters: int
    own_counters: int
    sleep: int
    wake: int
    semaphore: int


(
    STATE,
    OWNER,
    JOB_PASSES,
    JOB_COUNT,
    JOB_TARGET,
    JOB_SOURCE,
    JOB_PADDING,
    JOB_COUNTERS,
    OWN_COUNTERS,
    JOB_SLEEP,
    JOB_WAKE,
    JOB_SEMAPHORE,
) = range(12)
JOB_BYTES = 8 * 12
#: How much room a semaphore is given behind them.
SEMAPHORE_BYTES = 40
#: How many passes are run at a time where threads help; each has a counter.
MOST_COUNTERS = 64

#: A helper waits for its semaphore; it looks out for work; there is work that it has not seen; it works; it has to end.
ASLEEP, WAITING, POSTED, WORKING, CLOSED = range(5)


class CrewTable(NamedTuple):
    """The helpers of a process; behind these numbers stand the addresses of their jobs.

    Attributes
    ----------
    spins : int
        How often to look at a job before giving up.
    size : int
        How many helpers there are.
    """

    spins: int
    size: int


CREW_SPINS, CREW_SIZE, CREW_JOBS = range(3)

#: What a call returns: how many helpers still work, and how many there were too few, times this.
MISSING = 1 << 32
#: What it returns in place of that where its arrays are not what it expects.
REFUSED = -1
