"""Arrays in files, read through a memory map; `fastindex.files.writing` writes them.

A name that ends in ``.npy`` is a NumPy file. Any other is raw bytes, without a header: a buffer as it lies in memory,
or a logical array, its last dimension the most minor. NumPy files do not know the types of ml_dtypes: `numpy.save`
stores bfloat16 as ``V2`` and the narrower types as ``V1``. That is read here too, and so are unsigned integers of the
same width that hold the bits.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arguments.arrays import buffer_dtype
from fastindex.arguments.buffers import memory_dimensions
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.files.map_faults import faults_raised
from fastindex.shapes.element_types import ElementType
from fastindex.shapes.layout import Layout
from fastindex.shapes.shape import Shape

Bytes = NDArray[np.uint8]
#: Allocates that many bytes.
Scratch = Callable[[int], Bytes]

_MAGIC = b"\x93NUMPY"
_AT_ONCE = 1 << 22


class Descriptor:
    """A descriptor of a file, closed when nobody needs it."""

    def __init__(self, file: int) -> None:
        self._file = os.dup(file)
        self.first_stamp = self.stamp()

    def __del__(self) -> None:
        os.close(self._file)

    def stamp(self) -> tuple[int, int]:
        """Return what changes with every write: the size, and the time of the last one in nanoseconds."""
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True, eq=False)
class InputFile:
    """An open input file.

    Attributes
    ----------
    path : str
    data : uint8 array
        The bytes, mapped: those of the array, without the header.
    dtype : dtype or None
        None for raw bytes.
    dimensions : tuple of int
    fortran_order : bool
        Whether the first dimension is the most minor.
    map : mmap or None
        None for an empty file.
    descriptor : Descriptor
        The file itself, whatever happens to its name.
    """

    path: str
    data: Bytes
    dtype: np.dtype[Any] | None
    dimensions: tuple[int, ...]
    fortran_order: bool
    map: mmap.mmap | None
    descriptor: Descriptor

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise an error at the end of the block if the file has changed since it was opened, or could not be read.

        Raises
        ------
        FastIndexError
            It was written to, or cut short. What file systems do not see within a tick of their clocks, mostly four
            milliseconds, is not seen here either.
        OSError
            The system could not read it.
        """
        failed = OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        try:
            with faults_raised(self.data, failed):
                yield
        finally:
            if self.descriptor.stamp() != self.descriptor.first_stamp:
                raise FastIndexError(f"{self.path} changed while it was read; nothing was written") from None

    def release(self) -> None:
        """Release the pages that hold parts of the file; they are read again when needed."""
        release_map(self.map)

    def array(self) -> NDArray[Any]:
        """Return the array of a NumPy file, read-only."""
        order: Any = "F" if self.fortran_order else "C"
        return self.data.view(self.dtype or np.uint8).reshape(self.dimensions, order=order)


def open_input(path: str) -> InputFile:
    """Map a file.

    Raises
    ------
    OSError
        It cannot be read.
    FastIndexError
        It is not a regular file, holds several arrays (``.npz``), is named ``.npy`` but is not one, or is shorter than
        its header says.
    """
    if path.endswith(".npz"):
        raise FastIndexError(f"{path} holds several arrays; save the one you need as .npy, with numpy.save")
    # Before it is opened: a pipe would wait for its other end.
    _check_regular(path, os.stat(path).st_mode)
    with open(path, "rb") as file:
        descriptor = Descriptor(file.fileno())
        size = descriptor.first_stamp[0]
        if not path.endswith(".npy"):
            content, mapped = _mapped(file, size)
            return InputFile(path, content, None, (size,), False, mapped, descriptor)
        dimensions, fortran_order, dtype = _read_header(path, file)
        start = file.tell()
        needed = dtype.itemsize * math.prod(dimensions)
        if size - start < needed:
            raise FastIndexError(
                f"{path} is cut short: {dtype} of {_spelled(dimensions)} takes {needed} bytes after the header, "
                f"{size - start} are there"
            )
        content, mapped = _mapped(file, size)
        return InputFile(path, content[start : start + needed], dtype, dimensions, fortran_order, mapped, descriptor)


def _check_regular(path: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise FastIndexError(f"{path} is not a regular file and cannot be mapped into memory; copy it to one")


def _mapped(file: io.BufferedReader, size: int) -> tuple[Bytes, mmap.mmap | None]:
    if size == 0:
        return np.empty(0, np.uint8), None
    mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, np.uint8), mapped


