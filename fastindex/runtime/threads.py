"""The number of threads to use, and the thread pool that runs a kernel's chunks.

Kernels release the GIL and know nothing of threads: a call is split into chunks, and the caller's thread and a few
worker threads of one shared pool take one chunk after another. The caller always takes part, so a full pool, a call
from inside a chunk or a pool that no longer starts threads (interpreter shutdown) only costs speed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fastindex.errors import FastIndexError, UnsupportedError, integer_of
from fastindex.runtime.machine import usable_processors

# Every module that converts, moves or writes imports this one; shapes and reports do not.
if sys.platform == "win32":
    raise UnsupportedError(
        "fastindex converts indices, moves arrays and writes files on Linux and macOS; on Windows, run it in WSL "
        "(what it says of shapes and programs works without)"
    )

#: Environment variable that sets the number of threads where a call does not.
THREADS_VARIABLE = "FASTINDEX_NUM_THREADS"

_MOST_THREADS = 1024


def thread_count(threads: int | None = None) -> int:
    """Return the number of threads that a call may use.

    Parameters
    ----------
    threads : int, optional
        The caller's choice. Without it, the environment variable ``FASTINDEX_NUM_THREADS``; without that, the number
        of processors this process may run on, limited to its cgroup's quota, rounded up.

    Raises
    ------
    FastIndexError
        If `threads`, or the variable, is not a positive integer.

    Examples
    --------
    >>> thread_count(3)
    3
    """
    if type(threads) is int and 0 < threads <= _MOST_THREADS:
        return threads
    if threads is not None:
        number = integer_of(threads)
        if number is None or number < 1:
            raise FastIndexError(f"threads must be a positive integer, got {threads!r:.80}")
        return min(number, _MOST_THREADS)
    text = os.environ.get(THREADS_VARIABLE, "").strip()
    if text:
        if not (text.isascii() and text.isdigit() and int(text) >= 1):
            raise FastIndexError(f"{THREADS_VARIABLE} must be a positive integer, got {text!r}")
        return min(int(text), _MOST_THREADS)
    return min(usable_processors(), _MOST_THREADS)


def check_threads(threads: int | None) -> None:
    """Raise unless `threads` is None or a number that `thread_count` takes."""
    if threads is not None:
        thread_count(threads)


_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def _forget_pool() -> None:
    # A fork copies the pool's bookkeeping but none of its threads, and perhaps a held lock, never released.
    global _pool, _pool_lock
    _pool = None
    _pool_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _shared_pool() -> ThreadPoolExecutor:
    global _pool
    with _pool_lock:
        if _pool is None:
            most = max(32, 2 * (os.cpu_count() or 1))
            _pool = ThreadPoolExecutor(max_workers=most, thread_name_prefix="fastindex")
        return _pool


class _SharedCall:
    """A call that several threads work on; a thread that joins too late does nothing."""

    def __init__(self, work: Callable[[], None], stop: Callable[[], None]) -> None:
        self._work = work
        self._stop = stop
        self._lock = threading.Lock()
        self._all_done = threading.Lock()
        self._all_done.acquire()
        self._inside = 0
        self._closed = False
        self._error: BaseException | None = None

    def help(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._inside += 1
        try:
            self._work()
        except BaseException as error:
            self._fail(error)
        with self._lock:
            self._inside -= 1
            if self._is_over():
                self._all_done.release()

    def _is_over(self) -> bool:
        return self._closed and not self._inside

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._stop()

    def lead(self, ask: Callable[[Callable[[], None]], None]) -> None:
        """Request helpers, work, wait for the helpers, since they use the caller's arrays, and raise the first error.

        An interrupt may come between any two instructions: also while only helpers still work, and also just after
        another one has been caught.
        """
        try:
            try:
                ask(self.help)
                self._work()
                self._wait()
            except BaseException as error:
                self._end(error)
        except BaseException as error:
            self._end(error)
        if self._error is not None:
            raise self._error

    def _end(self, error: BaseException) -> None:
        """Stop all threads of the call, and wait until none works, even if the wait is interrupted repeatedly."""
        self._fail(error)
        waits = True
        while waits:
            with contextlib.suppress(KeyboardInterrupt):
                self._wait()
                waits = False

    def _wait(self) -> None:
        """Let no more threads join, and wait for those that have; may be called again after an interrupt."""
        with self._lock:
            self._closed = True
            waits = self._inside > 0
        if waits:
            self._all_done.acquire()


def run_together(work: Callable[[], None], helpers: int, stop: Callable[[], None]) -> None:
    """Call `work` on the caller's thread, and on up to `helpers` worker threads that join before it ends.

    `work` takes items from a shared supply until none is left. If one of the threads raises, or the caller is
    interrupted, `stop` is called, all threads are waited for, and the first exception is raised here. Safe to call from
    many threads at once, from inside `work`, and in a forked child.

    Parameters
    ----------
    work : callable
        Runs on several threads at the same time.
    helpers : int
        Maximum number of threads besides the caller's.
    stop : callable
        Empties the supply, so that `work` ends.

    Examples
    --------
    >>> left = list(range(5))
    >>> def work():
    ...     while left:
    ...         left.pop()
    >>> run_together(work, 1, left.clear)
    >>> left
    []
    """

    def ask(help_once: Callable[[], None]) -> None:
        # RuntimeError: the interpreter is shutting down or the system grants no more threads; work with fewer.
        with contextlib.suppress(RuntimeError):
            for _ in range(helpers):
                _shared_pool().submit(help_once)

    _SharedCall(work, stop).lead(ask)


class _Chunks:
    """The chunks of one call, handed out in order."""

    def __init__(self, task: Callable[[int, int], None], count: int, chunk: int) -> None:
        self._task = task
        self._count = count
        self._chunk = chunk
        self._next = 0
        self._lock = threading.Lock()

    def work(self) -> None:
        while (begin := self._take()) < self._count:
            self._task(begin, min(begin + self._chunk, self._count))

    def _take(self) -> int:
        with self._lock:
            begin = self._next
            self._next += self._chunk
            return begin

    def stop(self) -> None:
        with self._lock:
            self._next = self._count


def run_chunks(task: Callable[[int, int], None], count: int, threads: int, chunk: int) -> None:
    """Call ``task(begin, end)`` on chunks that together cover ``range(count)``, on up to `threads` threads.

    The caller's thread is one of them, and the only one if `threads` is 1 or one chunk is enough. Chunks start in
    order. If a chunk raises, no further chunk starts, those that run are waited for, and the exception is raised here.

    Parameters
    ----------
    task : callable
        Takes ``begin`` and ``end``; several calls run at the same time.
    count : int
        The number of items.
    threads : int
        Maximum number of threads, at least 1.
    chunk : int
        Maximum number of items per call of `task`, at least 1.

    Examples
    --------
    >>> seen = []
    >>> run_chunks(lambda begin, end: seen.append((begin, end)), 10, 1, 4)
    >>> seen
    [(0, 4), (4, 8), (8, 10)]
    """
    if threads == 1 or count <= chunk:
        for begin in range(0, count, chunk):
            task(begin, min(begin + chunk, count))
        return
    chunks = _Chunks(task, count, chunk)
    run_together(chunks.work, min(threads, -(-count // chunk)) - 1, chunks.stop)
