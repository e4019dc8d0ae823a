"""Runs an index program over whole arrays: in chunks, on threads, with the first bad element found by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arguments.addresses import address_of
from fastindex.arguments.arrays import broadcast_strides, merged_axes
from fastindex.arguments.index_arguments import Integers
from fastindex.arguments.offenders import Offender, OffenderFoundError, judged, position_of
from fastindex.cpu.threads import run_chunks, thread_count
from fastindex.errors import FastIndexError
from fastindex.kernels.cpu.index_blocks import CLIP, COUNTED, RAISE, SWAPPED, WRAP
from fastindex.kernels.cpu.index_kernel import block_length, run_program, scratch_size
from fastindex.kernels.cpu.memory import STORED
from fastindex.lowering.index_form import IndexProgram
from fastindex.lowering.step_table import StepTable, step_table
from fastindex.lowering.tuning import TUNING
from fastindex.tables.cache_lines import LINE_BYTES

# What calls run by; tests choose other thresholds.
_TUNING = TUNING

_CODES = {np.dtype(name): code for code, name in enumerate(STORED)}
_CODES.update({dtype.newbyteorder(): SWAPPED + code for dtype, code in _CODES.items() if dtype.itemsize > 1})
_TREATMENTS = {"raise": RAISE, "wrap": WRAP, "clip": CLIP}


class _ChunkStoppedError(Exception):
    pass


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
    inputs : sequence of integer arrays or ranges
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
    OffenderFoundError
        An input is out of bounds, or a check failed. What `outputs` hold then is undefined.
    """
    workers = 1 if threads is None else thread_count(threads)
    count = math.prod(shape)
    if count == 0:
        return
    if 0 in program.input_bounds:
        # Nothing is in bounds, and there is nothing to wrap or to clip to.
        position, values = _values_at(inputs, shape, 0)
        raise OffenderFoundError(Offender(position, program.input_bounds.index(0), values))
    if any(check.bound == 0 for check in program.checks):
        _run_on_padding_alone(program, inputs, outputs, shape, mark)
        return
    table = program.derived(_marking_table if mark else _raising_table)
    arrays = _arrays_table(program, inputs, outputs, shape, modes)
    failures: list[int] = []

    def chunk(begin: int, end: int) -> None:
        scratch = np.empty(scratch_size(table.variables), np.int64)
        stopped = run_program(table.numbers, arrays, scratch, begin, end)
        if stopped >= 0:
            failures.append(stopped)
            raise _ChunkStoppedError

    try:
        if count <= _TUNING.small_conversion:
            chunk(0, count)
        else:
            workers = thread_count() if threads is None else workers
            run_chunks(chunk, count, workers, chunk_length(count, workers))
    except _ChunkStoppedError:
        # Chunks start in order and those that started have ended, so the smallest is the first there is.
        first = min(failures)
        last = min(first + block_length(table.variables), count)
        raise OffenderFoundError(_first_offender(program, inputs, shape, modes, first, last)) from None


