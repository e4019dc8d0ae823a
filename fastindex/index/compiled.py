"""Runs an index program with its kernel, in chunks on several threads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram
from fastindex.arrays.addresses import address_of
from fastindex.arrays.arrays import broadcast_strides, merged_axes
from fastindex.arrays.index_arguments import Integers
from fastindex.arrays.windows import Counted
from fastindex.index.numbers import CLIP, COUNTED, RAISE, SWAPPED, WRAP, block_length, scratch_size
from fastindex.index.step_table import StepTable, step_table
from fastindex.runtime.machine_code import function
from fastindex.runtime.numbers import STORED
from fastindex.runtime.threads import run_chunks, thread_count
from fastindex.runtime.tuning import TUNING

# The thresholds of all calls; tests replace them.
_TUNING = TUNING

_CODES = {np.dtype(name): code for code, name in enumerate(STORED)}
_CODES.update({dtype.newbyteorder(): SWAPPED + code for dtype, code in _CODES.items() if dtype.itemsize > 1})
_TREATMENTS = {"raise": RAISE, "wrap": WRAP, "clip": CLIP}


class _ChunkStoppedError(Exception):
    pass


def run_compiled(
    program: IndexProgram,
    inputs: Sequence[Integers],
    outputs: Sequence[NDArray[np.int64]],
    shape: tuple[int, ...],
    modes: Sequence[str],
    mark: bool,
    threads: int | None,
) -> tuple[int, int] | tuple[None, None]:
    """Run `program` on every element of `inputs`, and write `outputs`.

    Parameters
    ----------
    program, inputs, outputs, shape, modes, mark, threads
        As for `fastindex.index.executors.run`; no bound is 0, and `shape` has elements.

    Returns
    -------
    (int, int) or (None, None)
        A range of elements that contains the first one that cannot be converted; (None, None) if all can.
    """
    count = math.prod(shape)
    table = program.derived(_marking_table if mark else _raising_table)
    arrays = _arrays_table(program, inputs, outputs, shape, modes)
    numbers, kernel = address_of(arrays), function("run_program")
    failures: list[int] = []

    def chunk(begin: int, end: int) -> None:
        scratch = np.empty(scratch_size(table.variables), np.int64)
        stopped = kernel(table.address, numbers, address_of(scratch), begin, end)
        if stopped >= 0:
            failures.append(stopped)
            raise _ChunkStoppedError

    try:
        if count <= 4 * _TUNING.least_conversion_share:
            chunk(0, count)
        else:
            workers = thread_count(threads)
            run_chunks(chunk, count, workers, _TUNING.chunk_length(count, workers))
    except _ChunkStoppedError:
        # Chunks start in order and all that started have ended, so the smallest failure is the first one.
        first = min(failures)
        return first, min(first + block_length(table.variables), count)
    return None, None


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
    strides: Sequence[Sequence[int]] = ()
    sizes: Sequence[int] = (math.prod(shape),)
    for array in (*inputs, *outputs):
        if isinstance(array, Counted) or array.shape != shape or not array.flags.c_contiguous:
            sizes, strides = _axes((*inputs, *outputs), shape)
            break
    streamed = 0
    if 8 * len(outputs) * math.prod(shape) >= _TUNING.streamed_bytes:
        streamed = int(all(array.flags.aligned for array in outputs))
    numbers = [len(sizes), streamed, *sizes]
    bounds = program.input_bounds
    for i, array in enumerate(inputs):
        treatment = _TREATMENTS[modes[i]] if modes else RAISE
        if isinstance(array, Counted):
            numbers += (array.start, COUNTED, treatment, bounds[i], 0, *strides[i])
        else:
            flat = not strides or (array.shape == shape and array.flags.c_contiguous)
            numbers += (address_of(array), _CODES[array.dtype], treatment, bounds[i], flat)
            numbers += strides[i] if strides else (array.itemsize,)
    for i, array in enumerate(outputs, len(inputs)):
        numbers += (address_of(array), 0, RAISE, 0, array.flags.c_contiguous)
        numbers += strides[i] if strides else (8,)
    return np.array(numbers, np.int64)


def _axes(arrays: Sequence[Integers], shape: tuple[int, ...]) -> tuple[Sequence[int], Sequence[Sequence[int]]]:
    """Return the merged axes of all arrays, as few as possible, and each array's strides along them, in bytes."""
    merged_sizes, merged_strides = merged_axes(shape, [broadcast_strides(a.shape, a.strides, shape) for a in arrays])
    if not merged_sizes:
        return (1,), [(8,) for _ in arrays]
    return merged_sizes, merged_strides
