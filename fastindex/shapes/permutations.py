"""Permutations of dimensions.

Source: ``xla/permutation_util.h``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import SupportsIndex, TypeVar

from fastindex.errors import LayoutError
from fastindex.shapes.integers import as_integers, spelled

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
