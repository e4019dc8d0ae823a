"""pack, unpack and relayout for arrays in GPU memory: the CPU's results, on the GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arguments.buffers import buffer_dtype, check_movable, require_movable_pair
from fastindex.arguments.fills import fill_pattern
from fastindex.cuda.arrays import (
    DeviceArray,
    as_device_array,
    new_device_array,
    require_writable,
)
from fastindex.cuda.index_programs import gather, unit_of
from fastindex.cuda.queues import Queue, Tables, queue_for, watched
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.kernels.cuda.compilation import Kernel
from fastindex.kernels.cuda.copies import bits_kernel, copy_kernel, fill_kernel, weave_kernel
from fastindex.kernels.cuda.device import THREADS
from fastindex.kernels.cuda.tiles import scalar_transpose_kernel, staged_kernel, transpose_kernel
from fastindex.lowering.cuda_launches import (
    MOST_LAUNCHES,
    STAGE_BYTES,
    VECTOR_BYTES,
    Launch,
    launches,
)
from fastindex.lowering.division import division
from fastindex.lowering.index_program import conversion_program
from fastindex.lowering.relayout_loops import RelayoutLoops, Strides, grouped, relayout_loops
from fastindex.lowering.slot_format import SlotFormat, slot_format
from fastindex.lowering.slot_moves import packing_loops, slot_move, unpacking_loops
from fastindex.shapes.shape import Shape
from fastindex.tables import cuda_launches as cuda_tables


def pack(array: Any, shape: Shape, fill: Any, out: Any, stream: Any) -> Any:
    """Do what `fastindex.pack` does."""
    check_movable(shape)
    values = _logical(array, shape, "the array")
    target = None if out is None else _buffer(out, shape, "out")
    pattern = fill_pattern(shape, fill)
    with _checked_queue(stream, values, target) as queue:
        result, target = _result(out, target, values, (shape.slot_count,), shape, queue)
        layout = slot_format(shape)
        side = _strides(values)
        moved = _movement(side, shape, layout.value_bytes)
        if moved is None:
            plain = _plain(shape)
            values = _scratch(values, plain.nbytes, queue)
            source = as_device_array(array, "the array")
            _sure_movement(side, plain, layout.value_bytes).run(source, values, bytes(16), queue)
            moved = _sure_movement(plain, shape, layout.value_bytes)
        _to_slots(moved, values, target, layout, shape.slot_count, pattern, queue)
    return result


def unpack(buffer: Any, shape: Shape, out: Any, stream: Any) -> Any:
    """Do what `fastindex.unpack` does."""
    check_movable(shape)
    slots = _buffer(buffer, shape, "the buffer")
    target = None if out is None else _logical(out, shape, "out")
    with _checked_queue(stream, slots, target) as queue:
        if target is None:
            result, target = new_device_array(slots, shape.dimensions, shape.element_type.numpy_dtype, queue.handle)
        else:
            result = out
        layout = slot_format(shape)
        width = layout.value_bytes
        values = _to_values(slots, layout, shape.slot_count, queue)
        side = _strides(target)
        moved = _movement(shape, side, width)
        if moved is not None:
            moved.run(values, target, bytes(width), queue)
        else:
            plain = _plain(shape)
            whole = _scratch(slots, plain.nbytes, queue)
            _sure_movement(shape, plain, width).run(values, whole, bytes(width), queue)
            _sure_movement(plain, side, width).run(whole, target, bytes(width), queue)
    return result


def relayout(buffer: Any, source: Shape, destination: Shape, pattern: bytes, out: Any, stream: Any) -> Any:
    """Do what `fastindex.relayout` does, with the bytes of one unpacked value for padding."""
    slots = _buffer(buffer, source, "the buffer")
    target = None if out is None else _buffer(out, destination, "out")
    with _checked_queue(stream, slots, target) as queue:
        result, target = _result(out, target, slots, (destination.slot_count,), destination, queue)
        move_slots(slots, target, source, destination, pattern, queue)
    return result


def move_slots(
    slots: DeviceArray, target: DeviceArray, source: Shape, destination: Shape, pattern: bytes, queue: Queue
) -> None:
    """Move a buffer of one layout to a buffer of another."""
    require_movable_pair(source, destination)
    move = slot_move(source, destination)
    moved = _movement(source, destination, move.width, move.slots_per_unit)
    assert moved is not None
    if move.unit != "value":
        moved.run(slots, target, move.padding(pattern), queue)
        return
    values = _to_values(slots, move.source, source.slot_count, queue)
    _to_slots(moved, values, target, move.destination, destination.slot_count, pattern, queue)


# Arguments


def _alike(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether a dtype is `wanted`, or its bits where a library lacks it."""
    if found == wanted:
        return True
    # NumPy's own types are what every library has.
    return wanted.isbuiltin != 1 and found.itemsize == wanted.itemsize and found.kind in "uiV"


