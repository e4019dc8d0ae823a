"""Runs an index program over whole arrays, by NumPy or by kernels, with the first bad element found by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram
from fastindex.arguments.addresses import address_of
from fastindex.arguments.index_arguments import Integers
from fastindex.arguments.offenders import Offender, OffenderFoundError, judged, position_of
from fastindex.cpu.first_answer import indices_by_numpy, numpys_time
from fastindex.cpu.numpy_programs import run_by_numpy
from fastindex.cpu.threads import check_threads
from fastindex.errors import FastIndexError
from fastindex.lowering.tuning import TUNING
from fastindex.tables.cache_lines import LINE_BYTES

# What calls run by; tests choose other thresholds.
_TUNING = TUNING


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
    check_threads(threads)
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
    if indices_by_numpy(count * len(outputs)):
        with numpys_time():
            first = run_by_numpy(program, inputs, outputs, shape, modes, mark)
        last = None if first is None else first + 1
    else:
        from fastindex.cpu.compiled_programs import run_compiled

        first, last = run_compiled(program, inputs, outputs, shape, modes, mark, threads)
    if first is not None and last is not None:
        raise OffenderFoundError(_first_offender(program, inputs, shape, modes, first, last))


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
