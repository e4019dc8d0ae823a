"""Paged caches in Python loops: where an element lies, which runs move a request, what a copy leaves.

It shares no code with the package: a pool is a list of dimension names from major to minor with their sizes and tiles,
places are counted one by one, and bytes move one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

Coordinates = tuple[int, int, int, int, int, int]

AXES = ("layers", "num_blocks", "kv", "kv_heads", "block_size", "head_dim")


@dataclass
class SlowCache:
    """A pool: the axes from major to minor as (name, size), the sizes in use, and a tile of the last two axes.

    An axis may stand twice, its more major digits first.
    """

    order: Sequence[tuple[str, int]]
    width: int
    used: dict[str, int] = field(default_factory=dict)
    tile: tuple[int, int] | None = None
    tp: tuple[int, int] = (1, 0)
    total_heads: int | None = None
    cp: tuple[int, int] = (1, 0)
    interleave: int = 1

    def size(self, name: str) -> int:
        size = 1
        for axis, count in self.order:
            size *= count if axis == name else 1
        return size

    def count(self, name: str) -> int:
        return self.used.get(name, self.size(name))

    @property
    def nbytes(self) -> int:
        sizes = [count for _, count in self.order]
        if self.tile:
            for i, tile in zip((-2, -1), self.tile, strict=True):
                sizes[i] = -(-sizes[i] // tile) * tile
        total = self.width
        for size in sizes:
            total *= size
        return total

    def text(self, dtype: str) -> str:
        """The pool as a text, its dimensions in the order of memory."""
        named = ",".join("2" if name == "kv" and size == 2 else f"{name}={size}" for name, size in self.order)
        rank = len(self.order)
        tile = f":T({self.tile[0]},{self.tile[1]})" if self.tile else ""
        return f"{dtype}[{named}]{{{','.join(str(d) for d in reversed(range(rank)))}{tile}}}"

    def byte(self, where: Coordinates) -> int:
        """The first byte of an element."""
        left = dict(zip(AXES, where, strict=True))
        digits = []
        for axis, size in reversed(self.order):
            digits.append((left[axis] % size, size))
            left[axis] //= size
        digits.reverse()
        if not self.tile:
            slot = 0
            for value, size in digits:
                slot = slot * size + value
            return slot * self.width
        (row, rows), (column, columns) = digits[-2:]
        height, length = self.tile
        slot = 0
        for value, size in digits[:-2]:
            slot = slot * size + value
        slot = slot * -(-rows // height) + row // height
        slot = slot * -(-columns // length) + column // length
        slot = (slot * height + row % height) * length + column % length
        return slot * self.width

    def heads(self) -> list[int]:
        """The heads of the model that this rank holds."""
        size, rank = self.tp
        total = self.total_heads if self.total_heads is not None else self.count("kv_heads") * size
        held = max(1, total // size)
        return [rank * total // size + i for i in range(held)]

    def place_of(self, position: int) -> tuple[int, int] | None:
        """The column of the table and the token of its block, None of a token of another rank."""
        size, rank = self.cp
        if position // self.interleave % size != rank:
            return None
        local = position // (self.interleave * size) * self.interleave + position % self.interleave
        return local // self.count("block_size"), local % self.count("block_size")


def pairs(
    source: SlowCache, target: SlowCache, source_blocks: Sequence[int], target_blocks: Sequence[int], tokens: int
) -> Iterator[tuple[int, int]]:
    """Every byte that a transfer moves: where it is and where it goes."""
    common = [head for head in source.heads() if head in target.heads()]
    for position in range(tokens):
        here, there = source.place_of(position), target.place_of(position)
        if here is None or there is None:
            continue
        others = (range(source.count(axis)) for axis in ("layers", "kv", "head_dim"))
        for layer, kv, dim in itertools.product(*others):
            for head in common:
                places = []
                for cache, blocks, (column, token) in (
                    (source, source_blocks, here),
                    (target, target_blocks, there),
                ):
                    mine = cache.heads().index(head)
                    places.append(cache.byte((layer, blocks[column], kv, mine, token, dim)))
                for byte in range(source.width):
                    yield places[0] + byte, places[1] + byte


def least_runs(moved: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """The fewest contiguous runs that move these bytes, as (source, target, nbytes), by source, then by target."""
    left, runs = set(moved), []
    for begin in sorted(left):
        if (begin[0] - 1, begin[1] - 1) in left:
            continue
        length = 1
        while (begin[0] + length, begin[1] + length) in left:
            length += 1
        runs.append((*begin, length))
    return runs
