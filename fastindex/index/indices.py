"""Index conversion in bulk, where the arrays are: coordinates and windows to slots, bytes or bits, and back.

`fastindex.arrays.index_arguments` checks the arguments, once; an `IndexProgram` is the plan; `convert` of
`fastindex.index.executors` runs it.

`ravel_multi_index` and `unravel_index` have NumPy's signatures, results and errors. Large plain arrays run on
fastindex's kernel; everything else, errors included, is passed on to NumPy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram
from fastindex.arrays.arrays import common_shape
from fastindex.arrays.engines import engine_of, on_gpu
from fastindex.arrays.index_arguments import (
    MODES,
    Inputs,
    check_padding,
    coordinate_arguments,
    integer_arguments,
    is_window,
    slice_numbers,
    window_arguments,
)
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import check_option
from fastindex.index.executors import BadElementError, bad_place, convert, out_of_bounds
from fastindex.index.programs import UNITS, conversion_program, count_of_units, linear_program, multi_program


def linear_index(
    shape: Shape | str,
    multi_index: Any,
    mode: str | Sequence[str] = "raise",
    *,
    unit: str = "slot",
    out: NDArray[np.int64] | None = None,
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """Return the positions of elements in the buffer: their slots, or the offsets of their first byte or bit.

    Parameters
    ----------
    shape : Shape or str
    multi_index : sequence of integer arrays, or a window
        One array per dimension; they broadcast together. Integers of any width; a range takes no memory.
        With a slice or an Ellipsis among them (``numpy.s_[100:108, :]``) they are a window: slices and integers follow
        NumPy's rules, each range is a separate axis, and the result is that of ``numpy.ix_``. A window needs no arrays
        of coordinates, and increments replace divisions.
    mode : {"raise", "wrap", "clip"} or a sequence of one per dimension
        What happens to a coordinate out of bounds, as in `numpy.ravel_multi_index`. Not for windows.
    unit : {"slot", "byte", "bit"}
        Unit of the result, counted from the start of the buffer. For an element smaller than a byte, "byte" gives the
        byte that holds it, and "bit" is exact. The first element of a byte is in its low bits.
    out : int64 array, optional
        Where to write the result, of the common shape. Its contents after an error are undefined.
    threads : int, optional
        Maximum number of threads; see `fastindex.runtime.threads.thread_count`.
    stream : CUDA stream, optional
        Where to run if the indices, or for a window `out`, are on the GPU; see `fastindex.cuda`.

    Returns
    -------
    int64 array of the common shape, or of the window's; an int64 scalar where all coordinates are scalars

    Raises
    ------
    OutOfBoundsError
        A coordinate is out of bounds; the message names it and its place.
    ArgumentTypeError
        Coordinates are not integers.
    FastIndexError
        The number of coordinates is wrong, they do not broadcast together, or `unit` is unknown.
    UnsupportedError
        `shape` has no slots: not an array, sparse, or unbounded.
    LayoutError
        The number of units in the buffer does not fit int64.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> fi.linear_index("f32[3,5]{1,0:T(2,2)}", ([2, 0], [3, 4]))
    array([17,  8])
    >>> int(fi.linear_index("f32[3,5]{1,0:T(2,2)}", (2, 3), unit="byte"))
    68
    >>> fi.linear_index("f32[3,5]{1,0:T(2,2)}", np.s_[1:, ::2])
    array([[ 2,  6, 10],
           [12, 16, 20]])
    """
    shape = as_shape(shape)
    check_option("unit", unit, UNITS)
    program = linear_program(shape, unit=unit)
    if is_window(multi_index):
        arguments = window_arguments(multi_index, shape, mode, stream)
    else:
        arguments = coordinate_arguments(multi_index, shape, mode, stream, label="linear-index")
    error_of = partial(out_of_bounds, shape=shape)
    return convert(program, arguments, error_of, out=out, threads=threads, single=True)


def multi_index(
    shape: Shape | str,
    linear_index: Any,
    padding: str = "raise",
    *,
    unit: str = "slot",
    out: Any = None,
    threads: int | None = None,
    stream: Any = None,
) -> tuple[Any, ...]:
    """Return the coordinates of the elements at given slots, bytes or bits of the buffer.

    Parameters
    ----------
    shape : Shape or str
    linear_index : integer array, or a slice
        Slots, bytes or bits, of any shape and width; a range takes no memory. A slice (``numpy.s_[64:128]``) selects
        from the whole buffer, by NumPy's rules.
    padding : {"raise", "mark"}
        Whether positions that hold no element raise, or give -1 in every coordinate.
    unit : {"slot", "byte", "bit"}
        Unit of `linear_index`, counted from the start of the buffer. Any byte of an element may be arguments.
    out : sequence of int64 arrays, optional
        Where to write the results, one per dimension. Their contents after an error are undefined.
    threads : int, optional
        Maximum number of threads.
    stream : CUDA stream, optional
        Where to run if the indices are on the GPU; see `fastindex.cuda`.

    Returns
    -------
    tuple of int64 arrays, one per dimension, of the shape of `linear_index`; of int64 scalars for a scalar

    Raises
    ------
    OutOfBoundsError
        A position is outside the buffer, or is padding.
    ArgumentTypeError
        `linear_index` does not hold integers.
    UnsupportedError
        A byte may belong to several elements; as `linear_index`.
    FastIndexError, LayoutError
        As `linear_index`.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> fi.multi_index("f32[3,5]{1,0:T(2,2)}", [17, 8])
    (array([2, 0]), array([3, 4]))
    >>> fi.multi_index("f32[3,5]{1,0:T(2,2)}", np.s_[8:12], padding="mark")
    (array([ 0, -1,  1, -1]), array([ 4, -1,  4, -1]))
    """
    shape = as_shape(shape)
    mark = check_padding(padding)
    check_option("unit", unit, UNITS)
    program = multi_program(shape, unit=unit)
    error_of = partial(bad_place, shape=shape, unit=unit)
    if isinstance(linear_index, slice):
        linear_index = slice_numbers(linear_index, count_of_units(shape, unit), "linear_index")
    arguments = integer_arguments(("linear_index",), (linear_index,), stream, label="multi-index")
    return tuple(convert(program, arguments, error_of, out=out, mark=mark, threads=threads))


def convert_index(
    source: Shape | str,
    destination: Shape | str,
    linear_index: Any,
    *,
    unit: str = "slot",
    out: NDArray[np.int64] | None = None,
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """Convert positions in one layout to those where the same elements begin in another layout of the same array.

    Parameters
    ----------
    source, destination : Shape or str
        Layouts of one array, with the same dimensions.
    linear_index : integer array, or a slice
        Slots, bytes or bits of `source`, as for `multi_index`.
    unit : {"slot", "byte", "bit"}
        Unit in both layouts. Any byte of an element of `source` may be arguments.
    out : int64 array, optional
        Where to write the result. Its contents after an error are undefined.
    threads : int, optional
        Maximum number of threads.
    stream : CUDA stream, optional
        Where to run if the indices are on the GPU; see `fastindex.cuda`.

    Returns
    -------
    int64 array of the shape of `linear_index`, or an int64 scalar

    Raises
    ------
    OutOfBoundsError
        A position is outside the buffer, or is padding and so holds no element.
    LayoutError
        The dimensions differ.
    ArgumentTypeError, FastIndexError, UnsupportedError
        As `multi_index`.

    Examples
    --------
    >>> import fastindex as fi
    >>> fi.convert_index("f32[3,5]", "f32[3,5]{1,0:T(2,2)}", range(13, 15))
    array([17, 20])
    """
    source, destination = as_shape(source), as_shape(destination)
    check_option("unit", unit, UNITS)
    program = conversion_program(source, destination, unit=unit)
    error_of = partial(bad_place, shape=source, unit=unit)
    if isinstance(linear_index, slice):
        linear_index = slice_numbers(linear_index, count_of_units(source, unit), "linear_index")
    arguments = integer_arguments(("linear_index",), (linear_index,), stream, label="convert-index")
    return convert(program, arguments, error_of, out=out, threads=threads, single=True)


# As NumPy has them


#: Below this number of elements, NumPy finishes before a kernel starts.
SMALLEST = 4096


def ravel_multi_index(multi_index: Any, dims: Any, mode: str | Sequence[str] = "raise", order: str = "C") -> Any:
    """Do what `numpy.ravel_multi_index` does, faster.

    Parameters, results and errors are NumPy's. CUDA arrays give CUDA arrays.

    Examples
    --------
    >>> ravel_multi_index(([3, 6, 6], [4, 5, 1]), (7, 6))
    array([22, 41, 37])
    >>> ravel_multi_index(([3, 6, 6], [4, 5, 1]), (7, 6), order="F")
    array([31, 41, 13])
    """
    if on_gpu(multi_index):
        shape = _shape_on_gpu(dims, order)
        return convert(linear_program(shape), coordinate_arguments(multi_index, shape, mode), _bad_entry, single=True)
    _check_lazy(multi_index, dims)
    parts = _bulk(multi_index)
    if parts is not None:
        sizes, modes = _sizes(dims), _modes(mode, len(parts))
        if sizes is not None and modes is not None and len(sizes) == len(parts) and order in _ORDERS:
            flat = _run_ravel(parts, sizes, modes, order)
            if flat is not None:
                return flat
    return np.ravel_multi_index(multi_index, dims, mode=mode, order=order)  # type: ignore[call-overload]


def unravel_index(indices: Any, shape: Any, order: str = "C") -> Any:
    """Do what `numpy.unravel_index` does, faster.

    Parameters, results and errors are NumPy's, except that each array is contiguous. CUDA arrays give CUDA arrays.

    Examples
    --------
    >>> unravel_index([22, 41, 37], (7, 6))
    (array([3, 6, 6]), array([4, 5, 1]))
    """
    if on_gpu(indices):
        of = _shape_on_gpu(shape, order)
        arguments = integer_arguments(("linear_index",), (indices,))
        return tuple(convert(multi_program(of), arguments, lambda found: _bad_index(found, of)))
    if type(indices) is np.ndarray and indices.size >= SMALLEST and _is_plain(indices):
        sizes = _sizes(shape)
        if sizes is not None and order in _ORDERS:
            found = _run_unravel(indices, sizes, order)
            if found is not None:
                return found
    return np.unravel_index(indices, shape, order=order)  # type: ignore[call-overload]


_ORDERS = ("C", "F")


def _check_lazy(multi_index: Any, dims: Any) -> None:
    """Raise NumPy's error for a lazy array of the wrong length, often transposed, which its library would iterate."""
    if isinstance(multi_index, tuple | list) or engine_of(multi_index) is None:
        return
    sizes = _sizes(dims)
    if sizes is not None and multi_index.shape and multi_index.shape[0] != len(sizes):
        across = multi_index.shape[1:] == (len(sizes),)
        hint = f": its shape is {multi_index.shape}, transpose it" if across else ""
        raise ValueError(f"parameter multi_index must be a sequence of length {len(sizes)}{hint}")