def chunk_length(count: int, workers: int) -> int:
    """Return how many elements a thread takes at a time, whole cache lines of them.

    Examples
    --------
    >>> chunk_length(1 << 24, 2)
    262144
    """
    least, most = _TUNING.least_conversion_share, _TUNING.most_conversion_share
    length = min(max(count // (4 * workers), least), most)
    return -(-length // 8) * 8


def _run_on_padding_alone(
    program: IndexProgram,
    inputs: Sequence[Integers],
    outputs: Sequence[NDArray[np.int64]],
    shape: tuple[int, ...],
    mark: bool,
) -> None:
    """Run a program all of whose slots are padding: the array has no elements, its buffer has slots."""
    if not mark:
        raise OffenderFoundError(_first_offender(program, inputs, shape, (), 0, 1))
    only_bounds = IndexProgram(program.input_bounds, (), ((),) * len(outputs))
    run(only_bounds, inputs, outputs, shape)
    for output in outputs:
        output[...] = -1


def _marking_table(program: IndexProgram) -> StepTable:
    return step_table(program, True)


def _raising_table(program: IndexProgram) -> StepTable:
    return step_table(program, False)


# Describing arrays to the kernel


def _arrays_table(
    program: IndexProgram,
    inputs: Sequence[Integers],
    outputs: Sequence[NDArray[np.int64]],
    shape: tuple[int, ...],
    modes: Sequence[str],
) -> NDArray[np.int64]:
    strides: Sequence[Sequence[int]] | None = None
    sizes: Sequence[int] = (math.prod(shape),)
    for array in (*inputs, *outputs):
        if isinstance(array, range) or array.shape != shape or not array.flags.c_contiguous:
            sizes, strides = _axes((*inputs, *outputs), shape)
            break
    streamed = 0
    if 8 * len(outputs) * math.prod(shape) >= _TUNING.streamed_bytes:
        streamed = int(all(array.flags.aligned for array in outputs))
    numbers = [len(sizes), streamed, *sizes]
    bounds = program.input_bounds
    for i, array in enumerate(inputs):
        treatment = _TREATMENTS[modes[i]] if modes else RAISE
        if isinstance(array, range):
            numbers += (array.start, COUNTED, treatment, bounds[i], 0)
            numbers += (array.step,) if strides is None else strides[i]
        else:
            flat = strides is None or (array.shape == shape and array.flags.c_contiguous)
            numbers += (address_of(array), _CODES[array.dtype], treatment, bounds[i], flat)
            numbers += (array.itemsize,) if strides is None else strides[i]
    for i, array in enumerate(outputs, len(inputs)):
        numbers += (address_of(array), 0, RAISE, 0, array.flags.c_contiguous)
        numbers += (8,) if strides is None else strides[i]
    return np.array(numbers, np.int64)


def _axes(arrays: Sequence[Integers], shape: tuple[int, ...]) -> tuple[Sequence[int], Sequence[Sequence[int]]]:
    """Give the fewest axes over which all arrays run, and each array's strides along them, in bytes."""
    strides = [_broadcast_strides(array, shape) for array in arrays]
    merged_sizes, merged_strides = merged_axes(shape, strides)
    if not merged_sizes:
        return (1,), [(8,) for _ in arrays]
    return merged_sizes, merged_strides


def _broadcast_strides(array: Integers, shape: tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(array, range):
        return broadcast_strides((len(array),), (array.step,), shape)
    return broadcast_strides(array.shape, array.strides, shape)


def check_overlap(inputs: Sequence[Integers], outputs: Sequence[NDArray[np.int64]]) -> None:
    """Refuse outputs that share memory with an input or with each other.

    Raises
    ------
    FastIndexError
    """
    arrays = [array for array in inputs if type(array) is not range]
    for output in outputs:
        for array in arrays:
            if np.may_share_memory(output, array) and _overlap(output, array):
                raise FastIndexError("out overlaps an input or another output; give it memory of its own")
        arrays.append(output)


def _overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    effort: Any = 100_000
    try:
        return bool(np.shares_memory(a, b, max_work=effort))
    except np.exceptions.TooHardError:
        return True


def new_outputs(count: int, shape: tuple[int, ...]) -> list[NDArray[np.int64]]:
    """Give new int64 arrays, those of large size at the start of a cache line."""
    elements = math.prod(shape)
    if 8 * elements * count < _TUNING.streamed_bytes:
        return [np.empty(shape, np.int64) for _ in range(count)]
    outputs = []
    for _ in range(count):
        memory = np.empty(elements + LINE_BYTES // 8 - 1, np.int64)
        begin = -address_of(memory) % LINE_BYTES // 8
        outputs.append(memory[begin : begin + elements].reshape(shape))
    return outputs


# Finding what went wrong


def _first_offender(
    program: IndexProgram,
    inputs: Sequence[Integers],
    shape: tuple[int, ...],
    modes: Sequence[str],
    first: int,
    last: int,
) -> Offender:
    for flat in range(first, last):
        position, values = _values_at(inputs, shape, flat)
        offender = judged(program, position, values, modes)
        if offender is not None:
            return offender
    raise FastIndexError("an input changed while it was being converted; another thread writes to it")


def _values_at(
    inputs: Sequence[Integers], shape: tuple[int, ...], flat: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    position = position_of(flat, shape)
    values = []
    for array in inputs:
        if isinstance(array, range):
            values.append(array[position[-1] if len(array) > 1 else 0])
        else:
            values.append(int(np.broadcast_to(array, shape)[position]))
    return position, tuple(values)
