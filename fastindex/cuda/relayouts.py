"""pack, unpack and relayout for arrays in GPU memory: the CPU's results, on the GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fastindex.arguments.arrays import (
    buffer_dtype,
    check_apart,
    check_buffer,
    check_elements,
    check_target,
    element_strides,
    require_contiguous,
)
from fastindex.arguments.fills import fill_pattern, value_bytes
from fastindex.cuda.arrays import DeviceArray, as_device_array
from fastindex.cuda.libraries import new_device_array
from fastindex.cuda.movements import Movement
from fastindex.cuda.queues import Queue, queue_for, watched
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.kernels.cuda.copies import pack_bits_kernel
from fastindex.kernels.cuda.device import THREADS
from fastindex.lowering.index.regrouped import RegroupedShape, RegroupedStrides
from fastindex.lowering.relayout.problem.loops import Loop, Nest, RelayoutLoops
from fastindex.lowering.relayout.problem.shared_digits import Strides
from fastindex.lowering.relayout.problem.slot_moves import packed_byte, packing_loops, slot_move, unpacking_loops
from fastindex.patterns.axes import MOVED_AS, Sides
from fastindex.shapes.shape import Shape
from fastindex.shapes.slot_format import SlotFormat


def pack(array: Any, shape: Shape, fill: Any, out: Any, stream: Any) -> Any:
    """Do what `fastindex.pack` does."""
    values = as_device_array(array, "the array")
    side = _logical(values, shape, "the array")
    slots, pattern = _Slots(shape), fill_pattern(shape, fill)
    target = None if out is None else slots.checked(out, "out")
    with _queue(stream, values, target) as queue:
        result, target = slots.result(out, target, values, queue)
        moved = _transfer(side, shape)
        if moved is None:
            plain = Shape(shape.element_type, shape.dimensions)
            whole = _scratch(values, plain.nbytes, queue)
            _sure_transfer(side, plain).run(values, whole, pattern, queue)
            values, moved = whole, _sure_transfer(plain, shape)
        moved.run(values, target, pattern, queue)
    return result


def unpack(buffer: Any, shape: Shape, out: Any, stream: Any) -> Any:
    """Do what `fastindex.unpack` does."""
    slots = _Slots(shape).checked(buffer, "the buffer")
    target = None if out is None else as_device_array(out, "out")
    side = None if target is None else _logical(target, shape, "out")
    with _queue(stream, slots, target) as queue:
        result = out
        if target is None:
            result, target = new_device_array(slots, shape.dimensions, shape.element_type.numpy_dtype, queue.handle)
        side = side or _logical(target, shape, "the result")
        moved, pattern = _transfer(shape, side), bytes(shape.element_type.nbytes)
        if moved is None:
            plain = Shape(shape.element_type, shape.dimensions)
            whole = _scratch(slots, plain.nbytes, queue)
            _sure_transfer(shape, plain).run(slots, whole, pattern, queue)
            slots, moved = whole, _sure_transfer(plain, side)
        moved.run(slots, target, pattern, queue)
    return result


def rearrange(array: Any, sides: Sides, fill: Any, out: Any) -> Any:
    """Do what `fastindex.rearrange` does: sides by the same variables."""
    values = as_device_array(array, "the array")
    dtype = values.dtype
    width = dtype.itemsize
    if width not in MOVED_AS:
        raise UnsupportedError(f"elements of {width} bytes do not move on the GPU; {dtype} has so many")
    shapes = [Shape(MOVED_AS[width], dimensions) for dimensions in sides.dimensions]
    source, destination = (
        RegroupedShape(shape, coordinates, sides.variables)
        for shape, coordinates in zip(shapes, sides.coordinates, strict=True)
    )
    pattern = value_bytes(dtype, fill)
    target = None if out is None else as_device_array(out, "out")
    if target is not None and (target.dtype, target.shape) != (dtype, shapes[1].dimensions):
        raise FastIndexError(f"out must be {dtype} of {shapes[1].dimensions}, got {target.dtype} of {target.shape}")
    side = element_strides(values)
    if side is None:
        raise FastIndexError(f"the array has strides that are not whole elements: {values.strides} bytes")
    with _queue(None, values, target) as queue:
        result = out
        if target is None:
            result, target = new_device_array(values, shapes[1].dimensions, dtype, queue.handle)
        moved = _transfer(
            RegroupedStrides(side.dimensions, side.strides, source.coordinates, sides.variables), destination
        )
        if moved is None:
            whole = _scratch(values, shapes[0].nbytes, queue)
            _sure_transfer(side, shapes[0]).run(values, whole, pattern, queue)
            values, moved = whole, _sure_transfer(source, destination)
        if target.is_contiguous:
            moved.run(values, target, pattern, queue)
        else:
            made = _scratch(values, shapes[1].nbytes, queue)
            moved.run(values, made, pattern, queue)
            strides = element_strides(target)
            if strides is None:
                raise FastIndexError(f"out has strides that are not whole elements: {target.strides} bytes")
            _sure_transfer(shapes[1], strides).run(made, target, pattern, queue)
    return result


class DevicePlan:
    """A relayout on the GPU; its two shapes are layouts of one array that can move."""

    def __init__(self, source: Shape, destination: Shape) -> None:
        self._source = _Slots(source)
        self._destination = _Slots(destination)
        self._transfer = _sure_transfer(source, destination)

    def __call__(self, buffer: Any, pattern: bytes, out: Any, stream: Any) -> Any:
        """Move a buffer, with the bytes of one unpacked value for padding."""
        slots = self._source.checked(buffer, "the buffer")
        target = None if out is None else self._destination.checked(out, "out")
        with _queue(stream, slots, target) as queue:
            result, target = self._destination.result(out, target, slots, queue)
            self._transfer.run(slots, target, pattern, queue)
        return result

    def move(self, slots: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        """Move between buffers that are known to fit."""
        self._transfer.run(slots, target, pattern, queue)


# Arguments


class _Slots:
    """What buffers of a shape look like, so that a call with the usual ones is checked by three comparisons."""

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
            As `check_buffer`, or it has gaps.
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
        return new_device_array(like, self._usual[0], self._dtype, queue.handle)


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
    check_apart(target, (given,))
    return queue_for(stream, (given, target))


# Moving


class Transfer:
    """How the slots of one side become those of the other, on the GPU."""

    def __init__(self, source: Shape | Strides, destination: Shape | Strides, movement: Movement) -> None:
        self._slots = slot_move(source, destination)
        self._counts = _count(source), _count(destination)
        self._movement = movement
        # Packed elements are unpacked, or packed, while they move, if their runs can be.
        move = self._slots
        self._fused: Movement | None = None
        if move.conversion is not None and move.loops is not None:
            bits = (move.source if move.conversion == "expand" else move.destination).bits
            self._fused = Movement(move.loops, None, 1, (bits, move.conversion))

    def run(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        """Move; nothing waits for the GPU."""
        move = self._slots
        values = pattern if move.unit == "value" else move.padding(pattern)
        if self._fused is not None:
            packed = move.destination.is_packed
            padding = packed_byte(pattern, move.destination.bits) if packed else pattern
            if self._fused.run(source, target, padding, queue):
                return
        if move.unit == "value":
            source = _to_values(source, move.source, self._counts[0], queue)
        if move.unit != "value" or move.destination.is_plain or self._counts[1] == 0:
            self._movement.run(source, target, values, queue)
            return
        unpacked = _scratch(target, self._counts[1] * move.width, queue)
        self._movement.run(source, unpacked, values, queue)
        _to_slots(unpacked, target, move.destination, self._counts[1], queue)


def _count(side: Shape | Strides) -> int:
    return side.slot_count if isinstance(side, Shape) else 0


@lru_cache(maxsize=512)
def _transfer(source: Shape | Strides, destination: Shape | Strides) -> Transfer | None:
    """Return how to move, or None where strides and tiles share no loops."""
    move = slot_move(source, destination)
    sides = None
    if isinstance(source, Shape) and isinstance(destination, Shape) and move.unit != "byte":
        sides = source, destination
    if move.loops is None and sides is None:
        return None
    return Transfer(source, destination, Movement(move.loops, sides, move.width))


def _sure_transfer(source: Shape | Strides, destination: Shape | Strides) -> Transfer:
    found = _transfer(source, destination)
    assert found is not None
    return found


def _scratch(like: DeviceArray, size: int, queue: Queue) -> DeviceArray:
    """Return bytes of the library of `like`, which reuses them in the order of the stream."""
    return new_device_array(like, (size,), np.uint8, queue.handle)[1]


def _to_values(slots: DeviceArray, form: SlotFormat, count: int, queue: Queue) -> DeviceArray:
    """Return unpacked values for the slots of a buffer, the buffer itself where it holds these."""
    if form.is_plain or count == 0:
        return slots
    values = _scratch(slots, count * form.value_bytes, queue)
    _unpacking(count, form).run(slots, values, bytes(1), queue)
    return values


def _to_slots(values: DeviceArray, target: DeviceArray, form: SlotFormat, count: int, queue: Queue) -> None:
    if not form.is_packed:
        _packing(count, form).run(values, target, bytes(1), queue)
        return
    with watched(values, target):
        blocks = -(-count // (8 * THREADS))
        queue.launch(pack_bits_kernel(form.bits), blocks, target.address, values.address, count)


@lru_cache(maxsize=64)
def _unpacking(count: int, form: SlotFormat) -> Movement:
    if form.is_packed:
        return Movement(RelayoutLoops((Nest((Loop(count, 1, 1),)),), ()), None, 1, (form.bits, "expand"))
    return Movement(unpacking_loops(form, count), None, 1)


@lru_cache(maxsize=64)
def _packing(count: int, form: SlotFormat) -> Movement:
    return Movement(packing_loops(form, count), None, 1)
