"""The contiguous pieces of a window in a buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.strided_runs import StridedRun, joined_pieces, joined_runs
from fastindex.arrays.windows import Window, as_window, whole_window
from fastindex.core.shape import Shape, as_shape
from fastindex.index.programs import bits_of_unit
from fastindex.index.runs import bridged, runs_of, strided_runs_of


def runs(
    shape: Shape | str, window: Any = None, *, unit: str = "slot", padding: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the maximal contiguous pieces of a window in the buffer, in the order of memory.

    Parameters
    ----------
    shape : Shape or str
    window : slices, ranges and integers, optional
        One per dimension, by NumPy's rules (``numpy.s_[100:108, :]``); without it, the whole array.
    unit : {"slot", "byte", "bit"}
        In what to count. Of elements below a byte, the bytes that hold them.
    padding : bool
        Whether pieces with nothing but padding in between are one piece. Padding before the first element and behind
        the last one stays out.

    Returns
    -------
    (start, length) : int64 arrays of one dimension

    Raises
    ------
    FastIndexError
        A window with another number of entries, a step of 0, or not a unit.
    OutOfBoundsError
        An integer or a range of the window that leaves its dimension.
    ArgumentTypeError
        Other things than slices, ranges and integers.
    UnsupportedError, LayoutError
        As `linear_index`; the units of the buffer do not fit int64.

    See Also
    --------
    strided_runs : the same as few records

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> fi.runs("f32[3,5]{1,0:T(2,2)}", np.s_[:, 2:])
    (array([ 4, 10, 16, 20]), array([5, 1, 2, 1]))
    >>> fi.runs("f32[3,5]{1,0:T(2,2)}", np.s_[:, 2:], padding=True)
    (array([ 4, 16]), array([7, 5]))
    """
    shape, found = _asked(shape, window)
    bits = bits_of_unit(shape, unit)
    start, length = runs_of(shape, found.ranges)
    if padding:
        start, length = bridged(shape, start, length)
    return _in_units(start, length, shape.element_bits, bits)


def strided_runs(
    shape: Shape | str, window: Any = None, *, unit: str = "slot", padding: bool = False
) -> tuple[StridedRun, ...]:
    """Return the maximal contiguous pieces of a window in the buffer as few records, as DMA engines take them.

    Parameters
    ----------
    shape, window, unit, padding
        As for `runs`.

    Returns
    -------
    tuple of StridedRun
        By where they start; each with ``start``, ``length``, ``counts`` and ``strides``: pieces of one length at the
        points of a grid. ``starts()`` gives those points. All pieces of all records are those of `runs`.

    Raises
    ------
    FastIndexError, OutOfBoundsError, ArgumentTypeError, UnsupportedError, LayoutError
        As `runs`.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> fi.strided_runs("bf16[1024,1000]{1,0:T(8,128)(2,1)}", np.s_[100:108, 128:512], unit="byte")
    (StridedRun(start=199680, length=1024, counts=(2, 3), strides=(15360, 2048)),)
    """
    shape, found = _asked(shape, window)
    bits, element_bits = bits_of_unit(shape, unit), shape.element_bits
    if padding:
        return joined_runs(*runs(shape, window, unit=unit, padding=True))
    records = strided_runs_of(shape, found.ranges)
    numbers = [n * element_bits for r in records for n in (r.start, r.length, *r.strides)]
    if any(number % bits for number in numbers):
        return joined_runs(*runs(shape, window, unit=unit))
    return tuple(
        StridedRun(
            record.start * element_bits // bits,
            record.length * element_bits // bits,
            record.counts,
            tuple(stride * element_bits // bits for stride in record.strides),
        )
        for record in records
    )


def _asked(shape: Shape | str, window: Any) -> tuple[Shape, Window]:
    shape = as_shape(shape)
    return shape, whole_window(shape) if window is None else as_window(window, shape)


def _in_units(
    start: NDArray[np.int64], length: NDArray[np.int64], element_bits: int, bits: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if element_bits % bits == 0:
        factor = element_bits // bits
        return (start, length) if factor == 1 else (start * factor, length * factor)
    first = start * element_bits // bits
    behind = -(-(start + length) * element_bits // bits)
    return joined_pieces(first, behind - first)
