"""Arrays and physical buffers as the whole-array functions accept them, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arguments.addresses import address_of
from fastindex.arguments.number_lists import array_of_numbers
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.interop.host_arrays import host_array
from fastindex.lowering.slot_format import slot_format
from fastindex.shapes.shape import Shape
from fastindex.shapes.shape_sizes import check_placed

Bytes = NDArray[np.uint8]

_LINE_BYTES = 64


def check_movable(shape: Shape) -> None:
    """Raise where data of `shape` cannot move.

    Raises
    ------
    UnsupportedError
        Not an array of fixed size with a dense layout, or an element size that does not move.
    """
    check_placed(shape)
    slot_format(shape)


def buffer_dtype(shape: Shape) -> np.dtype[Any]:
    """Give the dtype of a buffer: the element type's, or uint8 where a slot is no plain value."""
    return shape.element_type.numpy_dtype if slot_format(shape).is_plain else np.dtype(np.uint8)


def new_buffer(shape: Shape) -> NDArray[Any]:
    """Give an uninitialised buffer at the start of a cache line."""
    return aligned_bytes(shape.nbytes).view(buffer_dtype(shape))


def new_array(shape: Shape) -> NDArray[Any]:
    """Give an uninitialised logical array at the start of a cache line."""
    dtype = shape.element_type.numpy_dtype
    return aligned_bytes(shape.element_count * dtype.itemsize).view(dtype).reshape(shape.dimensions)


def aligned_bytes(size: int) -> Bytes:
    """Give `size` uninitialised bytes at the start of a cache line."""
    memory = np.empty(size + _LINE_BYTES, np.uint8)
    start = -address_of(memory) % _LINE_BYTES
    return memory[start : start + size]


def as_buffer_bytes(buffer: Any, shape: Shape) -> Bytes:
    """Give the bytes of a physical buffer.

    Parameters
    ----------
    buffer : array, bytes, bytearray, memoryview or anything with the buffer protocol
        One dimension of the shape's element type, or raw bytes.

    Raises
    ------
    FastIndexError
        Another size or more dimensions.
    ArgumentTypeError
        Another dtype.
    """
    array = buffer if type(buffer) is np.ndarray else _from_object(buffer)
    dtype = buffer_dtype(shape)
    if array.dtype not in (dtype, np.uint8, np.int8, np.dtype("V1")):
        raise ArgumentTypeError(
            f"a buffer of {shape.cut_text()} holds {dtype} or raw bytes (uint8), got dtype {array.dtype}"
        )
    if array.ndim != 1:
        raise FastIndexError(
            f"a buffer has one dimension, got {array.ndim}; give its bytes in the order of memory, "
            f"or pack the array for {shape.cut_text()}"
        )
    if array.nbytes != shape.nbytes:
        raise FastIndexError(
            f"a buffer of {shape.cut_text()} takes {shape.nbytes} bytes ({shape.slot_count} slots), got {array.nbytes}"
        )
    return np.ascontiguousarray(array).view(np.uint8)


def _from_object(buffer: Any) -> NDArray[Any]:
    if isinstance(buffer, np.ndarray):
        return host_array(buffer)
    try:
        return np.frombuffer(buffer, np.uint8)
    except (TypeError, ValueError, BufferError):
        pass
    if hasattr(buffer, "__dlpack__") or hasattr(buffer, "__array__"):
        return host_array(buffer)
    raise ArgumentTypeError(f"a buffer must be a one-dimensional array or bytes, got {type(buffer).__name__}")


