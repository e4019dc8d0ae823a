"""Arguments of index functions: coordinates, slots and windows as one checked record; arrays for results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import wrapped_int64
from fastindex.arrays.arrays import broadcast_shape
from fastindex.arrays.engines import place_of
from fastindex.arrays.windows import Counted, as_window
from fastindex.core.foreign_arrays import host_array
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError

#: Integers in memory, or integers that are not stored.
Integers = NDArray[Any] | Counted

MODES = ("raise", "wrap", "clip")


def as_integers_in_bulk(value: Any, name: str) -> Integers:
    """Return integers as an array, without a copy if they already are one; a range becomes `Counted`.

    Raises
    ------
    ArgumentTypeError
        Not integers; booleans are not integers.
    OutOfBoundsError
        An integer does not fit 64 bits.
    """
    if type(value) is np.ndarray:
        array = value
    elif isinstance(value, range):
        return _counted(value, name)
    else:
        array = host_array(value)
        if array.size == 0 and isinstance(value, list | tuple):
            # An empty list has no element type.
            return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        numbers = [] if type(value) is np.ndarray else np.asarray(value, object).ravel().tolist()
        if numbers and all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
            raise OutOfBoundsError(f"{name} holds an integer that does not fit 64 bits")
        raise ArgumentTypeError(f"{name} must hold integers, got dtype {array.dtype}")
    return array


def _counted(value: range, name: str) -> Counted:
    if len(value) and (min(value[0], value[-1]) < -(2**63) or max(value[0], value[-1]) >= 2**63):
        raise OutOfBoundsError(f"{name} is {value}, which does not fit 64 bits")
    # A range with a longer step has at most two numbers, which are right modulo 2**64.
    return Counted(value.start if len(value) else 0, wrapped_int64(value.step), (len(value),))


def coordinate_parts(multi_index: Any, shape: Shape) -> tuple[Any, ...]:
    """Return the coordinates of each dimension as given.

    The shape of an array is checked first: iterating over many rows takes minutes in some libraries.

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
    return broadcast_shape([array.shape for array in arrays])


# Inputs as one record


class Inputs(NamedTuple):
    """The checked arguments of an index conversion.

    Attributes
    ----------
    inputs : list of Integers, or Window
        On the host, as checked; elsewhere, as given, to be checked by the functions of `home`.
    shape : tuple of int
        Shape of the result, on the host.
    home : str or None
        Where the inputs are, from `place_of`.
    array : Shape or None
        The shape whose coordinates the inputs are, if they are not on the host.
    names : tuple of str
        Names of inputs that are not coordinates.
    modes : tuple of str
        The mode for out-of-bounds values of each input; () to raise.
    last : int, range or None
        One more input: a number, or a range along a new first axis.
    label : str
        Name of the tasks of a lazy conversion.
    stream : CUDA stream or None
    """

    inputs: Any
    shape: tuple[int, ...] = ()
    home: str | None = None
    array: Shape | None = None
    names: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    last: int | range | None = None
    label: str = ""
    stream: Any = None


def window_arguments(window: Any, shape: Shape, mode: str | Sequence[str] = "raise", stream: Any = None) -> Inputs:
    """Check a window.

    Raises
    ------
    FastIndexError
        `mode` is not "raise"; or as `as_window`.
    ArgumentTypeError, OutOfBoundsError
        As `as_window`.
    """
    if mode != "raise":
        raise FastIndexError(f"mode is for arrays of coordinates; a window takes 'raise' only, got {mode!r}")
    found = as_window(window, shape)
    return Inputs(found, found.shape, stream=stream)


def coordinate_arguments(
    multi_index: Any,
    shape: Shape,
    mode: str | Sequence[str] = "raise",
    stream: Any = None,
    *,
    label: str = "",
    last: int | range | None = None,
) -> Inputs:
    """Check coordinates, one per dimension of `shape`.

    With a label, lazy arrays stay lazy; otherwise they are computed.

    Raises
    ------
    FastIndexError
        Another number of coordinates, they do not broadcast, an unknown mode, or a stream without an array on the GPU.
    ArgumentTypeError
        Not integers.
    """
    home = _home_of(multi_index, stream, label)
    inputs = as_coordinates(multi_index, shape) if home is None else multi_index
    modes = () if mode == "raise" else as_modes(mode, shape.rank)
    if home is not None:
        return Inputs(inputs, (), home, shape, (), modes, last, label, stream)
    # Without coordinates, the other dimensions of the array are the shape of the result.
    none = not inputs and isinstance(multi_index, np.ndarray)
    size = tuple(multi_index.shape[1:]) if none else broadcast_shape([array.shape for array in inputs])
    if last is not None:
        inputs.append(last_input(last, len(size)))
        size = (*inputs[-1].shape[:1], *size)
    return Inputs(inputs, size, modes=modes)


def integer_arguments(
    names: tuple[str, ...], values: tuple[Any, ...], stream: Any = None, *, label: str = ""
) -> Inputs:
    """Check arrays of integers; a label as for `coordinate_arguments`.

    Raises
    ------
    FastIndexError
        They do not broadcast together, or a stream without an array on the GPU.
    ArgumentTypeError
        Not integers.
    """
    one = values[0] if len(values) == 1 else values
    home = _home_of(one, stream, label)
    if home is not None:
        return Inputs(values, (), home, None, names, label=label, stream=stream)
    inputs = [as_integers_in_bulk(value, name) for value, name in zip(values, names, strict=True)]
    return Inputs(inputs, common_shape(inputs))


def _home_of(values: Any, stream: Any, label: str) -> str | None:
    """Return where values are; lazy arrays without a label for their tasks are computed on the host."""
    home = place_of(values, stream)
    return home if label or home == "cuda" else None


def last_input(last: int | range, rank: int) -> Counted:
    """Return `last` as an input that broadcasts with others of `rank` axes."""
    return Counted(0, 1, (len(last), *(1,) * rank)) if isinstance(last, range) else Counted(last, 0, ())


def check_padding(padding: Any) -> bool:
    """Return whether padding is to be marked; otherwise it is an error.

    Raises
    ------
    FastIndexError
        Neither "raise" nor "mark".
    """
    if padding not in ("raise", "mark"):
        raise FastIndexError(f"padding must be 'raise' or 'mark', got {padding!r}")
    return bool(padding == "mark")


# Outputs


def as_output(out: Any, shape: tuple[int, ...], name: str) -> NDArray[np.int64]:
    """Check an output array.

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
    """Check the output arrays, one per result.

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
