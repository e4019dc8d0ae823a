"""Index programs by NumPy alone: a handful of array expressions, the results and errors of the kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram
from fastindex.arguments.index_arguments import Integers

#: Elements that are taken at a time.
AT_ONCE = 1 << 18

_Box = tuple[slice, ...]


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
        As for `fastindex.cpu.index_programs.run`; no bound is 0, and `shape` has elements.

    Returns
    -------
    int or None
        The number of the first element that cannot be converted, the last axis fastest; None if all can.
    """
    arrays = [np.arange(a.start, a.stop, a.step) if isinstance(a, range) else a for a in inputs]
    arrays = [array.reshape((1,) * (len(shape) - array.ndim) + array.shape) for array in arrays]
    for box in _boxes(shape):
        size = tuple(part.stop - part.start for part in box)
        parts = [array[_clipped(box, array)] for array in arrays]
        place: tuple[Any, ...] = (*box, ...)
        failed = _run_box(program, parts, [output[place] for output in outputs], size, modes, mark)
        if failed is not None:
            begin = [part.start for part in box]
            return _number([i + j for i, j in zip(begin, failed, strict=True)], shape)
    return None


def _boxes(shape: tuple[int, ...]) -> Iterator[_Box]:
    """Cut a shape into boxes that are not too large, in the order of their elements."""
    whole = tuple(slice(0, size) for size in shape)
    below = math.prod(shape)
    for axis, size in enumerate(shape):
        below //= size
        if below <= AT_ONCE:
            step = max(AT_ONCE // below, 1)
            for outer in np.ndindex(*shape[:axis]):
                for begin in range(0, size, step):
                    here = tuple(slice(i, i + 1) for i in outer)
                    yield (*here, slice(begin, min(begin + step, size)), *whole[axis + 1 :])
            return
    yield whole


def _clipped(box: _Box, array: NDArray[Any]) -> _Box:
    """Return a box of an array that broadcasts."""
    return tuple(slice(0, 1) if size == 1 else part for part, size in zip(box, array.shape, strict=True))


def _number(position: Sequence[int], shape: tuple[int, ...]) -> int:
    number = 0
    for i, size in zip(position, shape, strict=True):
        number = number * size + i
    return number


def _run_box(
    program: IndexProgram,
    inputs: Sequence[NDArray[Any]],
    outputs: Sequence[NDArray[np.int64]],
    size: tuple[int, ...],
    modes: Sequence[str],
    mark: bool,
) -> tuple[int, ...] | None:
    """Run a program on a box; return the first element that cannot be converted."""
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
        # An element may be out of bounds behind one that is padding, or before it.
        return tuple(int(i) for i in np.unravel_index(int(np.argmax(np.broadcast_to(outside, size))), size))
    for output, result in zip(outputs, results, strict=True):
        output[...] = result
        if mark and holds is not True:
            output[np.broadcast_to(np.logical_not(holds), size)] = -1
    return None


def _brought_in(array: NDArray[Any], bound: int, mode: str) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Return an input as int64, all of it in bounds, and where it was out of bounds if that is an error."""
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
