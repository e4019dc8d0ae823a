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
    """Give `values` as a tuple that names each of `rank` dimensions once.

    Raises
    ------
    LayoutError
        It does not.

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
    """Give entry ``permutation[i]`` of `values` at each place i.

    Examples
    --------
    >>> permuted("xyz", (2, 0, 1))
    ('z', 'x', 'y')
    """
    return tuple([values[i] for i in permutation])


def inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """Give the permutation that undoes `permutation`.

    Examples
    --------
    >>> inverse((2, 0, 1))
    (1, 2, 0)
    """
    places = [0] * len(permutation)
    for i, value in enumerate(permutation):
        places[value] = i
    return tuple(places)