def _buffer(buffer: Any, shape: Shape, name: str) -> DeviceArray:
    check_movable(shape)
    found = as_device_array(buffer, name)
    dtype = buffer_dtype(shape)
    if not _alike(found.dtype, dtype) and found.dtype not in (np.uint8, np.int8):
        raise ArgumentTypeError(
            f"{name} of {shape.cut_text()} must hold {dtype} or raw bytes (uint8), got dtype {found.dtype}"
        )
    if len(found.shape) != 1:
        raise FastIndexError(f"{name} must have one dimension, got {len(found.shape)}")
    if found.nbytes != shape.nbytes:
        raise FastIndexError(
            f"a buffer of {shape.cut_text()} takes {shape.nbytes} bytes ({shape.slot_count} slots), "
            f"{name} has {found.nbytes}"
        )
    if not found.is_contiguous:
        raise FastIndexError(f"{name} must be contiguous: a buffer has no gaps between its slots")
    return found


def _logical(array: Any, shape: Shape, name: str) -> DeviceArray:
    found = as_device_array(array, name)
    dtype = shape.element_type.numpy_dtype
    if not _alike(found.dtype, dtype):
        raise ArgumentTypeError(f"{name} for {shape.cut_text()} must be of dtype {dtype}, got {found.dtype}")
    if found.shape != shape.dimensions:
        wanted = ", ".join(map(str, shape.dimensions))
        raise FastIndexError(f"{shape.cut_text()} has the dimensions ({wanted}), {name} has {found.shape}")
    steps = [stride for stride, size in zip(found.strides, found.shape, strict=True) if size > 1]
    if any(stride % dtype.itemsize for stride in steps):
        raise FastIndexError(f"{name} has strides that are no whole elements: {found.strides} bytes")
    return found


def _checked_queue(stream: Any, given: DeviceArray, target: DeviceArray | None) -> Any:
    if target is not None:
        require_writable(target, (given,))
        _require_apart(target)
    return queue_for(stream, (given,) if target is None else (given, target))


def _require_apart(out: DeviceArray) -> None:
    extent = out.dtype.itemsize
    steps = zip(out.strides, out.shape, strict=True)
    for stride, size in sorted((abs(stride), size) for stride, size in steps if size > 1):
        if stride < extent:
            raise FastIndexError(f"the elements of out overlap: its strides are {out.strides} bytes")
        extent = stride * (size - 1) + extent


def _result(
    out: Any, target: DeviceArray | None, like: DeviceArray, shape: tuple[int, ...], layout: Shape, queue: Queue
) -> tuple[Any, DeviceArray]:
    if target is not None:
        return out, target
    dtype = buffer_dtype(layout)
    size = shape if dtype != np.uint8 else (layout.nbytes,)
    return new_device_array(like, size, dtype, queue.handle)


def _scratch(like: DeviceArray, size: int, queue: Queue) -> DeviceArray:
    """Give bytes of the library of `like`, which reuses them in the order of the stream."""
    return new_device_array(like, (size,), np.uint8, queue.handle)[1]


def _plain(shape: Shape) -> Shape:
    return Shape(shape.element_type, shape.dimensions)


