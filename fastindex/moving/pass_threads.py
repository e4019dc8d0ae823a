"""The thread pool for passes: helper threads, their semaphores, and the state of long calls.

A helper that has finished polls for more work for some microseconds before it sleeps, without the GIL and without
system calls: in a sequence of short calls, it need not be woken. ``FASTINDEX_SPIN_MICROSECONDS`` sets the polling time;
0 disables polling.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.arrays import address_of
from fastindex.errors import FastIndexError
from fastindex.first_use import uninterrupted
from fastindex.runtime.machine_code import function
from fastindex.runtime.numbers import (
    CALL_COUNTERS,
    JOB,
    JOB_BYTES,
    LINE_BYTES,
    MISSING,
    POOL,
    POOL_JOBS,
    REFUSED,
    SEMAPHORE_BYTES,
    UNFINISHED,
    WAITING,
    LongCall,
)

# Each slice costs a call from Python, 2 us; while another thread runs Python code, it takes 5 ms to get the GIL back.
_SLICE_NANOSECONDS = 50_000_000


def looks_for_signals() -> bool:
    """Whether this is the thread on which Python runs signal handlers."""
    return threading.main_thread().ident == threading.get_ident()


def long_call(passes: int) -> NDArray[np.int64]:
    """Return a `LongCall` followed by a counter for each pass, all 0.

    Examples
    --------
    >>> long_call(3)[CALL_COUNTERS:]
    array([0, 0, 0])
    """
    memory = np.zeros(CALL_COUNTERS + passes, np.int64)
    memory[:CALL_COUNTERS] = _slices(looks_for_signals())
    return memory


@cache
def _slices(is_limited: bool) -> NDArray[np.int64]:
    """Return the numbers of a call, which has time slices if `is_limited`."""
    library = ctypes.CDLL(None)
    call = LongCall(0, 0, 0, 0, 0, 0, nap=_address_of(library.usleep))
    if is_limited:
        clock = _address_of(library.clock_gettime)
        call = call._replace(clock=clock, clock_id=time.CLOCK_MONOTONIC, slice_nanoseconds=_SLICE_NANOSECONDS)
    return np.array(call, np.int64)


class Semaphore(NamedTuple):
    """A semaphore with value 0, for native code.

    Attributes
    ----------
    argument : int
        The argument of both functions.
    wait, post : int
        Addresses of C functions.
    """

    argument: int
    wait: int
    post: int


def semaphore_at(address: int) -> Semaphore:
    """Make a semaphore; POSIX semaphores are placed at the given address.

    On macOS the POSIX functions fail with ENOSYS; its Mach semaphores are port numbers.

    Parameters
    ----------
    address : int
        Address of `SEMAPHORE_BYTES` bytes that do not move.

    Raises
    ------
    OSError
        The system cannot create one.
    """
    library = _library()
    if sys.platform == "darwin":
        port = ctypes.c_uint32()
        task = ctypes.c_uint32.in_dll(library, "mach_task_self_")
        failed = library.semaphore_create(task, ctypes.byref(port), 0, 0)
        if failed:
            raise OSError(errno.EAGAIN, f"semaphore_create returned {failed}")
        return Semaphore(port.value, _address_of(library.semaphore_wait), _address_of(library.semaphore_signal))
    if library.sem_init(ctypes.c_void_p(address), 0, 0):
        raise OSError(ctypes.get_errno(), "sem_init failed")
    return Semaphore(address, _address_of(library.sem_wait), _address_of(library.sem_post))


def _library() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


#: Environment variable for the time that a helper polls for more work.
SPIN_VARIABLE = "FASTINDEX_SPIN_MICROSECONDS"
_SPIN_MICROSECONDS, _MOST_SPIN_MICROSECONDS = 50, 1_000_000

_MOST_THREADS = max(32, 2 * (os.cpu_count() or 1))
_SPINS_TRIED = 2000


class _Helper:
    """A thread, and the job that it polls."""

    def __init__(self, scratch: Callable[[], int]) -> None:
        self._memory = np.zeros((JOB_BYTES + SEMAPHORE_BYTES + LINE_BYTES) // 8, np.int64)
        # Aligned to cache lines, to avoid false sharing.
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
        function("serve")(self.job, self._scratch(), _spins())

    def close(self) -> None:
        if function("close")(self.job):
            self._thread.join(1)


class _Pool:
    """The thread pool of this process; the job of each helper records the call that owns it."""

    def __init__(self) -> None:
        self.helpers: list[_Helper] = []
        self._table = np.zeros(POOL_JOBS + _MOST_THREADS, np.int64)
        self.address = address_of(self._table)
        self._growing = threading.Lock()
        self._is_closed = False

    def grow(self, count: int, scratch: Callable[[], int]) -> None:
        """Start helpers up to `count`, as far as the system allows; an interrupt leaves no helper half started."""
        uninterrupted(lambda: self._grow(count, scratch))

    def _grow(self, count: int, scratch: Callable[[], int]) -> None:
        # RuntimeError: the interpreter is shutting down, or no more threads are available. OSError: no semaphores.
        # Work with fewer helpers.
        with self._growing, contextlib.suppress(RuntimeError, OSError):
            if not self.helpers:
                # An invalid setting raises here, before any thread is started.
                self._table[POOL.spins] = _spins()
                atexit.register(self.close)
            while len(self.helpers) < min(count, _MOST_THREADS) and not self._is_closed:
                self.helpers.append(_Helper(scratch))
                self._table[POOL_JOBS + len(self.helpers) - 1] = self.helpers[-1].job
                self._table[POOL.size] = len(self.helpers)

    def close(self) -> None:
        """End the threads before the interpreter frees the memory that they poll."""
        with self._growing:
            self._is_closed = True
            for one in self.helpers:
                one.close()


_pool = _Pool()


def _forget_pool() -> None:
    # A fork copies the thread objects, but not the threads.
    global _pool
    atexit.unregister(_pool.close)
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def run_with_helpers(
    lead: Callable[..., int], arguments: tuple[int, ...], passes: int, scratch: Callable[[], int], helpers: int
) -> bool:
    """Run passes on the caller's thread and on up to `helpers` helper threads; return whether anything was run.

    On the main thread, signal handlers run between time slices. All helpers are idle when this returns or raises: they
    use the caller's arrays. Safe to call concurrently, from signal handlers, and in a forked child.

    Parameters
    ----------
    lead : callable
        `lead` or `lead_plain` of `moving/kernels/passes.py`, compiled.
    arguments : tuple of int
        Its arguments between `helpers` and `scratch`.
    passes : int
        Number of passes.
    scratch : callable
        Returns the address of the calling thread's scratch memory.
    helpers : int
        The most helper threads to use.
    """
    pool = _pool
    if len(pool.helpers) < helpers:
        pool.grow(helpers, scratch)
    memory, dismiss = long_call(passes), function("dismiss")
    call = address_of(memory)
    arguments = (*arguments, scratch(), call)
    found, missing = UNFINISHED, 0
    try:
        # Not "while found & UNFINISHED": since Python 3.12, "finally" does not cover the backward jump of such a loop,
        # and signal handlers run there.
        while True:
            found = lead(pool.address, helpers, *arguments)
            missing += found // MISSING
            if not found & UNFINISHED:
                break
            helpers = 0
    finally:
        # One native call, and Python handles no signal before it: whatever is raised, no thread writes afterwards.
        if found:
            dismiss(pool.address, call, passes)
    if found == REFUSED:
        return False
    if missing:
        # Concurrent callers need separate helpers; from the next call on there are enough.
        pool.grow(len(pool.helpers) + missing, scratch)
    return True


@cache
def _spins() -> int:
    """Return the number of polls before a helper sleeps, from the measured time of a poll."""
    text = os.environ.get(SPIN_VARIABLE, "").strip() or str(_SPIN_MICROSECONDS)
    if not (text.isascii() and text.isdigit() and int(text) <= _MOST_SPIN_MICROSECONDS):
        raise FastIndexError(f"{SPIN_VARIABLE} must be an integer from 0 to {_MOST_SPIN_MICROSECONDS}, got {text!r}")
    job = np.zeros(JOB_BYTES // 8, np.int64)
    seconds = math.inf
    for _ in range(3):
        job[JOB.state] = WAITING
        begin = time.perf_counter()
        function("serve")(address_of(job), 0, _SPINS_TRIED)
        seconds = min(seconds, time.perf_counter() - begin)
    return int(int(text) * 1e-6 * _SPINS_TRIED / seconds)
