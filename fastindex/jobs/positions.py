"""Reading and writing an open file at positions, from several threads: as on Linux, with fallbacks elsewhere."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: Without the first, Windows converts line ends; it does not have the second.
OPEN_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

#: The most of one call: macOS refuses 2 GiB and more, Linux stops a page before it.
_MOST_AT_ONCE = 1 << 30
#: The same where a call holds a lock that other threads wait for.
_MOST_UNDER_LOCK = 1 << 24
_lock = threading.Lock()

#: Linux's RWF_DONTCACHE, which the os module does not name: do not keep the pages that only this call has cached.
_DO_NOT_CACHE = 0x80

#: What file systems answer that do not sync folders.
_CANNOT_SYNC_FOLDERS = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES}


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
    """Read bytes from a position on until there are no more or `into` is full; return how many.

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
    done = 0
    while done < len(into):
        count = _read_some(file, into[done : done + _MOST_AT_ONCE], position + done, once)
        if count == 0:
            break
        done += count
    return done


def _read_some(file: int, into: memoryview, position: int, once: bool) -> int:
    if once:
        return os.preadv(file, [into], position, _DO_NOT_CACHE)
    if hasattr(os, "preadv"):
        return os.preadv(file, [into], position)
    with _lock:
        os.lseek(file, position, os.SEEK_SET)
        found = os.read(file, min(len(into), _MOST_UNDER_LOCK))
    into[: len(found)] = found
    return len(found)


def write_at(file: int, content: memoryview, position: int) -> None:
    """Write all bytes, from a position on, in as many calls as the system needs.

    Raises
    ------
    OSError
    """
    done = 0
    while done < len(content):
        count = _write_some(file, content[done : done + _MOST_AT_ONCE], position + done)
        if count == 0:
            raise OSError(errno.EIO, "the system writes nothing and gives no reason")
        done += count


def _write_some(file: int, content: memoryview, position: int) -> int:
    if hasattr(os, "pwritev"):
        return os.pwritev(file, [content], position)
    with _lock:
        os.lseek(file, position, os.SEEK_SET)
        return os.write(file, content[:_MOST_UNDER_LOCK])


def uninterrupted(
    call: Callable[Parameters, Result], /, *arguments: Parameters.args, **options: Parameters.kwargs
) -> Result:
    """Call again as long as signals interrupt: what Python does for reads and writes, but not for links and names.

    Raises
    ------
    OSError
    """
    while True:
        try:
            return call(*arguments, **options)
        except InterruptedError:
            continue


def close_file(file: int) -> None:
    """Close a file that has been written.

    Raises
    ------
    OSError
        What was written may not be on the disk.
    """
    # An interrupted call has closed it; the number may already be that of another file.
    with contextlib.suppress(InterruptedError):
        os.close(file)


def close_quietly(file: int) -> None:
    """Close a file of which nothing is expected any more."""
    with contextlib.suppress(OSError):
        os.close(file)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can do so and lets this process.

    Raises
    ------
    OSError
        The disk failed.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | OPEN_FLAGS)
    except PermissionError:
        # Files may be made in a folder that may not be read.
        return
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            close_quietly(file)
            raise
    close_file(file)


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
