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
    """

    state: int
    passes: int
    pass_count: int
    target: int
    source: int
    padding: int
    counters: int


STATE, JOB_PASSES, JOB_COUNT, JOB_TARGET, JOB_SOURCE, JOB_PADDING, JOB_COUNTERS = range(7)
JOB_BYTES = 8 * 7

#: A helper waits for its lock; it looks out for work; there is work that it has not seen; it works; it has to end.
ASLEEP, WAITING, POSTED, WORKING, CLOSED = range(5)
