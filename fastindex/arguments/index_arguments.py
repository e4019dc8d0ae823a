"""What the public functions accept, checked and brought into one form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arguments.arrays import broadcast_shape
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError
from fastindex.interop.host_arrays import host_array
from fastindex.shapes.shape import Shape

#: Integers in memory, or a range, which takes none.
Integers = NDArray[Any] | range

MODES = ("raise", "wrap", "clip")


def as_integers_in_bulk(value: Any, name: str) -> Integers:
    """Return integers as an array or a range, never copied where they are one already.

    Raises
    ------
    ArgumentTypeError
        Not integers; booleans are none.
    OutOfBoundsError
        An integer that no 64-bit type holds.
    """
    if type(value) is np.ndarray:
        array = value
    elif isinstance(value, range):
        return _checked_range(value, name)
    else:
        array = host_array(value)
        if array.size == 0 and isinstance(value, list | tuple):
            # An empty list has no type of its own.
            return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        if type(value) is not np.ndarray and _holds_integers(value):
            raise OutOfBoundsError(f"{name} holds an integer that does not fit 64 bits")
        raise ArgumentTypeError(f"{name} must hold integers, got dtype {array.dtype}")
    return array


def _holds_integers(value: Any) -> bool:
    found = np.asarray(value, object).ravel().tolist()
    return bool(found) and all(isinstance(v, int) and not isinstance(v, bool) for v in found)


def _checked_range(value: range, name: str) -> Integers:
    if len(value) and (min(value[0], value[-1]) < -(2**63) or max(value[0], value[-1]) >= 2**63):
        raise OutOfBoundsError(f"{name} is {value}, which does not fit 64 bits")
    if abs(value.step) >= 2**63:
        # Two numbers at most, whose distance does not fit.
        return np.array(list(value), np.int64)
    return value


def as_coordinates(multi_index: Any, shape: Shape) -> list[Integers]:
    """Return one array of integers per dimension of `shape`.

    Raises
    ------
    FastIndexError
        Another number of coordinates.
    ArgumentTypeError
        Not integers.
    """
    try:
        values = tuple(multi_index)
    except TypeError:
        values = None
    if values is None or len(values) != shape.rank:
        if values is None:
            letters = ", ".join(f"i{d}" for d in range(shape.rank)) + "," * (shape.rank == 1)
            got = f"{multi_index!r}; write the coordinates as one argument, ({letters})"
        else:
            got = f"{len(values)}"
        if isinstance(multi_index, np.ndarray) and multi_index.ndim == 2 and multi_index.shape[1] == shape.rank:
            got += f": its shape is {multi_index.shape}, transpose it"
        raise FastIndexError(
            f"multi_index must hold one coordinate array per dimension, {shape.rank} for {shape}, got {got}"
        )
    return [as_integers_in_bulk(value, f"multi_index[{i}]") for i, value in enumerate(values)]


def as_modes(mode: str | Sequence[str], rank: int) -> tuple[str, ...]:
    """Return one mode per dimension.

    Raises
    ------
    FastIndexError
        Not a mode, or a sequence of another length.

    Examples
    --------
    >>> as_modes("wrap", 2)
    ('wrap', 'wrap')
    """
    modes = (mode,) * rank if isinstance(mode, str) else tuple(mode)
    for one in modes if rank else (*modes, mode):
        if not isinstance(one, str) or one not in MODES:
            raise FastIndexError(f"mode must be 'raise', 'wrap' or 'clip', got {one!r}")
    if len(modes) != rank:
        raise FastIndexError(f"mode must be one mode, or one per dimension: {len(modes)} for rank {rank}")
    return modes


def common_shape(arrays: Iterable[Integers]) -> tuple[int, ...]:
    """Return the shape to which `arrays` broadcast.

    Raises
    ------
    FastIndexError
        They do not broadcast together.
    """
    return broadcast_shape([(len(a),) if type(a) is range else a.shape for a in arrays])


def common_shape_of_coordinates(coordinates: Sequence[Integers], multi_index: Any) -> tuple[int, ...]:
    """Return the shape to which coordinates broadcast; an array of none has the rest of its own.

    Raises
    ------
    FastIndexError
        They do not broadcast together.
    """
    if not coordinates and isinstance(multi_index, np.ndarray):
        return tuple(multi_index.shape[1:])
    return common_shape(coordinates)


def as_output(out: Any, shape: tuple[int, ...], name: str) -> NDArray[np.int64]:
    """Check an array that results are to be written to.

    Raises
    ------
    ArgumentTypeError
        Not an int64 array.
    FastIndexError
        Another shape, or read-only.
    """
    if not isinstance(out, np.ndarray) or out.dtype != np.int64 or not out.dtype.isnative:
        got = f"dtype {out.dtype}" if isinstance(out, np.ndarray) else f"{out!r}"
        raise ArgumentTypeError(f"{name} must be an int64 array, got {got}")
    if out.shape != shape:
        raise FastIndexError(f"{name} must have the shape {shape} of the result, got {out.shape}")
    if not out.flags.writeable:
        raise FastIndexError(f"{name} is read-only")
    return out


def as_outputs(out: Any, count: int, shape: tuple[int, ...], name: str) -> list[NDArray[np.int64]]:
    """Check the arrays that results are to be written to, one for each.

    Raises
    ------
    ArgumentTypeError, FastIndexError
        Another number of arrays, or as `as_output`.
    """
    try:
        arrays = list(out)
    except TypeError:
        raise ArgumentTypeError(f"{name} must be a sequence of {count} int64 arrays, got {out!r}") from None
    if len(arrays) != count:
        raise FastIndexError(f"{name} must hold {count} arrays, got {len(arrays)}")
    return [as_output(array, shape, f"{name}[{i}]") for i, array in enumerate(arrays)]
