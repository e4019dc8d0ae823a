"""Input files that contain an array: NumPy files or raw bytes."""

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
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.jobs.positions import OPEN_FLAGS, can_read_once, close_quietly, expect_order, read_at, uninterrupted
from fastindex.moving.memory_maps import faults_raised
from fastindex.runtime.threads import run_chunks

Bytes = NDArray[np.uint8]

#: Shorter segments share too many pages with others to drop pages after each read.
_LEAST_READ_ONCE = 16 << 10
#: In segments of at least this size, the kernel reads ahead.
_MOST_SCATTERED = 1 << 20
#: Segments of a box requested concurrently, to keep the disk busy. AMD EPYC (family 26), virtual machine, 2026-11-22,
#: 2 GiB in segments of 64 KiB: 8.3 s with one, 3.8, 3.4, 3.1 s with 2, 4, 8.
_AT_A_TIME = 4
#: NumPy rejects longer headers, but only after reading them.
_LONGEST_HEADER = 1 << 16
#: Size of the magic number, the version and the header length.
_MOST_BEFORE_HEADER = 12
#: O_NONBLOCK: opening a pipe does not wait for its other end.
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | OPEN_FLAGS


class FileIdentity(NamedTuple):
    """Identity and version of a file, from `os.stat`: changes if the file is replaced or written to.

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
        """Return the identity from a stat result."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


#: Container formats that are never raw bytes, and how to extract their arrays.
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
        Byte offset of the array in the file, and its size.
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
        self._is_sequential: bool | None = None

    @property
    def mode(self) -> int:
        """The type and the permissions of the file."""
        return self._first_status.st_mode

    @property
    def identity(self) -> FileIdentity:
        """Identity of the file when it was opened."""
        return FileIdentity.of(self._first_status)

    def _has_changed(self) -> bool:
        """Whether the file was written to since it was opened.

        A program can reset mtime but not ctime. Adding or removing a hard link also updates ctime; that is allowed,
        because another file may replace this one while it is read.
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
            The file was written to or truncated, or its owner or mode changed. Changes within a tick of the file
            system's clock, usually four milliseconds, are not detected.
        OSError
            The operating system could not read the file.
        """
        failed = OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        try:
            with faults_raised(self.data, failed):
                yield
        finally:
            if self._has_changed():
                raise FastIndexError(f"{self.path} changed while it was read; nothing was written") from None

    def read(self, start: int, into: Bytes) -> None:
        """Fill `into` with bytes from offset `start` of the stored array.

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
        """Fill `into` with the concatenated segments of the file.

        If the system supports it and segments are not short, pages that were not in the page cache before are not kept
        there. A large file would evict all other pages, and reusing memory is cheaper than allocating it.

        Parameters
        ----------
        segments : iterable of (int, int)
            Offset, as for `read`, and size of each segment in bytes.
        longest : int
            Size of the longest segment in bytes.
        into : array of uint8

        Raises
        ------
        FastIndexError
            The file was truncated.
        """
        is_scattered = self._can_read_once and _LEAST_READ_ONCE <= longest < _MOST_SCATTERED
        self.expect(not is_scattered)
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

    def expect(self, is_sequential: bool) -> None:
        """Advise the kernel how the file is read next."""
        if is_sequential != self._is_sequential:
            self._is_sequential = is_sequential
            expect_order(self._file, is_sequential)

    def mapped(self) -> InputFile:
        """Map the bytes of the array as `data`; pages take memory only once they are read."""
        if self.nbytes:
            try:
                self._map = uninterrupted(mmap.mmap, self._file, self.start + self.nbytes, access=mmap.ACCESS_READ)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self.path) from None
            except ValueError:
                # mmap raises ValueError if the file is shorter than the mapping.
                raise FastIndexError(f"{self.path} has become shorter while it was read") from None
            self.data = np.frombuffer(self._map, np.uint8)[self.start :]
        return self

    def part(self, start: int, nbytes: int) -> InputFile:
        """Return `nbytes` raw bytes at `start` as another view of the same open file.

        Raises
        ------
        FastIndexError
            The file is too short.
        """
        if self.nbytes - start < nbytes:
            raise FastIndexError(f"{self.path} has become shorter: it ends before byte {start + nbytes}")
        found = copy(self)
        # This reference keeps the file open.
        found._whole = self
        found.start, found.nbytes, found.dimensions = start, nbytes, (nbytes,)
        return found

    def stream(self) -> BinaryIO:
        """Return the same open file as a stream."""
        return open(self.path, "rb", opener=lambda path, flags: os.dup(self._file))

    def release(self) -> None:
        """Release the memory of the map; its pages are read again when needed."""
        release_map(self._map)

    def array(self) -> NDArray[Any]:
        """Return the array of a NumPy file, read-only."""
        order: Any = "F" if self.fortran_order else "C"
        return self.data.view(self.dtype or np.uint8).reshape(self.dimensions, order=order)


def check_readable(path: str) -> None:
    """Reject container formats of other programs, by the file extension.

    Raises
    ------
    FastIndexError
    """
    kind = os.path.splitext(path)[1]
    if kind in _CONTAINERS:
        raise FastIndexError(
            f"{path} holds several arrays in a {kind} file, which fastindex does not read: {_CONTAINERS[kind]}. "
            "It reads .npy and .zarr, raw bytes, and checkpoints of .safetensors and .gguf"
        )


def open_input(path: str) -> InputFile:
    """Open a file.

    Raises
    ------
    OSError
        The file cannot be read.
    FastIndexError
        The file is not regular, has a container format (`check_readable`), is named ``.npy`` but is not a NumPy file,
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
            f"header, and {there} follow it"
        )
    return found.mapped()


