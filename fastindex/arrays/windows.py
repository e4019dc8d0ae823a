"""Windows of an array by NumPy's rules, and integers that are described instead of stored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError


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
        found, behind = [], sum(self.kept)
        for along, kept in zip(self.ranges, self.kept, strict=True):
            behind -= kept
            found.append(Counted(along.start, along.step, (len(along), *(1,) * behind) if kept else ()))
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
