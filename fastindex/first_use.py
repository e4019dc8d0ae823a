"""Imports and compilation, each done once per process, shielded from interrupts and forks.

A partly imported module stays so: after a Ctrl-C during ``import numba``, later imports find it without half of its
attributes. A child forked while another thread imports or compiles inherits locked locks that no thread will release.
So both run on separate threads, which Python never interrupts, under one lock, and forks wait for that lock.
"""

from __future__ import annotations

# Imported for its fork hooks, and those of `logging`, which it imports. Hooks registered while a fork waits for a first
# use would, after that fork, release locks that they did not acquire before it.
import concurrent.futures.thread  # noqa: F401
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")

#: The folder of this package's modules.
PACKAGE_FOLDER = os.path.dirname(__file__)

#: Starts a Python process that does not import what lies in the current folder.
PYTHON = (sys.executable, "-P")


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Python process that imports this package from where this process has it."""
    path = filter(None, (os.path.dirname(PACKAGE_FOLDER), os.environ.get("PYTHONPATH")))
    return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(path)}


# Lock order: this one, then the import locks, then Numba's, then LLVM's. No imported or compiled code, and no module
# body of this package, acquires it on another thread. Its holder waits for no lock of user code, except in import
# hooks, destructors and signal handlers. So a fork may wait long, but not forever.
_lock = threading.RLock()
_LONGEST_WAIT_SECONDS = 60.0


class _Work(Generic[Result]):
    """A function call, its result or exception, and a completion event."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._is_done = threading.Event()

    def run(self) -> None:
        # The event is set under the lock: a child forked by a signal handler while its parent waits here finds it set.
        with _lock:
            try:
                self._results.append(self._function())
            except BaseException as error:
                self._error = error
            finally:
                self._is_done.set()

    def result(self) -> Result:
        self._is_done.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]


def uninterrupted(function: Callable[[], Result]) -> Result:
    """Call a function on a separate thread, one at a time per process, and return its result.

    An interrupt ends only the caller's wait; the function continues, and a later caller waits for it. Called from
    within such a function, this is a plain call.

    Examples
    --------
    >>> uninterrupted(lambda: 6 * 7)
    42
    """
    if _is_held():
        return function()
    work = _Work(function)
    try:
        threading.Thread(target=work.run, name="fastindex, first use", daemon=True).start()
    except RuntimeError:
        # The interpreter is shutting down, or the system grants no more threads.
        with _lock:
            return function()
    return work.result()


_loaded: set[str] = set()


def load(*names: str) -> None:
    """Import modules completely, unless already done; import statements that follow only look them up.

    Examples
    --------
    >>> load("fastindex.errors")
    """
    if not _loaded.issuperset(names):
        uninterrupted(lambda: [import_module(name) for name in names])
        _loaded.update(names)


def _is_held() -> bool:
    return bool(_lock._is_owned())  # type: ignore[attr-defined]


# Forks


class _Held(threading.local):
    """The locks that a forking thread has acquired."""

    def __init__(self) -> None:
        self.locks: list[Any] = []


_held = _Held()


#: The compiler's locks by module, in the order in which it acquires them; planners acquire LLVM's too.
_COMPILER_LOCKS = (
    ("numba.core.compiler_lock", ("global_compiler_lock", "_lock")),
    ("llvmlite.binding.ffi", ("lib", "_lock", "_lock")),
)


def _wait_for_work() -> None:
    _held.locks = [one for one in _locks() if one.acquire(timeout=_LONGEST_WAIT_SECONDS)]


def _locks() -> Iterator[Any]:
    """Yield the locks that a fork acquires; each is looked up after those before it are held."""
    yield _lock
    # Looked up only now: another thread may have imported the module while this one waited.
    for module, names in _COMPILER_LOCKS:
        found: Any = sys.modules.get(module)
        for name in names:
            found = getattr(found, name, None)
        if found is not None:
            yield found


def _go_on() -> None:
    for one in reversed(_held.locks):
        one.release()
    _held.locks = []


def _go_on_in_child() -> None:
    global _lock
    if _lock not in _held.locks:
        _lock = threading.RLock()
    _go_on()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_work, after_in_parent=_go_on, after_in_child=_go_on_in_child)
