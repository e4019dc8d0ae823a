"""Runs index programs over windows: without arrays of coordinates, and without a division for each element."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram
from fastindex.arguments.addresses import address_of
from fastindex.cpu.first_answer import MOST_INDICES, may_be_numpy
from fastindex.cpu.index_chunks import chunk_length
from fastindex.cpu.index_programs import run
from fastindex.cpu.threads import run_chunks, thread_count
from fastindex.lowering.tuning import TUNING
from fastindex.lowering.windows.plan import WINDOW_TUNING, WindowPlan, WindowTuning, window_plan


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
        One axis per input. They do not overlap.
    threads : int, optional
        The most threads to use.
    tuning : WindowTuning
    """
    shape = tuple(len(along) for along in ranges)
    count = math.prod(shape)
    if threads is not None:
        thread_count(threads)
    if count == 0:
        return
    if count < tuning.least_planned or may_be_numpy(count * len(outputs), MOST_INDICES):
        _run_generally(program, ranges, outputs, threads)
        return
    for form, output in zip(program.outputs, outputs, strict=True):
        plan = window_plan(program, form, ranges, tuning)
        if plan is None:
            one = IndexProgram(program.input_bounds, program.quotients, (form,))
            _run_generally(one, ranges, (output,), threads)
        elif output.flags.c_contiguous:
            _run_plan(plan, output, threads)
        else:
            whole = np.empty(shape, np.int64)
            _run_plan(plan, whole, threads)
            output[...] = whole


def _run_plan(plan: WindowPlan, output: NDArray[np.int64], threads: int | None) -> None:
    # It imports the compiler, which small windows do without.
    from fastindex.kernels.cpu.windows.kernel import run_window, window_scratch_size

    address = address_of(output)
    streamed = int(output.nbytes >= TUNING.streamed_bytes and output.flags.aligned)

    def chunk(begin: int, end: int) -> None:
        scratch = np.empty(window_scratch_size(plan.variables), np.int64)
        run_window(plan.numbers, plan.table, scratch, address, begin, end, streamed)

    workers = thread_count(threads)
    run_chunks(chunk, output.size, workers, chunk_length(output.size, workers))


def _run_generally(
    program: IndexProgram, ranges: Sequence[range], outputs: Sequence[NDArray[np.int64]], threads: int | None
) -> None:
    shape = tuple(len(along) for along in ranges)
    axes = np.ix_(*(np.arange(along.start, along.stop, along.step) for along in ranges))
    run(program, axes, outputs, shape, threads=threads)
