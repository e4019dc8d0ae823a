"""Moves by NumPy alone, without a compiler; strided copies avoid conflict misses by a staging array.

Elements with a stride of a power of two map to few cache sets, and evict one another before their neighbours are read.
So blocks are first copied to a small array whose rows have a pitch of an odd number of cache lines.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from fastindex.algebra.casts import Cast, cast_by_numpy
from fastindex.algebra.loops import Nest, RelayoutLoops
from fastindex.algebra.shared_digits import Strides
from fastindex.core.shape import Shape
from fastindex.core.sizes import SlotFormat
from fastindex.index.programs import conversion_program
from fastindex.moving.problem import SlotMove
from fastindex.runtime.machine import Cache, these_caches
from fastindex.runtime.numbers import LINE_BYTES

#: Smaller arrays stay in the cache for any strides.
_LEAST_BYTES = 1 << 18
#: Bytes of a block, which must fit in L2 together with its copy.
_BLOCK_BYTES = 1 << 18


def copy(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy an array to another of the same shape and element type, without overlap and with positive strides.

    AMD EPYC (family 26), one thread, 2026-11-22, ``f32[512,16384]`` to columns: `numpy.copyto` 0.3 GiB/s, `copy` 2.8.

    Examples
    --------
    >>> source = np.arange(1 << 20, dtype=np.uint32).reshape(1024, 1024)
    >>> target = np.empty_like(source)
    >>> copy(target.T, source)
    >>> np.array_equal(target, source.T)
    True
    """
    if not collides(target, source, these_caches().l2):
        np.copyto(target, source)
        return
    sizes = _block_sizes(target, source)
    stage = _stage(source, sizes)
    for first in itertools.product(*(range(0, size, step) for size, step in zip(source.shape, sizes, strict=True))):
        place = tuple(slice(begin, begin + step) for begin, step in zip(first, sizes, strict=True))
        here = source[place]
        block = stage[tuple(slice(size) for size in here.shape)]
        np.copyto(block, here)
        np.copyto(target[place], block)


