"""Physical buffers and logical arrays, made from the caller's objects or allocated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from numbers import Complex, Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import bounds_of, check_cast
from fastindex.arrays.arrays import (
    address_of,
    check_buffer,
    check_dimensions,
    described,
    flat_buffer,
    hint_for_bits,
    require_contiguous,
)
from fastindex.arrays.fills import element_type_of
from fastindex.core.element_types import ElementType
from fastindex.core.foreign_arrays import host_array
from fastindex.core.shape import Shape
from fastindex.core.sizes import buffer_form
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.runtime.numbers import LINE_BYTES


def array_of_numbers(numbers: Sequence[Any], element_type: ElementType) -> NDArray[Any]:
    """Return nested lists of numbers as an array, if the element type holds them.

    Integers must be in range. Floating-point types round, as in NumPy, but no finite number becomes infinite.

    Raises
    ------
    FastIndexError
        A number that the element type does not hold, or lists of different lengths.
    ArgumentTypeError
        Something that is not a number.

    Examples
    --------
    >>> array_of_numbers([[1, 2], [3, 4]], ElementType.of("s32"))
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    dtype = element_type.numpy_dtype
    try:
        values = np.asarray(numbers)
    except ValueError:
        raise FastIndexError("nested lists must have the same length at each level, as the rows of an array") from None
    if values.dtype == dtype or values.size == 0:
        return values.astype(dtype)
    if values.dtype.kind not in "biufcO":
        raise ArgumentTypeError(f"nested lists must hold Python's numbers, got dtype {values.dtype}")
    # As objects: NumPy promotes signed and unsigned 64-bit integers together to floating point.
    objects = np.asarray(numbers, object)
    for value in objects.flat:
        if not isinstance(value, Complex | np.bool_ | np.number):
            raise ArgumentTypeError(f"nested lists must hold numbers, got {value!r}")
    if element_type.is_integral or element_type.kind == "predicate":
        return _integers(objects, element_type)
    return _rounded(objects, element_type)


def _integers(objects: NDArray[Any], element_type: ElementType) -> NDArray[Any]:
    low, high = bounds_of(element_type)
    for value in objects.flat:
        if not isinstance(value, Integral | np.bool_) or not low <= int(value) <= high:
            raise FastIndexError(f"{element_type} holds integers from {low} to {high}, got {value!r}")
    wide = np.int64 if low else np.uint64
    return objects.astype(wide).astype(element_type.numpy_dtype)


def _rounded(objects: NDArray[Any], element_type: ElementType) -> NDArray[Any]:
    if not element_type.is_complex:
        for value in objects.flat:
            if not isinstance(value, Real | np.bool_):
                raise FastIndexError(f"{element_type} holds real numbers, got {value!r}")
    try:
        exact = objects.astype(np.complex128 if element_type.is_complex else np.float64)
    except OverflowError:
        raise FastIndexError(f"{element_type} does not hold integers as large as those in the lists") from None
    with np.errstate(all="ignore"):
        values: NDArray[Any] = exact.astype(element_type.numpy_dtype)
        lost = np.isfinite(exact) & ~np.isfinite(values.astype(exact.dtype))
    if lost.any():
        raise FastIndexError(f"{element_type} does not hold {exact[lost][0]}")
    return values


Bytes = NDArray[np.uint8]


def new_buffer(shape: Shape) -> NDArray[Any]:
    """Return an uninitialised buffer, aligned to a cache line."""
    form = buffer_form(shape)
    return aligned_bytes(form.nbytes).view(form.dtype)


def new_array(shape: Shape) -> NDArray[Any]:
    """Return an uninitialised logical array, aligned to a cache line."""
    dtype = shape.element_type.numpy_dtype
    return aligned_bytes(shape.element_count * dtype.itemsize).view(dtype).reshape(shape.dimensions)


def aligned_bytes(size: int) -> Bytes:
    """Return `size` uninitialised bytes, aligned to a cache line."""
    memory = np.empty(size + LINE_BYTES, np.uint8)
    start = -address_of(memory) % LINE_BYTES
    return memory[start : start + size]


def as_buffer_bytes(buffer: Any, shape: Shape) -> Bytes:
    """Return the bytes of a physical buffer.

    Parameters
    ----------
    buffer : array, bytes, bytearray, memoryview or anything with the buffer protocol
        One dimension of the shape's element type, raw bytes, or an array that `flat_buffer` flattens.

    Raises
    ------
    FastIndexError
        Another size or more dimensions.
    ArgumentTypeError
        Another dtype.
    """
    return np.ascontiguousarray(_checked_buffer(buffer, shape)).view(np.uint8)


def buffer_bytes_in_place(buffer: Any, shape: Shape) -> Bytes:
    """Return the bytes of a physical buffer, without a copy.

    Parameters and errors as for `as_buffer_bytes`, and an error where the buffer has gaps.
    """
    array = _checked_buffer(buffer, shape)
    require_contiguous(described(array), "a buffer")
    return array.view(np.uint8)


def _checked_buffer(buffer: Any, shape: Shape) -> NDArray[Any]:
    array = flat_buffer(buffer if type(buffer) is np.ndarray else _from_object(buffer), shape)
    check_buffer(described(array), shape, "a buffer")
    return array


def _from_object(buffer: Any) -> NDArray[Any]:
    if isinstance(buffer, np.ndarray):
        return host_array(buffer)
    try:
        return np.frombuffer(buffer, np.uint8)
    except (TypeError, ValueError, BufferError):
        pass
    if hasattr(buffer, "__dlpack__") or hasattr(buffer, "__array__"):
        return host_array(buffer)
    is_file = isinstance(buffer, str | os.PathLike) or hasattr(buffer, "read")
    hint = "; numpy.fromfile(path, numpy.uint8) reads a file" if is_file else ""
    raise ArgumentTypeError(f"a buffer must be a one-dimensional array or bytes, got {type(buffer).__name__}{hint}")


def as_logical_array(array: Any, shape: Shape, casting: str = "no") -> NDArray[Any]:
    """Return an array of the dimensions of `shape`, in native byte order.

    Raises
    ------
    FastIndexError
        Other dimensions.
    ArgumentTypeError
        Another dtype than that of the element type, and `casting` does not allow it.
    """
    values = logical_array(array, shape, casting)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def logical_array(array: Any, shape: Shape, casting: str = "no") -> NDArray[Any]:
    """Return an array of the dimensions of `shape`, in its current byte order.

    Errors as for `as_logical_array`.
    """
    dtype = shape.element_type.numpy_dtype
    if isinstance(array, list | tuple):
        values = array_of_numbers(array, shape.element_type)
    else:
        values = array if type(array) is np.ndarray else host_array(array)
    found = shape.element_type if values.dtype == dtype else element_type_of(values.dtype)
    if found != shape.element_type:
        if casting == "no" or found is None or found.is_complex or shape.element_type.is_complex:
            hint = hint_for_bits(values.dtype, dtype)
            raise ArgumentTypeError(f"{shape.cut_text()} needs an array of dtype {dtype}, got {values.dtype}{hint}")
        check_cast(found, shape.element_type, casting)
    check_dimensions(values, shape, "the array")
    return values
