"""The results of index functions for windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram
from fastindex.arrays.index_arguments import Window, as_outputs
from fastindex.cuda.arrays import is_cuda_array
from fastindex.errors import FastIndexError
from fastindex.first_use import load
from fastindex.index.executors import check_overlap, new_outputs
from fastindex.index.windows import fill_window


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
