"""Files that contain an array, opened for reading: as NumPy wrote them, or raw bytes."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import math
import mmap
import os
import stat
import weakref
from collections.abc import Iterable, Iterator
from copy import copy
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.core.integers import INT64_MAX
from fastindex.core.layout_fields import MOST_DIMENSIONS
from fastindex.errors import FastIndexError
from fastindex.jobs.positions import OPEN_FLAGS, can_read_once, close_quietly, expect_order, read_at, uninterrupted
from fastindex.moving.memory_maps import faults_raised
from fastindex.runtime.threads import run_chunks

Bytes = NDArray[np.uint8]

#: Shorter segments share too many of their pages with others for these to be dropped after each.
_LEAST_READ_ONCE = 16 << 10
#: In longer segments, the system reads ahead.
_MOST_SCATTERED = 1 << 20
#: How many segments of a box are requested at a time, so that the disk always has a request to work on. AMD EPYC
#: (family 26), virtual machine, 2026-11-22, 2 GiB in segments of 64 KiB: 8.3 s with one, 3.8, 3.4, 3.1 s with 2, 4, 8.
_AT_A_TIME = 4
#: NumPy refuses longer headers, but only after reading them.
_LONGEST_HEADER = 1 << 16
#: The magic number, the version and the length of the header.
_MOST_BEFORE_HEADER = 12
#: Opening a pipe does not wait for its other end.
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | OPEN_FLAGS


class FileIdentity(NamedTuple):
    """Which file a path leads to, and when it was last written: replacing it or writing to it changes this.

    Attributes
    ----------
    device, inode, size, mtime_ns, ctime_ns : int
    """

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """Return what the operating system says of a file."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


#: Formats of other programs, which are never meant as raw bytes, and how to get at their arrays.
_CONTAINERS = {
    ".npz": "save the array that you need as .npy, with numpy.save",
    ".onnx": "save what onnx.numpy_helper.to_array gives as .npy, with numpy.save",
    ".pt": "load it with torch, and save its tensors with safetensors.torch.save_file",
    ".pth": "load it with torch, and save its tensors with safetensors.torch.save_file",
}


