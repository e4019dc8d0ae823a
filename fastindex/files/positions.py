"""Reading and writing an open file at positions, from several threads: as on Linux, with fallbacks elsewhere."""

from __future__ import annotations

import os
import threading

#: Without the first, Windows converts line ends; it does not have the second.
OPEN_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

_MOST_AT_ONCE = 1 << 24
_lock = threading.Lock()


def read_at(file: int, into: memoryview, position: int) -> int:
    """Read bytes from a position on; return how many: 0 at the end of the file.

    Raises
    ------
    OSError
    """
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


def free_bytes(folder: str) -> int | None:
    """Return how many bytes are free on the disk of a folder, or None if unknown."""
    if not hasattr(os, "statvfs"):
        return None
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