def collides(target: NDArray[Any], source: NDArray[Any], l2: Cache) -> bool:
    """Whether source lines, read in the order of the target, are evicted from L2 before their next element is read."""
    if source.nbytes < _LEAST_BYTES:
        return False
    # Assume that other data takes half of each set.
    ways = l2.ways // 2
    most_lines = 2 * l2.sets * ways
    together, lines = source.itemsize, np.zeros(1, np.int64)
    for d in _outwards(target):
        size, stride = source.shape[d], source.strides[d]
        if size == 1:
            continue
        if stride >= LINE_BYTES:
            size = min(size, max(most_lines // len(lines), 1))
            lines = (lines[:, None] + np.arange(size) * stride).reshape(-1)
        elif len(lines) > 1:
            return bool(np.bincount(lines // LINE_BYTES % l2.sets).max() > ways)
        else:
            together *= size
            if together >= LINE_BYTES:
                return False
    return False


def _block_sizes(target: NDArray[Any], source: NDArray[Any]) -> tuple[int, ...]:
    """Return the sizes of a block: rows of about equal length in the source and in the target."""
    sizes = [1] * source.ndim
    most = _BLOCK_BYTES // source.itemsize
    for array, count in ((source, 1 << most.bit_length() // 2), (target, most)):
        for d in _outwards(array):
            count_left = max(count // math.prod(sizes), 1)
            sizes[d] = min(sizes[d] * count_left, source.shape[d])
    return tuple(sizes)


def _outwards(array: NDArray[Any]) -> list[int]:
    return sorted(range(array.ndim), key=lambda d: array.strides[d])


def _stage(source: NDArray[Any], sizes: tuple[int, ...]) -> NDArray[Any]:
    """Return an array for a block, in the order of the source; its row pitch is an odd number of cache lines."""
    strides, step, next_stride, is_row = [0] * len(sizes), source.itemsize, source.itemsize, True
    for d in _outwards(source):
        if is_row and sizes[d] > 1 and source.strides[d] != next_stride:
            step, is_row = (-(-step // LINE_BYTES) | 1) * LINE_BYTES, False
        strides[d] = step
        step *= sizes[d]
        next_stride = source.strides[d] * sizes[d]
    return as_strided(np.empty(-(-step // source.itemsize), source.dtype), sizes, strides)


Bytes = NDArray[np.uint8]

#: Most bytes of scratch memory of a move, besides its arrays and unpacked values; it stays in the cache.
SCRATCH_BYTES = 2 << 20
#: Elements that are cast at a time.
_CAST_AT_ONCE = 1 << 15
#: Larger arrays are mapped, so that they are returned to the system when freed, which the allocator does not guarantee.
_LEAST_MAPPED_BYTES = 1 << 16

_BYTE = np.dtype(np.uint8)
_NONE = np.empty(0, np.uint8)
_UNITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def move_by_numpy(
    sides: tuple[Shape | Strides, Shape | Strides], slots: SlotMove, source: int, destination: int, pattern: bytes
) -> None:
    """Move data between two addresses by NumPy, and write `pattern`, an unpacked value, to all padding.

    Parameters
    ----------
    sides : (Shape or Strides, Shape or Strides)
        The two layouts of one array.
    slots : SlotMove
    source, destination : int
        Addresses of the first element.
    pattern : bytes
    """
    left, right = sides
    values, moved = _NONE, _NONE
    if slots.unit == "value" and not slots.source.is_plain and isinstance(left, Shape):
        values = scratch(left.slot_count * slots.width)
        unpack_by_numpy(slots.source, left.slot_count, source, values.ctypes.data)
        source = values.ctypes.data
    target = destination
    if slots.unit == "value" and not slots.destination.is_plain and isinstance(right, Shape):
        moved = scratch(right.slot_count * slots.width)
        target = moved.ctypes.data
    if slots.loops is not None:
        loops_by_numpy(slots.loops, slots.width, source, target, slots.padding(pattern))
    else:
        assert isinstance(left, Shape)
        assert isinstance(right, Shape)
        look_up_by_numpy((left, right), slots.width, source, target, slots.padding(pattern), range(right.slot_count))
    if target != destination and isinstance(right, Shape):
        pack_by_numpy(slots.destination, right.slot_count, target, destination)


def scratch(nbytes: int) -> Bytes:
    """Return temporary memory; large blocks are returned to the system when freed."""
    if nbytes < _LEAST_MAPPED_BYTES:
        return np.empty(nbytes, np.uint8)
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


class PreparedLoops:
    """Loops between two plain arrays, prepared for repeated calls by NumPy: a call only checks the arrays and copies.

    Parameters
    ----------
    loops : RelayoutLoops
        In units of `width` bytes.
    width : int
    arrays : pair of (dtype, int)
        The expected element type and length of source and destination; arrays of bytes are accepted too.
    padding : bytes
        One unit of padding.
    """

    def __init__(
        self, loops: RelayoutLoops, width: int, arrays: Sequence[tuple[np.dtype[Any], int]], padding: bytes
    ) -> None:
        self._unit, self._element = np.dtype(_UNITS[width]), _element(padding, width)
        in_bytes = [(_BYTE, (dtype.itemsize * length,)) for dtype, length in arrays]
        self._arrays = [((dtype, (length,)), one) for (dtype, length), one in zip(arrays, in_bytes, strict=True)]
        self._copies = [(_place(nest, width, 0), _place(nest, width, 1)) for nest in loops.copies]
        self._fills = [_place(nest, width, 1) for nest in loops.fills]

    def run(self, source: NDArray[Any], destination: NDArray[Any]) -> bool:
        """Copy and fill; return False without effect where the arrays are not of the expected kind."""
        for array, allowed in zip((source, destination), self._arrays, strict=True):
            if (array.dtype, array.shape) not in allowed or not array.flags.c_contiguous:
                return False
        if not destination.flags.writeable or np.may_share_memory(source, destination):
            return False
        read, written = source.view(np.uint8), destination.view(np.uint8)
        for (shape, begin, strides), (_, start, steps) in self._copies:
            there = np.ndarray(shape, self._unit, written, start, steps)
            copy(there, np.ndarray(shape, self._unit, read, begin, strides))
        for shape, start, steps in self._fills:
            np.ndarray(shape, self._unit, written, start, steps).fill(self._element)
        return True


def loops_by_numpy(loops: RelayoutLoops, width: int, source: int, destination: int, padding: bytes) -> None:
    """Execute the copies and fills of loops, in elements of `width` bytes."""
    for nest in loops.copies:
        copy(view_of(destination, nest, width, 1), view_of(source, nest, width, 0))
    for nest in loops.fills:
        view_of(destination, nest, width, 1)[...] = _element(padding, width)


def _place(nest: Nest, width: int, side: int) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Return the shape of a nest in elements of `width` bytes, and its offset and strides on one side in bytes."""
    strides = tuple(width * (k.destination_stride if side else k.source_stride) for k in nest.loops)
    start = nest.destination_start if side else nest.source_start
    return tuple(k.size for k in nest.loops) or (1,), start * width, strides or (width,)


def view_of(address: int, nest: Nest, width: int, side: int) -> NDArray[Any]:
    """Return the elements of a nest on one side as an array."""
    shape, start, strides = _place(nest, width, side)
    return as_strided(memory_at(address + start, width).view(_UNITS[width]), shape, strides)


def memory_at(address: int, nbytes: int) -> Bytes:
    """Return the bytes at an address as an array; the caller keeps the memory alive."""
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.frombuffer(memory, np.uint8)


def strided_at(address: int, dimensions: Sequence[int], strides: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the memory at an address as an array with strides in bytes; the caller keeps the memory alive."""
    return as_strided(memory_at(address, dtype.itemsize).view(dtype), dimensions, strides, writeable=False)


def _element(padding: bytes, width: int) -> Any:
    return np.frombuffer(padding, np.uint8)[:width].view(_UNITS[width])[0]


def look_up_by_numpy(
    sides: tuple[Shape, Shape], width: int, source: int, destination: int, padding: bytes, wanted: range
) -> None:
    """Fill the slots `wanted` of the destination from the source slots that the index program gives."""
    left, right = sides
    read = memory_at(source, left.slot_count * width).view(_UNITS[width])
    written = memory_at(destination, right.slot_count * width).view(_UNITS[width])
    program = conversion_program(right, left)
    # Temporaries: the slots, each quotient, a product, two sums, two masks, positions and values.
    at_once = SCRATCH_BYTES // (8 * (len(program.quotients) + 8))
    for begin in range(wanted.start, wanted.stop, at_once):
        part = written[begin : min(begin + at_once, wanted.stop)]
        part[...] = _element(padding, width)
        with np.errstate(over="ignore"):
            (found,), holds = program.evaluate((np.arange(begin, begin + len(part)),))
        valid = np.broadcast_to(holds, part.shape)
        part[valid] = read[np.broadcast_to(found, part.shape)[valid]]


def convert_by_numpy(cast: Cast, count: int, source: int) -> Bytes:
    """Cast `count` contiguous elements at an address; return the bytes of the result."""
    read, width = cast.source.nbytes, cast.target.nbytes
    converted = scratch(count * width)
    for begin in range(0, count, _CAST_AT_ONCE):
        part = min(_CAST_AT_ONCE, count - begin)
        data = memory_at(source + begin * read, part * read)
        converted[begin * width : (begin + part) * width] = cast_by_numpy(data, cast.source, cast.target)
    return converted


def unpack_by_numpy(layout: SlotFormat, count: int, source: int, target: int) -> None:
    """Unpack `count` slots into values."""
    at_once = _values_at_once(layout)
    for begin in range(0, count, at_once):
        part = min(at_once, count - begin)
        slots = memory_at(source + begin * layout.bits // 8, layout.nbytes(part))
        values = memory_at(target + begin * layout.value_bytes, part * layout.value_bytes)
        values[:] = unpacked_by_numpy(slots, layout, part)


def pack_by_numpy(layout: SlotFormat, count: int, source: int, target: int) -> None:
    """Pack `count` values into slots."""
    at_once = _values_at_once(layout)
    for begin in range(0, count, at_once):
        part = min(at_once, count - begin)
        values = memory_at(source + begin * layout.value_bytes, part * layout.value_bytes)
        slots = memory_at(target + begin * layout.bits // 8, layout.nbytes(part))
        slots[:] = packed_by_numpy(values, layout, part)


def _values_at_once(layout: SlotFormat) -> int:
    """Return how many values to convert at a time: whole bytes of slots, with four temporaries of slots or values."""
    return SCRATCH_BYTES // (4 * max(layout.bits // 8, layout.value_bytes)) & -8


def unpacked_by_numpy(slots: Bytes, layout: SlotFormat, count: int) -> Bytes:
    """Return the bytes of `count` values, from slots that are packed, or wider than a value.

    Examples
    --------
    >>> unpacked_by_numpy(np.array([0x21, 0x43], np.uint8), SlotFormat(1, 4), 3)
    array([1, 2, 3], dtype=uint8)
    """
    if layout.is_packed:
        shifts = np.arange(0, 8, layout.bits, dtype=np.uint8)
        return ((slots[:, None] >> shifts) & np.uint8((1 << layout.bits) - 1)).reshape(-1)[:count]
    return np.ascontiguousarray(slots.reshape(count, layout.bits // 8)[:, : layout.value_bytes]).reshape(-1)


def packed_by_numpy(values: Bytes, layout: SlotFormat, count: int) -> Bytes:
    """Return the bytes of `count` slots that hold values; the remainder of each slot and of the last byte is 0.

    Examples
    --------
    >>> packed_by_numpy(np.array([1, 2, 3], np.uint8), SlotFormat(1, 4), 3)
    array([33,  3], dtype=uint8)
    """
    if layout.is_packed:
        per_byte = 8 // layout.bits
        spread = np.zeros((-(-count // per_byte), per_byte), np.uint8)
        spread.reshape(-1)[:count] = values & np.uint8((1 << layout.bits) - 1)
        shifts = np.arange(0, 8, layout.bits, dtype=np.uint8)
        packed: Bytes = np.bitwise_or.reduce(spread << shifts, axis=1)
        return packed
    slots = np.zeros((count, layout.bits // 8), np.uint8)
    slots[:, : layout.value_bytes] = values.reshape(count, layout.value_bytes)
    return slots.reshape(-1)
