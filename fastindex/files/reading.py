"""Arrays in files, read box by box; `fastindex.files.writing` writes them.

A file named ``.npy`` is a NumPy file. Any other contains raw bytes without a header: a buffer as it lies in memory, or
a logical array, last dimension most minor. The format has no names for the types of ml_dtypes: `numpy.save` writes
bfloat16 as ``V2`` and the narrower types as ``V1``. Both can be read, and so can unsigned integers of the same width
that hold the bits.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import mmap
import os
import stat
import tokenize
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arguments.arrays import buffer_dtype
from fastindex.arguments.buffers import memory_dimensions
from fastindex.cpu.map_faults import faults_raised
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.files.positions import read_at
from fastindex.lowering.box_segments import Box, byte_segments
from fastindex.lowering.box_sizes import segment_costs
from fastindex.shapes.element_types import ElementType
from fastindex.shapes.integers import INT64_MAX
from fastindex.shapes.layout import Layout
from fastindex.shapes.layout_rules import MOST_DIMENSIONS
from fastindex.shapes.shape import Shape

Bytes = NDArray[np.uint8]

_MAGIC = b"\x93NUMPY"
_AT_ONCE = 1 << 18
#: NumPy refuses longer headers, but only after reading them.
_LONGEST_HEADER = 1 << 16


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

    def __init__(self, path: str, file: io.FileIO, dtype: np.dtype[Any] | None = None) -> None:
        self.path = path
        self.dtype = dtype
        self.start, self.nbytes = 0, os.fstat(file.fileno()).st_size
        self.dimensions: tuple[int, ...] = (self.nbytes,)
        self.fortran_order = False
        self.data = np.empty(0, np.uint8)
        self._map: mmap.mmap | None = None
        self._file = os.dup(file.fileno())
        self._first_stamp = self._stamp()
        weakref.finalize(self, os.close, self._file)

    def _stamp(self) -> tuple[int, int]:
        """Return what changes with every write: the size, and the time of the last write in nanoseconds."""
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise an error at the end of the block if the file changed since it was opened, or could not be read.

        Raises
        ------
        FastIndexError
            It was written to, or truncated. Changes within a tick of the file system's clock, usually four
            milliseconds, go unnoticed.
        OSError
            The operating system could not read it.
        """
        failed = OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        try:
            with faults_raised(self.data, failed):
                yield
        finally:
            if self._stamp() != self._first_stamp:
                raise FastIndexError(f"{self.path} changed while it was read; nothing was written") from None

    def read(self, start: int, into: Bytes) -> None:
        """Fill an array with the file's bytes from `start` on, counted from the beginning of its array.

        Raises
        ------
        FastIndexError
            The file was truncated.
        """
        rest, at = memoryview(into.data), self.start + start
        while rest:
            count = read_at(self._file, rest, at)
            if count == 0:
                raise FastIndexError(f"{self.path} has become shorter while it was read")
            rest, at = rest[count:], at + count

    def mapped(self) -> InputFile:
        """Map the bytes of the array as `data`, which takes no memory until it is read."""
        if self.nbytes:
            try:
                self._map = mmap.mmap(self._file, self.start + self.nbytes, access=mmap.ACCESS_READ)
            except ValueError:
                # mmap checks the size, which has just changed.
                raise FastIndexError(f"{self.path} has become shorter while it was read") from None
            self.data = np.frombuffer(self._map, np.uint8)[self.start :]
        return self

    def release(self) -> None:
        """Release the memory of the map; pages are read again when needed."""
        release_map(self._map)

    def array(self) -> NDArray[Any]:
        """Return the array of a NumPy file, read-only."""
        order: Any = "F" if self.fortran_order else "C"
        return self.data.view(self.dtype or np.uint8).reshape(self.dimensions, order=order)


