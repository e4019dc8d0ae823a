"""Moves on the GPU from the slots of one side to those of the other: cached plans, packed elements, casts.

A cast gives the CPU's results. If both sides hold plain values and share loops, one kernel converts and moves them.
Otherwise, for packed elements and tiles that share no loops, elements are first converted without a change of layout,
and then moved.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fastindex.algebra.casts import Cast, cast_of, of_type
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, relayout_loops
from fastindex.algebra.shared_digits import Strides
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape
from fastindex.core.sizes import SlotFormat, slot_format
from fastindex.cuda.arrays import DeviceArray
from fastindex.cuda.kernels.device import THREADS
from fastindex.cuda.kernels.units import PACKED_BITS, pack_bits_kernel
from fastindex.cuda.libraries import new_device_array
from fastindex.cuda.movements import CastLoops, Movement
from fastindex.cuda.queues import Queue, watched
from fastindex.moving.problem import loops_of_values, packed_byte, packing_loops, slot_move, unpacking_loops


class Transfer:
    """A move on the GPU from the slots of one side to those of the other."""

    def __init__(self, source: Shape | Strides, destination: Shape | Strides, movement: Movement) -> None:
        self._slots = slot_move(source, destination)
        self._counts = _count(source), _count(destination)
        self._movement = movement
        # Packed elements are unpacked, or packed, while they move, if their runs allow it.
        move = self._slots
        self._fused: Movement | None = None
        if move.conversion is not None and move.loops is not None:
            bits = (move.source if move.conversion == "expand" else move.destination).bits
            self._fused = Movement(move.loops, None, 1, (bits, move.conversion))

    def run(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        """Move, without waiting for the GPU."""
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
        unpacked = scratch(target, self._counts[1] * move.width, queue)
        self._movement.run(source, unpacked, values, queue)
        _to_slots(unpacked, target, move.destination, self._counts[1], queue)


def _count(side: Shape | Strides) -> int:
    return side.slot_count if isinstance(side, Shape) else 0


@lru_cache(maxsize=512)
def transfer(source: Shape | Strides, destination: Shape | Strides) -> Transfer | None:
    """Return the move, or None if strides and tiles share no loops."""
    move = slot_move(source, destination)
    sides = None
    if isinstance(source, Shape) and isinstance(destination, Shape) and move.unit != "byte":
        sides = source, destination
    if move.loops is None and sides is None:
        return None
    return Transfer(source, destination, Movement(move.loops, sides, move.width))


def sure_transfer(source: Shape | Strides, destination: Shape | Strides) -> Transfer:
    """Return the move between two sides for which there is one."""
    found = transfer(source, destination)
    assert found is not None
    return found


def scratch(like: DeviceArray, size: int, queue: Queue) -> DeviceArray:
    """Return scratch memory of the library of `like`, which reuses it in the order of the stream."""
    return new_device_array(like, (size,), np.uint8, queue.handle)[1]


def _to_values(slots: DeviceArray, form: SlotFormat, count: int, queue: Queue) -> DeviceArray:
    """Return the unpacked values of the slots of a buffer; the buffer itself if it holds plain values."""
    if form.is_plain or count == 0:
        return slots
    values = scratch(slots, count * form.value_bytes, queue)
    _unpacking(count, form).run(slots, values, bytes(1), queue)
    return values


def _to_slots(values: DeviceArray, target: DeviceArray, form: SlotFormat, count: int, queue: Queue) -> None:
    if not form.is_packed:
        _packing(count, form).run(values, target, bytes(1), queue)
        return
    with watched(values, target):
        blocks = -(-count // (8 * THREADS))
        kind = PACKED_BITS.index(form.bits)
        queue.launch(pack_bits_kernel(), blocks, target.address, values.address, count, kind)


@lru_cache(maxsize=64)
def _unpacking(count: int, form: SlotFormat) -> Movement:
    if form.is_packed:
        return Movement(RelayoutLoops((Nest((Loop(count, 1, 1),)),), ()), None, 1, (form.bits, "expand"))
    return Movement(unpacking_loops(form, count), None, 1)


@lru_cache(maxsize=64)
def _packing(count: int, form: SlotFormat) -> Movement:
    return Movement(packing_loops(form, count), None, 1)


# Casts


class CastTransfer:
    """A move on the GPU from the slots of one side to those of the other, with a cast to another element type."""

    def __init__(self, source: Shape | Strides, destination: Shape | Strides, cast: Cast) -> None:
        self._source, self._cast = source, cast
        loops = loops_of_values(source, destination)
        self._loops = None if loops is None else CastLoops(loops, cast)
        self._before: CastTransfer | CastLoops
        if self._loops is not None:
            return
        # Convert in the layout of the source, or if that has only strides, of the destination.
        side = source if isinstance(source, Shape) else destination
        assert isinstance(side, Shape)
        self._between = of_type(side, cast.target)
        self._after: Transfer = sure_transfer(self._between, destination)
        if isinstance(source, Shape):
            count = Nest((Loop(source.slot_count, 1, 1),) if source.slot_count > 1 else ())
            self._before = CastLoops(RelayoutLoops((count,) if source.slot_count else (), ()), cast)
        else:
            self._before = CastTransfer(source, self._between, cast)

    def run(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        """Move, and write `pattern`, an unpacked element of the new type, to all padding; do not wait for the GPU."""
        if self._loops is not None:
            self._loops.run(source, target, pattern, queue)
            return
        _, converted = new_device_array(target, (self._between.nbytes,), np.uint8, queue.handle)
        if isinstance(self._source, Shape):
            source = _to_values(source, slot_format(self._source), self._source.slot_count, queue)
        self._before.run(source, converted, bytes(self._cast.target.nbytes), queue)
        self._after.run(converted, target, pattern, queue)


@lru_cache(maxsize=512)
def cast_transfer(source: Shape | Strides, destination: Shape | Strides, cast: Cast) -> CastTransfer | None:
    """Return the move with its cast, or None if strides and tiles share no loops."""
    if not (isinstance(source, Shape) and isinstance(destination, Shape)) and (
        relayout_loops(source, destination) is None
    ):
        return None
    return CastTransfer(source, destination, cast)


def either_transfer(
    source: tuple[Shape | Strides, ElementType], destination: tuple[Shape | Strides, ElementType]
) -> Transfer | CastTransfer | None:
    """Return the move between two sides of given element types; None if strides share no loops with a shape."""
    if source[1] == destination[1]:
        return transfer(source[0], destination[0])
    return cast_transfer(source[0], destination[0], cast_of(source[1], destination[1]))
