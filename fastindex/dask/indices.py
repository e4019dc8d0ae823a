"""Index conversion of Dask arrays: coordinates to linear indices and back, one task per block."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.layers import ArraySliceDep

from fastindex.algebra.forms import IndexProgram
from fastindex.arrays.engines import require_lazy
from fastindex.arrays.index_arguments import Inputs, as_modes, as_window, check_padding, coordinate_parts, is_window
from fastindex.core.shape import Shape, as_shape
from fastindex.dask.chunks import check_known, convert_block
from fastindex.errors import ArgumentTypeError, FastIndexError, check_option
from fastindex.index.executors import ErrorOf, bad_place, out_of_bounds
from fastindex.index.programs import UNITS, conversion_program, linear_program, multi_program
from fastindex.runtime.threads import check_threads


def linear_index(
    shape: Shape | str,
    multi_index: Any,
    mode: str | Sequence[str] = "raise",
    *,
    unit: str = "slot",
    threads: int | None = None,
) -> da.Array:
    """Return the linear indices of elements in the buffer, lazily; see `fastindex.linear_index`.

    Parameters
    ----------
    shape : Shape or str
    multi_index : sequence of integer arrays, at least one of them a Dask array; or a Dask array of (rank, ...)
        The arrays broadcast together.
    mode, unit
        As for `fastindex.linear_index`.
    threads : int, optional
        Maximum number of threads per task; 1 by default.

    Returns
    -------
    dask.array.Array of int64
        A lazy array of the common shape. Coordinates out of bounds raise when it is computed; the error gives their
        position in the whole array.

    Raises
    ------
    FastIndexError, ArgumentTypeError, UnsupportedError, LayoutError
        As `fastindex.linear_index`.

    Examples
    --------
    >>> import dask.array as da, fastindex as fi
    >>> rows, columns = da.arange(3, chunks=2), 4
    >>> fi.linear_index("f32[3,5]{1,0:T(2,2)}", (rows, columns)).compute()
    array([ 8, 10, 20])
    """
    shape = as_shape(shape)
    check_option("unit", unit, UNITS)
    program = linear_program(shape, unit=unit)
    if is_window(multi_index):
        as_window(multi_index, shape)
    modes = () if isinstance(mode, str) and mode == "raise" else as_modes(mode, shape.rank)
    given = Inputs(multi_index, home="dask", array=shape, modes=modes, label="linear-index")
    (found,) = convert(program, given, partial(out_of_bounds, shape=shape), threads=threads)
    return found


def multi_index(
    shape: Shape | str,
    linear_index: da.Array,
    padding: str = "raise",
    *,
    unit: str = "slot",
    threads: int | None = None,
) -> tuple[da.Array, ...]:
    """Return the coordinates of the elements in slots, lazily; see `fastindex.multi_index`.

    Parameters
    ----------
    shape : Shape or str
    linear_index : dask.array.Array of integers
    padding, unit
        As for `fastindex.multi_index`.
    threads : int, optional
        Maximum number of threads per task; 1 by default.

    Returns
    -------
    tuple of dask.array.Array of int64, one per dimension
        Lazy arrays. One task per block produces all of them, so compute them together.

    Raises
    ------
    FastIndexError, ArgumentTypeError, UnsupportedError, LayoutError
        As `fastindex.multi_index`.

    Examples
    --------
    >>> import dask, dask.array as da, fastindex as fi
    >>> rows, columns = fi.multi_index("f32[3,5]{1,0:T(2,2)}", da.from_array([17, 8, 4], chunks=2))
    >>> dask.compute(rows, columns)
    (array([2, 0, 0]), array([3, 4, 2]))
    """
    shape = as_shape(shape)
    mark = check_padding(padding)
    check_option("unit", unit, UNITS)
    program = multi_program(shape, unit=unit)
    given = _places(linear_index, "multi-index")
    return tuple(convert(program, given, partial(bad_place, shape=shape, unit=unit), None, mark, threads))


def convert_index(
    source: Shape | str,
    destination: Shape | str,
    linear_index: da.Array,
    *,
    unit: str = "slot",
    threads: int | None = None,
) -> da.Array:
    """Convert linear indices in one layout to those of the same elements in another layout, lazily.

    Parameters
    ----------
    source, destination : Shape or str
        Two layouts of the same dimensions.
    linear_index : dask.array.Array of integers
    unit
        As for `fastindex.convert_index`.
    threads : int, optional
        Maximum number of threads per task; 1 by default.

    Returns
    -------
    dask.array.Array of int64
        A lazy array.

    Raises
    ------
    FastIndexError, ArgumentTypeError, UnsupportedError, LayoutError
        As `fastindex.convert_index`.

    Examples
    --------
    >>> import dask.array as da, fastindex as fi
    >>> fi.convert_index("f32[3,5]", "f32[3,5]{1,0:T(2,2)}", da.arange(13, 15, chunks=1)).compute()
    array([17, 20])
    """
    source, destination = as_shape(source), as_shape(destination)
    check_option("unit", unit, UNITS)
    program = conversion_program(source, destination, unit=unit)
    given = _places(linear_index, "convert-index")
    (found,) = convert(program, given, partial(bad_place, shape=source, unit=unit), threads=threads)
    return found


def _integers(value: Any, name: str) -> da.Array:
    array = value if isinstance(value, da.Array) else da.asarray(np.asarray(value))
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError(f"{name} must hold integers, got dtype {array.dtype}")
    check_known(array, name)
    return array


def _places(linear_index: da.Array, label: str) -> Inputs:
    return Inputs((linear_index,), home="dask", names=("linear_index",), label=label)


def convert(
    program: IndexProgram,
    given: Inputs,
    error_of: ErrorOf,
    out: Any = None,
    mark: bool = False,
    threads: int | None = None,
    _: Any = None,
) -> list[da.Array]:
    """Lazy form of `fastindex.index.executors.convert`: one task per block computes all outputs."""
    require_lazy(out=out)
    check_threads(threads)
    values, names = given.inputs, given.names
    if given.array is not None:
        values = coordinate_parts(values, given.array)
        names = tuple(f"multi_index[{d}]" for d in range(len(values)))
    arrays = [_integers(value, name) for value, name in zip(values, names, strict=True)]
    try:
        arrays = list(da.broadcast_arrays(*arrays))
    except ValueError:
        listed = ", ".join(str(array.shape) for array in arrays)
        raise FastIndexError(f"the coordinates do not broadcast together: their shapes are {listed}") from None
    arrays = list(da.core.unify_chunks(*(part for array in arrays for part in (array, range(array.ndim))))[1])
    along = tuple(range(arrays[0].ndim))
    # Several outputs are stacked along a new first axis.
    count = len(program.outputs)
    first = () if count == 1 else (len(along),)
    found = da.blockwise(
        convert_block,
        first + along,
        ArraySliceDep(arrays[0].chunks),
        along,
        *(part for array in arrays for part in (array, along)),
        new_axes=dict.fromkeys(first, count),
        program=program,
        names=names,
        error_of=error_of,
        modes=given.modes,
        mark=mark,
        threads=1 if threads is None else threads,
        align_arrays=False,
        dtype=np.int64,
        meta=np.empty((0,) * (len(first) + len(along)), np.int64),
        token=f"fastindex-{given.label}",
    )
    return [found[d] for d in range(count)] if first else [found]
