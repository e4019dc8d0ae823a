"""Which way a question is answered: by NumPy at once, or by kernels, where the compiler fits into memory.

While no kernel is loaded, small questions are answered by NumPy from the same lowered form, and the time that they take
is added up. Once that is as long as loading kernels takes, kernels take over for good: so no process waits much more
than twice as long as it would have with the better of the two ways from the start.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fastindex.errors import UnsupportedError
from fastindex.first_use import PACKAGE_FOLDER, load

if sys.platform.startswith("linux"):
    import resource

#: What Numba 0.68 and LLVM take on Linux before the first kernel is 184 MiB.
TO_LOAD_BYTES = 192 << 20
#: Room for compiling all kernels; with 390 MiB in all, LLVM ended the process.
TO_COMPILE_BYTES = 512 << 20


def check_address_space(needed: int) -> None:
    """Raise where ``ulimit -v`` leaves less than some bytes.

    Parameters
    ----------
    needed : int

    Raises
    ------
    MemoryError

    Examples
    --------
    >>> check_address_space(1)
    """
    left = _bytes_left()
    if left is not None and left < needed:
        raise MemoryError(
            f"the compiler of kernels takes {needed >> 20} MiB of addresses, and the limit of this process (ulimit -v) "
            f"leaves {max(left, 0) >> 20} MiB"
        )


def _bytes_left() -> int | None:
    """Return how many bytes may still be mapped; None where there is no limit, or nobody says what is mapped."""
    if not sys.platform.startswith("linux"):
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    with open("/proc/self/statm") as file:
        return limit - int(file.read().split()[0]) * resource.getpagesize()


#: Environment variable that leaves everything to NumPy, whatever its size.
DISABLE_VARIABLE = "FASTINDEX_DISABLE_JIT"

# Measured on an AMD EPYC (family 26), 2026-11-22: NumPy converts 2**18 indices in 5 to 13 ms and moves a mebibyte in
# 0.1 to 4 ms. Loading kernels from disk takes 0.1 s (2026-11-27), compiling them 6 s.

#: Up to this many indices are converted by NumPy.
MOST_INDICES = 1 << 18

#: Up to this many bytes are moved by NumPy.
MOST_BYTES = 1 << 20

# What a call answered by NumPy takes besides NumPy itself and a kernel would save as well, in seconds.
_CALL_SECONDS = 10e-6
# Seconds to load kernels, where they are compiled already and where they are not.
_LOADING_SECONDS = 0.1
_COMPILING_SECONDS = 5.0

# What is imported only when kernels run.
_WITH_KERNELS = (
    "fastindex.moving.timed_choices",
    "fastindex.moving.compiled_passes",
    "fastindex.index.compiled",
    "fastindex.runtime.machine_code",
)

_log = logging.getLogger("fastindex")
_limited: ContextVar[bool] = ContextVar("limited", default=False)


class _Spent:
    """How long NumPy has taken in this process so far."""

    seconds = 0.0


def indices_by_numpy(count: int) -> bool:
    """Decide whether NumPy converts `count` indices now; if it does, run it within `numpys_time`.

    Raises
    ------
    UnsupportedError
        They are too many for that, and numba is not installed.
    """
    return _decided("converts %d indices", count, MOST_INDICES)


def bytes_by_numpy(nbytes: int) -> bool:
    """Decide whether NumPy moves `nbytes` bytes now; if it does, run it within `numpys_time`.

    Raises
    ------
    UnsupportedError
        They are too many for that, and numba is not installed.
    """
    return _decided("moves %d bytes", nbytes, MOST_BYTES)


@contextmanager
def without_kernels() -> Iterator[None]:
    """Leave everything to NumPy within this context: a limit of memory leaves too little for the compiler."""
    token = _limited.set(True)
    try:
        yield
    finally:
        _limited.reset(token)


@contextmanager
def numpys_time() -> Iterator[None]:
    """Add the time that NumPy takes within this context to what it has taken so far."""
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
    """Whether NumPy answers a question of a size, of which it answers those up to `most`.

    Raises
    ------
    UnsupportedError
        It is too large for that, and numba is not installed.

    Examples
    --------
    >>> from fastindex.runtime import machine_code
    >>> may_be_numpy(1, MOST_BYTES)
    False
    """
    if is_disabled() or _limited.get():
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
    """Import the compiler and what runs kernels, all of it or nothing: no interrupt and no fork cuts it off.

    Raises
    ------
    MemoryError
        A limit leaves too little for them.
    """
    if "llvmlite" not in sys.modules:
        check_address_space(TO_LOAD_BYTES)
    load(*_WITH_KERNELS)


@cache
def is_disabled() -> bool:
    """Whether the environment leaves everything to NumPy; it is read once."""
    return os.environ.get(DISABLE_VARIABLE, "0").strip() not in ("", "0")


@cache
def _seconds_to_load() -> float:
    """Return how long loading kernels takes: more where none has been compiled on this machine yet."""
    is_warm = any(any(folder.glob(f"*{KERNEL_SUFFIX}")) for folder in (*kernel_folders(), COMPILED_FOLDER))
    return _LOADING_SECONDS if is_warm else _COMPILING_SECONDS


#: How the files of compiled kernels end.
KERNEL_SUFFIX = ".kernel"
#: Where ``fastindex warmup --target`` puts kernels that come with the package: nothing else is written there.
COMPILED_FOLDER = Path(PACKAGE_FOLDER, "compiled")


def kernel_folders() -> tuple[Path, ...]:
    """Return the folders in which compiled kernels may be kept, that of the first choice first."""
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
