"""The threads that help with passes; each of them belongs to one call at a time.

A thread that has done its share polls for the next one for some microseconds before it sleeps, without the GIL and
without system calls: where calls follow each other closely, it need not be woken. ``FASTINDEX_SPIN_MICROSECONDS`` says
for how long; with 0 it sleeps at once.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import types

from fastindex.arguments.addresses import address_of
from fastindex.cpu.long_calls import long_call
from fastindex.cpu.semaphores import semaphore_at
from fastindex.errors import FastIndexError
from fastindex.first_use import uninterrupted
from fastindex.kernels.cpu.relayout.passes import jobs as pass_jobs
from fastindex.tables.cache_lines import LINE_BYTES
from fastindex.tables.pass_jobs import (
    CREW,
    CREW_JOBS,
    JOB,
    JOB_BYTES,
    MISSING,
    REFUSED,
    SEMAPHORE_BYTES,
    UNFINISHED,
    WAITING,
)

#: Environment variable that says for how long a thread polls for more work.
SPIN_VARIABLE = "FASTINDEX_SPIN_MICROSECONDS"
_SPIN_MICROSECONDS, _MOST_SPIN_MICROSECONDS = 50, 1_000_000

_MOST_THREADS = max(32, 2 * (os.cpu_count() or 1))
_SPINS_TRIED = 2000


class _Helper:
    """A thread, and the job that it polls."""

    def __init__(self, scratch: Callable[[], int]) -> None:
        self._memory = np.zeros((JOB_BYTES + SEMAPHORE_BYTES + LINE_BYTES) // 8, np.int64)
        # In lines of its own.
        self.fields = self._memory[-(address_of(self._memory) // 8) % (LINE_BYTES // 8) :]
        self.job = address_of(self.fields)
        self.fields[JOB.state] = WAITING
        semaphore = semaphore_at(self.job + JOB_BYTES)
        self.fields[JOB.semaphore] = semaphore.argument
        self.fields[JOB.sleep], self.fields[JOB.wake] = semaphore.wait, semaphore.post
        self._scratch = scratch
        self._thread = threading.Thread(target=self._serve, name="fastindex", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        _native().serve(self.job, self._scratch(), _spins())

    def close(self) -> None:
        if _native().close(self.job):
            self._thread.join(1)


class _Crew:
    """The helpers of this process; which of them belong to a call, their jobs say."""

    def __init__(self) -> None:
        self.helpers: list[_Helper] = []
        self._table = np.zeros(CREW_JOBS + _MOST_THREADS, np.int64)
        self.address = address_of(self._table)
        self._growing = threading.Lock()
        self._is_closed = False

    def grow(self, count: int, scratch: Callable[[], int]) -> None:
        """Start helpers until there are `count`, as far as the system allows; an interrupt leaves none half started."""
        uninterrupted(lambda: self._grow(count, scratch))

    def _grow(self, count: int, scratch: Callable[[], int]) -> None:
        # RuntimeError: the interpreter is shutting down or the system grants no more threads; OSError: it grants no
        # semaphores. Work with fewer.
        with self._growing, contextlib.suppress(RuntimeError, OSError):
            if not self.helpers:
                # A bad setting raises here, before any thread is started.
                self._table[CREW.spins] = _spins()
                atexit.register(self.close)
            while len(self.helpers) < min(count, _MOST_THREADS) and not self._is_closed:
                self.helpers.append(_Helper(scratch))
                self._table[CREW_JOBS + len(self.helpers) - 1] = self.helpers[-1].job
                self._table[CREW.size] = len(self.helpers)

    def close(self) -> None:
        """End the threads before the interpreter frees the memory that they poll."""
        with self._growing:
            self._is_closed = True
            for one in self.helpers:
                one.close()


_crew = _Crew()


def _forget_crew() -> None:
    # A fork copies the records of threads, but not the threads.
    global _crew
    atexit.unregister(_crew.close)
    _crew = _Crew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_crew)


def run_with_helpers(
    lead: Callable[..., int], arguments: tuple[int, ...], passes: int, scratch: Callable[[], int], helpers: int
) -> bool:
    """Run passes on the caller's thread, and on up to `helpers` others; return whether anything was run.

    On the main thread, signals are looked for now and then. All helpers have ended when it returns or raises: they use
    the caller's arrays. Safe to call from many threads at once, from handlers of signals, and in a forked child.

    Parameters
    ----------
    lead : callable
        `lead` or `lead_plain` of `kernels/cpu/relayout/passes/jobs.py`, compiled.
    arguments : tuple of int
        Its arguments between `helpers` and `scratch`.
    passes : int
        How many there are.
    scratch : callable
        Returns the address of the memory for kernels of the thread that calls it.
    helpers : int
        The most threads beside the caller's.
    """
    crew = _crew
    if len(crew.helpers) < helpers:
        crew.grow(helpers, scratch)
    memory, dismiss = long_call(passes), _native().dismiss
    call = address_of(memory)
    arguments = (*arguments, scratch(), call)
    found, missing = UNFINISHED, 0
    try:
        # Not "while found & UNFINISHED": Python 3.12 and later leave the jump back of such a loop out of what "finally"
        # covers, and look for signals in it.
        while True:
            found = lead(crew.address, helpers, *arguments)
            missing += found // MISSING
            if not found & UNFINISHED:
                break
            helpers = 0
    finally:
        # One native call, before which Python checks for no signal: whatever is raised, no thread writes afterwards.
        if found:
            dismiss(crew.address, call, passes)
    if found == REFUSED:
        return False
    if missing:
        # Concurrent callers need helpers of their own; from the next call on there are enough.
        crew.grow(len(crew.helpers) + missing, scratch)
    return True


class _Native(NamedTuple):
    """The kernels of jobs, compiled."""

    serve: Callable[[int, int, int], None]
    dismiss: Callable[[int, int, int], None]
    close: Callable[[int], bool]


@cache
def _native() -> _Native:
    counts = {"serve": 3, "dismiss": 3, "close": 1}
    return _Native(*(getattr(pass_jobs, name).compile((types.int64,) * count) for name, count in counts.items()))


@cache
def _spins() -> int:
    """Return how often a thread polls its job before it sleeps, from how long a poll takes."""
    text = os.environ.get(SPIN_VARIABLE, "").strip() or str(_SPIN_MICROSECONDS)
    if not (text.isascii() and text.isdigit() and int(text) <= _MOST_SPIN_MICROSECONDS):
        raise FastIndexError(f"{SPIN_VARIABLE} must be an integer from 0 to {_MOST_SPIN_MICROSECONDS}, got {text!r}")
    job = np.zeros(JOB_BYTES // 8, np.int64)
    seconds = math.inf
    for _ in range(3):
        job[JOB.state] = WAITING
        begin = time.perf_counter()
        _native().serve(address_of(job), 0, _SPINS_TRIED)
        seconds = min(seconds, time.perf_counter() - begin)
    return int(int(text) * 1e-6 * _SPINS_TRIED / seconds)
