"""Arrays in files, read box by box; `fastindex.jobs.writing` writes them.

A file named ``.npy`` is a NumPy file. Any other file contains raw bytes without a header: a physical buffer, or a
logical array with the last dimension most minor. The NumPy format has no names for the types of ml_dtypes: `numpy.save`
writes bfloat16 as ``V2`` and the narrower types as ``V1``. Both can be read, and so can unsigned integers of the same
width that hold the bits.

Arrays in OCDBT checkpoints, as written by Orbax, are read with TensorStore, the only library that can read them.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastindex.algebra.casts import MisfitError, check_cast, first_misfit
from fastindex.algebra.segments import (
    SEGMENT_COST_BYTES,
    SOUGHT_SEGMENT_COST_BYTES,
    Box,
    box_segments,
    byte_segments,
    segment_costs,
)
from fastindex.arrays.fills import element_type_of
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape, plain_shape
from fastindex.core.sizes import buffer_form
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.first_use import load
from fastindex.jobs.input_files import Bytes, InputFile, spelled

_MAGIC = b"\x93NUMPY"
_MANIFEST = "manifest.ocdbt"
#: Chunks in memory in addition to a box: encoded, decoded, and the codec's working memory.
CHUNKS_IN_MEMORY = 3

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in a layout, stored in a file.

    Attributes
    ----------
    file : InputFile
    shape : Shape
        The shape and layout in the file.
    is_narrowed : bool
        Whether the file stores one-byte integers of a sub-byte element type.
    is_checked : bool
        Whether values out of the element type's range are errors; otherwise, their low bits are kept.
    """

    file: InputFile
    shape: Shape
    is_narrowed: bool = False
    is_checked: bool = True

    def costs(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        """Return the memory that a box of these sizes takes, and its cost."""
        return segment_costs(self.shape, sizes, SOUGHT_SEGMENT_COST_BYTES)

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for reading boxes; it raises at its end if the file has changed."""
        return self.file.unchanged()

    def read_bytes(self, start: int, into: Bytes) -> None:
        """Fill `into` with the stored bytes from offset `start` on."""
        self.file.read(start, into)

    def read(self, box: Box, into: Bytes) -> None:
        """Read a box, packed as by `box_shape`.

        Raises
        ------
        FastIndexError
            The file was truncated, or contains values out of the element type's range.
        """
        longest = max(-(-run.length * self.shape.element_bits // 8) for run in box_segments(self.shape, box))
        self.file.read_segments(byte_segments(self.shape, box), longest, into)
        self._convert(into, box)

    def whole(self) -> Bytes:
        """Return all bytes: the memory map, or a copy if they have to be converted."""
        dtype = self.file.dtype
        if (dtype is None or dtype.isnative) and not self.is_narrowed:
            return self.file.data
        content = np.empty(self.file.nbytes, np.uint8)
        self.file.read(0, content)
        self._convert(content, tuple(range(size) for size in self.shape.dimensions))
        return content

    def _convert(self, content: Bytes, box: Box) -> None:
        dtype = self.file.dtype
        if self.is_narrowed:
            self._narrow(content, box)
        elif dtype is not None and not dtype.isnative:
            content.view(dtype).byteswap(inplace=True)

    def _narrow(self, content: Bytes, box: Box) -> None:
        """Reduce one-byte integers to their low bits, as ml_dtypes stores sub-byte values."""
        bits, order = self.shape.element_type.bits, self.shape.layout.minor_to_major[::-1]
        values = content.view(self.file.dtype or np.uint8).reshape([len(box[d]) for d in order])
        found = first_misfit(values, ElementType.from_numpy_dtype(values.dtype), self.shape.element_type)
        if found is not None and self.is_checked:
            at = dict(zip(order, found[0], strict=True))
            place = tuple(at[d] + box[d].start for d in range(len(box)))
            raise FastIndexError(f"{self.file.path}: {MisfitError(place, found[1], self.shape.element_type)}")
        content &= (1 << bits) - 1


def stored_buffer(file: InputFile, shape: Shape) -> StoredArray:
    """Return a file as the physical buffer of `shape`.

    A NumPy file may instead contain the array itself, if the layout equals that of the file (``{1,0}`` for C order), or
    the array with its dimensions in memory order, if the layout only permutes dimensions.

    Parameters
    ----------
    file : InputFile
    shape : Shape

    Raises
    ------
    FastIndexError
        The size differs, or the file has more than one dimension.
    ArgumentTypeError
        The dtype differs.
    """
    if file.dtype is not None and not _is_array_of(file, shape):
        if len(file.dimensions) != 1:
            flat = "; a buffer in memory order has to be saved as array.reshape(-1)"
            raise FastIndexError(
                f"{file.path} has the dimensions {spelled(file.dimensions)}, a buffer of {shape.cut_text()} has one; "
                f"pack takes the array itself{flat if file.dimensions == buffer_form(shape).dimensions else ''}"
            )
        raw = file.dtype.itemsize == 1 and file.dtype.kind in "uiV"
        if not raw:
            _check_dtype(file, shape, buffer_form(shape).dtype)
    _check_size(file, shape.nbytes, f"a buffer of {shape.cut_text()}", f"{shape.slot_count} slots")
    return StoredArray(file, shape)


def _is_array_of(file: InputFile, shape: Shape) -> bool:
    """Whether a file contains the array itself, with the same bytes as the buffer of `shape`."""
    dimensions = buffer_form(shape).dimensions
    if len(file.dimensions) == 1 or dimensions is None:
        return False
    in_order_of_memory = not file.fortran_order and file.dimensions == dimensions != shape.dimensions
    order = [d for d in shape.layout.major_to_minor if shape.dimensions[d] != 1]
    is_in_order = not file.nbytes or order == sorted(order, reverse=file.fortran_order)
    if not in_order_of_memory and (file.dimensions != shape.dimensions or not is_in_order):
        return False
    _check_dtype(file, shape, shape.element_type.numpy_dtype)
    return True


def stored_array(file: InputFile, shape: Shape, casting: str = "no") -> StoredArray:
    """Return a file as a logical array with the dimensions of `shape`.

    Parameters
    ----------
    file : InputFile
    shape : Shape
        Only the element type and the dimensions are used.
    casting : str
        NumPy's casting rule if a NumPy file has another element type; the result then has the type of the file.

    Raises
    ------
    FastIndexError
        The dimensions or the size differ.
    ArgumentTypeError
        The dtype differs, and `casting` does not allow the cast to the element type.
    """
    shape = _as_stored(file, shape, casting)
    if file.dtype is not None:
        if file.dimensions != shape.dimensions:
            raise FastIndexError(
                f"{file.path} has the dimensions {spelled(file.dimensions)}, {shape.cut_text()} has "
                f"{spelled(shape.dimensions)}"
            )
        _check_dtype(file, shape, shape.element_type.numpy_dtype)
    plain = plain_shape(shape, file.fortran_order)
    _check_size(file, plain.nbytes, f"the array of {shape.cut_text()}", f"{plain.element_count} elements")
    is_narrowed = shape.element_type.is_sub_byte and file.dtype is not None and file.dtype.kind in "ui"
    return StoredArray(file, plain, is_narrowed, casting != "unsafe")


def _as_stored(file: InputFile, shape: Shape, casting: str) -> Shape:
    """Return the shape with the element type of the file, if the elements have to be cast."""
    if file.dtype is None or casting == "no" or _mismatch(file, shape.element_type) is None:
        return shape
    found = element_type_of(file.dtype)
    if found is None or found.is_complex or shape.element_type.is_complex:
        return shape
    check_cast(found, shape.element_type, casting)
    return Shape(found, shape.dimensions)


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
    found = _mismatch(file, shape.element_type, wanted)
    if found is not None:
        raise ArgumentTypeError(f"{file.path} holds {file.dtype}, {shape.cut_text()} needs {found}; convert it first")


def _mismatch(file: InputFile, element_type: ElementType, wanted: np.dtype[Any] | None = None) -> str | None:
    """Return a description of the dtype that a file of this element type needs, or None if the file has it."""
    found, wanted = file.dtype, element_type.numpy_dtype if wanted is None else wanted
    assert found is not None
    if found.newbyteorder("=") == wanted:
        return None
    if wanted.isbuiltin == 1:
        return str(wanted)
    kinds = "Vui" if element_type.is_sub_byte else "Vu"
    if found.itemsize == wanted.itemsize and found.kind in kinds:
        return None
    return f"{wanted} (V{wanted.itemsize} in a .npy file, or its bits as uint{8 * wanted.itemsize})"


# OCDBT checkpoints


def checkpoint_of(path: str) -> tuple[str, str] | None:
    """Split a path into the folder of a checkpoint and the name of an array in it; None if there is no checkpoint.

    The folder itself has the name "". A path to a regular file gives None, even inside the folder of a checkpoint.

    Examples
    --------
    >>> checkpoint_of("weights.npy") is None
    True
    """
    if os.path.isfile(path):
        return None
    for folder in (Path(path), *Path(path).parents):
        if os.path.isfile(folder / _MANIFEST):
            return str(folder), "/".join(Path(path).relative_to(folder).parts)
    return None


@dataclass(frozen=True, slots=True)
class CheckpointArray:
    """A logical array in a checkpoint.

    Attributes
    ----------
    array
        TensorStore's array.
    shape : Shape
        Its plain shape: no tiles, last dimension most minor.
    """

    array: Any
    shape: Shape

    def costs(self, sizes: Sizes) -> tuple[int, int]:
        """Return the memory that a box of these sizes takes, and its cost."""
        chunks: Sizes = self.array.chunk_layout.read_chunk.shape
        width = self.shape.element_type.nbytes
        counts = [-(-size // max(step, 1)) for size, step in zip(sizes, chunks, strict=True)]
        chunk = math.prod(chunks) * width
        memory = 2 * math.prod(sizes) * width + CHUNKS_IN_MEMORY * chunk
        return memory, math.prod(counts) * (chunk + 8 * SEGMENT_COST_BYTES)

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for reading boxes."""
        return contextlib.nullcontext()

    def read(self, box: Box, into: Bytes) -> None:
        """Read a box.

        Raises
        ------
        FastIndexError
            The box cannot be read.
        """
        place = tuple(slice(along.start, along.stop) for along in box)
        try:
            values = self.array[place].read().result()
        except Exception as error:  # TensorStore raises any type for damaged files
            raise FastIndexError(f"the checkpoint cannot be read: {error}") from None
        into[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def stored_checkpoint_array(path: str, shape: Shape) -> CheckpointArray:
    """Open an array of a checkpoint for reading.

    Parameters
    ----------
    path : str
        The folder of the checkpoint, followed by the name of the array in it.
    shape : Shape
        Only the element type and the dimensions are used.

    Raises
    ------
    UnsupportedError
        TensorStore is not installed.
    FastIndexError
        The array does not exist, or its dimensions differ.
    ArgumentTypeError
        The element type differs.
    """
    try:
        load("tensorstore")
        import tensorstore
    except ImportError:
        raise UnsupportedError("OCDBT checkpoints need TensorStore: pip install 'fastindex[tensorstore]'") from None
    found = checkpoint_of(path)
    folder, name = found if found is not None else (path, "")
    base = {"driver": "file", "path": os.path.abspath(folder) + "/"}
    kvstore = {"driver": "ocdbt", "base": base, "path": os.path.join(name, "")}
    one_at_a_time = {"cache_pool": {"total_bytes_limit": 0}, "data_copy_concurrency": {"limit": 1}}
    reasons = []
    for driver in ("zarr3", "zarr"):
        spec = {"driver": driver, "kvstore": kvstore, "context": one_at_a_time}
        try:
            array = tensorstore.open(spec, open=True, read=True).result()
            break
        except ValueError as error:
            reasons.append(str(error))
    else:
        raise FastIndexError(f"{path}: the checkpoint in {folder} holds no array {name!r} ({reasons[-1]})")
    if tuple(array.shape) != shape.dimensions:
        raise FastIndexError(
            f"{path} has the dimensions {tuple(array.shape)}, {shape.cut_text()} has {shape.dimensions}"
        )
    if array.dtype.numpy_dtype != shape.element_type.numpy_dtype:
        wanted = shape.element_type.numpy_dtype
        raise ArgumentTypeError(f"{path} holds {array.dtype.name}, {shape.cut_text()} needs {wanted}; convert it first")
    return CheckpointArray(array, plain_shape(shape))
