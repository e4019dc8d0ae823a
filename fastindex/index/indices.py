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
        Unit of `linear_index`, counted from the start of the buffer. Any byte of an element may be given.
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
    """Convert positions in one layout to those where the same elements begin in another layout of the same array.

    Parameters
    ----------
    source, destination : Shape or str
        Layouts of one array, with the same dimensions.
    linear_index : integer array, or a slice
        Slots, bytes or bits of `source`, as for `multi_index`.
    unit : {"slot", "byte", "bit"}
        Unit in both layouts. Any byte of an element of `source` may be given.
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
    program = conversion_program(source, destination, unit=unit)
    error_of = partial(bad_place, shape=source, unit=unit)
    if isinstance(linear_index, slice):
        linear_index = slice_numbers(linear_index, count_of_units(source, unit), "linear_index")
    given = given_integers(("linear_index",), (linear_index,), stream, label="convert-index")
    return convert(program, given, error_of, out=out, threads=threads, single=True)