def open_raw(path: str, nbytes: int | None = None, identity: FileIdentity | None = None) -> InputFile:
    """Open a file, or its first bytes, as raw bytes, regardless of its name.

    Parameters
    ----------
    path : str
    nbytes : int, optional
        Default: all of them.
    identity : FileIdentity, optional
        The expected identity of the file, from when its header was read.

    Raises
    ------
    OSError
        The file cannot be read.
    FastIndexError
        The file is not regular, too short, or does not match `identity`.
    """
    found = _opened(path)
    check_identity(path, found.identity, identity)
    return found.part(0, found.nbytes if nbytes is None else nbytes)


def read_whole(path: str, most_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises
    ------
    OSError
        The file cannot be read.
    FastIndexError
        The file is not regular, or longer than `most_bytes`.
    """
    file = open_raw(path)
    if file.nbytes > most_bytes:
        raise FastIndexError(f"{path} has {file.nbytes} bytes; a valid file has at most {most_bytes}")
    content = np.empty(file.nbytes, np.uint8)
    file.read(0, content)
    return content.tobytes()


def check_identity(path: str, found: FileIdentity, wanted: FileIdentity | None) -> None:
    """Require a file to have the wanted identity: not replaced, not written to.

    Raises
    ------
    FastIndexError
    """
    if wanted is not None and found != wanted:
        raise FastIndexError(f"{path} was replaced or written to after its header was read; start again")


def path_text(path: object, name: str) -> str:
    """Return a path as text.

    Raises
    ------
    ArgumentTypeError
        Neither text nor an object with a path.
    FastIndexError
        No file system takes it.
    """
    try:
        found = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        found = path
    if not isinstance(found, str):
        raise ArgumentTypeError(f"{name} must be a path, as a str or a pathlib.Path, got {path!r:.200}")
    try:
        os.fsencode(found)
    except UnicodeEncodeError:
        raise FastIndexError(f"{name} must be a path, {found!r:.200} has a lone surrogate") from None
    if "\0" in found:
        raise FastIndexError(f"{name} must be a path, {found!r:.200} has a zero byte")
    return found


def place_inside(folder: str, name: str) -> str:
    """Return the real path of a name in a folder, which must be inside the folder after links are resolved.

    Parameters
    ----------
    folder : str
        Path without links, as from `os.path.realpath`.
    name : str

    Raises
    ------
    FastIndexError
        The path is outside the folder.
    """
    place = os.path.realpath(os.path.join(folder, name))
    if not Path(place).is_relative_to(folder):
        raise FastIndexError(f"{name} in {folder} leads outside the store, to {place}; nothing was read")
    return place


def _opened(path: str) -> InputFile:
    # Checked before opening, since opening a device can have side effects, and after, since the file may be replaced.
    check_regular(path, os.stat(path).st_mode)
    found = InputFile(path, os.open(path, _READ_FLAGS))
    check_regular(path, found.mode)
    return found


def check_regular(path: str, mode: int) -> None:
    """Require the mode to be that of a regular file.

    Raises
    ------
    IsADirectoryError
    FastIndexError
        The file is a pipe, a device, or the like.
    """
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise FastIndexError(f"{path} is not a regular file and cannot be read in any order; copy it to one")


def _read_header(path: str, file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    # A header of version 3 differs from one of version 2 only in the names of fields.
    of_2 = np.lib.format.read_array_header_2_0
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): of_2, (3, 0): of_2}
    try:
        version = np.lib.format.read_magic(file)
        if version not in readers:
            raise FastIndexError(
                f"{path} has version {version[0]}.{version[1]} of NumPy's format; 1.0 to 3.0 can be read"
            )
        header = readers[version](_Header(file))
    except FastIndexError:
        raise
    except TypeError:
        # NumPy sorts the keys of a header before it checks them.
        raise FastIndexError(f"{path} is not a .npy file: its header has keys that are not strings") from None
    except Exception as error:
        # NumPy raises any type for untrusted headers; for deeply nested brackets, Python's error has no message.
        raise FastIndexError(f"{path} is not a .npy file: {str(error) or 'its header nests too deep'}") from None
    if header[2].hasobject or header[2].names is not None or header[2].subdtype is not None:
        raise FastIndexError(f"{path} holds Python objects or records; an array of numbers is needed")
    dimensions, _, dtype = header
    if dtype.itemsize == 0 or len(dimensions) > MOST_DIMENSIONS or not all(map(_is_size, dimensions)):
        raise FastIndexError(f"{path} is not a .npy file: no array of {dtype} can have the shape {_cut(dimensions)}")
    return header


def _is_size(size: object) -> bool:
    return type(size) is int and 0 <= size <= INT64_MAX


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


class _Header:
    """Wrapper of a file so that NumPy can read the header of float8_e5m2, which `numpy.save` writes as ``<f1``."""

    def __init__(self, file: io.BytesIO) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        """Read bytes."""
        if size > _LONGEST_HEADER:
            raise ValueError(f"its header takes {size} bytes, and at most {_LONGEST_HEADER} are read")
        return self._file.read(size).replace(b"'<f1'", b"'|V1'")


def release_map(mapped: mmap.mmap | None) -> None:
    """Release the memory of a mapped file."""
    if mapped is not None and hasattr(mapped, "madvise"):
        # Pages stay in the page cache, so no written data is lost.
        mapped.madvise(mmap.MADV_DONTNEED)


def spelled(dimensions: tuple[int, ...]) -> str:
    """Format dimensions for messages."""
    return f"({', '.join(map(str, dimensions))})"