def _read_header(path: str, file: io.BufferedReader) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        reader = readers.get(np.lib.format.read_magic(file))
        header = reader(_Header(file)) if reader is not None else None
    except (ValueError, SyntaxError) as error:
        raise FastIndexError(f"{path} is not a .npy file: {error}") from None
    if header is None or header[2].hasobject or header[2].names is not None:
        raise FastIndexError(f"{path} holds Python objects or records; an array of numbers is needed")
    return header


class _Header:
    """A file whose header NumPy can read even if `numpy.save` wrote float8_e5m2, which it spells ``<f1``."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        """Read bytes."""
        return self._file.read(size).replace(b"'<f1'", b"'|V1'")


def release_map(mapped: mmap.mmap | None) -> None:
    """Release the pages that hold parts of a file."""
    if mapped is not None and hasattr(mapped, "madvise"):
        # The pages of a shared map stay in the system's cache, and what was written to them is not lost.
        mapped.madvise(mmap.MADV_DONTNEED)


def stored_buffer(file: InputFile, shape: Shape, scratch: Scratch) -> Bytes:
    """Return the bytes of a physical buffer of `shape` from a file.

    A NumPy file may hold the array itself where the layout is that of the file, ``{1,0}`` for C order; or, where the
    layout only orders the dimensions, these in the order of memory.

    Parameters
    ----------
    file : InputFile
    shape : Shape
    scratch : callable
        Allocates memory; used for bytes in foreign order.

    Raises
    ------
    FastIndexError
        Another size, or more than one dimension.
    ArgumentTypeError
        Another dtype.
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
    return _native(file, scratch)


def _is_array_of(file: InputFile, shape: Shape) -> bool:
    """Whether a file holds the array itself, and its layout is the one that NumPy's files have: the same bytes."""
    if len(file.dimensions) < 2:
        return False
    in_order_of_memory = not file.fortran_order and file.dimensions == memory_dimensions(shape) != shape.dimensions
    if not in_order_of_memory and (
        file.dimensions != shape.dimensions or shape != plain_shape(shape, file.fortran_order)
    ):
        return False
    _check_dtype(file, shape, shape.element_type.numpy_dtype)
    return True


def stored_array(file: InputFile, shape: Shape, scratch: Scratch) -> tuple[Bytes, Shape]:
    """Return the bytes of a logical array from a file, and the shape that describes their layout.

    Parameters
    ----------
    file : InputFile
    shape : Shape
        Its element type and dimensions.
    scratch : callable
        As for `stored_buffer`.

    Raises
    ------
    FastIndexError
        Other dimensions, another size, or values that the element type does not have.
    ArgumentTypeError
        Another dtype.
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
    element_type = shape.element_type
    if element_type.is_sub_byte and file.dtype is not None and file.dtype.kind in "ui":
        return _narrowed(file, element_type, scratch), plain
    return _native(file, scratch), plain


def plain_shape(shape: Shape, fortran_order: bool = False) -> Shape:
    """Return the array of a shape as NumPy's files store it: unpacked, without tiles."""
    layout = Layout.ascending(shape.rank) if fortran_order else None
    return Shape(shape.element_type, shape.dimensions, layout)


def _check_size(file: InputFile, needed: int, what: str, count: str) -> None:
    size = len(file.data)
    if size == needed:
        return
    hint = ""
    if file.dtype is None and bytes(file.data[: len(_MAGIC)]) == _MAGIC:
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
    """Whether NumPy's files have a name for a type; they have none for those of ml_dtypes."""
    return dtype.isbuiltin == 1


def _narrowed(file: InputFile, element_type: ElementType, scratch: Scratch) -> Bytes:
    """Return one-byte integers as ml_dtypes stores values narrower than a byte: in the low bits."""
    bits = element_type.bits
    signed = element_type.kind == "signed"
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    values = file.data.view(file.dtype or np.uint8)
    narrowed = scratch(len(values))
    for begin in range(0, len(values), _AT_ONCE):
        part = values[begin : begin + _AT_ONCE]
        outside = (part < low) | (part >= high)
        if outside.any():
            value = part[int(outside.argmax())]
            raise FastIndexError(f"{file.path} holds {value}; {element_type} goes from {low} to {high - 1}")
        narrowed[begin : begin + _AT_ONCE] = part.view(np.uint8) & ((1 << bits) - 1)
    return narrowed


def _native(file: InputFile, scratch: Scratch) -> Bytes:
    dtype = file.dtype
    if dtype is None or dtype.isnative:
        return file.data
    swapped = scratch(len(file.data))
    source, target = file.data.view(dtype), swapped.view(dtype.newbyteorder("="))
    for begin in range(0, len(source), _AT_ONCE):
        target[begin : begin + _AT_ONCE] = source[begin : begin + _AT_ONCE]
    return swapped


def _spelled(dimensions: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, dimensions))})"
