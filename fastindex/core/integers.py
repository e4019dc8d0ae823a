"""Integer arguments of any integral type, checked to fit int64; permutations and common factors of dimensions.

Source: ``xla/permutation_util.h``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import SupportsIndex, TypeVar

from fastindex.errors import ArgumentTypeError, LayoutError, integer_of

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

#: The size of an unbounded dimension, ``?`` in text.
UNBOUNDED = INT64_MIN


def as_integer(value: SupportsIndex, field: str, place: int | None = None) -> int:
    """Return `value` as a Python int that fits int64.

    Parameters
    ----------
    value : integer
    field : str
        The name of the argument, for error messages.
    place : int, optional
        Its position in a sequence, for error messages.

    Raises
    ------
    ArgumentTypeError
        It is not an integer; ``True`` and ``False`` are not integers.
    LayoutError
        It does not fit int64.

    Examples
    --------
    >>> as_integer(3, "memory_space")
    3
    """
    if type(value) is not int:
        number = integer_of(value)
        if number is None:
            raise ArgumentTypeError(f"{_named(field, place)} must be an integer, got {value!r}")
        value = number
    if not INT64_MIN <= value <= INT64_MAX:
        raise LayoutError(f"{_named(field, place)} must fit int64, got {value}", field=field)
    return value


def _named(field: str, place: int | None) -> str:
    return field if place is None else f"{field}[{place}]"


def as_integers(values: Iterable[SupportsIndex], field: str) -> tuple[int, ...]:
    """Return `values` as a tuple of Python ints that fit int64.

    Raises
    ------
    ArgumentTypeError
        They are not a sequence of integers.
    LayoutError
        One does not fit int64.

    Examples
    --------
    >>> as_integers([2, 3], "dimensions")
    (2, 3)
    """
    try:
        if isinstance(values, str | bytes):
            raise TypeError
        listed = list(values)
    except (TypeError, NotImplementedError):
        # NotImplementedError: a memoryview of several dimensions.
        raise ArgumentTypeError(f"{field} must be a sequence of integers, got {values!r}") from None
    return tuple([as_integer(value, field, place) for place, value in enumerate(listed)])


def check_at_least(least: int, values: Sequence[int], what: str, field: str) -> None:
    """Raise an error for the first of `values` that is less than `least`.

    Raises
    ------
    LayoutError
    """
    for i, value in enumerate(values):
        if value < least:
            raise LayoutError(f"{what} must be at least {least}: {value} in {spelled(values)}", field=field, index=i)


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts, in the plural unless it is 1.

    Examples
    --------
    >>> counted(1, "dimension"), counted(2000, "byte"), counted(2, "entry"), counted(2, "array")
    ('1 dimension', '2,000 bytes', '2 entries', '2 arrays')
    """
    if number == 1:
        return f"1 {noun}"
    is_vowel_before = noun[-2:-1] in "aeiou"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") and not is_vowel_before else f"{number:,} {noun}s"


def spelled(values: Sequence[object]) -> str:
    """Return a tuple as Python writes it, shortened if it is long.

    Examples
    --------
    >>> spelled(range(100))
    '(0, 1, 2, 3, 4, 5, 6, 7, ... 100 entries)'
    """
    if len(values) <= 16:
        return str(tuple(values))
    return "(" + ", ".join(str(value) for value in values[:8]) + f", ... {len(values)} entries)"


T = TypeVar("T")


def checked_permutation(values: Iterable[SupportsIndex], rank: int) -> tuple[int, ...]:
    """Return `values` as a tuple, checked to be a permutation of `rank` dimensions.

    Raises
    ------
    LayoutError
        They are not a permutation.

    Examples
    --------
    >>> checked_permutation([1, 0], 2)
    (1, 0)
    """
    permutation = as_integers(values, "permutation")
    if sorted(permutation) != list(range(rank)):
        raise LayoutError(
            f"a permutation of {rank} dimensions must name each once, got {spelled(permutation)}",
            field="permutation",
        )
    return permutation


def permuted(values: Sequence[T], permutation: Sequence[int]) -> tuple[T, ...]:
    """Return a tuple whose entry i is ``values[permutation[i]]``.

    Examples
    --------
    >>> permuted("xyz", (2, 0, 1))
    ('z', 'x', 'y')
    """
    return tuple([values[i] for i in permutation])


def inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """Return the inverse of a permutation.

    Examples
    --------
    >>> inverse((2, 0, 1))
    (1, 2, 0)
    """
    places = [0] * len(permutation)
    for i, value in enumerate(permutation):
        places[value] = i
    return tuple(places)


def common_factors(a: Sequence[int], b: Sequence[int]) -> list[tuple[int, int]]:
    """Split two lists of sizes with the same product into as many runs as possible with equal products.

    Source: ``CommonFactors`` in ``xla/util.h``.

    Each pair says where a run begins in `a` and in `b`; the last pair is the two lengths. Sizes of 1 form separate
    runs.

    Raises
    ------
    LayoutError
        The products differ.

    Examples
    --------
    >>> common_factors((2, 5, 1, 3), (1, 10, 3, 1))
    [(0, 0), (0, 1), (2, 2), (3, 2), (4, 3), (4, 4)]
    """
    if math.prod(a) != math.prod(b):
        raise LayoutError(f"{spelled(a)} and {spelled(b)} do not hold the same number of elements")
    if tuple(a) == tuple(b):
        return [(i, i) for i in range(len(a) + 1)]
    bounds: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b) and a[i] == b[j]:
        bounds.append((i, j))
        i, j = i + 1, j + 1
    remaining = math.prod(a[i:])
    if remaining == 0 or remaining != math.prod(b[j:]):
        return [*bounds, (i, j), (len(a), len(b))]
    product_a = product_b = 1
    while True:
        if product_a == product_b and (not bounds or (i, j) != bounds[-1]):
            bounds.append((i, j))
        in_a, in_b = i < len(a), j < len(b)
        if not (in_a or in_b):
            return bounds
        level = product_a == product_b
        next_a = product_a < product_b or (in_a and (not in_b or (level and a[i] <= b[j])))
        next_b = product_b < product_a or (in_b and (not in_a or (level and b[j] <= a[i])))
        if next_a:
            product_a, i = product_a * a[i], i + 1
        if next_b:
            product_b, j = product_b * b[j], j + 1
