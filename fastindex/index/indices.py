"""Index conversion in bulk: coordinates and windows to slots, bytes or bits, and back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.index_arguments import check_padding, given_coordinates, given_integers, given_window
from fastindex.arrays.windows import is_window, slice_numbers
from fastindex.core.shape import Shape, as_shape
from fastindex.index.bad_elements import bad_place, out_of_bounds
from fastindex.index.conversions import convert
from fastindex.index.programs import conversion_program, count_of_units, linear_program, multi_program


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
    """Return where in the buffer elements live: their slots, or where they begin in bytes or bits.

    Parameters
    ----------
    shape : Shape or str
    multi_index : sequence of integer arrays, or a window
        One array per dimension; they broadcast together. Integers of any width; a range takes no memory.
        With a slice or an Ellipsis among them (``numpy.s_[100:108, :]``) they are a window: slices and integers by
        NumPy's rules, a range is an axis of its own, and the result is what ``numpy.ix_`` would pick. No arrays of
        coordinates are made, and elements are counted instead of divided.
    mode : {"raise", "wrap", "clip"} or a sequence of one per dimension
        What happens to a coordinate out of bounds, as in `numpy.ravel_multi_index`. Not for windows.
    unit : {"slot", "byte", "bit"}
        In what to count, from the beginning of the buffer. The byte of an element below a byte is the one that holds
        it; its bit is exact. The first element of a byte is in its low bits.
    out : int64 array, optional
        Where to write the result, of the common shape. What it holds after an error is undefined.
    threads : int, optional
        The most threads to use; see `fastindex.runtime.threads.thread_count`.
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
        Coordinates that are no integers.
    FastIndexError
        Another number of coordinates, they do not broadcast together, or not a unit.
    UnsupportedError
        `shape` has no slots: not an array, sparse, or unbounded.
    LayoutError
        The units of the buffer do not fit int64.

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
    program = linear_program(shape, unit=unit)
    error_of = partial(out_of_bounds, shape=shape)
    if is_window(multi_index):
        given = given_window(multi_index, shape, mode, stream)
    else:
        given = given_coordinates(multi_index, shape, mode, stream, label="linear-index")
    return convert(program, given, error_of, out=out, threads=threads, single=True)


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
    """Return the coordinates of the elements that live in slots, or to which bytes or bits belong.

    Parameters
    ----------
    shape : Shape or str
    linear_index : integer array, or a slice
        Slots, bytes or bits, of any shape and width; a range takes no memory. A slice (``numpy.s_[64:128]``) is one of
        the whole buffer, by NumPy's rules.
    padding : {"raise", "mark"}
        Places that hold no element raise, or give -1 in every coordinate.
    unit : {"slot", "byte", "bit"}
        What the places are, from the beginning of the buffer. A byte may be any of its element's.
    out : sequence of int64 arrays, optional
        Where to write the results, one per dimension. What they hold after an error is undefined.
    threads : int, optional
        The most threads to use.
    stream : CUDA stream, optional
        Where to run if the indices are on the GPU; see `fastindex.cuda`.

    Returns
    -------
    tuple of int64 arrays, one per dimension, of the shape of `linear_index`; of int64 scalars for a scalar

    Raises
    ------
    OutOfBoundsError
        A place outside the buffer, or that is padding.
    ArgumentTypeError
        Places that are no integers.
    UnsupportedError
        Bytes that may belong to several elements; as `linear_index`.
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
    program = multi_program(shape, unit=unit)
    error_of = partial(bad_place, shape=shape, unit=unit)
    if isinstance(linear_index, slice):
        linear_index = slice_numbers(linear_index, count_of_units(shape, unit), "linear_index")
    given = given_integers(("linear_index",), (linear_index,), stream, label="multi-index")
    return tuple(convert(program, given, error_of, out=out, mark=mark, threads=threads))


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
    """Return, for places in one layout, where the same elements begin in another layout of the same array.

    Parameters
    ----------
    source, destination : Shape or str
        Of the same dimensions.
    linear_index : integer array, or a slice
        Slots, bytes or bits of `source`, as for `multi_index`.
    unit : {"slot", "byte", "bit"}
        In what to count, in both layouts. A byte of `source` may be any of its element's.
    out : int64 array, optional
        Where to write the result. What it holds after an error is undefined.
    threads : int, optional
        The most threads to use.
    stream : CUDA stream, optional
        Where to run if the indices are on the GPU; see `fastindex.cuda`.

    Returns
    -------
    int64 array of the shape of `linear_index`, or an int64 scalar

    Raises
    ------
    OutOfBoundsError
        A place outside the buffer, or that is padding and so holds no element.
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
    program = conversion_program(source, destination, unit=unit)
    error_of = partial(bad_place, shape=source, unit=unit)
    if isinstance(linear_index, slice):
        linear_index = slice_numbers(linear_index, count_of_units(source, unit), "linear_index")
    given = given_integers(("linear_index",), (linear_index,), stream, label="convert-index")
    return convert(program, given, error_of, out=out, threads=threads, single=True)
