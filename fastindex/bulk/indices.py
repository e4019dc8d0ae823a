"""Index conversion in bulk: coordinates and windows to slots, bytes or bits, and back; what is said of what fails."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram
from fastindex.arrays.engines import engine_of, is_cuda_array, on_gpu, require_lazy
from fastindex.arrays.index_arguments import (
    Offender,
    OffenderFoundError,
    Window,
    as_coordinates,
    as_integers_in_bulk,
    as_modes,
    as_output,
    as_outputs,
    as_window,
    common_shape,
    common_shape_of_coordinates,
    is_window,
    slice_numbers,
)
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import FastIndexError, OutOfBoundsError
from fastindex.first_use import load
from fastindex.index.executors import check_overlap, new_outputs, run
from fastindex.index.programs import conversion_program, count_of_units, linear_program, multi_program, units_in_buffer
from fastindex.index.windows import fill_window


def out_of_bounds(offender: Offender, shape: Shape) -> OutOfBoundsError:
    """Return the error for a coordinate outside its dimension."""
    # Without checks for padding, it is an input that is out of bounds.
    number = offender.number or 0
    return OutOfBoundsError(
        f"coordinate {offender.values[number]}{position_text(offender)} is out of bounds for dimension {number} "
        f"of size {shape.dimensions[number]} of {shape}"
    )


def bad_place(offender: Offender, shape: Shape, unit: str = "slot") -> OutOfBoundsError:
    """Return the error for a slot, byte or bit that is outside the buffer, or padding."""
    (place,) = offender.values
    where = f"{unit} {place}{position_text(offender)}"
    if offender.number is None:
        return OutOfBoundsError(f"{where} is padding of {shape} and holds no element")
    return OutOfBoundsError(f"{where} is out of bounds for the {units_in_buffer(shape, unit)} {unit}s of {shape}")


def position_text(offender: Offender) -> str:
    """Return where in the caller's arrays the element is, to be put behind it."""
    if not offender.position:
        return ""
    return f" at position {offender.position if len(offender.position) > 1 else offender.position[0]}"


def window_results(
    program: IndexProgram, window: Window, out: Sequence[Any] | None, threads: int | None, stream: Any
) -> list[Any]:
    """Return the outputs of a program from coordinates for all elements of a window.

    A window holds no arrays, so `out` says where it is computed: on the GPU if one of its arrays is there.

    Raises
    ------
    ArgumentTypeError, FastIndexError
        `out` does not fit; a CUDA stream, though no array is on the GPU.
    """
    if out is not None and any(map(is_cuda_array, out)):
        load("fastindex.cuda.indices")
        from fastindex.cuda.indices import fill_window as fill_on_gpu

        return fill_on_gpu(program, window, out, stream)
    if stream is not None:
        raise FastIndexError("stream is for CUDA arrays; a window is computed on the GPU where out= is an array there")
    outputs: list[NDArray[np.int64]]
    if out is None:
        outputs = new_outputs(len(program.outputs), window.shape)
    else:
        outputs = as_outputs(out, len(program.outputs), window.shape, "out")
        check_overlap((), outputs)
    axes = tuple(slice(None) if kept else None for kept in window.kept)
    fill_window(program, window.ranges, [output[(*axes, ...)] for output in outputs], threads)
    return outputs if out is not None else [output[()] for output in outputs]


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
    if is_window(multi_index):
        if mode != "raise":
            raise FastIndexError(f"mode is for arrays of coordinates; a window takes 'raise' only, got {mode!r}")
        single = None if out is None else (out,)
        return window_results(program, as_window(multi_index, shape), single, threads, stream)[0]
    if on_gpu(multi_index, stream):
        load("fastindex.cuda.indices")
        from fastindex.cuda.indices import convert, coordinates_on_gpu

        inputs = coordinates_on_gpu(multi_index, shape)
        single = None if out is None else (out,)
        return convert(program, inputs, single, stream, shape, out_of_bounds, mode=mode)[0]
    engine = engine_of(multi_index)
    if engine is not None:
        require_lazy(out=out)
        return engine.linear_index(shape, multi_index, mode, unit=unit, threads=threads)
    coordinates = as_coordinates(multi_index, shape)
    modes = () if mode == "raise" else as_modes(mode, shape.rank)
    size = common_shape_of_coordinates(coordinates, multi_index)
    outputs = new_outputs(1, size) if out is None else [as_output(out, size, "out")]
    if out is not None:
        check_overlap(coordinates, outputs)
    try:
        run(program, coordinates, outputs, size, modes=modes, threads=threads)
    except OffenderFoundError as found:
        raise out_of_bounds(found.offender, shape) from None
    return outputs[0][()] if out is None else out


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
    if padding not in ("raise", "mark"):
        raise FastIndexError(f"padding must be 'raise' or 'mark', got {padding!r}")
    program = multi_program(shape, unit=unit)
    if isinstance(linear_index, slice):
        linear_index = slice_numbers(linear_index, count_of_units(shape, unit), "linear_index")
    error_of = partial(bad_place, unit=unit)
    if on_gpu(linear_index, stream):
        load("fastindex.cuda.indices")
        from fastindex.cuda.indices import convert, operand

        inputs = [operand(linear_index, "linear_index")]
        return tuple(convert(program, inputs, out, stream, shape, error_of, mark=padding == "mark"))
    engine = engine_of(linear_index)
    if engine is not None:
        require_lazy(out=out)
        found: tuple[Any, ...] = engine.multi_index(shape, linear_index, padding, unit=unit, threads=threads)
        return found
    slots = as_integers_in_bulk(linear_index, "linear_index")
    size = common_shape((slots,))
    if out is None:
        outputs = new_outputs(shape.rank, size)
    else:
        outputs = as_outputs(out, shape.rank, size, "out")
        check_overlap((slots,), outputs)
    try:
        run(program, (slots,), outputs, size, mark=padding == "mark", threads=threads)
    except OffenderFoundError as found:
        raise error_of(found.offender, shape) from None
    return tuple(outputs) if size or out is not None else tuple([part[()] for part in outputs])


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
    if isinstance(linear_index, slice):
        linear_index = slice_numbers(linear_index, count_of_units(source, unit), "linear_index")
    error_of = partial(bad_place, unit=unit)
    if on_gpu(linear_index, stream):
        load("fastindex.cuda.indices")
        from fastindex.cuda.indices import convert, operand

        single = None if out is None else (out,)
        return convert(program, [operand(linear_index, "linear_index")], single, stream, source, error_of)[0]
    engine = engine_of(linear_index)
    if engine is not None:
        require_lazy(out=out)
        return engine.convert_index(source, destination, linear_index, unit=unit, threads=threads)
    slots = as_integers_in_bulk(linear_index, "linear_index")
    size = common_shape((slots,))
    outputs = new_outputs(1, size) if out is None else [as_output(out, size, "out")]
    if out is not None:
        check_overlap((slots,), outputs)
    try:
        run(program, (slots,), outputs, size, threads=threads)
    except OffenderFoundError as found:
        raise error_of(found.offender, source) from None
    return outputs[0][()] if out is None else out