def open_input(path: str) -> InputFile:
    """Open a file.

    Raises
    ------
    OSError
        It cannot be read.
    FastIndexError
        It is not a regular file, contains several arrays (``.npz``), is named ``.npy`` but is not a NumPy file, or is
        shorter than its header says.
    """
    if path.endswith(".npz"):
        raise FastIndexError(f"{path} holds several arrays; save the one you need as .npy, with numpy.save")
    # Check before opening: opening a pipe would wait for its other end.
    _check_regular(path, os.stat(path).st_mode)
    with open(path, "rb", buffering=0) as file:
        found = InputFile(path, file)
        if not path.endswith(".npy"):
            return found.mapped()
        with io.BufferedReader(file) as buffered:
            found.dimensions, found.fortran_order, dtype = _read_header(path, buffered)
            found.start = buffered.tell()
        found.dtype = dtype
        there, found.nbytes = found.nbytes - found.start, dtype.itemsize * math.prod(found.dimensions)
    if there < found.nbytes:
        raise FastIndexError(
            f"{path} is cut short: {dtype} of {_spelled(found.dimensions)} takes {found.nbytes} bytes after the "
            f"header, {there} are there"
        )
    return found.mapped()


def _check_regular(path: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise FastIndexError(f"{path} is not a regular file and cannot be read in any order; copy it to one")


def _read_header(path: str, file: io.BufferedIOBase) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        reader = readers.get(np.lib.format.read_magic(file))
        header = reader(_Header(file)) if reader is not None else None
    except (ValueError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
        # The last three come from Python's parser of literals, for brackets nested thousands deep.
        raise FastIndexError(f"{path} is not a .npy file: {str(error) or 'its header nests too deep'}") from None
    if header is None or header[2].hasobject or header[2].names is not None:
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

    def __init__(self, file: io.BufferedIOBase) -> None:
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


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in a file, in a layout.

    Attributes
    ----------
    file : InputFile
    shape : Shape
        Its layout in the file.
    is_narrowed : bool
        Whether the file stores integers of one byte that become values of fewer bits.
    """

    file: InputFile
    shape: Shape
    is_narrowed: bool = False

    def costs(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        """Return the memory that a box of these sizes takes, and its cost."""
        return segment_costs(self.shape, sizes)

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for reading boxes; at its end, the file must be unchanged."""
        return self.file.unchanged()

    def read(self, box: Box, into: Bytes) -> None:
        """Read a box, packed as by `box_shape`.

        Raises
        ------
        FastIndexError
            The file was truncated, or contains values that the element type does not have.
        """
        at = 0
        for start, nbytes in byte_segments(self.shape, box):
            self.file.read(start, into[at : at + nbytes])
            at += nbytes
        self._convert(into)

    def whole(self) -> Bytes:
        """Return all bytes; mapped, unless they have to be converted."""
        dtype = self.file.dtype
        if (dtype is None or dtype.isnative) and not self.is_narrowed:
            return self.file.data
        content = np.empty(self.file.nbytes, np.uint8)
        self.file.read(0, content)
        self._convert(content)
        return content

    def _convert(self, content: Bytes) -> None:
        dtype = self.file.dtype
        if self.is_narrowed:
            _narrow(self.file, self.shape.element_type, content)
        elif dtype is not None and not dtype.isnative:
            content.view(dtype).byteswap(inplace=True)


def stored_buffer(file: InputFile, shape: Shape) -> StoredArray:
    """Return a file as the physical buffer of `shape`.

    A NumPy file may instead contain the array itself, if its layout is that of the file (``{1,0}`` for C order), or its
    dimensions in memory order, if the layout only orders them.

    Parameters
    ----------
    file : InputFile
    shape : Shape

    Raises
    ------
    FastIndexError
        The size differs, or it has more than one dimension.
    ArgumentTypeError
        The dtype differs.
    """
    if file.dtype is not None and not _is_array_of(file, shape):
        if len(file.dimensions) != 1:
            raise FastIndexError(
                f"{file.path} has the dimensions {_spelled(file.dimensions)}, a buffer of {shape.cut_text()} has one; "
                "pack takes the array itself"
            )
        raw = file.dtype.itemsize == 1 and file.dtype.kind in "uiV"
        if not raw:
            _check_dtype(file, shape, buffer_dtype(shape))
    _check_size(file, shape.nbytes, f"a buffer of {shape.cut_text()}", f"{shape.slot_count} slots")
    return StoredArray(file, shape)


def _is_array_of(file: InputFile, shape: Shape) -> bool:
    """Whether a file contains the array itself in the layout of NumPy's files: the same bytes."""
    if len(file.dimensions) < 2:
        return False
    in_order_of_memory = not file.fortran_order and file.dimensions == memory_dimensions(shape) != shape.dimensions
    if not in_order_of_memory and (
        file.dimensions != shape.dimensions or shape != plain_shape(shape, file.fortran_order)
    ):
        return False
    _check_dtype(file, shape, shape.element_type.numpy_dtype)
    return True


def stored_array(file: InputFile, shape: Shape) -> StoredArray:
    """Return a file as the logical array of `shape`.

    Parameters
    ----------
    file : InputFile
    shape : Shape
        Its element type and dimensions.

    Raises
    ------
    FastIndexError
        The dimensions or the size differ.
    ArgumentTypeError
        The dtype differs.
    """
    if file.dtype is not None:
        if file.dimensions != shape.dimensions:
            raise FastIndexError(
                f"{file.path} has the dimensions {_spelled(file.dimensions)}, {shape.cut_text()} has "
                f"{_spelled(shape.dimensions)}"
            )
        _check_dtype(file, shape, shape.element_type.numpy_dtype)
    plain = plain_shape(shape, file.fortran_order)
    _check_size(file, plain.nbytes, f"the array of {shape.cut_text()}", f"{plain.element_count} elements")
    is_narrowed = shape.element_type.is_sub_byte and file.dtype is not None and file.dtype.kind in "ui"
    return StoredArray(file, plain, is_narrowed)


def plain_shape(shape: Shape, fortran_order: bool = False) -> Shape:
    """Return the shape of an array in a NumPy file: unpacked, without tiles."""
    layout = Layout.ascending(shape.rank) if fortran_order else None
    return Shape(shape.element_type, shape.dimensions, layout)


def _check_size(file: InputFile, needed: int, what: str, count: str) -> None:
    size = file.nbytes
    if size == needed:
        return
    hint = ""
    first = np.zeros(min(len(_MAGIC), size), np.uint8)
    file.read(0, first)
    if file.dtype is None and first.tobytes() == _MAGIC:
        hint = "; it is a NumPy file, whose name has to end in .npy"
    raise FastIndexError(f"{what} takes {needed} bytes ({count}), {file.path} has {size}{hint}")


def _check_dtype(file: InputFile, shape: Shape, wanted: np.dtype[Any]) -> None:
    found = file.dtype
    assert found is not None
    if found.newbyteorder("=") == wanted:
        return
    element_type = shape.element_type
    kinds = "Vui" if element_type.is_sub_byte else "Vu"
    unnamed = ""
    if not has_name(wanted):
        if found.itemsize == wanted.itemsize and found.kind in kinds:
            return
        unnamed = f" (V{wanted.itemsize} in a .npy file, or its bits as uint{8 * wanted.itemsize})"
    raise ArgumentTypeError(f"{file.path} holds {found}, {shape.cut_text()} needs {wanted}{unnamed}; convert it first")


def has_name(dtype: np.dtype[Any]) -> bool:
    """Whether the NumPy format has a name for a type; it has none for those of ml_dtypes."""
    return dtype.isbuiltin == 1


def _narrow(file: InputFile, element_type: ElementType, content: Bytes) -> None:
    """Turn one-byte integers into what ml_dtypes stores for narrower values: their low bits."""
    bits = element_type.bits
    signed = element_type.kind == "signed"
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    values = content.view(file.dtype or np.uint8)
    for begin in range(0, len(values), _AT_ONCE):
        part = values[begin : begin + _AT_ONCE]
        outside = (part < low) | (part >= high)
        if outside.any():
            value = part[int(outside.argmax())]
            raise FastIndexError(f"{file.path} holds {value}; {element_type} goes from {low} to {high - 1}")
        content[begin : begin + _AT_ONCE] &= (1 << bits) - 1


def _spelled(dimensions: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, dimensions))})"
