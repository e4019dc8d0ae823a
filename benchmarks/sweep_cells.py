"""The cells of the sweep: every tile chain that dumps contain, in every width, against the plain layouts.

A cell is an array ``[major, second, minor]``. One side is ``{2,1,0}`` with tiles, the other has none and one of three
orders. The major size makes the larger side about 48 MiB.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

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
    bits = shape.nbytes * 8 // shape.slot_count
    every = -(-shape.slot_count * bits // _LINE_BITS)
    if shape.slot_count == shape.element_count:
        return every
    major, *others = shape.dimensions
    taken = min(major, max(2, _COUNTED_ELEMENTS // int(np.prod(others)) // 2 * 2))
    counted = fi.Shape(shape.element_type, (taken, *others), shape.layout)
    slots = fi.linear_index(counted, tuple(np.ix_(*map(np.arange, counted.dimensions))))
    marked = np.zeros(-(-counted.slot_count * bits // _LINE_BITS) + 1, bool)
    marked[slots * bits // _LINE_BITS] = True
    return min(every, int(marked.sum()) * major // taken)


def every_cell() -> Iterator[Cell]:
    """All cells, those of one chain together."""
    for numbers in itertools.product(CHAINS, TYPES, MINORS, SECONDS, ORDERS, DIRECTIONS):
        yield Cell(*numbers)


def sampled(cells: list[Cell], count: int, seed: int) -> list[Cell]:
    """Some of the cells, the same for the same seed; a larger count begins with those of a smaller one."""
    shuffled = list(cells)
    random.Random(seed).shuffle(shuffled)
    return shuffled[:count]
