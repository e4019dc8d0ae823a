"""A relayout of host memory on the GPU, in chunks through pinned memory: copies and kernels overlap."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import Cast, cast_of
from fastindex.algebra.loops import Nest, RelayoutLoops
from fastindex.arrays.arrays import address_of
from fastindex.arrays.fills import fill_pattern
from fastindex.core.shape import Shape
from fastindex.cuda.arrays import DeviceArray, as_device_array
from fastindex.cuda.kernels import device as cuda
from fastindex.cuda.launches.chunks import Chunk, chunks
from fastindex.cuda.movements import Movement
from fastindex.cuda.queues import Queue
from fastindex.cuda.relayouts import DevicePlan
from fastindex.errors import DeviceMemoryError, FastIndexError
from fastindex.moving.compiled_passes import CompiledPasses
from fastindex.moving.moves.nests.plan import passes
from fastindex.moving.problem import loops_of_values, slot_move
from fastindex.moving.relayout_plans import require_movable_pair
from fastindex.moving.requests import relaying
from fastindex.runtime.machine import this_machine

#: Memory for chunks, in bytes, if the caller gives no limit.
DEFAULT_MEMORY = 256 << 20

#: Chunks in flight at a time, each with memory for both sides.
_SLOTS = 2


def relayout_in_chunks(
    buffer: Any, source: Shape, destination: Shape, out: Any, fill: Any, max_memory: int | None, casting: str
) -> NDArray[Any]:
    """Do what `fastindex.cuda.relayout_through_device` does."""
    require_movable_pair(source, destination, casting)
    one = relaying(buffer, (source, destination), fill_pattern(destination, fill), out, casting != "unsafe", None)
    slots, result, pattern = one.source.array, one.target.array, one.pattern
    memory = DEFAULT_MEMORY if max_memory is None else int(max_memory)
    if memory < 1:
        raise FastIndexError(f"max_memory must be at least 1 byte, got {max_memory}")
    found = _units_of(source, destination, pattern)
    target = result.view(np.uint8)
    if found is None:
        _relayout_whole(slots, target, source, destination, pattern)
        return result
    loops, units = found
    CompiledPasses(passes(RelayoutLoops((), loops.fills), units.written, this_machine())).run(
        address_of(slots), address_of(target), units.padding, None
    )
    most = max(memory // (_SLOTS * (units.read + units.written)), 1)
    biggest = max((nest.element_count for nest in loops.copies), default=0)
    with _Pipeline(slots, target, units, min(most, biggest)) as pipeline:
        for nest in loops.copies:
            for chunk in chunks(nest, most):
                pipeline.add(chunk)
    return result


@dataclass(frozen=True, slots=True)
class _Units:
    """The unit that moves.

    Attributes
    ----------
    read, written : int
        Its bytes in the source, and in the destination.
    padding : bytes
        Of one unit in the destination.
    cast : Cast, optional
        The conversion of the unit, which is then an element.
    """

    read: int
    written: int
    padding: bytes
    cast: Cast | None = None


def _units_of(source: Shape, destination: Shape, pattern: bytes) -> tuple[RelayoutLoops, _Units] | None:
    """Return loops over units of whole bytes, and these units; None if there are none."""
    own, new = source.element_type, destination.element_type
    if own != new:
        loops = loops_of_values(source, destination)
        return None if loops is None else (loops, _Units(own.nbytes, new.nbytes, pattern, cast_of(own, new)))
    move = slot_move(source, destination)
    if move.unit == "value" or move.loops is None:
        return None
    return move.loops, _Units(move.width, move.width, move.padding(pattern))


def _relayout_whole(
    slots: NDArray[np.uint8], target: NDArray[np.uint8], source: Shape, destination: Shape, pattern: bytes
) -> None:
    """Move everything at once, for layouts that cannot be split into chunks."""
    if target.size == 0:
        return
    try:
        there, back = cuda.new_array(max(len(slots), 1), np.uint8), cuda.new_array(len(target), np.uint8)
    except MemoryError:
        raise DeviceMemoryError(
            f"{source.cut_text()} and {destination.cut_text()} share no loops, so both have to fit the GPU at once "
            f"({len(slots) + len(target)} bytes), and do not; use the CPU"
        ) from None
    if len(slots):
        there.copy_to_device(slots)
    described = as_device_array(there, "the buffer"), as_device_array(back, "the result")
    DevicePlan(source, destination).move(*described, pattern, Queue(cuda.current_device(), 0))
    target[:] = cuda.downloaded(described[1].address, len(target))


@dataclass(slots=True)
class _Slot:
    """Memory for one chunk in flight, for source and destination, and its stream."""

    stream: Any
    pinned_in: NDArray[np.uint8]
    pinned_out: NDArray[np.uint8]
    device_in: Any
    device_out: Any
    chunk: Chunk | None = None


class _Pipeline:
    """Chunks in flight: while one is on the GPU, the host scatters the previous one and gathers the next."""

    def __init__(self, source: NDArray[np.uint8], target: NDArray[np.uint8], units: _Units, most: int) -> None:
        self._source = address_of(source)
        self._target = address_of(target)
        self._units = units
        self._all: list[_Slot] = []
        self._next = 0
        self._most = most

    def __enter__(self) -> _Pipeline:
        read, written = self._most * self._units.read, self._most * self._units.written
        try:
            for _ in range(_SLOTS if self._most else 0):
                pinned = cuda.new_pinned_bytes(read), cuda.new_pinned_bytes(written)
                on_gpu = cuda.new_array(read, np.uint8), cuda.new_array(written, np.uint8)
                self._all.append(_Slot(cuda.new_stream(), *pinned, *on_gpu))
        except MemoryError:
            raise DeviceMemoryError(
                f"no memory for {_SLOTS} chunks of {read + written} bytes; give a smaller max_memory"
            ) from None
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for i in range(len(self._all)):
            slot = self._all[(self._next + i) % len(self._all)]
            if kind is None:
                self._finish(slot)
            else:
                cuda.synchronize(slot.stream)

    def add(self, chunk: Chunk) -> None:
        """Send a chunk to the GPU, once the previous chunk in the same memory is done."""
        slot = self._all[self._next]
        self._next = (self._next + 1) % len(self._all)
        self._finish(slot)
        read, written = self._units.read, self._units.written
        there, nbytes = self._source + chunk.source_start * read, chunk.element_count * read
        _on_host(chunk.gather, read).run(there, address_of(slot.pinned_in), bytes(read), None)
        slot.device_in[:nbytes].copy_to_device(slot.pinned_in[:nbytes], stream=slot.stream)
        made = chunk.element_count * written
        sides = (_part(slot.device_in, nbytes), _part(slot.device_out, made))
        queue = Queue(cuda.current_device(), cuda.stream_handle(slot.stream))
        _on_gpu(chunk.move, written, self._units.cast).run(*sides, bytes(written), queue)
        slot.device_out[:made].copy_to_host(slot.pinned_out[:made], stream=slot.stream)
        slot.chunk = chunk

    def _finish(self, slot: _Slot) -> None:
        """Wait for a chunk, and scatter it to the destination."""
        chunk, slot.chunk = slot.chunk, None
        if chunk is None:
            return
        cuda.synchronize(slot.stream)
        width = self._units.written
        back = self._target + chunk.destination_start * width
        _on_host(chunk.scatter, width).run(address_of(slot.pinned_out), back, bytes(width), None)


def _part(array: Any, nbytes: int) -> DeviceArray:
    return as_device_array(array[:nbytes], "a chunk")


@lru_cache(maxsize=64)
def _on_host(nest: Nest, width: int) -> CompiledPasses:
    return CompiledPasses(passes(RelayoutLoops((nest,), ()), width, this_machine()))


@lru_cache(maxsize=64)
def _on_gpu(nest: Nest, width: int, cast: Cast | None) -> Movement:
    return Movement(RelayoutLoops((nest,), ()), width, cast=cast)
