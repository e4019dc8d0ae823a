"""The first element that an index function cannot convert, found alike on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastindex.algebra.forms import IndexProgram


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


class OffenderFoundError(Exception):
    """An element could not be converted; `offender` says which."""

    def __init__(self, offender: Offender) -> None:
        super().__init__(offender)
        self.offender = offender


def position_of(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return where an element is, from its number in the order of the last axis first."""
    return tuple(int(i) for i in np.unravel_index(number, shape)) if shape else ()


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