def as_logical_array(array: Any, shape: Shape) -> NDArray[Any]:
    """Give an array of the dimensions and the element type of `shape`, in native byte order.

    Raises
    ------
    FastIndexError
        Other dimensions.
    ArgumentTypeError
        Another dtype.
    """
    dtype = shape.element_type.numpy_dtype
    if isinstance(array, list | tuple):
        values = array_of_numbers(array, shape.element_type)
    else:
        values = array if type(array) is np.ndarray else host_array(array)
    if values.dtype != dtype:
        if values.dtype.newbyteorder("=") != dtype:
            # numpy.save keeps types that are not its own as so many bytes.
            lost = dtype.isbuiltin == 2 and values.dtype == f"V{dtype.itemsize}"
            hint = f"; numpy.load has lost its type: pass array.view(ml_dtypes.{dtype})" if lost else ""
            raise ArgumentTypeError(f"{shape.cut_text()} needs an array of dtype {dtype}, got {values.dtype}{hint}")
        values = values.astype(dtype)
    _check_dimensions(values, shape, "the array")
    return values


def _check_dimensions(array: NDArray[Any], shape: Shape, name: str) -> None:
    if array.shape != shape.dimensions:
        wanted = ", ".join(map(str, shape.dimensions))
        raise FastIndexError(f"{shape.cut_text()} has the dimensions ({wanted}), {name} has {array.shape}")


def check_output_buffer(out: Any, shape: Shape) -> NDArray[Any]:
    """Give the caller's buffer to write to.

    Raises
    ------
    ArgumentTypeError
        Not an array of the dtype of the buffer, nor of uint8.
    FastIndexError
        Another size, not one contiguous dimension, or read-only.
    """
    if not isinstance(out, np.ndarray):
        raise ArgumentTypeError(f"out must be a NumPy array, got {type(out).__name__}")
    as_buffer_bytes(out, shape)
    _check_writable(out)
    if not out.flags.c_contiguous:
        raise FastIndexError("out must be contiguous: a buffer has no gaps between its slots")
    return out


def check_output_array(out: Any, shape: Shape) -> NDArray[Any]:
    """Give the caller's logical array to write to, of any strides.

    Raises
    ------
    ArgumentTypeError
        Not an array of the element type.
    FastIndexError
        Other dimensions, read-only, or elements that share memory.
    """
    dtype = shape.element_type.numpy_dtype
    if not isinstance(out, np.ndarray) or out.dtype != dtype:
        got = f"dtype {out.dtype}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ArgumentTypeError(f"out for {shape.cut_text()} must be an array of dtype {dtype}, got {got}")
    _check_dimensions(out, shape, "out")
    _check_writable(out)
    if strides_overlap(out.shape, out.itemsize, out.strides):
        raise FastIndexError(f"the elements of out overlap: its strides are {out.strides} bytes")
    return out


def _check_writable(out: NDArray[Any]) -> None:
    if not out.flags.writeable:
        raise FastIndexError("out is read-only; give a writable array")


def strides_overlap(dimensions: Sequence[int], itemsize: int, strides: Sequence[int]) -> bool:
    """Whether elements may share bytes: some dimension's step is shorter than what the smaller steps cover."""
    extent = itemsize
    steps = zip(strides, dimensions, strict=True)
    for stride, size in sorted((abs(stride), size) for stride, size in steps if size > 1):
        if stride < extent:
            return True
        extent = stride * (size - 1) + extent
    return False


def check_disjoint(out: NDArray[Any], source: NDArray[Any]) -> None:
    """Refuse an output that shares memory with the input.

    Raises
    ------
    FastIndexError
    """
    if np.may_share_memory(out, source):
        raise FastIndexError("out overlaps the input; give it memory of its own")


def require_movable_pair(source: Shape, destination: Shape) -> None:
    """Raise unless two shapes are layouts of one array whose data can move.

    Raises
    ------
    FastIndexError
        Other dimensions or another element type.
    UnsupportedError
        As `check_movable`.
    """
    if source.dimensions != destination.dimensions or source.element_type != destination.element_type:
        raise FastIndexError(
            f"a relayout keeps the array: element type and dimensions of {source.cut_text()} "
            f"and {destination.cut_text()} differ"
        )
    check_movable(source)
    check_movable(destination)
