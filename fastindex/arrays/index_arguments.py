"""Arguments of index functions: coordinates, slots and windows as one checked record; arrays for results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import wrapped_int64
from fastindex.arrays.arrays import common_shape
from fastindex.arrays.engines import place_of
from fastindex.core.foreign_arrays import host_array
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError, check_option, integer_of


@dataclass(frozen=True, slots=True)
class Counted:
    """Integers that are not stored: a number, or a range along one axis of `shape`.

    Examples
    --------
    >>> np.asarray(Counted(5, 2, (3, 1))).tolist()
    [[5], [7], [9]]
    """

    start: int
    step: int
    shape: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """Increment of the numbers along each axis."""
        return (self.step,) * len(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.start + self.step * np.arange(math.prod(self.shape)), dtype).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Window:
    """The elements whose coordinates are all in the ranges of their dimensions.

    Attributes
    ----------
    ranges : tuple of range
        One per dimension, within it.
    kept : tuple of bool
        Which dimensions are axes of the result; one indexed by an integer is not.

    Examples
    --------
    >>> Window((range(2, 8, 2), range(5, 6)), (True, False)).shape
    (3,)
    """

    ranges: tuple[range, ...]
    kept: tuple[bool, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of the result."""
        return tuple(len(along) for along, kept in zip(self.ranges, self.kept, strict=True) if kept)

    def counted(self) -> list[Counted]:
        """Return the coordinates along each dimension, which broadcast together.

        Examples
        --------
        >>> Window((range(2, 8, 2), range(5, 6)), (True, False)).counted()
        [Counted(start=2, step=2, shape=(3,)), Counted(start=5, step=1, shape=())]
        """
        found, inner = [], sum(self.kept)
        for along, kept in zip(self.ranges, self.kept, strict=True):
            inner -= kept
            found.append(Counted(along.start, along.step, (len(along), *(1,) * inner) if kept else ()))
        return found


def is_window(multi_index: Any) -> bool:
    """Whether coordinates are a window: a slice or an Ellipsis, or a sequence with one.

    Examples
    --------
    >>> is_window(np.s_[1, 2:3]), is_window(np.s_[...]), is_window((1, range(2)))
    (True, True, False)
    """
    if isinstance(multi_index, tuple | list):
        return any(type(entry) is slice or entry is Ellipsis for entry in multi_index)
    return type(multi_index) is slice or multi_index is Ellipsis


