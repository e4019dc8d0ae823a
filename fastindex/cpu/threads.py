"""How many threads to use, and the pool that runs a kernel's chunks on them.

Kernels release the GIL and know nothing of threads: a call is cut into chunks, and the caller's thread and a
few threads of one shared pool take them in turn. The caller always takes part, so a full pool, a call from
inside a chunk or a pool that no longer starts threads (interpreter shutdown) only costs speed.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from fastindex.errors import FastIndexError

#: Environment variable that sets the number of threads where a call does not.
THREADS_VARIABLE = "FASTINDEX_NUM_THREADS"

_MOST_THREADS = 1024


def thread_count(threads: int | None = None) -> int:
    """Give the number of threads a call may use.

    Parameters
    ----------
    threads : int, optional
        What the caller asked for. Without it, the environment variable ``FASTINDEX_NUM_THREADS``; without
        that, the processors this process may run on, and no more than its cgroup's quota, rounded up.

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
        if isinstance(threads, bool) or not hasattr(threads, "__index__") or threads.__index__() < 1:
            raise FastIndexError(f"threads must be a positive integer, got {threads!r}")
        return min(threads.__index__(), _MOST_THREADS)
    text = os.environ.get(THREADS_VARIABLE, "").strip()
    if text:
        if not (text.isascii() and text.isdigit() and int(text) >= 1):
            raise FastIndexError(f"{THREADS_VARIABLE} must be a positive integer, got {text!r}")
        return min(int(text), _MOST_THREADS)
    return max(1, min(_allowed_processors(), math.ceil(_cached_cgroup_quota())))


def _allowed_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@lru_cache(maxsize=1)
def _cached_cgroup_quota() -> float:
    quota = cgroup_quota(Path("/")) if sys.platform == "linux" else None
    return float(_MOST_THREADS) if quota is None else quota


def cgroup_quota(root: Path) -> float | None:
    """Give the processors that the control groups of this process grant, or None without a limit.

    Every level from the process's group to the mounted root counts, in both versions of the kernel's
    interface (see ``cgroups(7)`` and the kernel's ``cgroup-v2.rst``).

    Parameters
    ----------
    root : Path
        The root of the file system, ``/`` but in tests.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    quotas = [
        quota
        for mount_point, mount_root, controllers in _cgroup_mounts(mounts)
        for group in _groups_of(groups, controllers)
        for quota in _quotas_along(root / mount_point.lstrip("/"), mount_root, group)
    ]
    return min(quotas, default=None)


def _cgroup_mounts(mounts: list[str]) -> Iterator[tuple[str, str, set[str] | None]]:
    """Yield (mount point, what of the hierarchy is mounted there, controllers; None in version 2)."""
    for line in mounts:
        fields, separator, rest = line.partition(" - ")
        options = rest.split()
        if not separator or len(options) < 3 or len(fields.split()) < 5:
            continue
        mount_root, mount_point = fields.split()[3:5]
        if options[0] == "cgroup2":
            yield mount_point, mount_root, None
        elif options[0] == "cgroup" and "cpu" in options[2].split(","):
            yield mount_point, mount_root, set(options[2].split(","))


def _groups_of(groups: list[str], controllers: set[str] | None) -> Iterator[str]:
    for line in groups:
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if (number == "0" and not names) if controllers is None else "cpu" in names.split(","):
            yield path


def _quotas_along(mount: Path, mount_root: str, group: str) -> Iterator[float]:
    # A container may see its own group mounted as the root while its path still tells the host's name of it.
    if mount_root != "/" and group.startswith(mount_root):
        group = group[len(mount_root) :]
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        quota = _quota_in(mount.joinpath(*parts[:depth]))
        if quota is not None:
            yield quota


def _quota_in(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()[:2]
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        if quota == "max" or int(quota) <= 0 or int(period) <= 0:
            return None
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


class _Job:
    """The chunks of one call, handed out in order to whoever asks."""

    def __init__(self, task: Callable[[int, int], None], count: int, chunk: int) -> None:
        self._task = task
        self._count = count
        self._chunk = chunk
        self._next = 0
        self._running = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def work(self) -> None:
        """Run chunks until none is left to start; the first exception ends the job for everybody."""
        while (begin := self._take()) is not None:
            error: BaseException | None = None
            try:
                self._task(begin, min(begin + self._chunk, self._count))
            except BaseException as caught:
                error = caught
            self._give_back(error)

    def _take(self) -> int | None:
        with self._changed:
            begin = self._next
            if begin >= self._count:
                return None
            self._next += self._chunk
            self._running += 1
            return begin

    def _give_back(self, error: BaseException | None) -> None:
        with self._changed:
            if error is not None:
                self.stop(error)
            self._running -= 1
            self._changed.notify_all()

    def stop(self, error: BaseException) -> None:
        with self._changed:
            self._next = self._count
            self._error = self._error or error

    def finish(self) -> None:
        """Wait for the chunks that still run, which use the caller's arrays, then raise what went wrong."""
        with self._changed:
            while self._running:
                try:
                    self._changed.wait()
                except KeyboardInterrupt as interrupt:
                    self.stop(interrupt)
        if self._error is not None:
            raise self._error


