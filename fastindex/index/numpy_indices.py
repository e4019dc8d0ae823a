"""`ravel_multi_index` and `unravel_index` with NumPy's signatures, results and errors, faster in bulk.

Large plain arrays run on fastindex's kernel. Everything else, errors included, is passed on to NumPy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram
from fastindex.arrays.engines import engine_of, on_gpu
from fastindex.arrays.index_arguments import (
    MODES,
    Inputs,
    common_shape,
    coordinate_arguments,
    integer_arguments,
)
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape
from fastindex.index.executors import BadElementError, bad_place
from fastindex.index.indices import convert
from fastindex.index.programs import linear_program, multi_program

#: Below this number of elements, NumPy finishes before a kernel starts.
SMALLEST = 4096


def ravel_multi_index(multi_index: Any, dims: Any, mode: str | Sequence[str] = "raise", order: str = "C") -> Any:
    """Do what `numpy.ravel_multi_index` does, faster.

    Parameters, results and errors are NumPy's. CUDA arrays give CUDA arrays.

    Examples
    --------
    >>> ravel_multi_index(([3, 6, 6], [4, 5, 1]), (7, 6))
    array([22, 41, 37])
    >>> ravel_multi_index(([3, 6, 6], [4, 5, 1]), (7, 6), order="F")
    array([31, 41, 13])
    """
    if on_gpu(multi_index):
        shape = _shape_on_gpu(dims, order)
        return convert(linear_program(shape), coordinate_arguments(multi_index, shape, mode), _bad_entry, single=True)
    _check_lazy(multi_index, dims)
    parts = _bulk(multi_index)
    if parts is not None:
        sizes, modes = _sizes(dims), _modes(mode, len(parts))
        if sizes is not None and modes is not None and len(sizes) == len(parts) and order in _ORDERS:
            flat = _run_ravel(parts, sizes, modes, order)
            if flat is not None:
                return flat
    return np.ravel_multi_index(multi_index, dims, mode=mode, order=order)  # type: ignore[call-overload]


def unravel_index(indices: Any, shape: Any, order: str = "C") -> Any:
    """Do what `numpy.unravel_index` does, faster.

    Parameters, results and errors are NumPy's, except that each array is contiguous. CUDA arrays give CUDA arrays.

    Examples
    --------
    >>> unravel_index([22, 41, 37], (7, 6))
    (array([3, 6, 6]), array([4, 5, 1]))
    """
    if on_gpu(indices):
        of = _shape_on_gpu(shape, order)
        arguments = integer_arguments(("linear_index",), (indices,))
        return tuple(convert(multi_program(of), arguments, lambda found: _bad_index(found, of)))
    if type(indices) is np.ndarray and indices.size >= SMALLEST and _is_plain(indices):
        sizes = _sizes(shape)
        if sizes is not None and order in _ORDERS:
            found = _run_unravel(indices, sizes, order)
            if found is not None:
                return found
    return np.unravel_index(indices, shape, order=order)  # type: ignore[call-overload]


_ORDERS = ("C", "F")


def _check_lazy(multi_index: Any, dims: Any) -> None:
    """Raise NumPy's error for a lazy array of the wrong length, often transposed, which its library would iterate."""
    if isinstance(multi_index, tuple | list) or engine_of(multi_index) is None:
        return
    sizes = _sizes(dims)
    if sizes is not None and multi_index.shape and multi_index.shape[0] != len(sizes):
        across = multi_index.shape[1:] == (len(sizes),)
        hint = f": its shape is {multi_index.shape}, transpose it" if across else ""
        raise ValueError(f"parameter multi_index must be a sequence of length {len(sizes)}{hint}")


def _is_plain(array: NDArray[Any]) -> bool:
    # NumPy casts uint64 to int64 first, so its results differ.
    return array.dtype.kind in "iu" and array.dtype.isnative and array.dtype != np.uint64


def _bulk(multi_index: Any) -> list[NDArray[Any]] | None:
    """Return the coordinates if they are plain arrays that may broadcast to a large one."""
    if type(multi_index) not in (tuple, list, np.ndarray):
        return None
    sizes = set()
    for array in multi_index:
        if type(array) is not np.ndarray or not _is_plain(array):
            return None
        sizes.add(array.size)
    # Arrays of different sizes may broadcast to the product of these at most.
    return list(multi_index) if sizes and (max(sizes) >= SMALLEST or math.prod(sizes) >= SMALLEST) else None


def _sizes(dims: Any) -> tuple[int, ...] | None:
    try:
        sizes = tuple([operator.index(size) for size in (dims if np.iterable(dims) else (dims,))])
    except TypeError:
        return None
    if not sizes or min(sizes) < 1 or math.prod(sizes) >= 2**63:
        return None
    return sizes


def _modes(mode: Any, count: int) -> tuple[str, ...] | None:
    if isinstance(mode, str):
        return (mode,) * count if mode in MODES else None
    if isinstance(mode, tuple | list) and len(mode) == count and all(m in MODES for m in mode):
        return tuple(mode)
    return None


@lru_cache(maxsize=256)
def _programs(sizes: tuple[int, ...], order: str) -> tuple[IndexProgram, IndexProgram]:
    shape = _shape_of(sizes, order)
    return linear_program(shape), multi_program(shape)


def _shape_of(sizes: tuple[int, ...], order: str) -> Shape:
    make = Layout.descending if order == "C" else Layout.ascending
    return Shape("u8", sizes, make(len(sizes)))


def _run_ravel(
    parts: list[NDArray[Any]], sizes: tuple[int, ...], modes: tuple[str, ...], order: str
) -> NDArray[np.int64] | None:
    """Return the result, or None if NumPy should report the error."""
    is_fortran = _all_fortran(parts)
    if is_fortran:
        parts = [array.T for array in parts]
    try:
        common = common_shape(parts)
        if math.prod(common) < SMALLEST:
            return None
        arguments = Inputs(parts, common, modes=modes)
        flat: NDArray[np.int64] = convert(_programs(sizes, order)[0], arguments, _bad_entry, single=True)
    except ValueError:
        return None
    return flat.T if is_fortran else flat


def _all_fortran(arrays: list[NDArray[Any]]) -> bool:
    """Whether all arrays are in Fortran order, so that NumPy's result would be too."""
    return all(a.shape == arrays[0].shape and a.flags.f_contiguous and not a.flags.c_contiguous for a in arrays)


def _run_unravel(indices: NDArray[Any], sizes: tuple[int, ...], order: str) -> tuple[NDArray[np.int64], ...] | None:
    is_fortran = _all_fortran([indices])
    slots = indices.T if is_fortran else indices
    try:
        found = convert(_programs(sizes, order)[1], Inputs([slots], slots.shape), _bad_entry)
    except ValueError:
        return None
    return tuple(part.T for part in found) if is_fortran else tuple(found)


def _bad_entry(_: BadElementError) -> ValueError:
    return ValueError("invalid entry in coordinates array")


# Arrays on the GPU


def _bad_index(found: BadElementError, shape: Shape) -> ValueError:
    error = bad_place(found, shape)
    return ValueError(f"{error}: index is out of bounds for array with size {shape.element_count}")


def _shape_on_gpu(dims: Any, order: str) -> Shape:
    sizes = _sizes(dims)
    if sizes is None:
        raise ValueError(f"dims must be positive sizes whose product fits 64 bits, got {dims!r}")
    if order not in _ORDERS:
        raise ValueError("only 'C' or 'F' order is permitted")
    return _shape_of(sizes, order)
