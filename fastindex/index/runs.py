"""The contiguous pieces of a window in a buffer: one by one, and as few strided records.

If the slot of an element is a sum of digits of its coordinates, the pieces follow from the digits
(`fastindex.algebra.strided_runs.window_runs`); otherwise the slots are computed and sorted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram
from fastindex.algebra.strided_runs import (
    Numbers,
    StridedRun,
    expanded,
    joined_pieces,
    joined_records,
    joined_runs,
    window_runs,
)
from fastindex.arrays.index_arguments import as_window
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import UnsupportedError, check_flag
from fastindex.index.executors import boxes
from fastindex.index.programs import bits_of_unit, linear_program, multi_program

#: Elements per chunk where slots are computed one by one, and the most elements of a window.
_AT_ONCE, _MOST_LOOKED_UP = 1 << 20, 1 << 31


def runs(
    shape: Shape | str, window: Any = None, *, unit: str = "slot", padding: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the maximal contiguous pieces of a window in the buffer, in memory order.

    Parameters
    ----------
    shape : Shape or str
    window : slices, ranges and integers, optional
        One per dimension, by NumPy's rules (``numpy.s_[100:108, :]``); without it, the whole array.
    unit : {"slot", "byte", "bit"}
        Unit of the result. For elements smaller than a byte, "byte" gives the bytes that hold them.
    padding : bool
        Whether to join pieces that are separated only by padding. Padding before the first element and after the last
        one is left out.

    Returns
    -------
    (start, length) : int64 arrays of one dimension

    Raises
    ------
    FastIndexError
        The window has the wrong number of entries or a step of 0, or `unit` is unknown.
    OutOfBoundsError
        An integer or a range of the window is out of bounds of its dimension.
    ArgumentTypeError
        The window holds anything but slices, ranges and integers.
    UnsupportedError, LayoutError
        As `linear_index`; the number of units in the buffer does not fit int64; or a window of more than 2**31 elements
        of a layout whose tiles do not divide one another, so that every slot is computed.

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
    shape, ranges = _window(shape, window)
    check_flag("padding", padding)
    bits, element_bits = bits_of_unit(shape, unit), shape.element_bits
    start, length = expanded(_records(shape, ranges))
    if padding:
        start, length = _bridged(shape, start, length)
    if element_bits % bits == 0:
        return start * (element_bits // bits), length * (element_bits // bits)
    first = start * element_bits // bits
    end = -(-(start + length) * element_bits // bits)
    return joined_pieces(first, end - first)


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
        Sorted by start; each has ``start``, ``length``, ``counts`` and ``strides``: pieces of one length at the points
        of a grid. ``starts()`` gives those points. Together, the records hold exactly the pieces of `runs`.

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
    shape, ranges = _window(shape, window)
    check_flag("padding", padding)
    bits, element_bits = bits_of_unit(shape, unit), shape.element_bits
    records = () if padding else _records(shape, ranges)
    numbers = [n for r in records for n in (r.start, r.length, *r.strides)]
    if padding or any(number * element_bits % bits for number in numbers):
        return joined_runs(*runs(shape, window, unit=unit, padding=padding))
    return tuple(
        StridedRun(
            record.start * element_bits // bits,
            record.length * element_bits // bits,
            record.counts,
            tuple(stride * element_bits // bits for stride in record.strides),
        )
        for record in records
    )


def _window(shape: Shape | str, window: Any) -> tuple[Shape, list[range]]:
    """Return the coordinates along each dimension in ascending order; the step of a single one is 1."""
    shape = as_shape(shape)
    ranges = map(range, shape.dimensions) if window is None else as_window(window, shape).ranges
    return shape, [range(r[0], r[0] + 1) if len(r) == 1 else r if r.step > 0 else r[::-1] for r in ranges]


def _records(shape: Shape, window: Sequence[range]) -> tuple[StridedRun, ...]:
    """Return the maximal contiguous pieces of a window as few records, sorted by start."""
    program = linear_program(shape)
    if any(len(along) == 0 for along in window):
        return ()
    records = window_runs(shape, window)
    if records is not None:
        return joined_records(records)
    elements = math.prod(map(len, window))
    if elements > _MOST_LOOKED_UP:
        raise UnsupportedError(
            f"the slots of {shape.cut_text()} are not sums of digits and are computed one by one: at most "
            f"{_MOST_LOOKED_UP:,} elements, not {elements:,}; give a smaller window"
        )
    return joined_runs(*_looked_up(program, window))


def _bridged(shape: Shape, start: Numbers, length: Numbers) -> tuple[Numbers, Numbers]:
    """Join the pieces of a window that are separated only by padding."""
    if len(start) < 2:
        return start, length
    program = multi_program(shape)

    def is_padding(slots: Numbers) -> NDArray[np.bool_]:
        padding: NDArray[np.bool_] = np.broadcast_to(np.logical_not(program.evaluate((slots,))[1]), slots.shape)
        return padding

    begin, end = start[:-1] + length[:-1], start[1:]
    padding = is_padding(begin) & is_padding(end - 1)
    for gap in np.flatnonzero(padding):
        low, high = int(begin[gap]), int(end[gap])
        parts = (np.arange(at, min(at + _AT_ONCE, high)) for at in range(low, high, _AT_ONCE))
        padding[gap] = all(bool(is_padding(part).all()) for part in parts)
    first = np.concatenate([[True], ~padding])
    last = np.concatenate([~padding, [True]])
    return start[first], (start + length)[last] - start[first]


def _looked_up(program: IndexProgram, window: Sequence[range]) -> tuple[Numbers, Numbers]:
    """Return the pieces from the slot of each element, for a layout that is not a sum of digits."""
    parts = []
    for box in boxes([len(along) for along in window], _AT_ONCE):
        ranges = [along[part] for along, part in zip(window, box, strict=True)]
        (slots,), _ = program.evaluate(np.ix_(*(np.arange(r.start, r.stop, r.step) for r in ranges)))
        flat = np.sort(np.broadcast_to(slots, [len(r) for r in ranges]).reshape(-1))
        parts.append(joined_pieces(flat, np.ones(len(flat), np.int64)))
    start, length = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(start)
    return joined_pieces(start[order], length[order])
