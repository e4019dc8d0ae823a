"""The threads that help with passes; each of them belongs to one call at a time.

A thread that has done its share looks out for the next for some microseconds before it sleeps, without the GIL and
without the system: the next of calls that follow each other closely need not wake it. ``FASTINDEX_SPIN_MICROSECONDS``
says for how long, 0 that it sleeps at once.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from fastindex.arguments.addresses import address_of
from fastindex.errors import FastIndexError
from fastindex.kernels.cpu import pass_jobs
from fastindex.tables.pass_jobs import ASLEEP, JOB_BYTES, STATE, WAITING

#: Environment variable that says for how long a thread looks out for more work.
SPIN_VARIABLE = "FASTINDEX_SPIN_MICROSECONDS"
_SPIN_MICROSECONDS, _MOST_SPIN_MICROSECONDS = 50, 1_000_000

# More than any pass has tasks.
_ALL_TAKEN = 1 << 62
_MOST_THREADS = max(32, 2 * (os.cpu_count() or 1))
# How long a caller sleeps at a time that waits for threads with more to do than it had.
_NAP_SECONDS = 50e-6
_SPINS_TRIED = 2000

#: The last numbers of a `PassJob`, from `passes` to `counters`.
Addresses = tuple[int, int, int, int, int, int]


class _Helper:
    """A thread, and the job that it looks at."""

    def __init__(self, scratch: Callable[[], int]) -> None:
        self._memory = np.zeros(JOB_BYTES // 8 + 16, np.int64)
        # In lines of its own.
        self._fields = self._memory[-(address_of(self._memory) // 8) % 8 :]
        self._fields[STATE] = WAITING
        self.job = address_of(self._fields)
        self._scratch = scratch
        self._wake = threading.Lock()
        self._wake.acquire()
        self._thread = threading.Thread(target=self._serve, name="fastindex", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        serve, scratch, spins = _native().serve, self._scratch(), _spins()
        while serve(self.job, scratch, spins) == ASLEEP:
            self._wake.acquire()

    def post(self, addresses: Addresses) -> None:
        if _native().post(self.job, *addresses):
            self._wake.release()

    def withdraw(self) -> bool:
        return _native().withdraw(self.job, _spins())

    def close(self) -> None:
        if _native().close(self.job) == ASLEEP:
            self._wake.release()
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


def run_shared(
    run: Callable[..., None],
    addresses: tuple[int, int, int, int, int],
    scratch: Callable[[], int],
    helpers: int,
) -> None:
    """Run passes on the caller's thread, and on up to `helpers` others.

    If the caller is interrupted, nobody begins with more, and all are waited for: they use the caller's arrays. Safe to
    call from many threads at once, and in a forked child.

    Parameters
    ----------
    run : callable
        `run_passes`, compiled.
    addresses : tuple of int
        Its arguments up to `padding`.
    scratch : callable
        Returns the address of the memory for kernels of the thread that calls it.
    helpers : int
        The most threads beside the caller's.
    """
    crew = _crew
    taken = crew.take(helpers, scratch)
    counters = np.zeros(addresses[1], np.int64)
    shared = address_of(counters) if taken else 0
    try:
        for one in taken:
            one.post((*addresses, shared))
        run(*addresses, scratch(), shared)
    except BaseException:
        counters.fill(_ALL_TAKEN)
        raise
    finally:
        _dismiss(taken, counters)
        crew.idle.extend(reversed(taken))


def _dismiss(taken: Sequence[_Helper], counters: NDArray[np.int64]) -> None:
    """Wait until nobody works; an interrupt ends that sooner, and is raised then."""
    interrupt: KeyboardInterrupt | None = None
    for one in taken:
        works = True
        while works:
            try:
                works = not one.withdraw()
                if works:
                    time.sleep(_NAP_SECONDS)
            except KeyboardInterrupt as error:
                counters.fill(_ALL_TAKEN)
                interrupt = error
    if interrupt is not None:
        raise interrupt


class _Native(NamedTuple):
    """The kernels of jobs, compiled."""

    serve: Callable[[int, int, int], int]
    post: Callable[..., bool]
    withdraw: Callable[[int, int], bool]
    close: Callable[[int], int]


@cache
def _native() -> _Native:
    counts = {"serve": 3, "post": 7, "withdraw": 2, "close": 1}
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
