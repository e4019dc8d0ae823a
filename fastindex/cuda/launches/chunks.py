"""A relayout in chunks that fit the GPU: gathered on the host, moved on the GPU, scattered on the host. Numbers only.

A chunk is a box of a nest's loops: those with small strides on either side, so that the host copies long runs on both.
On its way to and from the GPU the box is dense: in the order of the source on the way there, of the destination on the
way back. All numbers are in elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastindex.algebra.loops import Loop, Nest, coalesced


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of elements.

    Attributes
    ----------
    gather : Nest
        From the source to dense memory, relative to `source_start`.
    move : Nest
        From dense memory in the order of the source to dense memory in the order of the destination.
    scatter : Nest
        From there to the destination, relative to `destination_start`.
    element_count : int
    source_start, destination_start : int
    """

    gather: Nest
    move: Nest
    scatter: Nest
    element_count: int
    source_start: int
    destination_start: int


def chunks(nest: Nest, most: int) -> Iterator[Chunk]:
    """Split a nest into boxes of at most `most` elements, at least 1.

    Examples
    --------
    >>> nest = Nest((Loop(4, 1, 6), Loop(6, 4, 1)))
    >>> [(c.element_count, c.source_start, c.destination_start) for c in chunks(nest, 10)]
    [(8, 0, 0), (8, 8, 2), (8, 16, 4)]
    """
    inner: list[Loop] = []
    outer: list[list[tuple[int, int, int]]] = []
    taken = 1
    for loop in sorted(nest.loops, key=lambda k: min(k.source_stride, k.destination_stride)):
        size = min(loop.size, max(most // taken, 1))
        inner.append(Loop(size, loop.source_stride, loop.destination_stride))
        taken *= size
        outer.append([(min(size, loop.size - begin), begin, len(inner) - 1) for begin in range(0, loop.size, size)])
    for pieces in itertools.product(*reversed(outer)):
        sizes = [1] * len(inner)
        source, destination = nest.source_start, nest.destination_start
        for size, begin, number in pieces:
            sizes[number] = size
            source += begin * inner[number].source_stride
            destination += begin * inner[number].destination_stride
        box = tuple(
            Loop(size, loop.source_stride, loop.destination_stride) for size, loop in zip(sizes, inner, strict=True)
        )
        yield _chunk(box, source, destination)


def _chunk(box: Sequence[Loop], source_start: int, destination_start: int) -> Chunk:
    there = _dense(box, [loop.source_stride for loop in box])
    back = _dense(box, [loop.destination_stride for loop in box])
    gather, move, scatter = [], [], []
    for loop, first, second in zip(box, there, back, strict=True):
        gather.append(Loop(loop.size, loop.source_stride, first))
        move.append(Loop(loop.size, first, second))
        scatter.append(Loop(loop.size, second, loop.destination_stride))
    nests = [coalesced(Nest(tuple(loops))) for loops in (gather, move, scatter)]
    count = math.prod(loop.size for loop in box)
    return Chunk(nests[0], nests[1], nests[2], count, source_start, destination_start)


def _dense(box: Sequence[Loop], strides: Sequence[int]) -> list[int]:
    """Return the strides of a dense box, with its loops in the order of `strides`."""
    found = [0] * len(box)
    step = 1
    for i in sorted(range(len(box)), key=lambda k: strides[k]):
        found[i] = step
        step *= box[i].size
    return found
