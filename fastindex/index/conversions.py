"""Index conversions: what is handed in is checked, once, into one record, and converted where its arrays are.

`coordinates`, `window_or_coordinates` and `integers` check; an `IndexProgram` is the plan; `convert` runs it: by NumPy
or kernels, by the counting of windows, on a GPU, or later by an engine for lazy arrays. What fails is said in one
place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram
from fastindex.arrays.engines import engine_of, is_cuda_array, on_gpu, require_lazy
from fastindex.arrays.index_arguments import (
    Counted,
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
)
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError, OutOfBoundsError
from fastindex.index.executors import check_overlap, new_outputs, run
from fastindex.index.programs import units_in_buffer
from fastindex.index.windows import fill_window
from fastindex.lazy import hook
from fastindex.runtime.threads import run_chunks, thread_count

#: Makes the error for an element that could not be converted.
ErrorOf = Callable[[Offender], Exception]

HOST, GPU, LAZY = "host", "GPU", "lazy"

_LOOKED_UP_AT_ONCE = 1 << 16


class Given(NamedTuple):
    """What is handed in to an index conversion, checked.

    Attributes
    ----------
    inputs : list of Integers, or Window
        Elsewhere than on the host, what was handed in, which its home checks.
    shape : tuple of int
        Of the result, on the host.
    home : {HOST, GPU, LAZY}
    array : Shape or None
        That of which `inputs` are coordinates, elsewhere than on the host.
    names : tuple of str
        Of other inputs.
    modes : tuple of str
        What happens to each input out of bounds; () to raise.
    last : int, range or None
        One more input: a number, or a range along a new first axis.
    label : str
        What the tasks of a lazy conversion are called.
    stream : CUDA stream or None
    """

    inputs: Any
    shape: tuple[int, ...] = ()
    home: str = HOST
    array: Shape | None = None
    names: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    last: int | range | None = None
    label: str = ""
    stream: Any = None


@dataclass(frozen=True, eq=False)
class LookUp:
    """Numbers by which those of an output are replaced; the same object for the same numbers."""

    numbers: NDArray[np.int64]


def _home(values: Any, stream: Any, label: str) -> str:
    if on_gpu(values, stream):
        return GPU
    return LAZY if label and engine_of(values) is not None else HOST


def window_or_coordinates(
    multi_index: Any, shape: Shape, mode: str | Sequence[str] = "raise", *, stream: Any = None, label: str = ""
) -> Given:
    """Check a window or coordinates; errors as `as_window` and `coordinates`."""
    if not is_window(multi_index):
        return coordinates(multi_index, shape, mode, stream=stream, label=label)
    if mode != "raise":
        raise FastIndexError(f"mode is for arrays of coordinates; a window takes 'raise' only, got {mode!r}")
    window = as_window(multi_index, shape)
    return Given(window, window.shape, stream=stream)


def coordinates(
    multi_index: Any,
    shape: Shape,
    mode: str | Sequence[str] = "raise",
    *,
    stream: Any = None,
    label: str = "",
    last: int | range | None = None,
) -> Given:
    """Check coordinates, one per dimension of `shape`.

    Lazy arrays stay so where there is a label; elsewhere they are computed.

    Raises
    ------
    FastIndexError
        Another number of coordinates, they do not broadcast together, no mode; a stream, and no array is on the GPU.
    ArgumentTypeError
        Not integers.
    """
    home = _home(multi_index, stream, label)
    inputs = multi_index if home is not HOST else as_coordinates(multi_index, shape)
    modes = () if mode == "raise" else as_modes(mode, shape.rank)
    if home is not HOST:
        return Given(inputs, (), home, shape, (), modes, last, label, stream)
    size = common_shape_of_coordinates(inputs, multi_index)
    if last is not None:
        inputs.append(last_input(last, len(size)))
        size = (*inputs[-1].shape[:1], *size)
    return Given(inputs, size, modes=modes)


def integers(values: Mapping[str, Any], *, stream: Any = None, label: str = "") -> Given:
    """Check arrays of integers, by their names.

    Raises
    ------
    FastIndexError
        They do not broadcast together; a stream, and no array is on the GPU.
    ArgumentTypeError
        Not integers.
    """
    given = tuple(values.values())
    home = _home(given if len(given) > 1 else given[0], stream, label)
    if home is not HOST:
        return Given(given, (), home, None, tuple(values), label=label, stream=stream)
    inputs = [as_integers_in_bulk(value, name) for name, value in values.items()]
    return Given(inputs, common_shape(inputs))


def last_input(last: int | range, rank: int) -> Counted:
    """Return the last input for others of `rank` axes."""
    return Counted(0, 1, (len(last), *(1,) * rank)) if isinstance(last, range) else Counted(last, 0, ())


def convert(
    program: IndexProgram,
    given: Given,
    error_of: ErrorOf,
    *,
    out: Any = None,
    mark: bool = False,
    threads: int | None = None,
    single: bool = False,
    table: LookUp | None = None,
) -> Any:
    """Run a program where its inputs are, and return its outputs, of the library of these.

    Parameters
    ----------
    program : IndexProgram
    given : Given
    error_of : callable
        Makes the error for the first element that cannot be converted.
    out : sequence of arrays, optional
        Where to write. A window holds no arrays, so this says where it is computed: on the GPU if one of them is there.
    mark : bool
        Whether padding makes all outputs -1, instead of an error.
    threads : int, optional
    single : bool
        Whether `out` and the result are the only output, not a sequence.
    table : LookUp, optional
        For the first output.

    Raises
    ------
    OutOfBoundsError
        As `error_of` says.
    ArgumentTypeError, FastIndexError
        `out` does not fit; a stream, though no array is on the GPU.
    """
    if given.home is LAZY:
        require_lazy(out=out)
        found = hook("convert_lazily")(program, given, error_of, mark, threads)
        return found[0] if single else found
    outs = (out,) if single and out is not None else out
    inputs, size = given.inputs, given.shape
    windowed = type(inputs) is Window
    if given.home is GPU or (windowed and out is not None and any(map(is_cuda_array, outs))):
        found = hook("convert_on_gpu")(program, given, error_of, outs, mark, table)
        return found[0] if single else found
    if windowed and given.stream is not None:
        raise FastIndexError("stream is for CUDA arrays; a window is computed on the GPU where out= is an array there")
    if out is None:
        outputs = new_outputs(len(program.outputs), size)
    else:
        outputs = [as_output(out, size, "out")] if single else as_outputs(out, len(program.outputs), size, "out")
        check_overlap(() if windowed else inputs, outputs)
    try:
        if windowed:
            axes = tuple(slice(None) if kept else None for kept in inputs.kept)
            fill_window(program, inputs.ranges, [output[(*axes, ...)] for output in outputs], threads)
        else:
            run(program, inputs, outputs, size, modes=given.modes, mark=mark, threads=threads)
    except OffenderFoundError as stopped:
        raise error_of(stopped.offender) from None
    if table is not None:
        _look_up(table.numbers, outputs[0], threads)
    if out is None and not size:
        outputs = [output[()] for output in outputs]
    return outputs[0] if single else outputs


def _look_up(table: NDArray[np.int64], places: NDArray[np.int64], threads: int | None) -> None:
    """Replace places by what stands there in a table."""
    if not places.flags.c_contiguous:
        places[...] = table[places]
        return
    flat = places.reshape(-1)

    def chunk(begin: int, end: int) -> None:
        for at in range(begin, end, _LOOKED_UP_AT_ONCE):
            part = flat[at : min(at + _LOOKED_UP_AT_ONCE, end)]
            part[...] = table.take(part, mode="clip")

    run_chunks(chunk, flat.size, thread_count(threads), 1 << 18)


# What is said of an element that fails


def check_padding(padding: Any) -> bool:
    """Return whether padding is marked.

    Raises
    ------
    FastIndexError
        Neither "raise" nor "mark".
    """
    if padding not in ("raise", "mark"):
        raise FastIndexError(f"padding must be 'raise' or 'mark', got {padding!r}")
    return bool(padding == "mark")


def out_of_bounds(offender: Offender, shape: Shape) -> OutOfBoundsError:
    """Return the error for a coordinate outside its dimension."""
    # Without checks for padding, it is an input that is out of bounds.
    number = offender.number or 0
    return OutOfBoundsError(
        f"coordinate {offender.values[number]}{offender.where} is out of bounds for dimension {number} "
        f"of size {shape.dimensions[number]} of {shape}"
    )


def bad_place(offender: Offender, shape: Shape, unit: str = "slot") -> OutOfBoundsError:
    """Return the error for a slot, byte or bit that is outside the buffer, or padding."""
    where = f"{unit} {offender.values[0]}{offender.where}"
    if offender.number is None:
        return OutOfBoundsError(f"{where} is padding of {shape} and holds no element")
    return OutOfBoundsError(f"{where} is out of bounds for the {units_in_buffer(shape, unit)} {unit}s of {shape}")
