"""The threads that help with passes; each of them belongs to one call at a time.

A thread that has done its share looks out for the next for some microseconds before it sleeps, without the GIL and
without the system: the next of calls that follow each other closely need not wake it. ``FASTINDEX_SPIN_MICROSECONDS``
says for how long, 0 that it sleeps at once.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import types

from fastindex.arguments.addresses import address_of
from fastindex.errors import FastIndexError
from fastindex.kernels.cpu import pass_jobs
from fastindex.tables.pass_jobs import (
    FOLLOWING,
    JOB_BYTES,
    JOB_COUNTERS,
    JOB_SLEEP,
    JOB_WAKE,
    REFUSED,
    SEMAPHORE_BYTES,
    STATE,
    WAITING,
)

#: Environment variable that says for how long a thread looks out for more work.
SPIN_VARIABLE = "FASTINDEX_SPIN_MICROSECONDS"
_SPIN_MICROSECONDS, _MOST_SPIN_MICROSECONDS = 50, 1_000_000

_MOST_THREADS = max(32, 2 * (os.cpu_count() or 1))
# How long a caller sleeps at a time that waits for threads with more to do than it had.
_NAP_SECONDS = 50e-6
_SPINS_TRIED = 2000
# More passes than most relayouts have; each has a counter.
_COUNTERS = 64


class _Helper:
    """A thread, and the job that it looks at."""

    def __init__(self, scratch: Callable[[], int]) -> None:
        self._memory = np.zeros((JOB_BYTES + SEMAPHORE_BYTES) // 8 + 16, np.int64)
        # In lines of its own.
        self._fields = self._memory[-(address_of(self._memory) // 8) % 8 :]
        self._fields[STATE] = WAITING
        self.job = address_of(self._fields)
        self._fields[JOB_SLEEP], self._fields[JOB_WAKE] = _semaphore_at(self.job + JOB_BYTES)
        self._counters = np.zeros(_COUNTERS, np.int64)
        self._scratch = scratch
        self._thread = threading.Thread(target=self._serve, name="fastindex", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        _native().serve(self.job, self._scratch(), _spins())

    def follow(self, job: int) -> None:
        """Say which job of the same call follows this one, 0 for none."""
        self._fields[FOLLOWING] = job

    def go_first(self, passes: int) -> None:
        """Have a counter for each pass of a call whose first helper this is."""
        if passes > len(self._counters):
            self._counters = np.zeros(passes, np.int64)
        self._fields[JOB_COUNTERS] = address_of(self._counters)

    def withdraw(self) -> bool:
        return _native().withdraw(self.job, _spins())

    def close(self) -> None:
        _native().close(self.job)
        self._thread.join(1)


class _Crew:
    """The helpers of this process: those that no call has taken, the last that worked at the end."""

    def __init__(self) -> None:
        self.idle: list[_Helper] = []
        self.count = 0
        self.is_closed = False

    def take(self, most: int, scratch: Callable[[], int]) -> list[_Helper]:
        """Return up to so many helpers."""
        taken: list[_Helper] = []
        # RuntimeError: the interpreter is shutting down or the system grants no more threads; work with fewer.
        with contextlib.suppress(RuntimeError):
            while len(taken) < most:
                one = self._next(scratch)
                if one is None:
                    break
                taken.append(one)
        return taken

    def _next(self, scratch: Callable[[], int]) -> _Helper | None:
        with contextlib.suppress(IndexError):
            return self.idle.pop()
        if self.is_closed or self.count >= _MOST_THREADS:
            return None
        if not self.count:
            # Whatever may be wrong with the setting, now is the time to say so.
            _spins()
            atexit.register(self.close)
        self.count += 1
        return _Helper(scratch)

    def close(self) -> None:
        """End the threads before the interpreter takes down what they look at."""
        self.is_closed = True
        with contextlib.suppress(IndexError):
            while True:
                self.idle.pop().close()


_crew = _Crew()


def _forget_crew() -> None:
    # A fork copies what is known of threads, but none of them.
    global _crew
    atexit.unregister(_crew.close)
    _crew = _Crew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_crew)


#: Takes the address of the first job, the scratch memory of a thread and how often to look whether helpers have ended;
#: returns how many still work, or `REFUSED`.
Lead = Callable[[int, int, int], int]


def run_with_helpers(lead: Lead, passes: int, scratch: Callable[[], int], helpers: int) -> bool:
    """Run passes on the caller's thread, and on up to `helpers` others; return whether anything was run.

    All helpers are waited for, also where the caller is interrupted: they use its arrays. Safe to call from many
    threads at once, and in a forked child.

    Parameters
    ----------
    lead : callable
        Runs them, by a kernel of `pass_jobs`.
    passes : int
        How many there are.
    scratch : callable
        Returns the address of the memory for kernels of the thread that calls it.
    helpers : int
        The most threads beside the caller's.
    """
    crew = _crew
    taken = crew.take(helpers, scratch)
    jobs = 0
    left = len(taken)
    try:
        if taken:
            for one in reversed(taken):
                one.follow(jobs)
                jobs = one.job
            taken[0].go_first(passes)
        left = lead(jobs, scratch(), _spins())
    finally:
        if left > 0:
            _dismiss(taken)
        crew.idle.extend(reversed(taken))
    return left != REFUSED


def _dismiss(taken: Sequence[_Helper]) -> None:
    """Wait until nobody works; an interrupt is raised then."""
    interrupt: KeyboardInterrupt | None = None
    for one in taken:
        works = True
        while works:
            try:
                works = not one.withdraw()
                if works:
                    time.sleep(_NAP_SECONDS)
            except KeyboardInterrupt as error:
                interrupt = error
    if interrupt is not None:
        raise interrupt


class _Native(NamedTuple):
    """The kernels of jobs, compiled."""

    serve: Callable[[int, int, int], None]
    withdraw: Callable[[int, int], bool]
    close: Callable[[int], None]


def _semaphore_at(address: int) -> tuple[int, int]:
    """Make a semaphore of the C library; return the addresses of what waits for one and of what raises it."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.sem_init(ctypes.c_void_p(address), 0, 0):
        raise OSError(ctypes.get_errno(), "no semaphore could be made")
    wait, post = (ctypes.cast(one, ctypes.c_void_p).value or 0 for one in (library.sem_wait, library.sem_post))
    return wait, post


@cache
def _native() -> _Native:
    counts = {"serve": 3, "withdraw": 2, "close": 1}
    return _Native(*(getattr(pass_jobs, name).compile((types.int64,) * count) for name, count in counts.items()))


@cache
def _spins() -> int:
    """Return how often a thread looks at its job before it sleeps, from how long it takes to look."""
    text = os.environ.get(SPIN_VARIABLE, "").strip() or str(_SPIN_MICROSECONDS)
    if not (text.isascii() and text.isdigit() and int(text) <= _MOST_SPIN_MICROSECONDS):
        raise FastIndexError(f"{SPIN_VARIABLE} must be an integer from 0 to {_MOST_SPIN_MICROSECONDS}, got {text!r}")
    job = np.zeros(JOB_BYTES // 8, np.int64)
    seconds = math.inf
    for _ in range(3):
        job[STATE] = WAITING
        begin = time.perf_counter()
        _native().serve(address_of(job), 0, _SPINS_TRIED)
        seconds = min(seconds, time.perf_counter() - begin)
    return int(int(text) * 1e-6 * _SPINS_TRIED / seconds)
