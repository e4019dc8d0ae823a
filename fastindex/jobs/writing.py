"""Atomic output files, and control of their page cache while they are written."""

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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fastindex.algebra.segments import Box, byte_segments, segment_costs
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.jobs.input_files import Bytes, release_map
from fastindex.jobs.positions import (
    OPEN_FLAGS,
    can_read_once,
    close_file,
    close_quietly,
    free_bytes,
    release_written,
    sync_folder,
    uninterrupted,
    write_at,
)
from fastindex.lazy import lazy_property

#: Bytes written before the kernel is asked to write them back and release their pages. AMD EPYC (family 26), virtual
#: machine, 2026-11-22, 6 GiB in writes of 16 KiB: 40 s without requests, 20 s with requests between writes, 14 to 16 s
#: with requests from a separate thread every 256, 512 or 1,024 MiB. Smaller parts are more fragmented on disk.
PART_BYTES = 512 << 20


class WrittenBehind:
    """Write-behind: a thread writes back a file's dirty pages and releases them while more is written.

    Otherwise the kernel allocates new page cache for every write until memory is full, and then searches dirty pages
    for some to reclaim. Reusing pages costs a fraction of that.

    Parameters
    ----------
    part_bytes : int, optional
        At most two such parts are in flight to the disk; then the writer waits.
    """

    def __init__(self, part_bytes: int | None = None) -> None:
        self._part_bytes = PART_BYTES if part_bytes is None else part_bytes
        self._count = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def wrote(self, file: int, count: int) -> None:
        """Count bytes written to an open file; thread-safe."""
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
        """Wait until the file may be closed."""
        if self._thread is not None:
            self._thread.join()


#: Shorter writes share too many pages with others to go to the disk each.
_LEAST_WRITE_ONCE = 1 << 20
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
    # The format has no names for the types of ml_dtypes.
    name = dtype.str if dtype.isbuiltin == 1 else f"<V{dtype.itemsize}"
    fields = {"descr": name, "fortran_order": False, "shape": dimensions}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


def header_for(path: str, dtype: np.dtype[Any], dimensions: tuple[int, ...]) -> bytes:
    """Return the NumPy header for a path that ends in ``.npy``, else empty bytes."""
    return npy_header(dtype, dimensions) if path.endswith(".npy") else b""


class OutputFile:
    """An output file that is written in any order and appears under its name only when complete.

    If the system supports it, the bytes go to an unnamed file in the same folder, so that even a killed process leaves
    no file; otherwise the file has a temporary name. Disk space is reserved at the start, so a full disk is reported
    before the work starts. Leaving the ``with`` block flushes the file and gives it its name; an exception removes it.

    Replacing an existing file needs a temporary name between two system calls; a process killed at that moment leaves a
    complete file with that name beside the old one.

    Parameters
    ----------
    path : str
        An existing file is replaced; a link is followed.
    nbytes : int
        Bytes of the array.
    header : bytes
        Written before the array.
    force : bool
        Also replace a read-only file.

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
        self._temporary = name_beside(self._target)
        self._file: int | None = None
        self._is_unnamed = False
        self._can_write_once = False
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
        """Write bytes at offset `start` of the array; thread-safe.

        Raises
        ------
        OSError
        """
        file = self._file
        assert file is not None
        try:
            once = self._can_write_once and len(content) >= _LEAST_WRITE_ONCE
            write_at(file, memoryview(content.data), len(self._header) + start, once)
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
            found = os.stat(self.path).st_mode  # not the target: a pipe in /dev/fd has no path
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None
        _check_replaceable(self.path, found)
        if not self._force and not (found & _WRITABLE and os.access(self._target, os.W_OK)):
            # root can write it, and write permission on the folder suffices to replace it: respect the read-only mode.
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
        self._can_write_once = can_read_once(self._file)
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
        """Release the memory of the map; the kernel still writes its dirty pages to disk."""
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
        """Give the complete file its name and sync the folder; an error restores the previous state."""
        if self._is_unnamed and self._has_linked(file):
            try:
                self._close()
                sync_folder(self._target.parent)
            except BaseException:
                _remove(self._target)
                raise
            return
        # Windows cannot rename open files.
        self._close()
        self._replace()

    def _has_linked(self, file: int) -> bool:
        """Link the unnamed file to the target if that is new, else to the temporary name; return whether it was new."""
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
        """Rename the temporary file to the target; the old file keeps a second name until the folder is synced."""
        is_there = self._target.exists()
        kept = name_beside(self._target)
        _unfinished.add(kept)
        try:
            if is_there:
                # Fails on file systems without hard links and for files of other users: then there is no rollback.
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


@dataclass(frozen=True, slots=True)
class WrittenArray:
    """An array in a layout that is written to a file, or to a part of one.

    Attributes
    ----------
    file : OutputFile
    shape : Shape
    start : int
        Byte offset of the array, the header of the file not counted.
    """

    file: OutputFile
    shape: Shape
    start: int = 0

    @property
    def steps(self) -> tuple[int, ...]:
        """The granularity of boxes: no restriction beyond that of the layout."""
        return (1,) * self.shape.rank

    def costs(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        """Return the memory that a box of these sizes takes, and its cost."""
        return segment_costs(self.shape, sizes)

    def write_bytes(self, start: int, content: Bytes) -> None:
        """Write bytes at an offset of the array."""
        self.file.write(self.start + start, content)

    def write(self, box: Box, data: Bytes) -> None:
        """Write a box, packed as by `box_shape`."""
        at = 0
        for start, nbytes in byte_segments(self.shape, box):
            self.write_bytes(start, data[at : at + nbytes])
            at += nbytes


def name_beside(target: Path) -> Path:
    """Return an unused temporary name in the folder of `target`."""
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
    # src_dir_fd is ignored for an absolute path, but makes Python call linkat, which follows the link in /proc.
    uninterrupted(os.link, f"/proc/self/fd/{file}", target, src_dir_fd=file, follow_symlinks=True)


_unfinished: set[Path] = set()
# One entry per active writer into a folder. No lock: a signal handler could deadlock on it.
_writers: list[None] = []
_ends = False
_PATIENCE_SECONDS = 5.0


def remove_unfinished() -> None:
    """Remove incomplete outputs, for a process about to end without leaving its ``with`` blocks."""
    global _ends
    _ends = True
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while _writers and time.monotonic() < deadline:
        time.sleep(0.001)
    for path in [*_unfinished]:
        _remove(path)


@contextlib.contextmanager
def writes_into_folder() -> Iterator[None]:
    """Make `remove_unfinished` wait for the block: a write during the removal would recreate the folder.

    Raises
    ------
    OSError
        The process is ending.
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
    """Register a folder with `remove_unfinished` for the duration of the block."""
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
    """Write a file atomically.

    Parameters
    ----------
    path : str
    content : bytes
    force : bool
        Also replace a read-only file.

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
        # Pages are written before they are read; without this hint, the kernel reads ahead megabytes per page.
        mapped.madvise(mmap.MADV_RANDOM)
    return mapped


def _reserve(file: int, size: int) -> None:
    """Extend a file to `size` bytes and allocate its disk space."""
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
