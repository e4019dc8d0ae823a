"""Runs an index program over whole arrays, and finds the first element that fails.

`convert` decides where: on a GPU, deferred by an engine for lazy arrays, by increments over a window, or on every
element by NumPy or a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram, wrapped_int64
from fastindex.arrays.arrays import address_of, broadcast_strides
from fastindex.arrays.engines import is_cuda_array
from fastindex.arrays.index_arguments import Counted, Inputs, Integers, Window, as_output, as_outputs
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError, OutOfBoundsError
from fastindex.index.programs import units_in_buffer
from fastindex.index.windows import WINDOW_TUNING, WindowTuning, run_plan, window_plan
from fastindex.lazy import hook
from fastindex.runtime.first_answer import MOST_INDICES, indices_by_numpy, may_be_numpy, numpys_time
from fastindex.runtime.numbers import LINE_BYTES
from fastindex.runtime.threads import check_threads, run_chunks, thread_count
from fastindex.runtime.tuning import TUNING


class BadElementError(Exception):
    """The first element that could not be converted.

    Attributes
    ----------
    position : tuple of int
        Position in the common shape of the inputs.
    number : int or None
        The input that is out of bounds, or None where a padding check failed.
    values : tuple of int
        All inputs at that position.
    """

    def __init__(self, position: tuple[int, ...], number: int | None, values: tuple[int, ...]) -> None:
        super().__init__(position, number, values)
        self.position, self.number, self.values = position, number, values

    @property
    def where(self) -> str:
        """The position in words, to follow a value; empty for scalars."""
        if not self.position:
            return ""
        return f" at position {self.position if len(self.position) > 1 else self.position[0]}"


#: Makes the error of a call for the element that could not be converted.
ErrorOf = Callable[[BadElementError], Exception]


def position_of(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the position of an element from its flat index in C order."""
    return tuple(int(i) for i in np.unravel_index(number, shape)) if shape else ()