def as_window(window: Any, shape: Shape) -> Window:
    """Return a window of an array.

    Parameters
    ----------
    window : slice, range, integer, Ellipsis, or a sequence with one per dimension
        Slices and integers follow NumPy's rules: slices are cut to the dimension, negative numbers count from its end,
        an integer drops its axis, an Ellipsis stands for all dimensions that are not named. A range holds coordinates.
    shape : Shape

    Raises
    ------
    FastIndexError
        Another number of entries than dimensions, or a slice with a step of 0.
    ArgumentTypeError
        Something else than slices, ranges and integers.
    OutOfBoundsError
        An integer or a range that leaves its dimension.

    Examples
    --------
    >>> as_window(np.s_[-1, 1:100:2], Shape.parse("f32[3,8]"))
    Window(ranges=(range(2, 3), range(1, 8, 2)), kept=(False, True))
    """
    entries = list(window) if isinstance(window, tuple | list) else [window]
    dots = [place for place, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise FastIndexError("a window may hold one Ellipsis ('...') only")
    named = len(entries) - len(dots)
    if named > shape.rank or (named < shape.rank and not dots):
        raise FastIndexError(
            f"a window of {shape.cut_text()} needs {shape.rank} entries, one per dimension, got {named}"
            + ("" if named > shape.rank else "; '...' stands for those that are not named")
        )
    if dots:
        entries[dots[0] : dots[0] + 1] = [slice(None)] * (shape.rank - named)
    ranges = tuple(_numbers(entry, dimension, shape) for dimension, entry in enumerate(entries))
    return Window(ranges, tuple(isinstance(entry, slice | range) for entry in entries))


def _numbers(entry: Any, dimension: int, shape: Shape) -> range:
    size = shape.dimensions[dimension]
    if isinstance(entry, slice):
        return slice_numbers(entry, size, f"window[{dimension}]")
    if isinstance(entry, range):
        for number in (entry[0], entry[-1]) if len(entry) else ():
            if not 0 <= number < size:
                raise _outside(number, dimension, shape)
        return entry
    index = integer_of(entry)
    if index is None:
        raise _not_an_entry(entry, dimension)
    if not -size <= index < size:
        raise _outside(index, dimension, shape)
    return range(index % size, index % size + 1)


def slice_numbers(entry: slice, size: int, name: str) -> range:
    """Return the numbers that a slice picks out of `size`, by NumPy's rules.

    Raises
    ------
    ArgumentTypeError
        Not of integers.
    FastIndexError
        A step of 0.

    Examples
    --------
    >>> slice_numbers(np.s_[-4:], 24, "linear_index")
    range(20, 24)
    """
    try:
        return range(*entry.indices(size))
    except TypeError:
        raise ArgumentTypeError(f"{name} must be a slice of integers, got {entry}") from None
    except ValueError:
        raise FastIndexError(f"{name} is {entry}: its step must not be 0") from None


def _outside(number: int, dimension: int, shape: Shape) -> OutOfBoundsError:
    return OutOfBoundsError(
        f"window[{dimension}] holds {number}, which is out of bounds for dimension {dimension} of size "
        f"{shape.dimensions[dimension]} of {shape.cut_text()}"
    )


def _not_an_entry(entry: Any, dimension: int) -> ArgumentTypeError:
    got = f"{type(entry).__name__} {entry!r}"
    return ArgumentTypeError(
        f"window[{dimension}] must be a slice, a range or an integer, got {got[:200]}; arrays of coordinates and "
        "slices do not mix"
    )


# Arguments of index functions

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
        return as_counted(value, name)
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


def as_counted(value: range, name: str) -> Counted:
    """Return a range as integers that are not stored.

    Raises
    ------
    OutOfBoundsError
        An integer does not fit 64 bits.
    """
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
    modes: tuple[Any, ...] = tuple(mode) if isinstance(mode, (tuple, list)) else (mode,) * rank
    for one in modes if rank else (*modes, mode):
        check_option("mode", one, MODES)
    if len(modes) != rank:
        raise FastIndexError(f"mode must be one mode, or one per dimension: {len(modes)} for rank {rank}, got {mode!r}")
    return modes


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
    if not isinstance(mode, str) or mode != "raise":
        raise FastIndexError(f"mode is for arrays of coordinates; a window takes 'raise' only, got {mode!r:.80}")
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
    inputs = multi_index
    if home is None:
        parts = enumerate(coordinate_parts(multi_index, shape))
        inputs = [as_integers_in_bulk(part, f"multi_index[{i}]") for i, part in parts]
    modes = () if isinstance(mode, str) and mode == "raise" else as_modes(mode, shape.rank)
    if home is not None:
        return Inputs(inputs, (), home, shape, (), modes, last, label, stream)
    # Without coordinates, the other dimensions of the array are the shape of the result.
    none = not inputs and isinstance(multi_index, np.ndarray)
    size = tuple(multi_index.shape[1:]) if none else common_shape(inputs)
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
    check_option("padding", padding, ("raise", "mark"))
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


def as_outputs(out: Any, count: int, shape: tuple[int, ...]) -> list[NDArray[np.int64]]:
    """Check the output arrays, one per result.

    Raises
    ------
    ArgumentTypeError, FastIndexError
        Another number of arrays, or as `as_output`.
    """
    try:
        arrays = list(out)
    except TypeError:
        raise ArgumentTypeError(f"out must be a sequence of {count} int64 arrays, got {out!r}") from None
    if len(arrays) != count:
        raise FastIndexError(f"out must hold {count} arrays, got {len(arrays)}")
    return [as_output(array, shape, f"out[{i}]") for i, array in enumerate(arrays)]
