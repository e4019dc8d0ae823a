"""The cells of the regret: layouts out of dumps first, then random layouts of every width, against plain ones.

A cell is a pair of layouts of one array whose larger side has about as many bytes as asked for. None of them is listed
anywhere: sizes are drawn, so that nothing was tuned to them.
"""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path
from typing import NamedTuple

import fastindex as fi
from benchmarks.sweep_cells import CHAINS

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
#: Classes of cells; those of the first are layouts that XLA has chosen itself.
CLASSES = ("dumps", "orders", "tiles", "merged tiles", "4 bits")
_TYPES = {1: "u8", 2: "bf16", 4: "f32", 8: "f64", 16: "c128"}
_LAYOUT = re.compile(r"\b[a-z]+[0-9]+[a-z0-9]*\[[0-9,]+\]\{[^{}]+\}")
_MOST_SCALED = 1 << 40


class RegretCell(NamedTuple):
    """A class, and two layouts of one array."""

    kind: str
    source: str
    destination: str


def layouts_of_dumps() -> list[str]:
    """Every layout with tiles that dumps in `tests/data` have, each once."""
    texts = [(DATA / "tpu_layouts.txt").read_text()]
    texts += [path.read_text() for path in sorted((DATA / "hlo").rglob("*.txt"))]
    return sorted({found for text in texts for found in _LAYOUT.findall(text) if ":T(" in found})


def drawn(count: int, seed: int, nbytes: int) -> list[RegretCell]:
    """Cells, the same for the same seed; a quarter are layouts of dumps, and a larger count begins with the others."""
    generator = random.Random(seed)
    of_dumps = layouts_of_dumps()
    found: list[RegretCell] = []
    while len(found) < count:
        kind = ("dumps", "orders", "tiles", "tiles", "dumps", "4 bits", "tiles", "merged tiles")[len(found) % 8]
        cell = _of_dump(generator, of_dumps, nbytes) if kind == "dumps" else _random(generator, kind, nbytes)
        if cell is not None and cell not in found:
            found.append(cell)
    return found


def _of_dump(generator: random.Random, of_dumps: list[str], nbytes: int) -> RegretCell | None:
    """A layout out of a dump, as often along its outermost dimension as makes the size, and the plain one."""
    shape = fi.Shape.parse(generator.choice(of_dumps))
    layout = dataclasses.replace(shape.layout, memory_space=0)
    outermost = layout.minor_to_major[-1]
    others = [size for dimension, size in enumerate(shape.dimensions) if dimension != outermost]
    if not shape.is_array or 0 in shape.dimensions or shape.element_bits < 4:
        return None
    is_packed = generator.random() < 0.7

    def sides(size: int) -> tuple[fi.Shape, fi.Shape]:
        dimensions = tuple(size if d == outermost else n for d, n in enumerate(shape.dimensions))
        plain = f"{shape.element_type.name}[{','.join(map(str, dimensions))}]"
        packed = "E(4)" if shape.element_bits < 8 and is_packed else ""
        order = ",".join(str(d) for d in reversed(range(len(dimensions))))
        return fi.Shape(shape.element_type, dimensions, layout), fi.Shape.parse(
            f"{plain}{{{order}:{packed}}}" if packed else plain
        )

    size = _size(sides, nbytes)
    if size is None or (others and size == 0):
        return None
    tiled, plain = sides(size)
    pair = (tiled, plain) if generator.random() < 0.5 else (plain, tiled)
    return RegretCell("dumps", *map(str, pair))


def _size(sides: object, nbytes: int) -> int | None:
    """The size of the outermost dimension that makes the larger side about as large as wanted."""
    probe = 1024
    largest = max(side.nbytes for side in sides(probe))  # type: ignore[operator]
    size = max(1, nbytes * probe // largest)
    made = max(side.nbytes for side in sides(size))  # type: ignore[operator]
    return size if made <= 2 * nbytes else None


def _random(generator: random.Random, kind: str, nbytes: int) -> RegretCell | None:
    if kind == "orders":
        return _of_orders(generator, nbytes)
    chain = "T(2,*,128)" if kind == "merged tiles" else generator.choice([c for c in CHAINS if "*" not in c])
    name = "s4" if kind == "4 bits" else _TYPES[generator.choice(list(_TYPES))]
    packed = "E(4)" if name == "s4" else ""
    minor, second = _near(generator, 1100), _near(generator, 1100)
    order = generator.choice(("2,1,0", "1,2,0", "0,1,2"))
    tiles = "" if chain == "none" else chain

    def sides(size: int) -> tuple[fi.Shape, fi.Shape]:
        made = (
            f"{name}[{size},{second},{minor}]{{{each}{':' if attributes else ''}{attributes}}}"
            for each, attributes in (("2,1,0", tiles + packed), (order, packed))
        )
        first, other = map(fi.Shape.parse, made)
        return first, other

    size = _size(sides, nbytes)
    if size is None:
        return None
    pair = list(map(str, sides(size)))
    return RegretCell(kind, *(pair if generator.random() < 0.5 else reversed(pair)))


def _of_orders(generator: random.Random, nbytes: int) -> RegretCell | None:
    """Two orders of an array of two to five dimensions, without tiles."""
    rank = generator.randint(2, 5)
    name = _TYPES[generator.choice(list(_TYPES))]
    orders = [generator.sample(range(rank), rank) for _ in range(2)]
    largest = generator.randrange(rank)
    sizes = [_near(generator, 300) for _ in range(rank)]

    def sides(size: int) -> tuple[fi.Shape, fi.Shape]:
        dimensions = ",".join(str(size if d == largest else n) for d, n in enumerate(sizes))
        first, other = (fi.Shape.parse(f"{name}[{dimensions}]{{{','.join(map(str, order))}}}") for order in orders)
        return first, other

    size = _size(sides, nbytes)
    if size is None or orders[0] == orders[1]:
        return None
    return RegretCell("orders", *map(str, sides(size)))


def _near(generator: random.Random, most: int) -> int:
    """A size: small ones as often as large ones, and often one that a tile has, or its neighbour."""
    if generator.random() < 0.3:
        return min(most, generator.choice((1, 2, 3, 4, 8, 16, 32, 64, 100, 127, 128, 129, 256, 512, 1000, 1024)))
    return min(most, max(1, round(most ** generator.random())))
