"""Elements that cannot be converted: the first one, and its error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastindex.algebra.forms import IndexProgram, wrapped_int64
from fastindex.arrays.arrays import broadcast_strides
from fastindex.arrays.windows import Counted
from fastindex.core.shape import Shape
from fastindex.errors import OutOfBoundsError
from fastindex.index.programs import units_in_buffer


class BadElementError(Exception):
    """The first element that could not be converted.

    Attributes
    ----------
    position : tuple of int
        Position in the common shape of the inputs.
    number : int or None
        The input that is out of bounds, or None where a padding check failed.
    values : tuple of int
        All inputs at that position.
    """

    def __init__(self, position: tuple[int, ...], number: int | None, values: tuple[int, ...]) -> None:
        super().__init__(position, number, values)
        self.position, self.number, self.values = position, number, values

    @property
    def where(self) -> str:
        """The position in words, to follow a value; empty for scalars."""
        if not self.position:
            return ""
        return f" at position {self.position if len(self.position) > 1 else self.position[0]}"


#: Makes the error of a call for the element that could not be converted.
ErrorOf = Callable[[BadElementError], Exception]


def position_of(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the position of an element from its flat index in C order."""
    return tuple(int(i) for i in np.unravel_index(number, shape)) if shape else ()


def values_at(
    inputs: Sequence[Any], shape: tuple[int, ...], number: int, read: Callable[[Any, tuple[int, ...], int], int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the position of an element, and its inputs; `read` takes an array, a position, and its offset in bytes."""
    position, values = position_of(number, shape), []
    for given in inputs:
        strides = broadcast_strides(given.shape, given.strides, shape)
        offset = sum(p * stride for p, stride in zip(position, strides, strict=True))
        is_counted = isinstance(given, Counted)
        values.append(wrapped_int64(given.start + offset) if is_counted else read(given, position, offset))
    return position, tuple(values)


def judged(
    program: IndexProgram, position: tuple[int, ...], values: tuple[int, ...], modes: Sequence[str] = ()
) -> BadElementError | None:
    """Return the error of an element, or None.

    Parameters
    ----------
    program : IndexProgram
    position : tuple of int
    values : tuple of int
        Its inputs.
    modes : sequence of str
        What happens to each input out of bounds; "raise" for all if empty.
    """
    brought_in = []
    for i, (value, bound) in enumerate(zip(values, program.input_bounds, strict=True)):
        mode = modes[i] if modes else "raise"
        if mode == "raise" and not 0 <= value < bound:
            return BadElementError(position, i, values)
        brought_in.append(value % bound if mode == "wrap" else min(max(value, 0), bound - 1))
    return None if program.evaluate(brought_in)[1] else BadElementError(position, None, values)


def out_of_bounds(found: BadElementError, shape: Shape) -> OutOfBoundsError:
    """Return the error for a coordinate outside its dimension."""
    # Programs without padding checks fail only for an input out of bounds.
    number = found.number or 0
    return OutOfBoundsError(
        f"coordinate {found.values[number]}{found.where} is out of bounds for dimension {number} "
        f"of size {shape.dimensions[number]} of {shape}"
    )


def bad_place(found: BadElementError, shape: Shape, unit: str = "slot") -> OutOfBoundsError:
    """Return the error for a slot, byte or bit that is outside the buffer, or padding."""
    where = f"{unit} {found.values[0]}{found.where}"
    if found.number is None:
        return OutOfBoundsError(f"{where} is padding of {shape} and holds no element")
    return OutOfBoundsError(f"{where} is out of bounds for the {units_in_buffer(shape, unit)} {unit}s of {shape}")
