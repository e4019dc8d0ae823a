"""The cells of the sweep: every tile chain that dumps contain, in every width, against the plain layouts.

A cell is an array ``[major, second, minor]``. One side is ``{2,1,0}`` with tiles, the other has none and one of three
orders. The major size makes the larger side about 48 MiB.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import fastindex as fi

CHAINS = (
    "none",
    "T(8,128)",
    "T(8,128)(2,1)",
    "T(8,128)(4,1)",
    "T(8,128)(8,1)",
    "T(2,128)",
    "T(4,128)",
    "T(4,128)(2,1)",
    "T(1,128)",
    "T(256)",
    "T(1024)",
    "T(64,128)(8,1)",
    "T(2,*,128)",
)
#: Element types by what the heat map calls their width; those of 4 bits are packed on both sides.
TYPES = {"4 bits": "s4", "1 byte": "u8", "2 bytes": "bf16", "4 bytes": "f32", "8 bytes": "f64", "16 bytes": "c128"}
MINORS = (1, 2, 3, 5, 6, 10, 12, 40, 100, 127, 128, 130, 1000)
SECONDS = (1, 2, 3, 8, 50, 1000)
#: Orders of the side without tiles, by name.
ORDERS = {"same": "2,1,0", "minor two swapped": "1,2,0", "reversed": "0,1,2"}
DIRECTIONS = ("to tiles", "from tiles")

#: About how many bytes the larger side has.
CELL_BYTES = 48 << 20
_LINE_BITS = 512
_COUNTED_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Cell:
    """One relayout of the sweep."""

    chain: str
    width: str
    minor: int
    second: int
    order: str
    direction: str

    @property
    def key(self) -> str:
        """Unique, and the same in every run."""
        return "|".join((self.chain, self.width, str(self.minor), str(self.second), self.order, self.direction))

    @classmethod
    def of(cls, key: str) -> Cell:
        """The cell that has this key."""
        chain, width, minor, second, order, direction = key.split("|")
        return cls(chain, width, int(minor), int(second), order, direction)

    @cached_property
    def shapes(self) -> tuple[fi.Shape, fi.Shape]:
        """Source and destination."""
        sample = 16
        largest = max(side.nbytes for side in self._sides(sample))
        major = max(1, CELL_BYTES * sample // largest)
        tiled, plain = self._sides(major)
        return (plain, tiled) if self.direction == "to tiles" else (tiled, plain)

    def _sides(self, major: int) -> tuple[fi.Shape, fi.Shape]:
        element_type = TYPES[self.width]
        packed = "E(4)" if element_type == "s4" else ""
        tiles = "" if self.chain == "none" else self.chain
        first, second = (
            f"{element_type}[{major},{self.second},{self.minor}]{{{order}{':' if attributes else ''}{attributes}}}"
            for order, attributes in (("2,1,0", tiles + packed), (ORDERS[self.order], packed))
        )
        return fi.Shape.parse(first), fi.Shape.parse(second)

    def moved_bytes(self) -> int:
        """Bytes of the source's cache lines that hold an element, and of the destination with its padding."""
        source, destination = self.shapes
        return lines_with_elements(source) * _LINE_BITS // 8 + destination.nbytes


def lines_with_elements(shape: fi.Shape) -> int:
    """How many cache lines hold an element, counted on a few majors where there is padding."""
    every, majors = _every_line(shape), _majors_at_a_time(shape)
    if shape.slot_count == shape.element_count or shape.dimensions[0] <= majors:
        return len(numbers_of_lines(shape))
    counted = fi.Shape(shape.element_type, (majors, *shape.dimensions[1:]), shape.layout)
    return min(every, len(numbers_of_lines(counted)) * shape.dimensions[0] // majors)


def numbers_of_lines(shape: fi.Shape) -> NDArray[np.int32]:
    """Which cache lines hold an element, in order."""
    every = _every_line(shape)
    if shape.slot_count == shape.element_count:
        return np.arange(every, dtype=np.int32)
    marked = np.zeros(every, bool)
    major, *others = shape.dimensions
    taken = _majors_at_a_time(shape)
    for begin in range(0, major, taken):
        index = np.ix_(np.arange(begin, min(begin + taken, major)), *map(np.arange, others))
        marked[fi.linear_index(shape, index) * _slot_bits(shape) // _LINE_BITS] = True
    return np.flatnonzero(marked).astype(np.int32)


def _majors_at_a_time(shape: fi.Shape) -> int:
    return max(2, _COUNTED_ELEMENTS // math.prod(shape.dimensions[1:]) // 2 * 2)


def _slot_bits(shape: fi.Shape) -> int:
    return shape.nbytes * 8 // shape.slot_count


def _every_line(shape: fi.Shape) -> int:
    return -(-shape.slot_count * _slot_bits(shape) // _LINE_BITS)


def every_cell() -> Iterator[Cell]:
    """All cells, those of one chain together."""
    for numbers in itertools.product(CHAINS, TYPES, MINORS, SECONDS, ORDERS, DIRECTIONS):
        yield Cell(*numbers)


def sampled(cells: list[Cell], count: int, seed: int) -> list[Cell]:
    """Some of the cells, the same for the same seed; a larger count begins with those of a smaller one."""
    shuffled = list(cells)
    random.Random(seed).shuffle(shuffled)
    return shuffled[:count]
