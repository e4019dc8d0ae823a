"""What the caller of a relayout and a thread that helps it know of each other: a few numbers in shared memory."""

from __future__ import annotations

from typing import NamedTuple


class PassJob(NamedTuple):
    """What a helping thread is asked to take a share of.

    Attributes
    ----------
    state : int
        One of those below.
    passes, pass_count, target, source, padding, counters : int
        As `run_passes` has them.
    following : int
        The address of the next job of the same call; 0 for the last.
    sleep, wake : int
        Addresses of C functions that wait for the semaphore behind these numbers, and raise it; 0 where nobody sleeps.
    """

    state: int
    passes: int
    pass_count: int
    target: int
    source: int
    padding: int
    counters: int
    following: int
    sleep: int
    wake: int


(
    STATE,
    JOB_PASSES,
    JOB_COUNT,
    JOB_TARGET,
    JOB_SOURCE,
    JOB_PADDING,
    JOB_COUNTERS,
    FOLLOWING,
    JOB_SLEEP,
    JOB_WAKE,
) = range(10)
JOB_BYTES = 8 * 10
#: How much room a semaphore of the C library is given behind them.
SEMAPHORE_BYTES = 48

#: What a call returns in place of how many helpers still work, where its arrays are not what it expects.
REFUSED = -1

#: A helper waits for its semaphore; it looks out for work; there is work that it has not seen; it works; it has to end.
ASLEEP, WAITING, POSTED, WORKING, CLOSED = range(5)