class InputFile:
    """An open file that contains an array.

    Attributes
    ----------
    path : str
    start, nbytes : int
        Where in the file the array begins, and its size.
    dtype : dtype or None
        None for raw bytes.
    dimensions : tuple of int
    fortran_order : bool
        Whether the first dimension is the most minor.
    data : uint8 array
        The bytes of the array, mapped into memory.
    """

    def __init__(self, path: str, file: int) -> None:
        self.path = path
        self.dtype: np.dtype[Any] | None = None
        self._first_status = os.fstat(file)
        self.start, self.nbytes = 0, self._first_status.st_size
        self.dimensions: tuple[int, ...] = (self.nbytes,)
        self.fortran_order = False
        self.data = np.empty(0, np.uint8)
        self._map: mmap.mmap | None = None
        self._whole: InputFile | None = None
        self._file = file
        weakref.finalize(self, close_quietly, file)
        self._can_read_once = can_read_once(self._file)
        self._is_sequential = True

    @property
    def mode(self) -> int:
        """The type and the permissions of the file."""
        return self._first_status.st_mode

    @property
    def identity(self) -> FileIdentity:
        """Which file this is, as it was when it was opened."""
        return FileIdentity.of(self._first_status)

    def _has_changed(self) -> bool:
        """Whether the file was written to since it was opened.

        A program can set the time of the last write back, but not that of the last change of anything, which a new or
        lost name sets, too: another file may take this one's place while it is read.
        """
        first, now = self._first_status, os.fstat(self._file)
        if (now.st_size, now.st_mtime_ns) != (first.st_size, first.st_mtime_ns):
            return True
        return now.st_nlink == first.st_nlink and now.st_ctime_ns != first.st_ctime_ns

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise an error at the end of the block if the file changed since it was opened, or could not be read.

        Raises
        ------
        FastIndexError
            It was written to or truncated, or its owner or mode changed. Changes within a tick of the file system's
            clock, usually four milliseconds, go unnoticed.
        OSError
            The operating system could not read it.
        """
        failed = OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        try:
            with faults_raised(self.data, failed):
                yield
        finally:
            if self._has_changed():
                raise FastIndexError(f"{self.path} changed while it was read; nothing was written") from None

    def read(self, start: int, into: Bytes) -> None:
        """Fill an array with the file's bytes from `start` on, counted from the beginning of its array.

        Raises
        ------
        FastIndexError
            The file was truncated.
        """
        once = self._can_read_once and len(into) >= _LEAST_READ_ONCE
        try:
            count = read_at(self._file, memoryview(into.data), self.start + start, once)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None
        if count < len(into):
            raise FastIndexError(f"{self.path} has become shorter while it was read")

    def read_segments(self, segments: Iterable[tuple[int, int]], longest: int, into: Bytes) -> None:
        """Fill an array with segments of the file, one after the other.

        What the system had not cached before is not cached afterwards, where it supports that and segments are not
        short. A large file would evict everything else, and memory that is used again costs less than new memory.

        Parameters
        ----------
        segments : iterable of (int, int)
            Where each starts, as for `read`, and its bytes.
        longest : int
            The bytes of the longest.
        into : array of uint8

        Raises
        ------
        FastIndexError
            The file was truncated.
        """
        is_scattered = self._can_read_once and _LEAST_READ_ONCE <= longest < _MOST_SCATTERED
        self._expect(not is_scattered)
        if not is_scattered:
            at = 0
            for start, nbytes in segments:
                self.read(start, into[at : at + nbytes])
                at += nbytes
            return
        listed = list(segments)
        ends = list(itertools.accumulate(nbytes for _, nbytes in listed))

        def read(begin: int, end: int) -> None:
            for (start, nbytes), stop in zip(listed[begin:end], ends[begin:end], strict=True):
                self.read(start, into[stop - nbytes : stop])

        run_chunks(read, len(listed), _AT_A_TIME, -(-len(listed) // _AT_A_TIME))

    def _expect(self, is_sequential: bool) -> None:
        if is_sequential != self._is_sequential:
            self._is_sequential = is_sequential
            expect_order(self._file, is_sequential)

    def mapped(self) -> InputFile:
        """Map the bytes of the array as `data`, which takes no memory until it is read."""
        if self.nbytes:
            try:
                self._map = uninterrupted(mmap.mmap, self._file, self.start + self.nbytes, access=mmap.ACCESS_READ)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self.path) from None
            except ValueError:
                # mmap checks the size, which has just changed.
                raise FastIndexError(f"{self.path} has become shorter while it was read") from None
            self.data = np.frombuffer(self._map, np.uint8)[self.start :]
        return self

    def part(self, start: int, nbytes: int) -> InputFile:
        """Return raw bytes of the same open file, from `start` on.

        Raises
        ------
        FastIndexError
            It is too short.
        """
        if self.nbytes - start < nbytes:
            raise FastIndexError(f"{self.path} has become shorter: {nbytes} bytes from {start} on are not there")
        found = copy(self)
        # The file stays open as long as this one is there.
        found._whole = self
        found.start, found.nbytes, found.dimensions = start, nbytes, (nbytes,)
        return found

    def stream(self) -> BinaryIO:
        """Return the same open file as a stream."""
        return open(self.path, "rb", opener=lambda path, flags: os.dup(self._file))

    def release(self) -> None:
        """Release the memory of the map; pages are read again when needed."""
        release_map(self._map)

    def array(self) -> NDArray[Any]:
        """Return the array of a NumPy file, read-only."""
        order: Any = "F" if self.fortran_order else "C"
        return self.data.view(self.dtype or np.uint8).reshape(self.dimensions, order=order)


def check_readable(path: str) -> None:
    """Refuse a file of another program, by its name.

    Raises
    ------
    FastIndexError
    """
    kind = os.path.splitext(path)[1]
    if kind in _CONTAINERS:
        raise FastIndexError(
            f"{path} holds several arrays in a {kind} file, which is not read: {_CONTAINERS[kind]}. Read are .npy and "
            ".zarr, raw bytes, and checkpoints of .safetensors and .gguf"
        )


def open_input(path: str) -> InputFile:
    """Open a file.

    Raises
    ------
    OSError
        It cannot be read.
    FastIndexError
        It is not a regular file, is of another program (`check_readable`), is named ``.npy`` but is not a NumPy file,
        or is shorter than its header says.
    """
    check_readable(path)
    found = _opened(path)
    if not path.endswith(".npy"):
        return found.mapped()
    beginning = np.empty(min(found.nbytes, _LONGEST_HEADER + _MOST_BEFORE_HEADER), np.uint8)
    found.read(0, beginning)
    stream = io.BytesIO(beginning.tobytes())
    found.dimensions, found.fortran_order, dtype = _read_header(path, stream)
    found.start, found.dtype = stream.tell(), dtype
    there, found.nbytes = found.nbytes - found.start, dtype.itemsize * math.prod(found.dimensions)
    if there < found.nbytes:
        raise FastIndexError(
            f"{path} is cut short: {dtype} of {spelled(found.dimensions)} takes {found.nbytes} bytes after the "
            f"header, {there} are there"
        )
    return found.mapped()


def open_raw(path: str, start: int, nbytes: int | None, identity: FileIdentity | None = None) -> InputFile:
    """Open a part of a file, or from `start` on all of it, as raw bytes, whatever its name.

    Parameters
    ----------
    path : str
    start : int
    nbytes : int, optional
    identity : FileIdentity, optional
        Which file it has to be, in the state that it had when its header was read.

    Raises
    ------
    OSError
        It cannot be read.
    FastIndexError
        It is not a regular file, too short, or another file than `identity`.
    """
    found = _opened(path)
    check_identity(path, found.identity, identity)
    return found.part(start, max(found.nbytes - start, 0) if nbytes is None else nbytes)


def read_whole(path: str, most_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises
    ------
    OSError
        It cannot be read.
    FastIndexError
        It is not a regular file, or longer than `most_bytes`.
    """
    file = open_raw(path, 0, None)
    if file.nbytes > most_bytes:
        raise FastIndexError(f"{path} has {file.nbytes} bytes; {most_bytes} at most can be right")
    content = np.empty(file.nbytes, np.uint8)
    file.read(0, content)
    return content.tobytes()


