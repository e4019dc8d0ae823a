"""Arrays in memory: addresses at the least cost, descriptors and their checks, joint iteration over several arrays."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.shared_digits import Strides
from fastindex.core.shape import Shape
from fastindex.core.sizes import BufferForm, buffer_form
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.runtime.numbers import CONTIGUOUS, WRITEABLE, PlainPair


def _slow_address(array: NDArray[Any]) -> int:
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def _fast_address(array: NDArray[Any]) -> int:
    # The data pointer is the first field of NumPy's array object, after the object header; seven times faster.
    return ctypes.c_ssize_t.from_address(id(array) + object.__basicsize__).value


def _choose_address() -> Callable[[NDArray[Any]], int]:
    probes: list[NDArray[Any]] = [np.empty(3), np.empty((2, 5), np.int8)[1:, ::2]]
    fits = ctypes.sizeof(ctypes.c_ssize_t) == ctypes.sizeof(ctypes.c_void_p)
    if fits and all(_fast_address(probe) == _slow_address(probe) for probe in probes):
        return _fast_address
    return _slow_address


#: Returns the address of the first element of an array.
address_of = _choose_address()


def expected_pair(source: tuple[np.dtype[Any], int], target: tuple[np.dtype[Any], int], multiple: int = 1) -> PlainPair:
    """Return the record by which `plain_addresses` recognises the two arrays of a typical call.

    Parameters
    ----------
    source, target : (dtype, int)
        The dtype and the number of elements of each array. The caller keeps the dtypes alive.
    multiple : int
        A power of two: the required alignment of the target's address.
    """
    # No object is of type 0: then every pair takes the slow path.
    array_type = id(np.ndarray) if _fields_are_known() else 0
    (read, read_count), (written, written_count) = source, target
    return PlainPair(
        fields=object.__basicsize__,
        array_type=array_type,
        source_dtype=id(read),
        source_count=read_count,
        source_bytes=read_count * read.itemsize,
        target_dtype=id(written),
        target_count=written_count,
        target_bytes=written_count * written.itemsize,
        target_offset_bits=multiple - 1,
    )


@cache
def _fields_are_known() -> bool:
    """Whether the fields of array objects are at the offsets at which `plain_addresses` reads them."""
    if address_of is not _fast_address:
        return False
    read_only = np.empty(5, np.int16)
    read_only.flags.writeable = False
    probes: list[NDArray[Any]] = [np.empty(3), np.empty((7, 2), np.int8)[:, 1], np.empty((2, 4)), read_only]
    return all(map(_has_known_fields, probes))


def _has_known_fields(array: NDArray[Any]) -> bool:
    begin = id(array) + object.__basicsize__
    kind, _, rank, sizes, _, _, dtype, flags = (ctypes.c_ssize_t * 8).from_address(begin - 8)
    if (kind, rank & 0xFFFFFFFF, dtype) != (id(np.ndarray), array.ndim, id(array.dtype)):
        return False
    known = array.flags.c_contiguous * CONTIGUOUS + array.flags.writeable * WRITEABLE
    return ctypes.c_ssize_t.from_address(sizes).value == array.shape[0] and flags & (CONTIGUOUS | WRITEABLE) == known


# Descriptors


_RAW = (np.dtype(np.uint8), np.dtype(np.int8), np.dtype("V1"))


# Not frozen: that would triple the time to construct one, in every call on the GPU.
@dataclass(slots=True)
class Array:
    """An array in memory.

    Attributes
    ----------
    address : int
        Address of the first element.
    shape : tuple of int
    strides : tuple of int
        In bytes.
    dtype : numpy.dtype
        Of ml_dtypes where NumPy lacks the type.
    read_only : bool
    device : int or None
        Number of the GPU that holds it; None for host memory.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    read_only: bool
    device: int | None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether elements follow each other without gaps, the last dimension fastest."""
        expected = self.dtype.itemsize
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return 0 in self.shape
            expected *= size
        return True

    @property
    def extent(self) -> tuple[int, int]:
        """The address range of all elements; the end is exclusive."""
        if 0 in self.shape:
            return self.address, self.address
        begin = end = self.address
        for size, stride in zip(self.shape, self.strides, strict=True):
            reach = (size - 1) * stride
            if reach < 0:
                begin += reach
            else:
                end += reach
        return begin, end + self.dtype.itemsize


def described(array: NDArray[Any]) -> Array:
    """Return the descriptor of a NumPy array.

    Examples
    --------
    >>> found = described(np.zeros((2, 3), np.float32))
    >>> found.shape, found.strides, found.nbytes, found.is_contiguous
    ((2, 3), (12, 4), 24, True)
    """
    return Array(address_of(array), array.shape, array.strides, array.dtype, not array.flags.writeable, None)


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of an array without gaps, in bytes.

    Examples
    --------
    >>> contiguous_strides((2, 3, 4), 8)
    (96, 32, 8)
    """
    strides = []
    for size in reversed(shape):
        strides.append(itemsize)
        itemsize *= size
    return tuple(reversed(strides))


