"""Whole arrays: into a layout, out of it, and from one layout to another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import can_misfit
from fastindex.algebra.shared_digits import Strides
from fastindex.arrays.addresses import address_of
from fastindex.arrays.arrays import described, element_strides
from fastindex.arrays.buffers import (
    as_buffer_bytes,
    as_logical_array,
    check_disjoint,
    check_movable,
    check_output_array,
    check_output_buffer,
    new_array,
    new_buffer,
    require_movable_pair,
)
from fastindex.arrays.engines import engine_of, on_gpu, require_lazy
from fastindex.arrays.fills import Casting, check_casting, fill_pattern, logical_result
from fastindex.bulk import bounded_relayouts
from fastindex.bulk.bounded_relayouts import require_unbounded
from fastindex.bulk.relayout_plans import RelayoutPlan, plan_of, shaped
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape, as_shape
from fastindex.first_use import load
from fastindex.moving.cast_movements import either_movement, movement_between
from fastindex.runtime.threads import check_threads
from fastindex.runtime.tuning import TUNING

# What calls plan by; tests choose other thresholds.
_TUNING = TUNING


def pack(
    array: Any,
    shape: Shape | str,
    fill: Any = None,
    *,
    out: Any = None,
    casting: Casting = "same_kind",
    threads: int | None = None,
    stream: Any = None,
    max_memory: int | None = None,
) -> Any:
    """Lay a logical array out as a physical buffer.

    Parameters
    ----------
    array : array of ``shape.dimensions``
        Of any strides. Of the shape's element type, or of one that `casting` allows to become it: elements are then
        cast while they move. Types that NumPy does not have are those of ml_dtypes.
    shape : Shape or str
    fill : number, optional
        What padding slots get; without it, the layout's padding value, zero by default.
    out : array of one dimension, optional
        Where to write: the element type and ``shape.slot_count`` elements, or ``shape.nbytes`` bytes of uint8. It may
        not overlap `array`. Where the layout only orders the dimensions, also an array of them in that order.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for another element type of `array`. With "same_kind", pred may become an unsigned integer, that a
        signed one, and that a float, of any width; the other way needs "unsafe". Integers that become integers of
        fewer than 8 bits have to be among these, unless it is "unsafe", which keeps their low bits, as the GPU does.
    threads : int, optional
        The most threads to use; see `fastindex.runtime.threads.thread_count`.
    stream : CUDA stream, optional
        Where to run if the data is on the GPU; see `fastindex.cuda`.
    max_memory : int, optional
        The most bytes that this process may have in memory while it runs, everything else of it included; at least
        160 MiB. For memory maps of files, such as `numpy.memmap` and ``numpy.load(..., mmap_mode="r")``: boxes of
        them are copied, and their pages do not stay. What lies elsewhere counts whole: new results, plain arrays, and
        on systems other than Linux all arrays.

    Returns
    -------
    array of one dimension
        `out`, or a new array: of the element type, or of uint8 where elements are packed below a byte or padded above
        their natural width.

    Raises
    ------
    FastIndexError
        Other dimensions, another size of `out`, a `fill` that the element type cannot hold, or a `max_memory` that
        does not hold the program and a box of the array; the message names one that does. An integer that an element
        type of fewer than 8 bits does not hold: the message names its place, and `out` may have been written.
    ArgumentTypeError
        A dtype that XLA has no element type for, or that `casting` does not allow to become the element type.
    UnsupportedError
        The shape has no slots, or its ``E`` is no size that data can move in; or a cast of complex numbers.
    OSError
        With `max_memory`, a part of a memory map could not be read or written: its file is too short, or the disk is
        full.
    KeyboardInterrupt
        The call was interrupted. Some slots of `out` hold new values, the others what they held before, and nobody
        writes to it any more.

    Notes
    -----
    The definition of a layout: XLA, "Tiled layout", and ``xla/layout.h``.

    What is cast is what ``array.astype`` gives, bit for bit, ml_dtypes' types included. Where NumPy's result depends on
    the processor, for floats that an integer type cannot hold, it is XLA's: the nearest number that it can, 0 for NaN.

    On the main thread, handlers of signals run every 50 ms or so, and between parts of at most 128 MiB; whatever they
    raise ends the call as an interrupt does.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> fi.pack(np.arange(6, dtype=np.float32).reshape(2, 3), "f32[2,3]{1,0:T(2,2)}", fill=-1)
    array([ 0.,  1.,  3.,  4.,  2., -1.,  5., -1.], dtype=float32)
    >>> fi.pack(np.array([[1.5, -7, 300]], np.float32), "s8[1,3]", casting="unsafe")
    array([  1,  -7, 127], dtype=int8)
    """
    shape = as_shape(shape)
    check_movable(shape)
    check_casting(casting)
    check_threads(threads)
    if on_gpu(array, stream):
        load("fastindex.cuda.relayouts")
        from fastindex.cuda import relayouts as cuda_relayouts

        require_unbounded(max_memory)
        return cuda_relayouts.pack(array, shape, fill, casting, out, stream)
    engine = engine_of(array)
    if engine is not None:
        require_lazy(out=out, max_memory=max_memory)
        return engine.pack(array, shape, fill, casting=casting, threads=threads)
    if max_memory is not None:
        return bounded_relayouts.pack(array, shape, fill, out, casting, threads, max_memory)
    return _packed(array, shape, fill, out, casting, threads)


def _packed(array: Any, shape: Shape, fill: Any, out: Any, casting: str, threads: int | None) -> NDArray[Any]:
    values = as_logical_array(array, shape, casting)
    result = new_buffer(shape) if out is None else check_output_buffer(out, shape)
    if out is not None:
        check_disjoint(result, values)
    side, values = _strides_of(values)
    own = ElementType.from_numpy_dtype(values.dtype)
    is_checked = casting != "unsafe"
    moved = either_movement((side, own), (shape, shape.element_type), _TUNING, is_checked)
    if moved is None:
        values = np.ascontiguousarray(values)
        moved = movement_between(Shape(own, shape.dimensions), shape, _TUNING, is_checked)
    moved.run(address_of(values), address_of(result), fill_pattern(shape, fill), threads)
    return result


def unpack(
    buffer: Any,
    shape: Shape | str,
    *,
    out: Any = None,
    dtype: Any = None,
    casting: Casting = "same_kind",
    threads: int | None = None,
    stream: Any = None,
    max_memory: int | None = None,
) -> Any:
    """Read a logical array from a physical buffer; what padding slots hold does not matter.

    Parameters
    ----------
    buffer : array of one dimension, bytes, or anything with the buffer protocol
        Of the element type, or raw bytes: exactly ``shape.nbytes``. Bytes in front of the data (``M``) are not part
        of it.
    shape : Shape or str
    out : array of ``shape.dimensions``, optional
        Where to write; of any strides that do not overlap. It may not overlap `buffer`.
    dtype : dtype, ElementType or str, optional
        The element type of the result, that of `out` or of `shape` by default; elements are cast to it.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for that, as for `pack`.
    threads : int, optional
        The most threads to use.
    stream : CUDA stream, optional
        Where to run if the data is on the GPU; see `fastindex.cuda`.
    max_memory : int, optional
        The most bytes that this process may have in memory, as for `pack`.

    Returns
    -------
    array of ``shape.dimensions``

    Raises
    ------
    FastIndexError
        Another size of `buffer`, other dimensions of `out`, too little memory.
    ArgumentTypeError, UnsupportedError, OSError
        As `pack`.
    KeyboardInterrupt
        As `pack`: some elements of `out` hold new values, the others what they held before.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> fi.unpack(np.arange(8, dtype=np.uint8), "u8[2,3]{1,0:T(2,2)}")
    array([[0, 1, 4],
           [2, 3, 6]], dtype=uint8)
    >>> fi.unpack(np.arange(8, dtype=np.uint8), "u8[2,3]{1,0:T(2,2)}", dtype=np.float16)
    array([[0., 1., 4.],
           [2., 3., 6.]], dtype=float16)
    """
    shape = as_shape(shape)
    check_movable(shape)
    check_threads(threads)
    check_casting(casting)
    if on_gpu(buffer, stream):
        load("fastindex.cuda.relayouts")
        from fastindex.cuda import relayouts as cuda_relayouts

        require_unbounded(max_memory)
        return cuda_relayouts.unpack(buffer, shape, dtype, casting, out, stream)
    logical = logical_result(shape, out, dtype, casting)
    engine = engine_of(buffer)
    if engine is not None:
        require_lazy(out=out, max_memory=max_memory)
        return engine.unpack(buffer, shape, dtype=logical.element_type, casting=casting, threads=threads)
    if max_memory is not None:
        return bounded_relayouts.unpack(buffer, shape, logical, out, casting, threads, max_memory)
    slots = as_buffer_bytes(buffer, shape)
    result = new_array(logical) if out is None else check_output_array(out, logical)
    if out is not None:
        check_disjoint(result, slots)
    pattern, side = bytes(logical.element_type.nbytes), element_strides(described(result))
    kinds = shape.element_type, logical.element_type
    is_checked = casting != "unsafe"
    moved = None if side is None else either_movement((shape, kinds[0]), (side, kinds[1]), _TUNING, is_checked)
    if moved is not None:
        moved.run(address_of(slots), address_of(result), pattern, threads)
    else:
        whole = new_array(logical)
        whole_move = movement_between(shape, logical, _TUNING, is_checked)
        whole_move.run(address_of(slots), address_of(whole), pattern, threads)
        result[...] = whole
    return result


def relayout(
    buffer: Any,
    source: Shape | str,
    destination: Shape | str,
    fill: Any = None,
    *,
    out: Any = None,
    casting: Casting = "same_kind",
    threads: int | None = None,
    stream: Any = None,
    as_array: bool = False,
    max_memory: int | None = None,
) -> Any:
    """Move a physical buffer from one layout to another, without a logical array in between.

    Parameters
    ----------
    buffer : array of one dimension, bytes, or anything with the buffer protocol
        As for `unpack`, of `source`. Where `source` only orders the dimensions, also a contiguous array of them in
        the order of memory: their own order for a plain layout.
    source, destination : Shape or str
        Two layouts of arrays of the same dimensions. Where their element types differ, elements are cast while they
        move.
    fill : number, optional
        What the padding slots of `destination` get; without it, its padding value, zero by default.
    out : array, optional
        As for `pack`, of `destination`.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for another element type, as for `pack`.
    threads : int, optional
        The most threads to use.
    stream : CUDA stream, optional
        Where to run if the data is on the GPU; see `fastindex.cuda`.
    as_array : bool
        Return an array of the dimensions of `destination` in the order of memory, not a buffer of one dimension.
    max_memory : int, optional
        The most bytes that this process may have in memory, as for `pack`.

    Returns
    -------
    array of one dimension, or with ``as_array=True`` of those of `destination`

    Raises
    ------
    FastIndexError
        Shapes of different arrays, or buffers of another size; ``as_array=True``, and `destination` has tiles or
        padding; too little memory.
    ArgumentTypeError, UnsupportedError, OSError
        As `pack`.
    KeyboardInterrupt
        As `pack`: some slots of `out` hold new values, the others what they held before.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> fi.relayout(np.arange(6, dtype=np.uint8), "u8[2,3]{1,0}", "u8[2,3]{0,1}")
    array([0, 3, 1, 4, 2, 5], dtype=uint8)
    >>> images = np.zeros((8, 3, 56, 60), np.uint8)
    >>> fi.relayout(images, "u8[8,3,56,60]", "u8[8,3,56,60]{1,3,2,0}", as_array=True).shape
    (8, 56, 60, 3)
    >>> fi.relayout(np.array([1.5, 2, 3.25], np.float32), "f32[3]", "bf16[3]{0:T(4)}", fill=-1)
    array([1.5, 2, 3.25, -1], dtype=bfloat16)
    """
    engine = engine_of(buffer)
    if engine is not None:
        require_lazy(out=out, stream=stream, max_memory=max_memory)
        return engine.relayout(buffer, source, destination, fill, casting=casting, threads=threads, as_array=as_array)
    if max_memory is not None:
        pair = as_shape(source), as_shape(destination)
        if on_gpu(buffer, stream):
            require_unbounded(max_memory)
        result = bounded_relayouts.relayout(buffer, *pair, fill, out, casting, threads, max_memory)
        return shaped(result, pair[1]) if as_array else result
    plan = plan_relayout(source, destination, casting=casting)
    if fill is None:
        return plan(buffer, out, threads, stream, as_array)
    result = plan.apply(buffer, fill_pattern(plan.destination, fill), out, threads, stream)
    return shaped(result, plan.destination) if as_array else result


def plan_relayout(source: Shape | str, destination: Shape | str, *, casting: Casting = "same_kind") -> RelayoutPlan:
    """Plan a relayout once, to call it many times; plans are kept, so the same shapes give the same plan.

    Parameters
    ----------
    source, destination : Shape or str
        Two layouts of arrays of the same dimensions.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for another element type of `destination`, as for `pack`.

    Raises
    ------
    FastIndexError
        Shapes of different arrays.
    ArgumentTypeError
        `casting` does not allow the element types.
    UnsupportedError
        As `pack`.

    Examples
    --------
    >>> import fastindex as fi
    >>> plan = fi.plan_relayout("f32[4096,4096]{1,0}", "f32[4096,4096]{0,1}")
    >>> plan.is_bitcast
    False
    >>> print(plan.describe())
    f32[4096,4096]{1,0} -> f32[4096,4096]{0,1}
    transpose, 4-byte units, 16 tasks, about 67108864 bytes: 16384 bytes contiguous in the source become 16384 \
contiguous in the destination
    """
    sides = as_shape(source), as_shape(destination)
    if sides[0].element_type != sides[1].element_type:
        require_movable_pair(*sides, casting)
    else:
        check_casting(casting)
    return plan_of(*sides, _TUNING, casting != "unsafe" and can_misfit(*(side.element_type for side in sides)))


def _strides_of(values: NDArray[Any]) -> tuple[Strides, NDArray[Any]]:
    side = element_strides(described(values))
    if side is None:
        values = np.ascontiguousarray(values)
        side = element_strides(described(values))
        assert side is not None
    return side, values
