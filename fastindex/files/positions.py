"""Reading and writing an open file at positions, from several threads: as on Linux, with fallbacks elsewhere."""

from __future__ import annotations

import contextlib
import os
import threading

#: Without the first, Windows converts line ends; it does not have the second.
OPEN_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

_MOST_AT_ONCE = 1 << 24
_lock = threading.Lock()

#: Linux's RWF_DONTCACHE, which the os module does not name: do not keep the pages that only this call has cached.
_DO_NOT_CACHE = 0x80


def can_read_once(file: int) -> bool:
    """Whether bytes of a file can be read without leaving them in the system's cache: on Linux, from 6.14 on."""
    # The other flag of that call stands for its existence: macOS has preadv without flags.
    if not hasattr(os, "preadv") or not hasattr(os, "RWF_HIPRI"):
        return False
    try:
        os.preadv(file, [bytearray(1)], 0, _DO_NOT_CACHE)
    except OSError:
        return False
    return True


def read_at(file: int, into: memoryview, position: int, once: bool = False) -> int:
    """Read bytes from a position on; return how many: 0 at the end of the file.

    Parameters
    ----------
    file : int
    into : memoryview
    position : int
    once : bool
        Whether the system is not to keep what it had not cached before; where `can_read_once`.

    Raises
    ------
    OSError
    """
    if once:
        return os.preadv(file, [into], position, _DO_NOT_CACHE)
    if hasattr(os, "preadv"):
        return os.preadv(file, [into], position)
    with _lock:
        os.lseek(file, position, os.SEEK_SET)
        found = os.read(file, min(len(into), _MOST_AT_ONCE))
    into[: len(found)] = found
    return len(found)


def write_at(file: int, content: memoryview, position: int) -> int:
    """Write bytes from a position on; return how many.

    Raises
    ------
    OSError
    """
    if hasattr(os, "pwritev"):
        return os.pwritev(file, [content], position)
    with _lock:
        os.lseek(file, position, os.SEEK_SET)
        return os.write(file, content[:_MOST_AT_ONCE])


def expect_order(file: int, is_sequential: bool) -> None:
    """Tell the system whether to read ahead of the reads to come, which is in vain unless they go on in the file."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_NORMAL if is_sequential else os.POSIX_FADV_RANDOM)


def release_written(file: int) -> None:
    """Have the system write what it holds of a file, and release what is already on disk.

    Returns when the disk has accepted the requests, not when they are done. Does nothing where the system has no such
    call.
    """
    if hasattr(os, "posix_fadvise"):
        # It is advice: a file system that takes none is no reason to stop.
        with contextlib.suppress(OSError):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def free_bytes(folder: str) -> int | None:
    """Return how many bytes are free on the disk of a folder, or None if unknown."""
    if not hasattr(os, "statvfs"):
        return None
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
