"""The choice between NumPy, which answers at once, and kernels, if the compiler fits into memory.

While no kernel is loaded, NumPy answers small calls from the same lowered form, and the time that it takes is added up.
Once that reaches the time to load kernels, kernels take over for good. So no process waits much more than twice as long
as with the better of the two choices from the start.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fastindex.errors import UnsupportedError
from fastindex.first_use import PACKAGE_FOLDER, load

if sys.platform.startswith("linux"):
    import resource

#: Address space for loading the compiler; on Linux, Numba 0.68 and LLVM take 184 MiB before the first kernel.
TO_LOAD_BYTES = 192 << 20
#: Address space for compiling all kernels; with 390 MiB in total, LLVM aborted the process.
TO_COMPILE_BYTES = 512 << 20


def check_address_space(needed: int) -> None:
    """Raise if ``ulimit -v`` leaves too little address space.

    Parameters
    ----------
    needed : int
        In bytes.

    Raises
    ------
    MemoryError

    Examples
    --------
    >>> check_address_space(1)
    """
    available = _available_bytes()
    if available is not None and available < needed:
        raise MemoryError(
            f"the compiler of kernels takes {needed >> 20} MiB of addresses, and the limit of this process (ulimit -v) "
            f"leaves {max(available, 0) >> 20} MiB"
        )


def _available_bytes() -> int | None:
    """Return how many bytes may still be mapped; None without a limit, or if the mapped size is unknown."""
    if not sys.platform.startswith("linux"):
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    with open("/proc/self/statm") as file:
        return limit - int(file.read().split()[0]) * resource.getpagesize()


#: Environment variable that leaves calls of every size to NumPy.
DISABLE_VARIABLE = "FASTINDEX_DISABLE_JIT"

# Measured on an AMD EPYC (family 26), 2026-11-22: NumPy converts 2**18 indices in 5 to 13 ms and moves a mebibyte in
# 0.1 to 4 ms. Loading kernels from disk takes 0.1 s (2026-11-27), compiling them 6 s.

#: Up to this many indices are converted by NumPy.
MOST_INDICES = 1 << 18

#: Up to this many bytes are moved by NumPy.
MOST_BYTES = 1 << 20

# Overhead of a call answered by NumPy, besides NumPy's own time, that a kernel would save too, in seconds.
_CALL_SECONDS = 10e-6
# Seconds to load kernels that are compiled already, and kernels that are not.
_LOADING_SECONDS = 0.1
_COMPILING_SECONDS = 5.0

# Modules that are imported only when kernels run.
_WITH_KERNELS = (
    "fastindex.moving.timed_choices",
    "fastindex.moving.compiled_passes",
    "fastindex.index.compiled",
    "fastindex.runtime.machine_code",
)

_log = logging.getLogger("fastindex")
_limited: ContextVar[bool] = ContextVar("limited", default=False)


class _Spent:
    """Time that NumPy has taken in this process so far."""

    seconds = 0.0


def indices_by_numpy(count: int) -> bool:
    """Decide whether NumPy converts `count` indices now; if it does, run it within `numpys_time`.

    Raises
    ------
    UnsupportedError
        Too many indices for NumPy, and numba is not installed.
    """
    return _decided("converts %d indices", count, MOST_INDICES)


def bytes_by_numpy(nbytes: int) -> bool:
    """Decide whether NumPy moves `nbytes` bytes now; if it does, run it within `numpys_time`.

    Raises
    ------
    UnsupportedError
        Too many bytes for NumPy, and numba is not installed.
    """
    return _decided("moves %d bytes", nbytes, MOST_BYTES)


@contextmanager
def without_kernels() -> Iterator[None]:
    """Leave everything to NumPy within this context, where a memory limit leaves too little for the compiler."""
    token = _limited.set(True)
    try:
        yield
    finally:
        _limited.reset(token)


@contextmanager
def numpys_time() -> Iterator[None]:
    """Add the time that NumPy takes within this context to its total."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        _Spent.seconds += time.perf_counter() - begin + _CALL_SECONDS


def _decided(what: str, size: int, most: int) -> bool:
    if not may_be_numpy(size, most):
        return False
    _log.debug("NumPy " + what + " by the lowered form: no kernel is loaded", size)
    return True


def may_be_numpy(size: int, most: int) -> bool:
    """Whether NumPy answers a call of this size; it may up to `most`. Otherwise load kernels.

    Raises
    ------
    UnsupportedError
        The size is too large for NumPy, and numba is not installed.

    Examples
    --------
    >>> from fastindex.runtime import machine_code
    >>> may_be_numpy(1, MOST_BYTES)
    False
    """
    if is_left_to_numpy():
        return True
    if "fastindex.runtime.machine_code" in sys.modules:
        load_kernels()
        return False
    small = size <= most
    if not _numba_is_there():
        if small:
            return True
        raise UnsupportedError(
            f"this is too large for NumPy alone, and numba is not installed; install it, or set {DISABLE_VARIABLE}=1 "
            "and be patient"
        )
    if small and _Spent.seconds < _seconds_to_load():
        return True
    load_kernels()
    return False


def load_kernels() -> None:
    """Import the compiler and the modules that run kernels, all or none: no interrupt or fork cuts the import off.

    Raises
    ------
    MemoryError
        A limit leaves too little address space.
    """
    if "llvmlite" not in sys.modules:
        check_address_space(TO_LOAD_BYTES)
    load(*_WITH_KERNELS)


def kernel_function(name: str) -> Callable[..., int]:
    """Load the compiler, and return a kernel by its name in `fastindex.runtime.machine_code.CALLED`."""
    load_kernels()
    found: Callable[..., int] = sys.modules["fastindex.runtime.machine_code"].function(name)
    return found


def is_left_to_numpy() -> bool:
    """Whether NumPy moves everything, whatever its size: within `without_kernels`, or by the environment variable."""
    return is_disabled() or _limited.get()


@cache
def is_disabled() -> bool:
    """Whether the environment variable, which is read once, leaves everything to NumPy."""
    return os.environ.get(DISABLE_VARIABLE, "0").strip() not in ("", "0")


@cache
def _seconds_to_load() -> float:
    """Return how long loading kernels takes: more where none has been compiled on this machine yet."""
    is_warm = any(any(folder.glob(f"*{KERNEL_SUFFIX}")) for folder in (*kernel_folders(), COMPILED_FOLDER))
    return _LOADING_SECONDS if is_warm else _COMPILING_SECONDS


#: File name suffix of compiled kernels.
KERNEL_SUFFIX = ".kernel"
#: Where ``fastindex warmup --target`` puts kernels that come with the package: nothing else is written there.
COMPILED_FOLDER = Path(PACKAGE_FOLDER, "compiled")


def kernel_folders() -> tuple[Path, ...]:
    """Return the folders in which compiled kernels may be cached, in order of preference."""
    package = hashlib.sha256(PACKAGE_FOLDER.encode()).hexdigest()[:12]
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return (Path(chosen, f"fastindex-{package}"),)
    if sys.platform == "darwin":
        of_user = os.path.expanduser("~/Library/Caches")
    else:
        of_user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(PACKAGE_FOLDER, "__pycache__"), Path(of_user, "fastindex", package)


@cache
def _numba_is_there() -> bool:
    return find_spec("numba") is not None