def _is_plain(array: NDArray[Any]) -> bool:
    # NumPy casts uint64 to int64 first, so its results differ.
    return array.dtype.kind in "iu" and array.dtype.isnative and array.dtype != np.uint64


def _bulk(multi_index: Any) -> list[NDArray[Any]] | None:
    """Return the coordinates if they are plain arrays that may broadcast to a large one."""
    if type(multi_index) not in (tuple, list, np.ndarray):
        return None
    sizes = set()
    for array in multi_index:
        if type(array) is not np.ndarray or not _is_plain(array):
            return None
        sizes.add(array.size)
    # Arrays of different sizes may broadcast to the product of these at most.
    return list(multi_index) if sizes and (max(sizes) >= SMALLEST or math.prod(sizes) >= SMALLEST) else None


def _sizes(dims: Any) -> tuple[int, ...] | None:
    try:
        sizes = tuple([operator.index(size) for size in (dims if np.iterable(dims) else (dims,))])
    except TypeError:
        return None
    if not sizes or min(sizes) < 1 or math.prod(sizes) >= 2**63:
        return None
    return sizes


def _modes(mode: Any, count: int) -> tuple[str, ...] | None:
    if isinstance(mode, str):
        return (mode,) * count if mode in MODES else None
    if isinstance(mode, tuple | list) and len(mode) == count and all(m in MODES for m in mode):
        return tuple(mode)
    return None


