"""Index conversion in bulk, where the arrays are: coordinates and windows to slots, bytes or bits, and back.

`fastindex.arrays.index_arguments` checks the arguments, once; an `IndexProgram` is the plan; `convert` runs it: by
NumPy or kernels, by increments over a window, on a GPU, or deferred by an engine for lazy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram
from fastindex.arrays.engines import is_cuda_array
from fastindex.arrays.index_arguments import (
    Inputs,
    Window,
    as_output,
    as_outputs,
    check_padding,
    coordinate_arguments,
    integer_arguments,
    is_window,
    slice_numbers,
    window_arguments,
)
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import FastIndexError
from fastindex.index.executors import (
    BadElementError,
    ErrorOf,
    bad_place,
    check_overlap,
    new_outputs,
    out_of_bounds,
    run,
)
from fastindex.index.programs import conversion_program, count_of_units, linear_program, multi_program
from fastindex.index.windows import fill_window
from fastindex.lazy import hook
from fastindex.runtime.threads import run_chunks, thread_count

_LOOKED_UP_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class LookUp:
    """A table that maps the values of an output. Compared by identity: use one object for the same numbers."""

    numbers: NDArray[np.int64]


def convert(
    program: IndexProgram,
    arguments: Inputs,
    error_of: ErrorOf,
    *,
    out: Any = None,
    mark: bool = False,
    threads: int | None = None,
    single: bool = False,
    table: LookUp | None = None,
) -> Any:
    """Run a program where its inputs are, and return its outputs as arrays of the same library.

    Parameters
    ----------
    program : IndexProgram
    arguments : Inputs
    error_of : callable
        Makes the error for the first element that cannot be converted.
    out : sequence of arrays, optional
        Where to write. A window holds no arrays, so these decide where it is computed: on the GPU if one of them is
        there.
    mark : bool
        Whether padding sets all outputs to -1, instead of raising.
    threads : int, optional
    single : bool
        Whether `out` and the result are the only output, not a sequence.
    table : LookUp, optional
        Applied to the first output.

    Raises
    ------
    OutOfBoundsError
        As `error_of` says.
    ArgumentTypeError, FastIndexError
        `out` does not fit, or a stream is given and no array is on the GPU.
    """
    inputs, size, home = arguments.inputs, arguments.shape, arguments.home
    outs = (out,) if single and out is not None else out
    windowed = type(inputs) is Window
    if windowed and out is not None and any(map(is_cuda_array, outs)):
        home = "cuda"
    if home is not None:
        results = hook(f"{home}.convert")(program, arguments, error_of, outs, mark, threads, table)
        return results[0] if single else results
    if windowed and arguments.stream is not None:
        raise FastIndexError("stream is for CUDA arrays; a window is computed on the GPU where out= is an array there")
    if out is None:
        outputs = new_outputs(len(program.outputs), size)
    else:
        outputs = [as_output(out, size, "out")] if single else as_outputs(out, len(program.outputs), size)
        check_overlap(() if windowed else inputs, outputs)
    try:
        if windowed:
            axes = tuple(slice(None) if kept else None for kept in inputs.kept)
            fill_window(program, inputs.ranges, [output[(*axes, ...)] for output in outputs], threads)
        else:
            run(program, inputs, outputs, size, modes=arguments.modes, mark=mark, threads=threads)
    except BadElementError as found:
        raise error_of(found) from None
    if table is not None:
        _look_up(table.numbers, outputs[0], threads)
    if out is None and not size:
        outputs = [output[()] for output in outputs]
    return outputs[0] if single else outputs


def _look_up(table: NDArray[np.int64], places: NDArray[np.int64], threads: int | None) -> None:
    """Replace each index by its entry in a table, in place."""
    if not places.flags.c_contiguous:
        places[...] = table[places]
        return
    flat = places.reshape(-1)

    def chunk(begin: int, end: int) -> None:
        for at in range(begin, end, _LOOKED_UP_AT_ONCE):
            part = flat[at : min(at + _LOOKED_UP_AT_ONCE, end)]
            part[...] = table.take(part, mode="clip")

    run_chunks(chunk, flat.size, thread_count(threads), 1 << 18)


# Public functions


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
        arguments = window_arguments(multi_index, shape, mode, stream)
    else:
        arguments = coordinate_arguments(multi_index, shape, mode, stream, label="linear-index")
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
    program = conversion_program(source, destination, unit=unit)
    error_of = partial(bad_place, shape=source, unit=unit)
    if isinstance(linear_index, slice):
        linear_index = slice_numbers(linear_index, count_of_units(source, unit), "linear_index")
    arguments = integer_arguments(("linear_index",), (linear_index,), stream, label="convert-index")
    return convert(program, arguments, error_of, out=out, threads=threads, single=True)
