"""What the public functions accept, checked and brought into one form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arguments.arrays import broadcast_shape
from fastindex.core.foreign_arrays import host_array
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError

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


def coordinate_parts(multi_index: Any, shape: Shape) -> tuple[Any, ...]:
    """Return the coordinates of each dimension as they were given.

    An array is judged by its shape first: iterating one of many rows takes minutes in some libraries.

    Raises
    ------
    FastIndexError
        Another number of coordinates.
    """
    sizes = getattr(multi_index, "shape", None)
    if isinstance(sizes, tuple) and sizes:
        check_first_size(tuple(sizes), shape)
    try:
        values = tuple(multi_index)
    except TypeError:
        letters = ", ".join(f"i{d}" for d in range(shape.rank)) + "," * (shape.rank == 1)
        raise _wrong_count(f"{multi_index!r}; write the coordinates as one argument, ({letters})", shape) from None
    if len(values) != shape.rank:
        is_across = all(isinstance(value, list | tuple) and len(value) == shape.rank for value in values[:2])
        pairs = (
            ": each is one element, transpose them, as in numpy.transpose(multi_index)" if values and is_across else ""
        )
        raise _wrong_count(f"{len(values)}{pairs}", shape)
    return values


def check_first_size(sizes: tuple[Any, ...], shape: Shape) -> None:
    """Check the sizes of an array of coordinates, whose first dimension counts those of `shape`.

    Raises
    ------
    FastIndexError
    """
    if not sizes or sizes[0] != shape.rank:
        is_across = len(sizes) == 2 and sizes[1] == shape.rank
        hint = f": its shape is {sizes}, transpose it" if is_across else ""
        raise _wrong_count(f"{sizes[0] if sizes else 0}{hint}", shape)


def _wrong_count(got: str, shape: Shape) -> FastIndexError:
    return FastIndexError(
        f"multi_index must hold one coordinate array per dimension, {shape.rank} for {shape}, got {got}"
    )


def as_coordinates(multi_index: Any, shape: Shape) -> list[Integers]:
    """Return one array of integers per dimension of `shape`.

    Raises
    ------
    FastIndexError
        Another number of coordinates.
    ArgumentTypeError
        Not integers.
    """
    parts = coordinate_parts(multi_index, shape)
    return [as_integers_in_bulk(part, f"multi_index[{i}]") for i, part in enumerate(parts)]


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
