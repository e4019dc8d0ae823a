"""Integers as the metadata constructors take them: anything integral, nothing else, checked to fit int64."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import SupportsIndex

from fastindex.errors import ArgumentTypeError, LayoutError

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

#: The size of an unbounded dimension, ``?`` in text.
UNBOUNDED = INT64_MIN


def as_integer(value: SupportsIndex, field: str) -> int:
    """Give `value` as a Python int that fits int64.

    Raises
    ------
    ArgumentTypeError
        Not an integer; ``True`` and ``False`` are not.
    LayoutError
        Does not fit int64.

    Examples
    --------
    >>> as_integer(3, "memory_space")
    3
    """
    if type(value) is not int:
        if isinstance(value, bool):
            raise ArgumentTypeError(f"{field} must be an integer, got {value!r}")
        try:
            value = operator.index(value)
        except TypeError:
            raise ArgumentTypeError(f"{field} must be an integer, got {value!r}") from None
    if not INT64_MIN <= value <= INT64_MAX:
        raise LayoutError(f"{field} must fit int64, got {value}", field=field)
    return value


def as_integers(values: Iterable[SupportsIndex], field: str) -> tuple[int, ...]:
    """Give `values` as a tuple of Python ints that fit int64.

    Raises
    ------
    ArgumentTypeError
        Not a sequence of integers.
    LayoutError
        One does not fit int64.

    Examples
    --------
    >>> as_integers([2, 3], "dimensions")
    (2, 3)
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ArgumentTypeError(f"{field} must be a sequence of integers, got {values!r}")
    return tuple([as_integer(value, field) for value in values])


def spelled(values: Sequence[object]) -> str:
    """Spell a tuple as Python does, cut where it is long.

    Examples
    --------
    >>> spelled(range(100))
    '(0, 1, 2, 3, 4, 5, 6, 7, ... 100 entries)'
    """
    if len(values) <= 16:
        return str(tuple(values))
    return "(" + ", ".join(str(value) for value in values[:8]) + f", ... {len(values)} entries)"
