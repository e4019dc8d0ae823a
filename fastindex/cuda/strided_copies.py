"""copyto, ascontiguousarray and asfortranarray for arrays in GPU memory, of any strides."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fastindex.algebra.casts import Cast, cast_of, check_cast, check_casting
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced, strided_copy
from fastindex.arrays.arrays import broadcast_strides, check_target, contiguous_strides
from fastindex.arrays.engines import is_cuda_array
from fastindex.arrays.fills import element_type_of
from fastindex.cuda.arrays import DeviceArray, as_device_array
from fastindex.cuda.kernels import device as cuda
from fastindex.cuda.libraries import Order, new_device_array, new_result
from fastindex.cuda.movements import CastLoops, Movement
from fastindex.cuda.queues import Queue, queue_for
from fastindex.errors import ArgumentTypeError, FastIndexError

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
    return Movement(RelayoutLoops((nest,), ()), None, width)


@lru_cache(maxsize=512)
def _casting(
    dimensions: tuple[int, ...], cast: Cast, source_strides: tuple[int, ...], strides: tuple[int, ...]
) -> CastLoops:
    read, written = cast.source.nbytes, cast.target.nbytes
    steps = zip(dimensions, source_strides, strides, strict=True)
    loops = tuple(Loop(size, there // read, here // written) for size, there, here in steps if size > 1)
    return CastLoops(RelayoutLoops((coalesced(Nest(loops)),), ()), cast)


@lru_cache(maxsize=512)
def _filling(dimensions: tuple[int, ...], itemsize: int, strides: tuple[int, ...]) -> tuple[Movement, int]:
    nest, width = strided_copy(dimensions, itemsize, (0,) * len(dimensions), strides)
    loops = tuple(Loop(loop.size, 0, loop.destination_stride) for loop in nest.loops)
    return Movement(RelayoutLoops((), (Nest(loops, 0, nest.destination_start),)), None, width), width
