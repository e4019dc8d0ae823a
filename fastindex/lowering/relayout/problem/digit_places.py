"""Where the digits of coordinates lie in a buffer, read from the most major down.

What is contiguous follows from it: runs of a window descend from digit to digit, and padding is the room that digits do
not take.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.tiling.digits import Digit, Digits, Variable


class Place(NamedTuple):
    """A digit in a buffer: `used` values, with room for `room` of them, `stride` slots apart; it counts `low`s."""

    stride: int
    low: int
    used: int
    room: int


def digit_places(digits: Digits, slot_count: int) -> list[tuple[Variable, Place]] | None:
    """Return the digits of which a slot is the sum, the most major first, or None where they do not nest.

    Parameters
    ----------
    digits : Digits
    slot_count : int
        Slots of the buffer, up to the last one of the layout.

    Returns
    -------
    list of (Variable, Place) or None
        None where a stride is no multiple of the next, where a digit takes more values than it has room for, or where
        the digits of a coordinate do not continue each other.

    Examples
    --------
    >>> from fastindex.tiling.digits import Digit, Variable
    >>> rows, columns = Variable(0, 3, True), Variable(1, 5, True)
    >>> [place for _, place in digit_places((Digit(8, rows, 1, None), Digit(1, columns, 1, None)), 24)]
    [Place(stride=8, low=1, used=3, room=3), Place(stride=1, low=1, used=5, room=8)]
    """
    found: list[tuple[Variable, Place]] = []
    above = slot_count
    for d in sorted(digits, key=lambda d: -d.weight):
        room, uneven = divmod(above, d.weight)
        used = d.largest + 1
        if uneven or room < used:
            return None
        found.append((d.variable, Place(d.weight, d.low, used, room)))
        above = d.weight
    for variable, places in by_variable(found).items():
        if places[0].low != 1 or any(a.low * a.used != b.low for a, b in itertools.pairwise(places)):
            return None
        if places[-1].low * places[-1].used < variable.extent:
            return None
    return found


def slots_of(digits: Iterable[Digit], count: int) -> NDArray[np.int64]:
    """Return the slots of the values below `count` of one coordinate, without a division for each value.

    Examples
    --------
    >>> from fastindex.tiling.digits import Digit, Variable
    >>> x = Variable(0, 7, True)
    >>> slots_of((Digit(1, x, 1, 3), Digit(10, x, 3, None)), 7).tolist()
    [0, 1, 2, 10, 11, 12, 20]
    """
    total = np.zeros(count, np.int64)
    for d in digits:
        values = -(-count // d.low) if d.high is None else min(-(-count // d.low), d.high // d.low)
        once = np.repeat(np.arange(0, values * d.weight, d.weight), d.low)
        total += once[:count] if len(once) >= count else np.resize(once, count)
    return total


def by_variable(places: list[tuple[Variable, Place]]) -> dict[Variable, list[Place]]:
    """Return the digits of each coordinate, minor first."""
    found: dict[Variable, list[Place]] = {}
    for variable, place in places:
        found.setdefault(variable, []).append(place)
    for of_one in found.values():
        of_one.sort(key=lambda place: place.low)
    return found
