"""What happens once in a process, imports and compilation: no interrupt cuts it off, and no fork.

A module that is imported in part stays so: after a Ctrl-C during ``import numba``, later imports find it without half
of its attributes. A child that is forked while another thread imports or compiles has the locks of both and nobody to
release them. So both happen on threads of their own, which Python never interrupts, under one lock, and forks wait for
that lock.
"""

from __future__ import annotations

# It has hooks for forks, and so has `logging`, which it imports. Hooks that come while a fork waits for a first use
# would release, after that fork, what they have not taken before it.
import concurrent.futures.thread  # noqa: F401
import os
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")

#: Where the modules of this package are.
PACKAGE_FOLDER = os.path.dirname(__file__)

# Order of locks: this one, then those of imports, then Numba's, then LLVM's. Nothing that is imported or compiled asks
# for it again on another thread, and no body of a module here does. Who holds it waits for no lock of the package's
# users, but for what runs uninvited: import hooks, destructors, handlers of signals. So a fork waits long, but not for
# ever.
_lock = threading.RLock()
_LONGEST_WAIT_SECONDS = 60.0


class _Work(Generic[Result]):
    """A function, what it returns or raises, and whether it has."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._is_done = threading.Event()

    def run(self) -> None:
        # A child that is forked by a handler of signals, while its parent waits here, finds it done.
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
    """Call a function on a thread of its own, one at a time in this process, and return what it returns.

    An interrupt ends the wait for it; the function goes on, and whoever asks for its work again waits for it. Called
    from within such a function, it is a plain call.

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
    """Import modules, each one whole, where this has not been done yet; statements that import them then only look.

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
    """The locks that a thread that forks has taken."""

    def __init__(self) -> None:
        self.locks: list[Any] = []


_held = _Held()


#: The compiler's locks, in the order in which it takes them, by their modules; LLVM's are asked for by planners too.
_COMPILER_LOCKS = (
    ("numba.core.compiler_lock", ("global_compiler_lock", "_lock")),
    ("llvmlite.binding.ffi", ("lib", "_lock", "_lock")),
)


def _wait_for_work() -> None:
    _held.locks = [one for one in _locks() if one.acquire(timeout=_LONGEST_WAIT_SECONDS)]


def _locks() -> Iterator[Any]:
    """Yield what a fork has to take, each after those before it have been taken."""
    yield _lock
    # Only now: what was not imported a moment ago may have been, while this thread waited.
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