@lru_cache(maxsize=256)
def _programs(sizes: tuple[int, ...], order: str) -> tuple[IndexProgram, IndexProgram]:
    shape = _shape_of(sizes, order)
    return linear_program(shape), multi_program(shape)


def _shape_of(sizes: tuple[int, ...], order: str) -> Shape:
    make = Layout.descending if order == "C" else Layout.ascending
    return Shape("u8", sizes, make(len(sizes)))


def _run_ravel(
    parts: list[NDArray[Any]], sizes: tuple[int, ...], modes: tuple[str, ...], order: str
) -> NDArray[np.int64] | None:
    """Return the result, or None if NumPy should report the error."""
    is_fortran = _all_fortran(parts)
    if is_fortran:
        parts = [array.T for array in parts]
    try:
        common = common_shape(parts)
        if math.prod(common) < SMALLEST:
            return None
        arguments = Inputs(parts, common, modes=modes)
        flat: NDArray[np.int64] = convert(_programs(sizes, order)[0], arguments, _bad_entry, single=True)
    except ValueError:
        return None
    return flat.T if is_fortran else flat


def _all_fortran(arrays: list[NDArray[Any]]) -> bool:
    """Whether all arrays are in Fortran order, so that NumPy's result would be too."""
    return all(a.shape == arrays[0].shape and a.flags.f_contiguous and not a.flags.c_contiguous for a in arrays)


def _run_unravel(indices: NDArray[Any], sizes: tuple[int, ...], order: str) -> tuple[NDArray[np.int64], ...] | None:
    is_fortran = _all_fortran([indices])
    slots = indices.T if is_fortran else indices
    try:
        found = convert(_programs(sizes, order)[1], Inputs([slots], slots.shape), _bad_entry)
    except ValueError:
        return None
    return tuple(part.T for part in found) if is_fortran else tuple(found)


def _bad_entry(_: BadElementError) -> ValueError:
    return ValueError("invalid entry in coordinates array")


# Arrays on the GPU


def _bad_index(found: BadElementError, shape: Shape) -> ValueError:
    error = bad_place(found, shape)
    return ValueError(f"{error}: index is out of bounds for array with size {shape.element_count}")


def _shape_on_gpu(dims: Any, order: str) -> Shape:
    sizes = _sizes(dims)
    if sizes is None:
        raise ValueError(f"dims must be positive sizes whose product fits 64 bits, got {dims!r}")
    if order not in _ORDERS:
        raise ValueError("only 'C' or 'F' order is permitted")
    return _shape_of(sizes, order)