_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def _forget_pool() -> None:
    # A fork copies the pool's bookkeeping but none of its threads, and perhaps a lock nobody will release.
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


def run_chunks(task: Callable[[int, int], None], count: int, threads: int, chunk: int) -> None:
    """Call ``task(begin, end)`` on chunks that together cover ``range(count)``, on up to `threads` threads.

    The caller's thread is one of them, and the only one if `threads` is 1 or one chunk is enough. Chunks
    start in order. If a chunk raises, no further chunk starts, those that run are waited for, and the
    exception is raised here. Safe to call from many threads at once, from inside a chunk, and in a forked
    child.

    Parameters
    ----------
    task : callable
        Takes ``begin`` and ``end``; several calls run at the same time.
    count : int
        The number of items.
    threads : int
        The most threads to use, at least 1.
    chunk : int
        The most items of one call of `task`, at least 1.

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
    job = _Job(task, count, chunk)
    # RuntimeError: the interpreter is shutting down or the system grants no more threads; work with fewer.
    with contextlib.suppress(RuntimeError):
        for _ in range(min(threads, -(-count // chunk)) - 1):
            _shared_pool().submit(job.work)
    try:
        job.work()
    except BaseException as error:
        job.stop(error)
        raise
    job.finish()


class _Gang:
    """The threads that work on one call, and those that come too late for it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._all_left = threading.Lock()
        self._all_left.acquire()
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
            self._error = self._error or error
        with self._lock:
            self._inside -= 1
            if self._is_over():
                self._all_left.release()

    def _is_over(self) -> bool:
        return self._closed and not self._inside

    def lead(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = self._error or error
        with self._lock:
            self._closed = True
            waits = self._inside > 0
        while waits:
            try:
                self._all_left.acquire()
                waits = False
            except KeyboardInterrupt as interrupt:
                self._error = self._error or interrupt
        if self._error is not None:
            raise self._error


def run_together(work: Callable[[], None], helpers: int) -> None:
    """Call `work` on the caller's thread, and on up to `helpers` others that are there before it ends.

    `work` takes its share of something until nothing is left. Threads that it starts on are waited for, then what one
    of them raised is raised here. As safe as `run_chunks`.

    Parameters
    ----------
    work : callable
        Several calls run at the same time.
    helpers : int
        The most threads beside the caller's.

    Examples
    --------
    >>> left = list(range(5))
    >>> def work():
    ...     while left:
    ...         left.pop()
    >>> run_together(work, 1)
    >>> left
    []
    """
    gang = _Gang(work)
    # RuntimeError: as in `run_chunks`.
    with contextlib.suppress(RuntimeError):
        for _ in range(helpers):
            _shared_pool().submit(gang.help)
    gang.lead()
