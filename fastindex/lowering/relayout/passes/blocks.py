"""Cutting nests: pieces that threads share, blocks that one task moves, and the loops around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Loop, Nest


@dataclass(frozen=True, slots=True)
class Blocks:
    """Loops taken together, innermost first: the places of a block, and how blocks follow each other.

    Attributes
    ----------
    inner : tuple of Loop
        The loops within a block.
    places : int
        Iterations of `inner`.
    count : int
        Iterations of all blocks.
    source_stride, destination_stride : int
        From one block to the next.
    outer : tuple of Loop
        The loops around the blocks.
    """

    inner: tuple[Loop, ...]
    places: int
    count: int
    source_stride: int
    destination_stride: int
    outer: tuple[Loop, ...]

    @property
    def number(self) -> int:
        return -(-self.count // self.places)

    @property
    def chunks(self) -> tuple[int, int, int, int]:
        """What kernels know of chunks, as a `StreamGeometry` begins."""
        return self.places, self.count, self.source_stride, self.destination_stride

    def around(self, nest: Nest) -> Nest:
        """Return the loops around the blocks, which begin where a nest does."""
        return Nest(self.outer, nest.source_start, nest.destination_start)

    def sources(self) -> NDArray[np.int64]:
        """Return the offset of each place of a block in the source."""
        return _offsets([(k.size, k.source_stride) for k in self.inner])

    def targets(self) -> NDArray[np.int64]:
        """Return the offset of each place of a block in the destination."""
        return _offsets([(k.size, k.destination_stride) for k in self.inner])

    def offsets(self) -> NDArray[np.int64]:
        """Return both offsets of each place, an array of (places, 2)."""
        both = np.empty((self.places, 2), np.int64)
        both[:, 0], both[:, 1] = self.sources(), self.targets()
        return both


def _offsets(loops: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    found: NDArray[np.int64] | None = None
    for size, stride in loops:
        places = np.arange(size) * stride
        found = places if found is None else (places[:, None] + found).reshape(-1)
    return np.zeros(1, np.int64) if found is None else found


def blocks(loops: Sequence[Loop], most: int) -> Blocks:
    """Take loops together, innermost first, while a block has at most `most` places."""
    places = 1
    for i, loop in enumerate(loops):
        count = places * loop.size
        size = loop.size if count <= most else max(most // places, 1)
        if size < loop.size:
            part = Loop(size, loop.source_stride, loop.destination_stride)
            strides = size * loop.source_stride, size * loop.destination_stride
            return Blocks((*loops[:i], part), places * size, count, *strides, tuple(loops[i + 1 :]))
        places = count
    return Blocks(tuple(loops), places, places, 0, 0, ())


def without(loops: Iterable[Loop], taken: Iterable[Loop], by_source: bool = False) -> list[Loop]:
    """Return the loops that are not `taken`, sorted by their stride in the destination, or in the source."""
    left = list(loops)
    for loop in taken:
        if loop in left:
            left.remove(loop)
    if len(left) < 2:
        return left
    if by_source:
        return sorted(left, key=lambda loop: (abs(loop.source_stride), abs(loop.destination_stride)))
    return sorted(left, key=lambda loop: (abs(loop.destination_stride), abs(loop.source_stride)))


def cut(nest: Nest, loop: Loop, piece: int) -> Iterator[Nest]:
    """Cut a long loop into pieces of `piece` iterations that threads can share; the rest is a nest of its own."""
    if loop.size <= 2 * piece:
        yield nest
        return
    others = tuple(other for other in nest.loops if other is not loop)
    source_stride, destination_stride = loop.source_stride, loop.destination_stride
    count, rest = divmod(loop.size, piece)
    whole = Loop(count, piece * source_stride, piece * destination_stride)
    pieces = (Loop(piece, source_stride, destination_stride), whole, *others)
    yield Nest(pieces, nest.source_start, nest.destination_start)
    if rest:
        end = count * piece
        starts = nest.source_start + end * source_stride, nest.destination_start + end * destination_stride
        yield Nest((Loop(rest, source_stride, destination_stride), *others), *starts)


def along(nest: Nest, whole: Loop) -> Loop:
    """Return the loop of a nest that `cut` has left of a loop."""
    strides = whole.source_stride, whole.destination_stride
    return next(k for k in nest.loops if (k.source_stride, k.destination_stride) == strides)


def even_steps(nest: Nest, side: int = 0) -> Iterator[Nest]:
    """Cut every loop of odd steps in two: steps of twice the length from its first and second place.

    The steps are those in the source, side 0, or in the destination, side 1.
    """
    odd = next((k for k in nest.loops if (k.source_stride, k.destination_stride)[side] % 2), None)
    if odd is None:
        yield nest
        return
    others = tuple(k for k in nest.loops if k is not odd)
    for first in range(min(2, odd.size)):
        loop = Loop((odd.size - first + 1) // 2, 2 * odd.source_stride, 2 * odd.destination_stride)
        starts = (
            nest.source_start + first * odd.source_stride,
            nest.destination_start + first * odd.destination_stride,
        )
        yield from even_steps(Nest((loop, *others), *starts), side)