def _strides(array: DeviceArray) -> Strides:
    itemsize = array.dtype.itemsize
    steps = zip(array.strides, array.shape, strict=True)
    return Strides(array.shape, tuple(stride // itemsize if size > 1 else 0 for stride, size in steps))


# Moving


@dataclass(frozen=True, slots=True)
class _Started:
    """A launch but for its addresses: its kernel, how many blocks, where its table is, and its other arguments."""

    launch: Launch
    kernel: Kernel
    blocks: int
    table_start: int
    others: tuple[int, ...]


class Movement:
    """How values of `width` bytes get from one side to the other on the GPU.

    Without loops that both sides share, every slot is looked up.
    """

    def __init__(self, loops: RelayoutLoops | None, sides: tuple[Shape, Shape] | None, width: int) -> None:
        self._loops = loops
        self._sides = sides
        self._width = width
        self._plans: dict[int, tuple[tuple[_Started, ...], NDArray[np.int64]] | None] = {}
        self._tables = Tables()

    def run(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        """Move, and write `pattern`, `width` bytes long, to all padding. Nothing waits for the GPU."""
        alignment = math.gcd(VECTOR_BYTES, source.address, target.address)
        if alignment not in self._plans:
            self._plans[alignment] = self._planned(alignment)
        plan = self._plans[alignment]
        if plan is None:
            self._gather(source, target, pattern, queue)
            return
        started, numbers = plan
        if not started:
            return
        table = self._tables.place(alignment, numbers, queue)
        with watched((table.address, table.nbytes), source, target):
            for one in started:
                _start(one, source.address, target.address, table.address, pattern, queue)

    def _planned(self, alignment: int) -> tuple[tuple[_Started, ...], NDArray[np.int64]] | None:
        """Give the launches and their tables, or None where every slot is looked up."""
        if self._loops is None:
            return None
        found = launches(self._loops, self._width, alignment)
        if self._sides is not None and len(found) > MOST_LAUNCHES:
            return None
        started: list[_Started] = []
        tables = [np.empty(0, np.int64)]
        for launch in found:
            others: tuple[int, ...] = (len(launch.loops),)
            if launch.tile is None:
                others = (launch.units, *others)
            if launch.kernel in ("weave", "part"):
                others = (*others, launch.step)
            blocks = cuda_tables.blocks(launch.kernel, launch.units, THREADS)
            start = sum(table.nbytes for table in tables)
            started.append(_Started(launch, _kernel_of(launch), blocks, start, others))
            tables.append(_table(launch))
        return tuple(started), np.concatenate(tables)

    def _gather(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        sides = self._sides
        assert sides is not None
        if math.gcd(self._width, source.address, target.address) < self._width:
            raise FastIndexError(
                f"a buffer of {self._width}-byte elements must start at a multiple of {self._width} bytes to move "
                "slot by slot; copy it to memory of its own"
            )
        gather(conversion_program(sides[1], sides[0]), self._width, source, target, pattern, queue)


@lru_cache(maxsize=512)
def _movement(source: Shape | Strides, destination: Shape | Strides, width: int, per_byte: int = 1) -> Movement | None:
    loops = relayout_loops(source, destination)
    if loops is not None and per_byte > 1:
        loops = grouped(loops, per_byte)
    sides = None
    if per_byte == 1 and isinstance(source, Shape) and isinstance(destination, Shape):
        sides = source, destination
    return None if loops is None and sides is None else Movement(loops, sides, width)


def _sure_movement(source: Shape | Strides, destination: Shape | Strides, width: int) -> Movement:
    moved = _movement(source, destination, width)
    assert moved is not None
    return moved


def _table(launch: Launch) -> NDArray[np.int64]:
    loops = []
    for loop in launch.loops:
        constants = division(loop.size, 1)
        loops.append((loop.size, constants.magic, constants.shift, loop.source_stride, loop.destination_stride))
    tile = launch.tile
    if tile is None:
        return cuda_tables.table(loops)
    header = (tile.rows, tile.tile_rows, tile.tile_columns, tile.columns)
    return cuda_tables.table(loops, header, (*tile.row_places, *tile.column_places))


def _kernel_of(launch: Launch) -> Kernel:
    width, tile = launch.width, launch.tile
    match launch.kernel:
        case "copy":
            return copy_kernel(width)
        case "fill":
            return fill_kernel(width)
        case "weave" | "part":
            return weave_kernel(width, launch.kernel == "part")
        case "transpose" if tile is not None:
            return transpose_kernel(width, *tile.room)
        case "transpose elements" if tile is not None:
            return scalar_transpose_kernel(width, *tile.room)
        case _:
            return staged_kernel(width, launch.kernel == "unstage", launch.vectors, STAGE_BYTES)


def _start(started: _Started, source: int, target: int, table: int, pattern: bytes, queue: Queue) -> None:
    launch, table = started.launch, table + started.table_start
    target += launch.destination_start
    if launch.kernel == "fill":
        low, high = unit_of(pattern[launch.step :] + pattern[: launch.step], VECTOR_BYTES)
        queue.launch(started.kernel, started.blocks, target, low, high, table, *started.others)
    else:
        source += launch.source_start
        queue.launch(started.kernel, started.blocks, target, source, table, *started.others)


# Slots that are no plain values


def _to_values(slots: DeviceArray, layout: SlotFormat, count: int, queue: Queue) -> DeviceArray:
    """Give unpacked values for the slots of a buffer, the buffer itself where it holds these."""
    if layout.is_plain or count == 0:
        return slots
    values = _scratch(slots, count * layout.value_bytes, queue)
    if layout.is_packed:
        _run_bits(layout.bits, True, slots, values, count, queue)
    else:
        _slots_to_values(count, layout).run(slots, values, bytes(1), queue)
    return values


def _to_slots(
    moved: Movement,
    source: DeviceArray,
    target: DeviceArray,
    layout: SlotFormat,
    count: int,
    pattern: bytes,
    queue: Queue,
) -> None:
    """Move values, and store them as the destination does."""
    if layout.is_plain or count == 0:
        moved.run(source, target, pattern, queue)
        return
    values = _scratch(target, count * layout.value_bytes, queue)
    moved.run(source, values, pattern, queue)
    if layout.is_packed:
        _run_bits(layout.bits, False, values, target, count, queue)
    else:
        _values_to_slots(count, layout).run(values, target, bytes(1), queue)


def _run_bits(bits: int, expand: bool, source: DeviceArray, target: DeviceArray, count: int, queue: Queue) -> None:
    with watched(source, target):
        blocks = -(-count // (8 * THREADS))
        queue.launch(bits_kernel(bits, expand), blocks, target.address, source.address, count)


@lru_cache(maxsize=64)
def _slots_to_values(count: int, layout: SlotFormat) -> Movement:
    return Movement(unpacking_loops(layout, count), None, 1)


@lru_cache(maxsize=64)
def _values_to_slots(count: int, layout: SlotFormat) -> Movement:
    return Movement(packing_loops(layout, count), None, 1)
