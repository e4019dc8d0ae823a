"""`pack`, `unpack` and `relayout` of whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastindex.algebra.casts import Casting, check_cast, check_casting
from fastindex.arrays.engines import place_of
from fastindex.arrays.fills import array_dimensions, fill_pattern, logical_result
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import check_movable
from fastindex.errors import check_flag
from fastindex.lazy import hook
from fastindex.moving.relayout_plans import RelayoutPlan, plan_of
from fastindex.moving.requests import execute, packing, unpacking
from fastindex.runtime.threads import check_threads


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
        Of any strides. Of the shape's element type, or of a type that `casting` allows to cast to it; elements are then
        cast during the move. Types that NumPy lacks are those of ml_dtypes.
    shape : Shape or str
    fill : number, optional
        Value for padding slots; by default the layout's padding value, which defaults to zero.
    out : array of one dimension, optional
        Output: ``shape.slot_count`` elements of the element type, or ``shape.nbytes`` bytes of uint8. It must not
        overlap `array`. Where the layout only orders the dimensions, also an array with the dimensions in that order.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for another element type of `array`. "same_kind" allows casts from pred to unsigned integers, to
        signed integers, to floats, in this order and of any width; the reverse needs "unsafe". Integers cast to fewer
        than 8 bits have to be in range, except with "unsafe", which keeps their low bits, as the GPU does.
    threads : int, optional
        The most threads to use; see `fastindex.runtime.threads.thread_count`.
    stream : CUDA stream, optional
        The stream to run on if the data is on the GPU; see `fastindex.cuda`.
    max_memory : int, optional
        Limit for the memory of the whole process during the call, in bytes; at least 160 MiB. For memory maps of files,
        such as `numpy.memmap` and ``numpy.load(..., mmap_mode="r")``: they are copied box by box, and their pages do
        not stay resident. All other arrays are counted in full: new results, plain arrays, and on systems other than
        Linux all arrays.

    Returns
    -------
    array of one dimension
        `out`, or a new array: of the element type, or of uint8 where elements are packed below a byte or padded above
        their natural width.

    Raises
    ------
    FastIndexError
        Wrong dimensions, a wrong size of `out`, a `fill` out of range of the element type, or a `max_memory` too small
        for the program and one box of the array; the message names a sufficient one. An integer out of range of an
        element type of fewer than 8 bits: the message names its position, and `out` may have been written.
    ArgumentTypeError
        A dtype without an XLA element type, or one that `casting` does not allow to cast to the element type.
    UnsupportedError
        The shape has no slots, its ``E`` is not a size in which data can move, or complex numbers would be cast.
    OSError
        With `max_memory`: a page of a memory map could not be read or written, because its file is too short or the
        disk is full.
    KeyboardInterrupt
        The call was interrupted. Some slots of `out` hold new values, the others their old ones; no further writes
        happen.

    Notes
    -----
    The definition of a layout: XLA, "Tiled layout", and ``xla/layout.h``.

    Casts give the same bits as ``array.astype``, for ml_dtypes' types too. Where NumPy's result depends on the
    processor, for floats out of range of an integer type, the result is XLA's: the nearest value in range, 0 for NaN.

    On the main thread, signal handlers run about every 50 ms, and between parts of at most 128 MiB; an exception of a
    handler ends the call like an interrupt.

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
    place = place_of(array, stream, out, max_memory)
    if place is not None:
        options = {"out": out, "stream": stream} if place == "cuda" else {"threads": threads}
        return hook(f"{place}.pack")(array, shape, fill, casting=casting, **options)
    return execute(packing(array, shape, fill, out, casting, threads, max_memory))


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
    """Read a logical array from a physical buffer; padding slots are ignored.

    Parameters
    ----------
    buffer : array of one dimension, bytes, or anything with the buffer protocol
        Elements of the element type, or exactly ``shape.nbytes`` raw bytes. Bytes in front of the data (``M``) are not
        part of it.
    shape : Shape or str
    out : array of ``shape.dimensions``, optional
        Output; of any strides without overlap. It must not overlap `buffer`.
    dtype : dtype, ElementType or str, optional
        The element type of the result, by default that of `out` or of `shape`; elements are cast to it. A str is XLA's
        name, such as ``"u8"`` for 8 bits, or one that means the same in all libraries, such as ``"float32"``.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for this cast, as for `pack`.
    threads : int, optional
        The most threads to use.
    stream : CUDA stream, optional
        The stream to run on if the data is on the GPU; see `fastindex.cuda`.
    max_memory : int, optional
        Limit for the memory of the process in bytes, as for `pack`.

    Returns
    -------
    array of ``shape.dimensions``

    Raises
    ------
    FastIndexError
        A wrong size of `buffer`, wrong dimensions of `out`, or a too small `max_memory`.
    ArgumentTypeError, UnsupportedError, OSError
        As for `pack`.
    KeyboardInterrupt
        As for `pack`: some elements of `out` hold new values, the others their old ones.

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
    place = place_of(buffer, stream, out, max_memory)
    if place == "cuda":
        return hook("cuda.unpack")(buffer, shape, dtype=dtype, casting=casting, out=out, stream=stream)
    logical = logical_result(shape, out.dtype if isinstance(out, np.ndarray) else None, dtype, casting)
    if place is not None:
        return hook(f"{place}.unpack")(buffer, shape, dtype=logical.element_type, casting=casting, threads=threads)
    return execute(unpacking(buffer, shape, logical, out, casting, threads, max_memory))


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
        As for `unpack`, of `source`. Where `source` only orders the dimensions, also a contiguous array with the
        dimensions in memory order, which is the logical order for a plain layout.
    source, destination : Shape or str
        Two layouts of arrays of the same dimensions. Where their element types differ, elements are cast during the
        move.
    fill : number, optional
        Value for the padding slots of `destination`; by default its padding value, which defaults to zero.
    out : array, optional
        As for `pack`, of `destination`.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for another element type, as for `pack`.
    threads : int, optional
        The most threads to use.
    stream : CUDA stream, optional
        The stream to run on if the data is on the GPU; see `fastindex.cuda`.
    as_array : bool
        Return an array of the dimensions of `destination` in memory order, not a buffer of one dimension.
    max_memory : int, optional
        Limit for the memory of the process in bytes, as for `pack`.

    Returns
    -------
    array of one dimension, or with ``as_array=True`` of those of `destination`

    Raises
    ------
    FastIndexError
        Shapes of different dimensions, or buffers of a wrong size; ``as_array=True`` for a `destination` with tiles or
        padding; a too small `max_memory`.
    ArgumentTypeError, UnsupportedError, OSError
        As for `pack`.
    KeyboardInterrupt
        As for `pack`: some slots of `out` hold new values, the others their old ones.

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
    if as_array is not False:
        check_flag("as_array", as_array)
    if place_of(buffer, stream, out, max_memory) == "dask":
        options = {"casting": casting, "threads": threads, "as_array": as_array}
        return hook("dask.relayout")(buffer, source, destination, fill, **options)
    plan = plan_relayout(source, destination, casting=casting)
    if fill is None and max_memory is None:
        return plan(buffer, out, threads, stream, as_array)
    pattern = fill_pattern(plan.destination, fill)
    dimensions = array_dimensions(plan.destination) if as_array else None
    result = plan.apply(buffer, pattern, out, threads, stream, max_memory)
    return result if dimensions in (None, result.shape) else result.reshape(dimensions)


def plan_relayout(source: Shape | str, destination: Shape | str, *, casting: Casting = "same_kind") -> RelayoutPlan:
    """Plan a relayout once, to call it many times; plans are cached, so the same shapes give the same plan.

    Parameters
    ----------
    source, destination : Shape or str
        Two layouts of arrays of the same dimensions.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for another element type of `destination`, as for `pack`.

    Raises
    ------
    FastIndexError
        Shapes of different dimensions.
    ArgumentTypeError
        `casting` does not allow the element types.
    UnsupportedError
        As for `pack`.

    Examples
    --------
    >>> import fastindex as fi
    >>> plan = fi.plan_relayout("f32[4096,4096]{1,0}", "f32[4096,4096]{0,1}")
    >>> plan.is_bitcast
    False
    >>> print(plan.describe())
    f32[4096,4096]{1,0} -> f32[4096,4096]{0,1}
    transpose, 4-byte units, 16 tasks, about 67,108,864 bytes: 16384 bytes contiguous in the source become 16384 \
contiguous in the destination
    """
    source, destination = as_shape(source), as_shape(destination)
    cast = check_cast(source.element_type, destination.element_type, casting)
    return plan_of(source, destination, cast is not None and cast.is_checked)
