"""A relayout of host memory on the GPU, box by box, through pinned memory: copies and kernels overlap."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.segments import (
    Box,
    Grid,
    box_shape,
    box_sizes,
    box_steps,
    joint_steps,
    segment_costs,
    slab_order,
)
from fastindex.arrays.fills import fill_pattern
from fastindex.core.shape import Shape
from fastindex.cuda.arrays import DeviceArray, as_device_array, memory_errors
from fastindex.cuda.kernels import device as cuda
from fastindex.cuda.movements import transfer_of_shapes
from fastindex.cuda.queues import Queue
from fastindex.errors import FastIndexError
from fastindex.moving.box_arrays import BufferBoxes
from fastindex.moving.numpy_copies import copyto
from fastindex.moving.relayout_plans import require_movable_pair
from fastindex.moving.requests import relaying

#: Memory for boxes, in bytes, if the caller gives no limit.
DEFAULT_MEMORY = 256 << 20

#: Boxes in flight at a time, each with memory for both sides.
_SLOTS = 2


def relayout_in_boxes(
    buffer: Any, source: Shape, destination: Shape, out: Any, fill: Any, max_memory: int | None, casting: str
) -> NDArray[Any]:
    """Do what `fastindex.cuda.relayout_through_device` does."""
    require_movable_pair(source, destination, casting)
    one = relaying(buffer, (source, destination), fill_pattern(destination, fill), out, casting != "unsafe", None)
    memory = DEFAULT_MEMORY if max_memory is None else int(max_memory)
    if memory < 1:
        raise FastIndexError(f"max_memory must be at least 1 byte, got {max_memory}")
    result: NDArray[Any] = one.target.array
    if result.size == 0:
        return result
    sides = (
        BufferBoxes(source, one.source.array.view(np.uint8), False),
        BufferBoxes(destination, result.view(np.uint8), True),
    )
    grid = _grid(source, destination, memory // _SLOTS)
    with _Pipeline(sides, grid, one.pattern) as pipeline:
        for box in grid.boxes(slab_order(destination)):
            pipeline.add(box)
    return result


def _grid(source: Shape, destination: Shape, most: int) -> Grid:
    """Cut both sides into boxes of at most `most` bytes together, or of as few as their tiles allow."""
    dimensions = destination.dimensions
    steps = joint_steps(dimensions, box_steps(source), box_steps(destination))

    def costs(sizes: tuple[int, ...]) -> tuple[int, int]:
        sides = segment_costs(source, sizes), segment_costs(destination, sizes)
        return sides[0][0] + sides[1][0], sides[0][1] + sides[1][1]

    return Grid(dimensions, box_sizes(dimensions, steps, costs, most) or steps)


@dataclass(slots=True)
class _Slot:
    """Memory for one box in flight, for source and destination, and its stream."""

    stream: Any
    pinned_in: NDArray[np.uint8]
    pinned_out: NDArray[np.uint8]
    device_in: Any
    device_out: Any
    box: Box | None = None


class _Pipeline:
    """Boxes in flight: while one is on the GPU, the host writes the previous one and reads the next."""

    def __init__(self, sides: tuple[BufferBoxes, BufferBoxes], grid: Grid, pattern: bytes) -> None:
        self._source, self._target = sides
        self._pattern = pattern
        self._all: list[_Slot] = []
        self._next = 0
        # Boxes at an end may be larger: they have its padding.
        places = itertools.product(*({0, count - 1} for count in grid.counts))
        ends = [[box.nbytes for box in self._shapes(grid.box(place))] for place in places]
        self._sizes = [max(*of_side, 1) for of_side in zip(*ends, strict=True)]

    def _shapes(self, box: Box) -> tuple[Shape, Shape]:
        return box_shape(self._source.shape, box), box_shape(self._target.shape, box)

    def __enter__(self) -> _Pipeline:
        read, written = self._sizes
        hint = f"no memory for {_SLOTS} boxes of {read + written} bytes; give a smaller max_memory, or use the CPU"
        with memory_errors(f"{hint} if the tiles of both layouts allow no smaller boxes"):
            for _ in range(_SLOTS):
                pinned = cuda.new_pinned_bytes(read), cuda.new_pinned_bytes(written)
                on_gpu = cuda.new_array(read, np.uint8), cuda.new_array(written, np.uint8)
                self._all.append(_Slot(cuda.new_stream(), *pinned, *on_gpu))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for i in range(len(self._all)):
            slot = self._all[(self._next + i) % len(self._all)]
            if kind is None:
                self._finish(slot)
            else:
                cuda.synchronize(slot.stream)

    def add(self, box: Box) -> None:
        """Send a box to the GPU, once the previous one in the same memory is done."""
        slot = self._all[self._next]
        self._next = (self._next + 1) % len(self._all)
        self._finish(slot)
        source, target = self._shapes(box)
        for view, part in self._source.parts(box, slot.pinned_in[: source.nbytes]):
            copyto(part, view)
        if source.nbytes:
            slot.device_in[: source.nbytes].copy_to_device(slot.pinned_in[: source.nbytes], stream=slot.stream)
        queue = Queue(cuda.current_device(), cuda.stream_handle(slot.stream))
        sides = _part(slot.device_in, source.nbytes), _part(slot.device_out, target.nbytes)
        transfer_of_shapes(source, target).run(*sides, self._pattern, queue)
        if target.nbytes:
            slot.device_out[: target.nbytes].copy_to_host(slot.pinned_out[: target.nbytes], stream=slot.stream)
        slot.box = box

    def _finish(self, slot: _Slot) -> None:
        """Wait for a box, and write it to the destination."""
        box, slot.box = slot.box, None
        if box is None:
            return
        cuda.synchronize(slot.stream)
        for view, part in self._target.parts(box, slot.pinned_out[: box_shape(self._target.shape, box).nbytes]):
            copyto(view, part)


def _part(array: Any, nbytes: int) -> DeviceArray:
    return as_device_array(array[:nbytes], "a box")