def check_identity(path: str, found: FileIdentity, wanted: FileIdentity | None) -> None:
    """Require a path to lead to the file that it led to before, unchanged.

    Raises
    ------
    FastIndexError
    """
    if wanted is not None and found != wanted:
        raise FastIndexError(f"{path} was replaced or written to after its header was read; start again")


def place_inside(folder: str, name: str) -> str:
    """Return where a name in a folder leads to, links followed, which has to be inside that folder.

    Parameters
    ----------
    folder : str
        Without links, as of `os.path.realpath`.
    name : str

    Raises
    ------
    FastIndexError
        It leads out of the folder.
    """
    place = os.path.realpath(os.path.join(folder, name))
    if not Path(place).is_relative_to(folder):
        raise FastIndexError(f"{name} in {folder} leads outside the store, to {place}; nothing was read")
    return place


def _opened(path: str) -> InputFile:
    # Before opening, as opening a device may do something; afterwards, as it may be another file by then.
    check_regular(path, os.stat(path).st_mode)
    found = InputFile(path, os.open(path, _READ_FLAGS))
    check_regular(path, found.mode)
    return found


def check_regular(path: str, mode: int) -> None:
    """Require a file of this mode to be a regular one.

    Raises
    ------
    IsADirectoryError
    FastIndexError
        It is a pipe, a device, or the like.
    """
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise FastIndexError(f"{path} is not a regular file and cannot be read in any order; copy it to one")


def _read_header(path: str, file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        reader = readers.get(np.lib.format.read_magic(file))
        header = reader(_Header(file)) if reader is not None else None
    except FastIndexError:
        raise
    except TypeError:
        # NumPy sorts the keys of any header.
        raise FastIndexError(f"{path} is not a .npy file: its header has keys that are no strings") from None
    except Exception as error:
        # Whatever NumPy makes of a stranger's header: of brackets nested thousands deep, Python's parser says nothing.
        raise FastIndexError(f"{path} is not a .npy file: {str(error) or 'its header nests too deep'}") from None
    if header is None or header[2].hasobject or header[2].names is not None or header[2].subdtype is not None:
        raise FastIndexError(f"{path} holds Python objects or records; an array of numbers is needed")
    dimensions, _, dtype = header
    if dtype.itemsize == 0 or len(dimensions) > MOST_DIMENSIONS or not all(map(_is_size, dimensions)):
        raise FastIndexError(f"{path} is not a .npy file: no array is {dtype} of the shape {_cut(dimensions)}")
    return header


def _is_size(size: object) -> bool:
    return type(size) is int and 0 <= size <= INT64_MAX


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


class _Header:
    """Wraps a file so that NumPy can read the header of float8_e5m2, which `numpy.save` writes as ``<f1``."""

    def __init__(self, file: io.BytesIO) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        """Read bytes."""
        if size > _LONGEST_HEADER:
            raise ValueError(f"its header takes {size} bytes; the most is {_LONGEST_HEADER}")
        return self._file.read(size).replace(b"'<f1'", b"'|V1'")


def release_map(mapped: mmap.mmap | None) -> None:
    """Release the memory of a mapped file."""
    if mapped is not None and hasattr(mapped, "madvise"):
        # The pages stay in the system's cache, so nothing that was written to them is lost.
        mapped.madvise(mmap.MADV_DONTNEED)


def spelled(dimensions: tuple[int, ...]) -> str:
    """Return dimensions as messages print them."""
    return f"({', '.join(map(str, dimensions))})"
