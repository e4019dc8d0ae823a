"""Files that appear whole or not at all, and the memory that the system keeps for them while they are written."""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fastindex.errors import FastIndexError
from fastindex.jobs.input_files import Bytes, release_map
from fastindex.jobs.positions import (
    OPEN_FLAGS,
    close_file,
    close_quietly,
    free_bytes,
    release_written,
    sync_folder,
    uninterrupted,
    write_at,
)
from fastindex.jobs.reading import has_name
from fastindex.lazy import lazy_property

#: How much is written before the system is asked to put it on disk and release it. AMD EPYC (family 26), virtual
#: machine, 2026-11-22, 6 GiB in pieces of 16 KiB: 40 s without asking, 20 s when asking between writes, 14 to 16 s when
#: asking from a thread of its own, every 256, 512 or 1,024 MiB. Smaller parts are more scattered on disk.
PART_BYTES = 512 << 20


class WrittenBehind:
    """Releases what has been written to a file, while the work goes on.

    Otherwise the system gives new memory to every write until none is left, and then searches for pages to give up
    among those that it still has to write. Using the same memory again costs a fraction of that.

    Parameters
    ----------
    part_bytes : int, optional
        At most two such parts are on their way to the disk; then whoever writes waits.
    """

    def __init__(self, part_bytes: int | None = None) -> None:
        self._part_bytes = PART_BYTES if part_bytes is None else part_bytes
        self._count = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def wrote(self, file: int, count: int) -> None:
        """Count bytes written to an open file; several threads may call at once."""
        with self._lock:
            self._count += count
            if self._count < self._part_bytes:
                return
            self._count = 0
            self.wait()
            thread = threading.Thread(target=release_written, args=(file,), daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # No memory for another thread.
                release_written(file)
                return
            self._thread = thread

    def wait(self) -> None:
        """Return when the file may be closed."""
        if self._thread is not None:
            self._thread.join()


_LONGEST_NAME = 200
_ZEROS = 1 << 22
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def npy_header(dtype: np.dtype[Any], dimensions: tuple[int, ...]) -> bytes:
    """Return the header of a NumPy file.

    Examples
    --------
    >>> npy_header(np.dtype("f4"), (2, 3)).split(b"{")[0]
    b'\\x93NUMPY\\x01\\x00v\\x00'
    """
    stream = io.BytesIO()
    name = dtype.str if has_name(dtype) else f"<V{dtype.itemsize}"
    fields = {"descr": name, "fortran_order": False, "shape": dimensions}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


def header_for(path: str, dtype: np.dtype[Any], dimensions: tuple[int, ...]) -> bytes:
    """Return the header for a file of this name; empty unless the name ends in ``.npy``."""
    return npy_header(dtype, dimensions) if path.endswith(".npy") else b""


class OutputFile:
    """A file that is filled in any order and appears under its name only when complete.

    Where the system supports it, the bytes go to an unnamed file in the same folder, so that not even a killed process
    leaves anything behind; elsewhere the file has a temporary name. Its space is reserved at the start, so a full disk
    is reported before the work, not halfway through. Leaving the ``with`` block flushes the file and gives it its name;
    an exception removes it.

    To replace an existing file, the new one needs a temporary name between two system calls; a process killed at that
    moment leaves a complete file of that name beside the old one.

    Parameters
    ----------
    path : str
        An existing file is replaced; a link is followed.
    nbytes : int
        Bytes of the array.
    header : bytes
        Written in front of it.
    force : bool
        Replace a file that may not be written, too.

    Raises
    ------
    OSError
        The file cannot be written.
    FastIndexError
        `path` exists and is not a regular file.
    """

    def __init__(self, path: str, nbytes: int, header: bytes = b"", force: bool = False) -> None:
        self.path = path
        self._force = force
        self._size = len(header) + nbytes
        self._header = header
        self._target = Path(os.path.realpath(path))
        self._temporary = _name_beside(self._target)
        self._file: int | None = None
        self._is_unnamed = False
        self._behind = WrittenBehind()

    def __enter__(self) -> OutputFile:
        mode = self._mode_of_target()
        try:
            self._create(mode)
        except BaseException as error:
            self._discard()
            raise self._explained(error) if isinstance(error, OSError) else error from None
        return self

    def write(self, start: int, content: Bytes) -> None:
        """Write bytes from `start` on, counted from the beginning of the array; several threads may write at once.

        Raises
        ------
        OSError
        """
        file = self._file
        assert file is not None
        try:
            write_at(file, memoryview(content.data), len(self._header) + start)
        except OSError as error:
            raise self._explained(error) from None
        self._behind.wrote(file, len(content))

    @lazy_property
    def _map(self) -> mmap.mmap:
        file = self._file
        assert file is not None
        try:
            return _writable_map(file, self._size)
        except OSError as error:
            raise self._explained(error) from None

    @lazy_property
    def data(self) -> Bytes:
        """The bytes of the array, as a memory map."""
        if self._size == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(self._map, np.uint8)[len(self._header) :]

    def _mode_of_target(self) -> int | None:
        try:
            found = os.stat(self._target).st_mode
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None
        _check_replaceable(self.path, found)
        if not self._force and not (found & _WRITABLE and os.access(self._target, os.W_OK)):
            # root may write it, and whoever may write into the folder may replace it; somebody meant to prevent it.
            raise PermissionError(errno.EACCES, "it is read-only; --force replaces it all the same", self.path)
        return stat.S_IMODE(found)

    def _create(self, mode: int | None) -> None:
        self._file = _unnamed_file(self._target.parent)
        self._is_unnamed = self._file is not None
        if self._file is None:
            _unfinished.add(self._temporary)
            self._file = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, 0o666)
        if mode is not None and hasattr(os, "fchmod"):
            os.fchmod(self._file, mode)
        if self._size:
            _reserve(self._file, self._size)
        if self._header:
            write_at(self._file, memoryview(self._header), 0)

    def _explained(self, error: OSError) -> OSError:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            reason += f"; it takes {self._size} bytes"
        if error.errno == errno.ENOSPC:
            free = free_bytes(str(self._target.parent))
            reason += f", {free} are free" if free is not None else ""
        return OSError(error.errno, reason, self.path)

    def release(self) -> None:
        """Release the memory of the map; the system writes what it holds to disk."""
        if "_map" in vars(self):
            release_map(self._map)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()
            return
        file = self._file
        assert file is not None
        try:
            if "_map" in vars(self):
                uninterrupted(self._map.flush)
            self._behind.wait()
            os.fsync(file)
            self._appear(file)
        except BaseException as failed:
            self._discard()
            raise self._explained(failed) if isinstance(failed, OSError) else failed from None

    def _appear(self, file: int) -> None:
        """Give the complete file its name and put that on disk; after an error, everything is as it was before."""
        if self._is_unnamed and self._has_linked(file):
            try:
                self._close()
                sync_folder(self._target.parent)
            except BaseException:
                _remove(self._target)
                raise
            return
        # Windows does not rename open files.
        self._close()
        self._replace()

    def _has_linked(self, file: int) -> bool:
        """Whether the target is new, and the unnamed file now has its name; otherwise it has the temporary one."""
        try:
            _link(file, self._target)
            return True
        except FileExistsError:
            _unfinished.add(self._temporary)
            _link(file, self._temporary)
            return False

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            close_file(file)

    def _replace(self) -> None:
        """Give the temporary file the name of the target, which keeps a second name until that is on disk."""
        is_there = self._target.exists()
        kept = _name_beside(self._target)
        _unfinished.add(kept)
        try:
            if is_there:
                # Without it, there is no way back: on a file system without links, and for files of others.
                with contextlib.suppress(OSError):
                    uninterrupted(os.link, self._target, kept)
            uninterrupted(os.replace, self._temporary, self._target)
            _unfinished.discard(self._temporary)
            try:
                sync_folder(self._target.parent)
            except BaseException:
                if kept.exists():
                    uninterrupted(os.replace, kept, self._target)
                elif not is_there:
                    _remove(self._target)
                raise
        finally:
            _remove(kept)

    def _discard(self) -> None:
        self._behind.wait()
        if self._file is not None:
            close_quietly(self._file)
            self._file = None
        _remove(self._temporary)


