"""An open file by positions, from several threads at once: what Linux has, and what serves elsewhere."""

from __future__ import annotations

import os
import threading

#: Windows changes line ends without the first, and has not the second.
OPEN_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

_MOST_AT_ONCE = 1 << 24
_lock = threading.Lock()


def read_at(file: int, into: memoryview, position: int) -> int:
    """Read bytes from a position on; return how many, 0 at the end of the file.

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
    """Return how many bytes the disk of a folder has room for, or None if that is unknown."""
    if not hasattr(os, "statvfs"):
        return None
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
