"""pack, unpack, rearrange, relayout and copyto for arrays in GPU memory, with the CPU's results."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fastindex.algebra.casts import Cast, cast_of, check_cast, check_casting
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced, strided_copy
from fastindex.algebra.sides import RegroupedStrides
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
from fastindex.cuda.movements import Move, Movement, transfer, transfer_of_shapes
from fastindex.cuda.queues import Queue, queue_for
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.moving.movements import cast_between
from fastindex.moving.rearranged_arrays import regrouped
from fastindex.moving.requests import Operand
from fastindex.patterns.grammar import MOVED_AS, Sides


def pack(array: Any, shape: Shape, fill: Any, *, casting: str, out: Any, stream: Any) -> Any:
    """Do what `fastindex.pack` does."""
    values = as_device_array(array, "the array")
    plain = Shape(_own_type(values, shape.element_type, casting, "the array"), shape.dimensions)
    check_elements(values, plain, "the array")
    form = _form(shape)
    target = None if out is None else _slots(out, shape, form, "out")
    both = Operand(values, plain, element_strides(values)), Operand(target, shape, shape)
    return _execute(*both, out, form, fill_pattern(shape, fill), stream)


def unpack(buffer: Any, shape: Shape, *, dtype: Any, casting: str, out: Any, stream: Any) -> Any:
    """Do what `fastindex.unpack` does."""
    slots = _slots(buffer, shape, _form(shape), "the buffer")
    target = None if out is None else as_device_array(out, "out")
    made = None if target is None or holds(target, shape.element_type.numpy_dtype) else target.dtype
    logical = logical_result(shape, made, dtype, casting)
    written = Operand(target, logical, logical)
    if target is not None:
        check_elements(target, logical, "out")
        written = written._replace(side=element_strides(target))
    form, pattern = (shape.dimensions, logical.element_type.numpy_dtype), bytes(logical.element_type.nbytes)
    return _execute(Operand(slots, shape, shape), written, out, form, pattern, stream)


def rearrange(array: Any, sides: Sides, fill: Any, dtype: Any, casting: str, out: Any) -> Any:
    """Do what `fastindex.rearrange` does, for sides with the same variables."""
    values = as_device_array(array, "the array")
    target = None if out is None else as_device_array(out, "out")
    kinds = _rearranged_types(values, target, dtype, casting)
    new = values.dtype if kinds is None else kinds[1].numpy_dtype
    if target is not None and (target.shape != sides.dimensions[1] or not _is_of(target, new)):
        raise FastIndexError(f"out must be {new} of {sides.dimensions[1]}, got {target.dtype} of {target.shape}")
    names = _moved_names(values) if kinds is None else (kinds[0].name, kinds[1].name)
    source, plain = regrouped((Shape(names[0], sides.dimensions[0]), Shape(names[1], sides.dimensions[1])), sides)
    found = element_strides(values)
    side = found and RegroupedStrides(found.dimensions, found.strides, source.coordinates, sides.variables)
    both = (
        Operand(values, source, side),
        Operand(target, plain, plain if target is None or target.is_contiguous else None),
    )
    return _execute(*both, out, (sides.dimensions[1], new), value_bytes(new, fill), None)


class DevicePlan:
    """A relayout on the GPU between two layouts of one array, which have been checked to be movable."""

    def __init__(self, source: Shape, destination: Shape) -> None:
        self._sides, self._forms = (source, destination), (_form(source), _form(destination))
        self._moved = transfer_of_shapes(source, destination)

    def __call__(self, buffer: Any, pattern: bytes, out: Any, stream: Any) -> Any:
        """Move a buffer; `pattern` is the bytes of one unpacked value for padding."""
        (source, destination), (read, written) = self._sides, self._forms
        slots = _slots(buffer, source, read, "the buffer")
        target = None if out is None else _slots(out, destination, written, "out")
        both = Operand(slots, source, source), Operand(target, destination, destination)
        return _execute(*both, out, written, pattern, stream, self._moved)


def _execute(
    read: Operand,
    written: Operand,
    out: Any,
    form: tuple[tuple[int, ...], np.dtype[Any]],
    pattern: bytes,
    stream: Any,
    moved: Move | None = None,
) -> Any:
    """Do what `fastindex.moving.requests.execute` does for the descriptions of two arrays.

    Parameters
    ----------
    read, written : Operand
        Without an array to write to, its side is that of a new one.
    out : array or None
        The array that `written` describes.
    form : (dimensions, dtype)
        Those of a new array.
    pattern : bytes
    stream : CUDA stream or None
    moved : Move, optional
        The move between the two sides.
    """
    given, target, side = read.array, written.array, written.side
    if target is not None:
        check_target(target)
        check_no_overlap(target, (given,))
    with queue_for(stream, (given,) if target is None else (given, target)) as queue:
        if target is None:
            out, target = new_result(given, *form, queue.handle)
        made = target
        if side is None:
            made, side = _dense_like(target, queue), written.plain
        if moved is None and read.side is not None:
            cast = cast_between(read.plain.element_type, written.plain.element_type, False)
            moved = transfer(read.side, side, cast)
        if moved is None:
            # Strides that share no loops with a layout: elements move through a contiguous array.
            if isinstance(read.side, Shape):
                made = _dense_like(target, queue)
            else:
                given = dense_copy(given, queue)
            moved = transfer_of_shapes(read.plain, written.plain)
        moved.run(given, made, pattern, queue)
        if made is not target:
            move(made, made.strides, target, queue)
        return queue.finished(out)


def _form(shape: Shape) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the dimensions and the dtype of new buffers of a shape."""
    dtype = buffer_form(shape).dtype
    return (shape.nbytes // dtype.itemsize,), dtype


def _slots(value: Any, shape: Shape, form: tuple[tuple[int, ...], np.dtype[Any]], name: str) -> DeviceArray:
    """Describe a buffer, which usually has the dimensions and the dtype of a new one.

    Raises
    ------
    ArgumentTypeError, FastIndexError
        As `check_buffer`, or the buffer has gaps.
    """
    found = as_device_array(value, name)
    if found.dtype != form[1] or (found.shape, found.strides) != (form[0], (form[1].itemsize,)):
        check_buffer(found, shape, name)
        require_contiguous(found, name)
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
        array = replace(array, shape=array.shape[::-1], strides=array.strides[::-1])
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