def values_at(
    inputs: Sequence[Any], shape: tuple[int, ...], number: int, read: Callable[[Any, tuple[int, ...], int], int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the position of an element, and its inputs; `read` takes an array, a position, and its offset in bytes."""
    position, values = position_of(number, shape), []
    for array in inputs:
        strides = broadcast_strides(array.shape, array.strides, shape)
        offset = sum(p * stride for p, stride in zip(position, strides, strict=True))
        is_counted = isinstance(array, Counted)
        values.append(wrapped_int64(array.start + offset) if is_counted else read(array, position, offset))
    return position, tuple(values)


def judged(
    program: IndexProgram, position: tuple[int, ...], values: tuple[int, ...], modes: Sequence[str] = ()
) -> BadElementError | None:
    """Return the error of an element, or None.

    Parameters
    ----------
    program : IndexProgram
    position : tuple of int
    values : tuple of int
        Its inputs.
    modes : sequence of str
        What happens to each input out of bounds; "raise" for all if empty.
    """
    brought_in = []
    for i, (value, bound) in enumerate(zip(values, program.input_bounds, strict=True)):
        mode = modes[i] if modes else "raise"
        if mode == "raise" and not 0 <= value < bound:
            return BadElementError(position, i, values)
        brought_in.append(value % bound if mode == "wrap" else min(max(value, 0), bound - 1))
    return None if program.evaluate(brought_in)[1] else BadElementError(position, None, values)


def out_of_bounds(found: BadElementError, shape: Shape) -> OutOfBoundsError:
    """Return the error for a coordinate outside its dimension."""
    # Programs without padding checks fail only for an input out of bounds.
    number = found.number or 0
    return OutOfBoundsError(
        f"coordinate {found.values[number]}{found.where} is out of bounds for dimension {number} "
        f"of size {shape.dimensions[number]} of {shape}"
    )


def bad_place(found: BadElementError, shape: Shape, unit: str = "slot") -> OutOfBoundsError:
    """Return the error for a slot, byte or bit that is outside the buffer, or padding."""
    where = f"{unit} {found.values[0]}{found.where}"
    if found.number is None:
        return OutOfBoundsError(f"{where} is padding of {shape} and holds no element")
    return OutOfBoundsError(f"{where} is out of bounds for the {units_in_buffer(shape, unit)} {unit}s of {shape}")


# Execution

# The thresholds of all calls; tests replace them.
_TUNING = TUNING

#: Maximum number of elements that NumPy evaluates at a time, and that it looks up.
AT_ONCE = 1 << 18
_LOOKED_UP_AT_ONCE = 1 << 16

Box = tuple[slice, ...]


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


def fill_window(
    program: IndexProgram,
    ranges: Sequence[range],
    outputs: Sequence[NDArray[np.int64]],
    threads: int | None = None,
    tuning: WindowTuning = WINDOW_TUNING,
) -> None:
    """Run a program without checks on every element of a window.

    Parameters
    ----------
    program : IndexProgram
    ranges : sequence of range
        The values of each input, all in bounds.
    outputs : sequence of int64 arrays
        One axis per input, not overlapping.
    threads : int, optional
        Maximum number of threads.
    tuning : WindowTuning
    """
    if threads is not None:
        thread_count(threads)
    window = Window(tuple(ranges), (True,) * len(ranges))
    count = math.prod(window.shape)
    if count == 0:
        return
    if count < tuning.least_planned or may_be_numpy(count * len(outputs), MOST_INDICES):
        run(program, window.counted(), outputs, window.shape, threads=threads)
        return
    for form, output in zip(program.outputs, outputs, strict=True):
        plan = window_plan(program, form, ranges, tuning)
        if plan is None:
            one = IndexProgram(program.input_bounds, program.quotients, (form,))
            run(one, window.counted(), (output,), window.shape, threads=threads)
        else:
            run_plan(plan, output, threads)


def run_by_numpy(
    program: IndexProgram,
    inputs: Sequence[Integers],
    outputs: Sequence[NDArray[np.int64]],
    shape: tuple[int, ...],
    modes: Sequence[str] = (),
    mark: bool = False,
) -> int | None:
    """Run `program` on every element of `inputs`, and write `outputs`.

    Parameters
    ----------
    program, inputs, outputs, shape, modes, mark
        As for `run`; no bound is 0, and `shape` has elements.

    Returns
    -------
    int or None
        The flat index (C order) of the first element that cannot be converted; None if all can.
    """
    arrays = [np.asarray(array) for array in inputs]
    if math.prod(shape) <= AT_ONCE:
        return _run_box(program, arrays, outputs, shape, modes, mark)
    arrays = [array.reshape((1,) * (len(shape) - array.ndim) + array.shape) for array in arrays]
    for box in boxes(shape, AT_ONCE):
        size = tuple([part.stop - part.start for part in box])
        parts = [array[_clipped(box, array)] for array in arrays]
        failed = _run_box(program, parts, [output[box] for output in outputs], size, modes, mark)
        if failed is not None:
            place = [part.start + i for part, i in zip(box, position_of(failed, size), strict=True)]
            return int(np.ravel_multi_index(place, shape))
    return None


def boxes(sizes: Sequence[int], at_once: int) -> Iterator[Box]:
    """Split a box into boxes of at most `at_once` elements, in C order."""
    below = math.prod(sizes)
    for axis, size in enumerate(sizes):
        below //= size
        if below <= at_once:
            step = max(at_once // below, 1)
            inner = [slice(0, whole) for whole in sizes[axis + 1 :]]
            for outer in np.ndindex(*sizes[:axis]):
                for begin in range(0, size, step):
                    yield (*(slice(i, i + 1) for i in outer), slice(begin, min(begin + step, size)), *inner)
            return
    yield ()


def _clipped(box: Box, array: NDArray[Any]) -> Box:
    """Clip a box to an array that broadcasts: axes of size 1 are taken whole."""
    return tuple(slice(0, 1) if size == 1 else part for part, size in zip(box, array.shape, strict=True))


def _run_box(
    program: IndexProgram,
    inputs: Sequence[NDArray[Any]],
    outputs: Sequence[NDArray[np.int64]],
    size: tuple[int, ...],
    modes: Sequence[str],
    mark: bool,
) -> int | None:
    """Run a program on a box; return the flat index of the first element that cannot be converted, or None."""
    values = []
    outside: NDArray[np.bool_] | None = None
    for i, (array, bound) in enumerate(zip(inputs, program.input_bounds, strict=True)):
        number, beyond = _brought_in(array, bound, modes[i] if modes else "raise")
        values.append(number)
        if beyond is not None and beyond.any():
            outside = beyond if outside is None else outside | beyond
    # Products and sums may wrap: they are right modulo 2**64.
    with np.errstate(over="ignore"):
        results, holds = program.evaluate(values)
    if not mark and holds is not True:
        fails = np.logical_not(holds)
        outside = fails if outside is None else outside | fails
    if outside is not None and np.any(outside):
        # The first failure of either kind, out of bounds or padding.
        return int(np.argmax(np.broadcast_to(outside, size)))
    for output, result in zip(outputs, results, strict=True):
        output[...] = result
        if mark and holds is not True:
            output[np.broadcast_to(np.logical_not(holds), size)] = -1
    return None


def _brought_in(array: NDArray[Any], bound: int, mode: str) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Return an input as int64, brought into bounds, and the mask of values out of bounds if they are an error."""
    if array.dtype.kind == "u" and array.dtype.itemsize == 8:
        large = array.astype(np.uint64)
        beyond = large >= np.uint64(bound)
        if mode == "wrap":
            return (large % np.uint64(bound)).astype(np.int64), None
        number = np.minimum(large, np.uint64(bound - 1)).astype(np.int64)
    else:
        number = array.astype(np.int64)
        beyond = (number < 0) | (number >= bound)
        if mode == "wrap":
            return number % bound, None
        number = np.clip(number, 0, bound - 1)
    return number, None if mode == "clip" else beyond


def run(
    program: IndexProgram,
    inputs: Sequence[Integers],
    outputs: Sequence[NDArray[np.int64]],
    shape: tuple[int, ...],
    *,
    modes: Sequence[str] = (),
    mark: bool = False,
    threads: int | None = None,
) -> None:
    """Run `program` on every element of `inputs`, and write `outputs`.

    Parameters
    ----------
    program : IndexProgram
    inputs : sequence of integer arrays or counted integers
        They broadcast to `shape`.
    outputs : sequence of int64 arrays of that shape
        They overlap neither each other nor an input.
    shape : tuple of int
    modes : sequence of str, optional
        For each input, what happens out of bounds: "raise" (the default), "wrap" or "clip".
    mark : bool
        Whether a failed check writes -1 to all outputs, instead of raising.
    threads : int, optional

    Raises
    ------
    BadElementError
        An input is out of bounds, or a check failed. The contents of `outputs` are then undefined.
    """
    if threads is not None:
        check_threads(threads)
    count = math.prod(shape)
    if count == 0:
        return
    if 0 in program.input_bounds:
        # No value is in bounds, and there is none to wrap or clip to.
        position, values = _values_at(inputs, shape, 0)
        raise BadElementError(position, program.input_bounds.index(0), values)
    # A check with bound 0: the array has no elements, but slots, all padding. Kernels require positive bounds.
    if 0 in [check.bound for check in program.checks] or indices_by_numpy(count * len(outputs)):
        with numpys_time():
            first = run_by_numpy(program, inputs, outputs, shape, modes, mark)
        last = None if first is None else first + 1
    else:
        first, last = _by_kernels()(program, inputs, outputs, shape, modes, mark, threads)
    if first is not None and last is not None:
        raise _first_bad(program, inputs, shape, modes, first, last)


@cache
def _by_kernels() -> Callable[..., tuple[int, int] | tuple[None, None]]:
    # Imports the compiler; cached, because an import statement takes a microsecond per call.
    from fastindex.index.compiled import run_compiled

    return run_compiled


def check_overlap(inputs: Sequence[Integers], outputs: Sequence[NDArray[np.int64]]) -> None:
    """Reject outputs that share memory with an input or with each other.

    Raises
    ------
    FastIndexError
    """
    arrays = [array for array in inputs if not isinstance(array, Counted)]
    for output in outputs:
        for array in arrays:
            if np.may_share_memory(output, array) and _overlap(output, array):
                raise FastIndexError("out overlaps an input or another output; give it separate memory")
        arrays.append(output)


def _overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    effort: Any = 100_000
    try:
        return bool(np.shares_memory(a, b, max_work=effort))
    except np.exceptions.TooHardError:
        return True


def new_outputs(count: int, shape: tuple[int, ...]) -> list[NDArray[np.int64]]:
    """Return new int64 arrays, large ones aligned to a cache line."""
    elements = math.prod(shape)
    if 8 * elements * count < _TUNING.streamed_bytes:
        return [np.empty(shape, np.int64) for _ in range(count)]
    outputs = []
    for _ in range(count):
        memory = np.empty(elements + LINE_BYTES // 8 - 1, np.int64)
        begin = -address_of(memory) % LINE_BYTES // 8
        outputs.append(memory[begin : begin + elements].reshape(shape))
    return outputs


def _first_bad(
    program: IndexProgram,
    inputs: Sequence[Integers],
    shape: tuple[int, ...],
    modes: Sequence[str],
    first: int,
    last: int,
) -> BadElementError:
    for flat in range(first, last):
        position, values = _values_at(inputs, shape, flat)
        found = judged(program, position, values, modes)
        if found is not None:
            return found
    raise FastIndexError("an input changed while it was being converted; another thread writes to it")


def _values_at(
    inputs: Sequence[Integers], shape: tuple[int, ...], flat: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return values_at(inputs, shape, flat, lambda array, position, _: int(np.broadcast_to(array, shape)[position]))
