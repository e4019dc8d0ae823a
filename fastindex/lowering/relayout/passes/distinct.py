"""Distinct numbers, for the small arrays of plans: `numpy.unique` takes several times as long for these."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of an array in ascending order, each once.

    Examples
    --------
    >>> distinct(np.array([5, 2, 5, 3])).tolist()
    [2, 3, 5]
    """
    ordered = np.sort(numbers, axis=None)
    is_first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]
