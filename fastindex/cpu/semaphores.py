"""What a helping thread sleeps on: a semaphore of the system, which native code waits for and raises."""

from __future__ import annotations

import ctypes
import errno
import sys
from typing import Any, NamedTuple


class Semaphore(NamedTuple):
    """A semaphore that nobody has raised yet, as native code needs it.

    Attributes
    ----------
    argument : int
        What both functions take.
    wait, post : int
        Addresses of C functions.
    """

    argument: int
    wait: int
    post: int


def semaphore_at(address: int) -> Semaphore:
    """Make a semaphore, in the memory at an address where the system keeps them there.

    macOS has POSIX's functions, which fail with ENOSYS, and the semaphores of Mach, which have a number.

    Parameters
    ----------
    address : int
        Of `SEMAPHORE_BYTES` bytes that stay where they are.

    Raises
    ------
    OSError
        The system grants none.
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