def element_strides(array: Array) -> Strides | None:
    """Return the strides in elements, 0 along sizes 0 and 1; None where one is not a multiple of the element's bytes.

    Examples
    --------
    >>> element_strides(described(np.zeros((4, 1, 6), np.int16)[::2]))
    Strides(dimensions=(2, 1, 6), strides=(12, 0, 1))
    """
    itemsize = array.dtype.itemsize
    strides = [stride if size > 1 else 0 for stride, size in zip(array.strides, array.shape, strict=True)]
    if any(stride % itemsize for stride in strides):
        return None
    return Strides(array.shape, tuple(stride // itemsize for stride in strides))


# Checks


def flat_buffer(array: NDArray[Any], shape: Shape) -> NDArray[Any]:
    """Flatten an array that holds a buffer of `shape` in several dimensions; return any other unchanged.

    Where the layout only orders the dimensions, the array may have them in memory order, or in logical order with the
    strides of the layout; either way, its memory is the buffer.

    Examples
    --------
    >>> shape = Shape.parse("u8[2,3]{0,1}")
    >>> flat_buffer(np.zeros((3, 2), np.uint8), shape).shape, flat_buffer(np.zeros((2, 3), np.uint8), shape).shape
    ((6,), (2, 3))
    """
    dimensions = buffer_form(shape).dimensions if array.ndim > 1 else None
    if dimensions is None:
        return array
    # Where both orders have the same sizes, the strides decide.
    if array.shape == dimensions != shape.dimensions and array.flags.c_contiguous:
        return array.reshape(-1)
    if array.shape == shape.dimensions:
        ordered = array.transpose(tuple(reversed(shape.layout.minor_to_major)))
        if ordered.flags.c_contiguous:
            return ordered.reshape(-1)
    return array


def holds(array: Array, wanted: np.dtype[Any]) -> bool:
    """Whether an array has the dtype `wanted`, or on a GPU its bits, since libraries lack most of ml_dtypes' types."""
    dtype = array.dtype
    if dtype == wanted:
        return True
    lacking = array.device is not None and wanted.isbuiltin != 1
    return lacking and dtype.itemsize == wanted.itemsize and dtype.kind in "uiV"


def check_buffer(array: Array, shape: Shape, name: str) -> None:
    """Require a 1-D buffer of a shape, of its dtype or of raw bytes.

    Raises
    ------
    ArgumentTypeError
        Another dtype.
    FastIndexError
        Another size or more dimensions.
    """
    form = buffer_form(shape)
    wanted = form.dtype
    if not holds(array, wanted) and array.dtype not in _RAW:
        raise ArgumentTypeError(
            f"{name} of {shape.cut_text()} holds {wanted} or raw bytes (uint8), "
            f"got dtype {array.dtype}{hint_for_bits(array.dtype, wanted)}"
        )
    if len(array.shape) != 1:
        _check_strides(array, shape, form, name)
        raise FastIndexError(
            f"{name} has one dimension, got {len(array.shape)}; give its bytes in the order of memory, "
            f"or pack the array for {shape.cut_text()}"
        )
    if array.nbytes != form.nbytes:
        raise FastIndexError(
            f"{name} of {shape.cut_text()} takes {form.nbytes} bytes ({shape.slot_count} slots), got {array.nbytes}"
        )


def hint_for_bits(found: np.dtype[Any], wanted: np.dtype[Any]) -> str:
    """Return the end of a message: how to view an array that may hold the bits of the wanted dtype.

    `numpy.save` stores dtypes that NumPy does not define as void bytes; dumps are often read as unsigned integers.
    """
    if found.itemsize != wanted.itemsize:
        return ""
    is_extension = wanted.isbuiltin == 2
    if found.kind == "u":
        name = f"ml_dtypes.{wanted}" if is_extension else f"numpy.{wanted}"
        return f"; if it holds the bits of {wanted}, pass array.view({name})"
    is_lost = is_extension and found.kind == "V"
    return f"; numpy.load has lost its type: pass array.view(ml_dtypes.{wanted})" if is_lost else ""


def _check_strides(array: Array, shape: Shape, form: BufferForm, name: str) -> None:
    """Raise FastIndexError where an array of the right dimensions, in either order, has other strides in memory."""
    if form.dimensions is None:
        return
    hint = "pack takes arrays of any strides"
    if array.is_contiguous and form.dimensions == shape.dimensions:
        hint = "pack takes the array itself; if its dimensions are in memory order, array.reshape(-1) is the buffer"
    in_memory = contiguous_strides(form.dimensions, form.dtype.itemsize)
    logical = tuple(stride for _, stride in sorted(zip(reversed(shape.layout.minor_to_major), in_memory, strict=True)))
    for dimensions, expected in ((shape.dimensions, logical), (form.dimensions, in_memory)):
        if array.shape == dimensions and array.strides != expected:
            raise FastIndexError(
                f"{name} of {shape.cut_text()} is contiguous memory, and this array of {array.shape} is not "
                f"contiguous in that order: its byte strides are {array.strides}, not {expected}; {hint}"
            )


def require_contiguous(array: Array, name: str) -> None:
    """Raise FastIndexError where a buffer has gaps."""
    if not array.is_contiguous:
        raise FastIndexError(f"{name} must be contiguous: a buffer has no gaps between its slots")


def check_elements(array: Array, shape: Shape, name: str) -> None:
    """Require the dimensions and the element type of a shape.

    Raises
    ------
    ArgumentTypeError
        Another dtype.
    FastIndexError
        Other dimensions.
    """
    dtype = shape.element_type.numpy_dtype
    if not holds(array, dtype):
        raise ArgumentTypeError(f"{name} for {shape.cut_text()} must be of dtype {dtype}, got dtype {array.dtype}")
    check_dimensions(array, shape, name)


def check_dimensions(array: Array | NDArray[Any], shape: Shape, name: str) -> None:
    """Raise FastIndexError where the dimensions of an array and a shape differ."""
    if array.shape != shape.dimensions:
        wanted = ", ".join(map(str, shape.dimensions))
        raise FastIndexError(f"{shape.cut_text()} has the dimensions ({wanted}), {name} has {array.shape}")


def check_target(array: Array, name: str = "out") -> None:
    """Require a writable array whose elements do not overlap.

    Raises
    ------
    FastIndexError
    """
    if array.read_only:
        raise FastIndexError(f"{name} is read-only; give a writable array")
    if strides_overlap(array.shape, array.dtype.itemsize, array.strides):
        raise FastIndexError(f"the elements of {name} overlap: its strides are {array.strides} bytes")


def check_output_buffer(out: Any, shape: Shape) -> NDArray[Any]:
    """Return the caller's buffer to write to.

    Raises
    ------
    ArgumentTypeError
        Not an array of the dtype of the buffer, nor of uint8.
    FastIndexError
        Another size, not contiguous, or read-only.
    """
    if not isinstance(out, np.ndarray):
        raise ArgumentTypeError(f"out must be a NumPy array, got {type(out).__name__}")
    found = described(flat_buffer(out, shape))
    check_buffer(found, shape, "out")
    check_target(found)
    require_contiguous(found, "out")
    return out


def check_output_array(out: Any, shape: Shape) -> NDArray[Any]:
    """Return the caller's logical array to write to, of any strides.

    Raises
    ------
    ArgumentTypeError
        Not an array of the element type.
    FastIndexError
        Other dimensions, read-only, or elements that overlap.
    """
    if not isinstance(out, np.ndarray):
        raise ArgumentTypeError(f"out must be a NumPy array, got {type(out).__name__}")
    found = described(out)
    check_elements(found, shape, "out")
    check_target(found)
    return out


def check_no_overlap(target: Array, others: Iterable[Array]) -> None:
    """Require an output that does not overlap the other arrays of a call.

    Raises
    ------
    FastIndexError
    """
    begin, end = target.extent
    for other in others:
        first, last = other.extent
        if first < end and begin < last:
            raise FastIndexError("out overlaps the input or another output; give it separate memory")


def strides_overlap(dimensions: Sequence[int], itemsize: int, strides: Sequence[int]) -> bool:
    """Whether elements may overlap: the stride of some dimension is shorter than the extent of the smaller strides."""
    if 0 in dimensions:
        return False
    extent = itemsize
    steps = zip(strides, dimensions, strict=True)
    for stride, size in sorted((abs(stride), size) for stride, size in steps if size > 1):
        if stride < extent:
            return True
        extent = stride * (size - 1) + extent
    return False


# Joint iteration


def common_shape(arrays: Iterable[Any]) -> tuple[int, ...]:
    """Return the shape to which arrays broadcast.

    Raises
    ------
    FastIndexError
        They do not broadcast together.
    """
    shapes: list[tuple[int, ...]] = [array.shape for array in arrays]
    if not shapes or shapes.count(shapes[0]) == len(shapes):
        return shapes[0] if shapes else ()
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = ", ".join(map(str, shapes))
        raise FastIndexError(f"the coordinates do not broadcast together: their shapes are {listed}") from None


def broadcast_strides(own: tuple[int, ...], strides: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides along `shape` of an array that broadcasts to it.

    Examples
    --------
    >>> broadcast_strides((1, 4), (99, 8), (3, 5, 4))
    (0, 0, 8)
    """
    kept = (0 if size == 1 else stride for size, stride in zip(own, strides, strict=True))
    return (*(0,) * (len(shape) - len(own)), *kept)


def merged_axes(shape: tuple[int, ...], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Return the fewest axes for joint iteration over arrays, the last one fastest, and each array's strides.

    Examples
    --------
    >>> merged_axes((3, 1, 4, 5), [(20, 7, 5, 1), (0, 7, 5, 1)])
    ([3, 20], [[20, 1], [0, 1]])
    """
    sizes: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if sizes and all(m[-1] == s[axis] * size for m, s in zip(merged, strides, strict=True)):
            sizes[-1] *= size
            for m, s in zip(merged, strides, strict=True):
                m[-1] = s[axis]
        else:
            sizes.append(size)
            for m, s in zip(merged, strides, strict=True):
                m.append(s[axis])
    return sizes, merged
