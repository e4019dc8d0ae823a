"""Index conversions, run where their arrays are.

`fastindex.arrays.index_arguments` checks the arguments, once; an `IndexProgram` is the plan; `convert` runs it: by
NumPy or kernels, by increments over a window, on a GPU, or deferred by an engine for lazy arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram
from fastindex.arrays.engines import is_cuda_array
from fastindex.arrays.index_arguments import Given, as_output, as_outputs
from fastindex.arrays.windows import Window
from fastindex.errors import FastIndexError
from fastindex.index.bad_elements import BadElementError, ErrorOf
from fastindex.index.executors import check_overlap, new_outputs, run
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
    given: Given,
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
    given : Given
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
    inputs, size, home = given.inputs, given.shape, given.home
    outs = (out,) if single and out is not None else out
    windowed = type(inputs) is Window
    if windowed and out is not None and any(map(is_cuda_array, outs)):
        home = "cuda"
    if home is not None:
        results = hook(f"{home}.convert")(program, given, error_of, outs, mark, threads, table)
        return results[0] if single else results
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