def _name_beside(target: Path) -> Path:
    """Return a name that nothing has, in the same folder."""
    return target.with_name(f".{target.name[:_LONGEST_NAME]}.{secrets.token_hex(4)}.partial")


def _unnamed_file(folder: Path) -> int | None:
    """Open an unnamed file that can be named later; None if the system or the file system does not support it."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return None
        raise


def _link(file: int, target: Path) -> None:
    # With src_dir_fd, of which an absolute path makes no use, Python calls linkat, which follows the link in /proc to
    # the file itself.
    uninterrupted(os.link, f"/proc/self/fd/{file}", target, src_dir_fd=file, follow_symlinks=True)


_unfinished: set[Path] = set()
# Who is writing into folders now; kept without a lock, which a signal handler might wait for in vain.
_writers: list[None] = []
_ends = False
_PATIENCE_SECONDS = 5.0


def remove_unfinished() -> None:
    """Remove what is not complete: the process is about to end without leaving its ``with`` blocks."""
    global _ends
    _ends = True
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while _writers and time.monotonic() < deadline:
        time.sleep(0.001)
    for path in [*_unfinished]:
        _remove(path)


@contextlib.contextmanager
def writes_into_folder() -> Iterator[None]:
    """Have `remove_unfinished` wait for the block: what is written into a folder meanwhile would make it anew.

    Raises
    ------
    OSError
        The process ends.
    """
    _writers.append(None)
    try:
        if _ends:
            raise OSError("the process ends")
        yield
    finally:
        _writers.pop()


@contextlib.contextmanager
def removed_unless_finished(folder: Path) -> Iterator[None]:
    """While the block runs, let `remove_unfinished` remove a folder."""
    _unfinished.add(folder)
    try:
        yield
    finally:
        _unfinished.discard(folder)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        uninterrupted(os.unlink, path)
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    _unfinished.discard(path)


def write_file(path: str, content: bytes, force: bool = False) -> None:
    """Write a file whole, or not at all.

    Parameters
    ----------
    path : str
    content : bytes
    force : bool
        Replace a file that may not be written, too.

    Raises
    ------
    OSError, FastIndexError
        As `OutputFile`.
    """
    with OutputFile(path, len(content), force=force) as output:
        output.write(0, np.frombuffer(content, np.uint8))


def _check_replaceable(path: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise FastIndexError(f"{path} is not a regular file and cannot be replaced; write to a file")


def _writable_map(file: int, size: int) -> mmap.mmap:
    mapped = uninterrupted(mmap.mmap, file, size)
    if hasattr(mapped, "madvise"):
        # Nothing is read before it is written; without this hint, the system reads megabytes ahead of each page.
        mapped.madvise(mmap.MADV_RANDOM)
    return mapped


def _reserve(file: int, size: int) -> None:
    """Extend a file to `size` bytes, with its space on disk allocated."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    zeros = memoryview(bytes(_ZEROS))
    for begin in range(0, size, _ZEROS):
        write_at(file, zeros[: size - begin], begin)
