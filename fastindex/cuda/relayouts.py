"""pack, unpack, rearrange and relayout for arrays in GPU memory, with the CPU's results."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastindex.algebra.casts import check_cast
from fastindex.algebra.shared_digits import Strides
from fastindex.algebra.sides import RegroupedShape, RegroupedStrides
from fastindex.arrays.arrays import (
    buffer_dtype,
    check_buffer,
    check_elements,
    check_no_overlap,
    check_target,
    element_strides,
    holds,
    require_contiguous,
)
from fastindex.arrays.fills import element_type_of, fill_pattern, value_bytes, wanted_type
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape
from fastindex.cuda.arrays import DeviceArray, as_device_array
from fastindex.cuda.libraries import new_result
from fastindex.cuda.queues import Queue, queue_for
from fastindex.cuda.transfers import CastTransfer, Transfer, either_transfer, scratch, sure_transfer
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.patterns.axes import MOVED_AS, Sides


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
            whole = scratch(values, plain.nbytes, queue)
            sure_transfer(side, plain).run(values, whole, bytes(own.nbytes), queue)
            values, moved = whole, _sure_either((plain, own), (shape, shape.element_type))
        moved.run(values, target, pattern, queue)
        return queue.finished(result)


def unpack(buffer: Any, shape: Shape, *, dtype: Any, casting: str, out: Any, stream: Any) -> Any:
    """Do what `fastindex.unpack` does."""
    slots = _Slots(shape).checked(buffer, "the buffer")
    target = None if out is None else as_device_array(out, "out")
    logical = Shape(_result_type(shape, target, dtype, casting), shape.dimensions)
    own, new = shape.element_type, logical.element_type
    side = None if target is None else _logical(target, logical, "out")
    with _queue(stream, slots, target) as queue:
        result = out
        if target is None:
            result, target = new_result(slots, shape.dimensions, new.numpy_dtype, queue.handle)
        side = side or _logical(target, logical, "the result")
        moved, pattern = either_transfer((shape, own), (side, new)), bytes(new.nbytes)
        if moved is None:
            whole = scratch(slots, logical.nbytes, queue)
            _sure_either((shape, own), (logical, new)).run(slots, whole, pattern, queue)
            slots, moved = whole, sure_transfer(logical, side)
        moved.run(slots, target, pattern, queue)
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
            whole = scratch(values, source.nbytes, queue)
            sure_transfer(side, Shape(names[0], sides.dimensions[0])).run(values, whole, bytes(types[0].nbytes), queue)
            values, moved = whole, _sure_either((source, types[0]), (destination, types[1]))
        if target.is_contiguous:
            moved.run(values, target, pattern, queue)
        else:
            made = scratch(values, destination.nbytes, queue)
            moved.run(values, made, pattern, queue)
            strides = element_strides(target)
            if strides is None:
                raise FastIndexError(f"out has strides that are not whole elements: {target.strides} bytes")
            sure_transfer(Shape(names[1], sides.dimensions[1]), strides).run(made, target, pattern, queue)
        return queue.finished(result)


class DevicePlan:
    """A relayout on the GPU between two layouts of one array, which have been checked to be movable."""

    def __init__(self, source: Shape, destination: Shape) -> None:
        self._source = _Slots(source)
        self._destination = _Slots(destination)
        self._transfer = _sure_either((source, source.element_type), (destination, destination.element_type))

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
        self._dtype = buffer_dtype(shape)
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


def _sure_either(source: tuple[Shape, ElementType], destination: tuple[Shape, ElementType]) -> Transfer | CastTransfer:
    found = either_transfer(source, destination)
    assert found is not None
    return found


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


def _result_type(shape: Shape, out: DeviceArray | None, dtype: Any, casting: str) -> ElementType:
    """Return the element type of an array that is unpacked from a buffer: the requested one, or that of `out`.

    Errors as for `_own_type`.
    """
    own = wanted = shape.element_type
    if dtype is not None:
        wanted = wanted_type(dtype)
    elif out is not None and not holds(out, own.numpy_dtype):
        wanted = element_type_of(out.dtype) or own
    check_cast(own, wanted, casting)
    return wanted


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
