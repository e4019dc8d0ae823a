"""What the caller of a relayout and the threads that help it know of each other: a few numbers in shared memory."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.tables.places import places


class PassJob(NamedTuple):
    """What a helping thread is asked to take a share of.

    Attributes
    ----------
    state : int
        One of those below.
    owner : int
        The address of the `LongCall` that it belongs to; 0 while it is free.
    passes, pass_count, target, source, padding, counters : int
        As `run_passes` has them.
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
    sleep: int
    wake: int
    semaphore: int


JOB = places(PassJob)
JOB_BYTES = 8 * len(JOB)
#: How much room a semaphore is given behind them.
SEMAPHORE_BYTES = 40

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


CREW = places(CrewTable)
CREW_JOBS = len(CREW)


class LongCall(NamedTuple):
    """A call that takes long enough for helpers, and for signals; behind these numbers stands a counter for each pass.

    Attributes
    ----------
    clock, clock_id : int
        The address of a C function like ``clock_gettime``, and what it takes; 0 where nobody has to look for signals.
    seconds, nanoseconds : int
        What it has written.
    slice_nanoseconds : int
        How long the caller's thread works at a time.
    slice_end : int
        When it stops, in nanoseconds.
    nap : int
        The address of a C function like ``usleep``.
    """

    clock: int
    clock_id: int
    seconds: int
    nanoseconds: int
    slice_nanoseconds: int
    slice_end: int
    nap: int


CALL = places(LongCall)
#: Where the counters begin.
CALL_COUNTERS = len(CALL)

#: What a slice of a call returns: how many helpers still work,
#: that there is more to do, and how many helpers there were too few, times this.
UNFINISHED, MISSING = 1 << 31, 1 << 32
#: What it returns in place of that where its arrays are not what it expects.
REFUSED = 1 << 62
