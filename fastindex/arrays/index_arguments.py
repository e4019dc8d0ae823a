"""What index functions accept: coordinates, slots and windows in one form; the first element that fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram, wrapped_int64
from fastindex.arrays.arrays import broadcast_shape, broadcast_strides
from fastindex.core.foreign_arrays import host_array
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError


@dataclass(frozen=True, slots=True)
class Offender:
    """The first element that could not be converted.

    Attributes
    ----------
    position : tuple of int
        Where in the common shape of the inputs.
    number : int or None
        The input that is out of bounds, or None where a padding check failed.
    values : tuple of int
        All inputs there.
    """

    position: tuple[int, ...]
    number: int | None
    values: tuple[int, ...]

    @property
    def where(self) -> str:
        """The position in words, to be put behind a value; nothing for scalars."""
        if not self.position:
            return ""
        return f" at position {self.position if len(self.position) > 1 else self.position[0]}"


class OffenderFoundError(Exception):
    """An element could not be converted; `offender` says which."""

    def __init__(self, offender: Offender) -> None:
        super().__init__(offender)
        self.offender = offender


def position_of(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return where an element is, from its number in the order of the last axis first."""
    return tuple(int(i) for i in np.unravel_index(number, shape)) if shape else ()


def values_at(
    inputs: Sequence[Any], shape: tuple[int, ...], number: int, read: Callable[[Any, tuple[int, ...], int], int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where an element is, and its inputs; `read` takes an array, a position, and its offset in bytes."""
    position, values = position_of(number, shape), []
    for given in inputs:
        strides = broadcast_strides(given.shape, given.strides, shape)
        offset = sum(p * stride for p, stride in zip(position, strides, strict=True))
        is_counted = isinstance(given, Counted)
        values.append(wrapped_int64(given.start + offset) if is_counted else read(given, position, offset))
    return position, tuple(values)


def judged(
    program: IndexProgram, position: tuple[int, ...], values: tuple[int, ...], modes: Sequence[str] = ()
) -> Offender | None:
    """Return what is wrong with an element, or None.

    Parameters
    ----------
    program : IndexProgram
    position : tuple of int
    values : tuple of int
        Its inputs.
    modes : sequence of str
        What happens to each input out of bounds; "raise" without them.
    """
    brought_in = []
    for i, (value, bound) in enumerate(zip(values, program.input_bounds, strict=True)):
        mode = modes[i] if modes else "raise"
        if mode == "raise" and not 0 <= value < bound:
            return Offender(position, i, values)
        brought_in.append(value % bound if mode == "wrap" else min(max(value, 0), bound - 1))
    return None if program.evaluate(brought_in)[1] else Offender(position, None, values)


@dataclass(frozen=True, slots=True)
class Counted:
    """Integers that take no memory: a number, or a range along one axis of `shape`.

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
        """What the numbers grow by along each axis."""
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
        Which dimensions are axes of the result; one that an integer picked from is not.

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
        found, behind = [], sum(self.kept)
        for along, kept in zip(self.ranges, self.kept, strict=True):
            behind -= kept
            found.append(Counted(along.start, along.step, (len(along), *(1,) * behind) if kept else ()))
        return found


def whole_window(shape: Shape) -> Window:
    """Return the window of all elements.

    Examples
    --------
    >>> whole_window(Shape.parse("f32[3,5]")).shape
    (3, 5)
    """
    return Window(tuple(range(size) for size in shape.dimensions), (True,) * shape.rank)


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
    if isinstance(entry, bool | np.bool_) or not hasattr(entry, "__index__"):
        raise _not_an_entry(entry, dimension)
    try:
        number = entry.__index__()
    except TypeError:
        raise _not_an_entry(entry, dimension) from None
    if not -size <= number < size:
        raise _outside(number, dimension, shape)
    number %= size
    return range(number, number + 1)


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


#: Integers in memory, or counted ones, which take none.
Integers = NDArray[Any] | Counted

MODES = ("raise", "wrap", "clip")


def as_integers_in_bulk(value: Any, name: str) -> Integers:
    """Return integers as an array, never copied where they are one already; a range is counted.

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
        return _counted(value, name)
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


def _counted(value: range, name: str) -> Counted:
    if len(value) and (min(value[0], value[-1]) < -(2**63) or max(value[0], value[-1]) >= 2**63):
        raise OutOfBoundsError(f"{name} is {value}, which does not fit 64 bits")
    # A longer step is one of two numbers at most, and right modulo 2**64.
    return Counted(value.start if len(value) else 0, wrapped_int64(value.step), (len(value),))


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
    return broadcast_shape([array.shape for array in arrays])


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
