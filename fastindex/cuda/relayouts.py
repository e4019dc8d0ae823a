"""pack, unpack, rearrange, relayout and copyto for arrays in GPU memory, with the CPU's results."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fastindex.algebra.casts import Cast, cast_of, check_cast, check_casting
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced, strided_copy
from fastindex.algebra.shared_digits import Strides
from fastindex.algebra.sides import RegroupedShape, RegroupedStrides
from fastindex.arrays.arrays import (
    broadcast_strides,
    check_buffer,
    check_elements,
    check_no_overlap,
    check_target,
    contiguous_strides,
    element_strides,
    holds,
    require_contiguous,
)
from fastindex.arrays.engines import is_cuda_array
from fastindex.arrays.fills import element_type_of, fill_pattern, logical_result, value_bytes, wanted_type
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape
from fastindex.core.sizes import buffer_form
from fastindex.cuda.arrays import DeviceArray, Order, as_device_array, new_device_array, new_result
from fastindex.cuda.kernels import device as cuda
from fastindex.cuda.movements import Movement, Through, either_transfer, sure_transfer
from fastindex.cuda.queues import Queue, queue_for
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.patterns.grammar import MOVED_AS, Sides


def pack(array: Any, shape: Shape, fill: Any, *, casting: str, out: Any, stream: Any) -> Any:
    """Do what `fastindex.pack` does."""
    values = as_device_array(array, "the array")
    own = _own_type(values, shape.element_type, casting, "the array")
    side = _logical(values, Shape(own, shape.dimensions), "the array")
    slots, pattern = _Slots(shape), fill_pattern(shape, fill)
    target = None if out is None else slots.checked(out, "out")
    with _queue(stream, values, target) as queue:
        result, target = slots.result(out, target, values, queue)
        moved = either_transfer((side, own), (shape, shape.element_type))
        if moved is None:
            plain = Shape(own, shape.dimensions)
            moved = Through(sure_transfer(side, plain), plain.nbytes, sure_transfer(plain, shape))
        moved.run(values, target, pattern, queue)
        return queue.finished(result)


def unpack(buffer: Any, shape: Shape, *, dtype: Any, casting: str, out: Any, stream: Any) -> Any:
    """Do what `fastindex.unpack` does."""
    slots = _Slots(shape).checked(buffer, "the buffer")
    target = None if out is None else as_device_array(out, "out")
    own = shape.element_type
    made = None if target is None or holds(target, own.numpy_dtype) else target.dtype
    logical = logical_result(shape, made, dtype, casting)
    new = logical.element_type
    side = None if target is None else _logical(target, logical, "out")
    with _queue(stream, slots, target) as queue:
        result = out
        if target is None:
            result, target = new_result(slots, shape.dimensions, new.numpy_dtype, queue.handle)
        side = side or _logical(target, logical, "the result")
        moved = either_transfer((shape, own), (side, new))
        if moved is None:
            moved = Through(sure_transfer(shape, logical), logical.nbytes, sure_transfer(logical, side))
        moved.run(slots, target, bytes(new.nbytes), queue)
        return queue.finished(result)


def rearrange(array: Any, sides: Sides, fill: Any, dtype: Any, casting: str, out: Any) -> Any:
    """Do what `fastindex.rearrange` does, for sides with the same variables."""
    values = as_device_array(array, "the array")
    target = None if out is None else as_device_array(out, "out")
    kinds = _rearranged_types(values, target, dtype, casting)
    new = values.dtype if kinds is None else kinds[1].numpy_dtype
    if target is not None and (target.shape != sides.dimensions[1] or not _is_of(target, new)):
        raise FastIndexError(f"out must be {new} of {sides.dimensions[1]}, got {target.dtype} of {target.shape}")
    names = _moved_names(values) if kinds is None else (kinds[0].name, kinds[1].name)
    source, destination = (
        RegroupedShape(Shape(name, dimensions), coordinates, sides.variables)
        for name, dimensions, coordinates in zip(names, sides.dimensions, sides.coordinates, strict=True)
    )
    pattern = value_bytes(new, fill)
    side = element_strides(values)
    if side is None:
        raise FastIndexError(f"the array has strides that are not whole elements: {values.strides} bytes")
    types = source.element_type, destination.element_type
    with _queue(None, values, target) as queue:
        result = out
        if target is None:
            result, target = new_result(values, destination.dimensions, new, queue.handle)
        grouped = RegroupedStrides(side.dimensions, side.strides, source.coordinates, sides.variables)
        moved = either_transfer((grouped, types[0]), (destination, types[1]))
        if moved is None:
            first = sure_transfer(side, Shape(names[0], sides.dimensions[0]))
            moved = Through(first, source.nbytes, sure_transfer(source, destination))
        if not target.is_contiguous:
            strides = element_strides(target)
            if strides is None:
                raise FastIndexError(f"out has strides that are not whole elements: {target.strides} bytes")
            last = sure_transfer(Shape(names[1], sides.dimensions[1]), strides)
            moved = Through(moved, destination.nbytes, last)
        moved.run(values, target, pattern, queue)
        return queue.finished(result)


class DevicePlan:
    """A relayout on the GPU between two layouts of one array, which have been checked to be movable."""

    def __init__(self, source: Shape, destination: Shape) -> None:
        self._source = _Slots(source)
        self._destination = _Slots(destination)
        self._transfer = sure_transfer(source, destination)

    def __call__(self, buffer: Any, pattern: bytes, out: Any, stream: Any) -> Any:
        """Move a buffer; `pattern` is the bytes of one unpacked value for padding."""
        slots = self._source.checked(buffer, "the buffer")
        target = None if out is None else self._destination.checked(out, "out")
        with _queue(stream, slots, target) as queue:
            result, target = self._destination.result(out, target, slots, queue)
            self._transfer.run(slots, target, pattern, queue)
            return queue.finished(result)

    def move(self, slots: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        """Move between buffers that are known to fit."""
        self._transfer.run(slots, target, pattern, queue)


# Arguments


class _Slots:
    """The dtype, size and stride that buffers of a shape usually have, which three comparisons check."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._dtype = buffer_form(shape).dtype
        itemsize = self._dtype.itemsize
        self._usual = (shape.nbytes // itemsize,), (itemsize,)

    def checked(self, value: Any, name: str) -> DeviceArray:
        """Describe a buffer.

        Raises
        ------
        ArgumentTypeError, FastIndexError
            As `check_buffer`, or the buffer has gaps.
        """
        found = as_device_array(value, name)
        if found.dtype != self._dtype or (found.shape, found.strides) != self._usual:
            check_buffer(found, self._shape, name)
            require_contiguous(found, name)
        return found

    def result(self, out: Any, target: DeviceArray | None, like: DeviceArray, queue: Queue) -> tuple[Any, DeviceArray]:
        """Return the caller's buffer, or a new one of the library of `like`."""
        if target is not None:
            return out, target
        return new_result(like, self._usual[0], self._dtype, queue.handle)


def _logical(found: DeviceArray, shape: Shape, name: str) -> Strides:
    check_elements(found, shape, name)
    side = element_strides(found)
    if side is None:
        raise FastIndexError(f"{name} has strides that are not whole elements: {found.strides} bytes")
    return side


def _queue(stream: Any, given: DeviceArray, target: DeviceArray | None) -> queue_for:
    if target is None:
        return queue_for(stream, (given,))
    check_target(target)
    check_no_overlap(target, (given,))
    return queue_for(stream, (given, target))


# Element types


def _is_of(array: DeviceArray, dtype: np.dtype[Any]) -> bool:
    return array.dtype == dtype or holds(array, dtype)


def _own_type(array: DeviceArray, wanted: ElementType, casting: str, name: str) -> ElementType:
    """Return the element type of an array: `wanted`, if it holds that, or one that may be cast to it.

    Raises
    ------
    ArgumentTypeError, UnsupportedError
        As `check_cast`.
    """
    found = None if holds(array, wanted.numpy_dtype) else element_type_of(array.dtype)
    if found is None:
        return wanted
    check_cast(found, wanted, casting)
    return found


def _rearranged_types(
    values: DeviceArray, out: DeviceArray | None, dtype: Any, casting: str
) -> tuple[ElementType, ElementType] | None:
    """Return the element types of both sides, None if elements are not cast.

    Errors as for `_own_type`.
    """
    if dtype is None:
        dtype = None if out is None else out.dtype
    if dtype is None or (isinstance(dtype, np.dtype) and dtype == values.dtype):
        return None
    wanted, own = wanted_type(dtype), element_type_of(values.dtype)
    if own is None:
        raise ArgumentTypeError(f"XLA has no element type for the dtype {values.dtype}, so it is not cast to {wanted}")
    check_cast(own, wanted, casting)
    return None if own == wanted else (own, wanted)


def _moved_names(values: DeviceArray) -> tuple[str, str]:
    """Return the names of the types as which elements move without a cast."""
    width = values.dtype.itemsize
    if width not in MOVED_AS:
        raise UnsupportedError(f"the GPU does not move elements of {width} bytes, such as {values.dtype}")
    return MOVED_AS[width], MOVED_AS[width]


# copyto, ascontiguousarray and asfortranarray

#: Scalars of the host that can be written; NumPy casts them to the dtype of the destination.
_SCALARS = (bool, int, float, complex, np.generic)


def copyto(dst: Any, src: Any, casting: str, stream: Any) -> None:
    """Do what `fastindex.numpy.copyto` does."""
    target = as_device_array(dst, "dst")
    if target.size:
        check_target(target, "dst")
    elif target.read_only:
        raise FastIndexError("dst is read-only; give a writable array")
    if not is_cuda_array(src) and isinstance(src, _SCALARS):
        _fill(target, src, casting, stream)
        return
    source = as_device_array(src, "src")
    cast = _cast_between(source, target, casting)
    strides = _broadcast(source, target.shape)
    if target.size == 0 or (cast is None and (source.address, strides) == (target.address, target.strides)):
        return
    with queue_for(stream, (target, source)) as queue:
        if _may_overlap(source, target):
            source = dense_copy(source, queue)
            strides = _broadcast(source, target.shape)
        if cast is None:
            move(source, strides, target, queue)
        else:
            _cast(source, target, cast, queue)


def contiguous(a: Any, order: Order, stream: Any) -> Any:
    """Do what `fastindex.numpy.ascontiguousarray` and `fastindex.numpy.asfortranarray` do."""
    source = as_device_array(a, "a")
    if source.shape and _is_contiguous(source, order):
        return a
    # NumPy's result has at least one dimension.
    shape = source.shape or (1,)
    with queue_for(stream, (source,)) as queue:
        result, target = new_result(source, shape, source.dtype, queue.handle, order)
        if target.size:
            move(source, source.strides or (0,), target, queue)
        return queue.finished(result)


def _cast_between(source: DeviceArray, target: DeviceArray, casting: str) -> Cast | None:
    """Return the cast from one array to another, None if their dtypes are equal.

    Raises
    ------
    ArgumentTypeError, UnsupportedError, FastIndexError
        `casting` does not allow it, or XLA has no such dtype.
    """
    check_casting(casting)
    if source.dtype == target.dtype:
        return None
    kinds = element_type_of(source.dtype), element_type_of(target.dtype)
    if kinds[0] is None or kinds[1] is None:
        raise ArgumentTypeError(
            f"dst holds {target.dtype} and src {source.dtype}; on the GPU, copyto casts between XLA's element types: "
            "let the library of src do it first"
        )
    check_cast(kinds[0], kinds[1], casting)
    return cast_of(kinds[0], kinds[1])


def _broadcast(source: DeviceArray, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of `source` broadcast to `shape`; extra leading dimensions of size 1 are dropped, as in NumPy.

    Raises
    ------
    FastIndexError
        It does not broadcast.
    """
    own, strides = source.shape, source.strides
    while len(own) > len(shape) and own[0] == 1:
        own, strides = own[1:], strides[1:]
    missing = len(shape) - len(own)
    if missing < 0 or any(size not in (1, wanted) for size, wanted in zip(own, shape[missing:], strict=True)):
        raise FastIndexError(f"src of shape {source.shape} does not broadcast to the shape {shape} of dst")
    return broadcast_strides(own, strides, shape)


def _may_overlap(a: DeviceArray, b: DeviceArray) -> bool:
    (first, last), (begin, end) = a.extent, b.extent
    return first < end and begin < last


def _is_contiguous(array: DeviceArray, order: str) -> bool:
    if order == "F":
        shape, strides = array.shape[::-1], array.strides[::-1]
        return DeviceArray(0, shape, strides, array.dtype, True, 0, 0, "", None).is_contiguous
    return array.is_contiguous


def dense_copy(source: DeviceArray, queue: Queue) -> DeviceArray:
    """Return a contiguous copy of an array, in temporary memory."""
    copy = _dense_like(source, queue)
    move(source, source.strides, copy, queue)
    return copy


def _dense_like(like: DeviceArray, queue: Queue) -> DeviceArray:
    """Return temporary contiguous memory for the elements of an array."""
    _, memory = new_device_array(like, (like.nbytes,), np.uint8, queue.handle)
    strides = contiguous_strides(like.shape, like.dtype.itemsize)
    return replace(memory, shape=like.shape, strides=strides, dtype=like.dtype)


def move(source: DeviceArray, strides: tuple[int, ...], target: DeviceArray, queue: Queue) -> None:
    """Copy an array, broadcast by `strides`, to another of the same dtype."""
    _copying(target.shape, target.dtype.itemsize, strides, target.strides).run(source, target, b"", queue)


def _cast(source: DeviceArray, target: DeviceArray, cast: Cast, queue: Queue) -> None:
    """Copy and cast; a side whose elements are not aligned to their size goes through a temporary array."""
    if not _in_elements(source):
        source = dense_copy(source, queue)
    made = target if _in_elements(target) else _dense_like(target, queue)
    _casting(target.shape, cast, _broadcast(source, target.shape), made.strides).run(source, made, b"", queue)
    if made is not target:
        move(made, made.strides, target, queue)


def _in_elements(array: DeviceArray) -> bool:
    strides = (stride for stride, size in zip(array.strides, array.shape, strict=True) if size > 1)
    return all(number % array.dtype.itemsize == 0 for number in (array.address, *strides))


def _fill(target: DeviceArray, value: Any, casting: str, stream: Any) -> None:
    """Write one value to all elements; NumPy decides whether it can be cast, and raises if not."""
    one = np.empty((), target.dtype)
    np.copyto(one, value, casting)  # type: ignore[arg-type]
    if target.size == 0:
        return
    with queue_for(stream, (target,)) as queue:
        pattern = one.tobytes()
        movement, width = _filling(target.shape, target.dtype.itemsize, target.strides)
        if pattern == pattern[:width] * (len(pattern) // width):
            movement.run(target, target, pattern[:width], queue)
        else:
            value_there = as_device_array(cuda.uploaded(np.frombuffer(pattern, np.uint8), queue.handle), "the value")
            move(value_there, (0,) * len(target.shape), target, queue)


@lru_cache(maxsize=512)
def _copying(
    dimensions: tuple[int, ...], itemsize: int, source_strides: tuple[int, ...], strides: tuple[int, ...]
) -> Movement:
    nest, width = strided_copy(dimensions, itemsize, source_strides, strides)
    return Movement(RelayoutLoops((nest,), ()), width)


@lru_cache(maxsize=512)
def _casting(
    dimensions: tuple[int, ...], cast: Cast, source_strides: tuple[int, ...], strides: tuple[int, ...]
) -> Movement:
    read, written = cast.source.nbytes, cast.target.nbytes
    steps = zip(dimensions, source_strides, strides, strict=True)
    loops = tuple(Loop(size, there // read, here // written) for size, there, here in steps if size > 1)
    return Movement(RelayoutLoops((coalesced(Nest(loops)),), ()), written, cast=cast)


@lru_cache(maxsize=512)
def _filling(dimensions: tuple[int, ...], itemsize: int, strides: tuple[int, ...]) -> tuple[Movement, int]:
    nest, width = strided_copy(dimensions, itemsize, (0,) * len(dimensions), strides)
    loops = tuple(Loop(loop.size, 0, loop.destination_stride) for loop in nest.loops)
    return Movement(RelayoutLoops((), (Nest(loops, 0, nest.destination_start),)), width), width
