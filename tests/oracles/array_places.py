"""Where the elements of an array of another library really lie, against its shape."""

from __future__ import annotations

import itertools
from typing import Any

import fastindex as fi
from tests.oracles import reference


def order_of(shape: fi.Shape) -> tuple[int, ...]:
    return shape.layout.minor_to_major


def check_places(array: Any, shape: fi.Shape) -> None:
    """Every element of a NumPy array that fills its memory lies in the slot that the shape says."""
    if array.ndim == 0:
        return
    slow = reference.parse(str(shape))
    base = array.__array_interface__["data"][0]
    for index in itertools.product(*map(range, array.shape)):
        one = array[tuple(slice(i, i + 1) for i in index)]
        slot = (one.__array_interface__["data"][0] - base) // array.itemsize
        assert slot == reference.linear_index(slow, index)
