"""Memory maps whose file shrinks or cannot be read: an error instead of the end of the process.

An access to a page of a map without a page of a file behind it raises SIGBUS. While maps are watched, a handler puts
empty memory in the place of missing pages, so that loops over them can finish; then an error is raised.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from fastindex.arrays.arrays import described

_WITH_DETAILS = 4  # SA_SIGINFO
_FIXED, _ANONYMOUS, _PRIVATE = 0x10, 0x20, 0x02
# Where a `siginfo_t` has the address; true of every 64-bit Linux.
_ADDRESS_AT = 16
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """A ``struct sigaction`` of Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong)))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@dataclass(slots=True)
class Watched:
    """A map that is watched.

    Attributes
    ----------
    begin, end : int
        Its addresses.
    error : OSError
        What is raised where a part of it is missing.
    has_failed : bool
        Whether a missing part has been touched.
    """

    begin: int
    end: int
    error: OSError
    has_failed: bool = False

    def check(self) -> None:
        """Raise the error if a missing part has been touched: there is no point in going on."""
        if self.has_failed:
            raise self.error


_lock = threading.Lock()
_watched: list[Watched] = []
_before: _Action | None = None


@contextlib.contextmanager
def faults_raised(data: NDArray[Any], error: OSError) -> Iterator[Watched]:
    """Raise `error` at the end of the block if a part of a memory map was missing when accessed.

    Parameters
    ----------
    data : array
        The map, or a part of it; what is behind the part is not watched.
    error : OSError

    Yields
    ------
    Watched
        To check for the error in between.

    Raises
    ------
    OSError
        `error`.
    """
    begin, end = described(data).extent
    watched = Watched(begin, end + -end % mmap.PAGESIZE, error)
    if data.nbytes == 0 or not sys.platform.startswith("linux"):
        yield watched
        return
    _add(watched)
    try:
        yield watched
    finally:
        _remove(watched)
        if watched.has_failed:
            raise watched.error from None


def _add(watched: Watched) -> None:
    global _before
    with _lock:
        _watched.append(watched)
        if _before is None:
            before = _Action()
            action = _Action(handler=ctypes.cast(_handler, ctypes.c_void_p).value, flags=_WITH_DETAILS)
            _library.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(before))
            _before = before


def _remove(watched: Watched) -> None:
    global _before
    with _lock:
        _watched.remove(watched)
        if not _watched and _before is not None:
            _library.sigaction(signal.SIGBUS, ctypes.byref(_before), None)
            _before = None


def _handle(number: int, details: int, context: int) -> None:
    """Handle SIGBUS, in the thread that accessed the memory, in the middle of a loop over it."""
    has_memory = False
    try:
        has_memory = _put_memory(ctypes.c_void_p.from_address(details + _ADDRESS_AT).value or 0)
    finally:
        if not has_memory:
            # Not in a watched map: on return the access faults again, without this handler.
            before = _before if _before is not None else _Action()
            _library.sigaction(signal.SIGBUS, ctypes.byref(before), None)


def _put_memory(address: int) -> bool:
    """Map empty memory from the page at an address to the end of its map."""
    for watched in [*_watched]:
        if watched.begin <= address < watched.end:
            begin = address & -mmap.PAGESIZE
            flags = _PRIVATE | _ANONYMOUS | _FIXED
            access = mmap.PROT_READ | mmap.PROT_WRITE
            watched.has_failed = True
            return bool(_library.mmap(begin, watched.end - begin, access, flags, -1, 0) == begin)
    return False


# PyDLL keeps the interpreter's lock: otherwise another thread could run between the fault and its repair.
_library: Any = None
if sys.platform.startswith("linux"):
    _library = ctypes.PyDLL(None)
    _library.mmap.restype = ctypes.c_void_p
    _library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_handler = _Handler(_handle)
