"""Thread-safe positioned reads and writes (preadv, pwritev) on open files, with fallbacks outside Linux."""

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

#: Windows needs O_BINARY, or it converts line ends; it lacks O_CLOEXEC.
OPEN_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

#: Maximum bytes per call: macOS rejects 2 GiB and more, Linux transfers at most a page less.
_MOST_AT_ONCE = 1 << 30
#: The same for calls that hold the lock.
_MOST_UNDER_LOCK = 1 << 24
_lock = threading.Lock()

#: Linux's RWF_DONTCACHE, missing in the os module: drop the pages that this call has added to the page cache.
_DO_NOT_CACHE = 0x80

#: Errors of file systems that cannot sync folders.
_CANNOT_SYNC_FOLDERS = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES}


def can_read_once(file: int) -> bool:
    """Whether a file can be read and written without adding it to the page cache: Linux 6.14 and later."""
    # RWF_HIPRI indicates that preadv takes flags: macOS has preadv without flags.
    if not hasattr(os, "preadv") or not hasattr(os, "RWF_HIPRI"):
        return False
    try:
        os.preadv(file, [bytearray(1)], 0, _DO_NOT_CACHE)
    except OSError:
        return False
    return True


def read_at(file: int, into: memoryview, position: int, once: bool = False) -> int:
    """Read bytes at a position until the end of the file or until `into` is full; return the number of bytes.

    Parameters
    ----------
    file : int
    into : memoryview
    position : int
    once : bool
        Whether to drop pages from the page cache that this read adds; needs `can_read_once`.

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


def write_at(file: int, content: memoryview, position: int, once: bool = False) -> None:
    """Write all bytes at a position, in as many calls as needed.

    With `once`, which needs `can_read_once`, they go to the disk at once, and leave the page cache.

    Raises
    ------
    OSError
    """
    done = 0
    while done < len(content):
        count = _write_some(file, content[done : done + _MOST_AT_ONCE], position + done, once)
        if count == 0:
            raise OSError(errno.EIO, "the system writes nothing and gives no reason")
        done += count


def _write_some(file: int, content: memoryview, position: int, once: bool) -> int:
    if once:
        return os.pwritev(file, [content], position, _DO_NOT_CACHE)
    if hasattr(os, "pwritev"):
        return os.pwritev(file, [content], position)
    with _lock:
        os.lseek(file, position, os.SEEK_SET)
        return os.write(file, content[:_MOST_UNDER_LOCK])


def uninterrupted(
    call: Callable[Parameters, Result], /, *arguments: Parameters.args, **options: Parameters.kwargs
) -> Result:
    """Retry a call while signals interrupt it; Python does this for reads and writes, but not for link and rename.

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
    """Close a written file.

    Raises
    ------
    OSError
        The written data may not be on disk.
    """
    # An interrupted close has closed the file; a retry could close another file with the same descriptor.
    with contextlib.suppress(InterruptedError):
        os.close(file)


def close_quietly(file: int) -> None:
    """Close a file and ignore errors."""
    with contextlib.suppress(OSError):
        os.close(file)


def sync_folder(folder: Path) -> None:
    """Sync the directory entries of a folder to disk, if the system supports and permits it.

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
        # A folder can be writable without being readable.
        return
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            close_quietly(file)
            raise
    close_file(file)


def expect_order(file: int, is_sequential: bool) -> None:
    """Advise the kernel whether to read ahead, twice as far as usual, or not at all, which suits scattered reads."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL if is_sequential else os.POSIX_FADV_RANDOM)


def release_written(file: int) -> None:
    """Start write-back of a file's dirty pages, and release its clean pages.

    Returns when the disk has accepted the requests, not when they are done. Does nothing without posix_fadvise.
    """
    if hasattr(os, "posix_fadvise"):
        # Advice only: a file system that rejects it is no error.
        with contextlib.suppress(OSError):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def free_bytes(folder: str) -> int | None:
    """Return the free bytes of the disk of a folder, or None if unknown."""
    if not hasattr(os, "statvfs"):
        return None
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
