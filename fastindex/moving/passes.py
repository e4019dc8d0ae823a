"""Passes: one kernel over many tasks, with its tables; nests cut into pieces and blocks.

Planning tries several candidates and keeps one, so it makes drafts, whose costs follow from a few numbers. The drafts
of the candidate that is kept become passes: only then are their tables written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Loop, Nest
from fastindex.core.integers import counted
from fastindex.moving.counts import Counts, cycles, total
from fastindex.moving.numbers import (
    OuterLoop,
)


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


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One kernel, run over ``tasks`` independent tasks.

    Attributes
    ----------
    kernel : str
        The name of a `fastindex.moving.kernels.registry.PassKernel`.
    width : int
        Bytes that move as one: an element, a run of elements that both sides keep, a vector of a block permute. Of a
        cast, the number of the conversion.
    ways : int
        Rows that are interleaved, columns that are deinterleaved, packed elements of a byte; of a block
        permute, 2 where nibbles move; 1 for other kernels.
    outer : int64 array of (loops, 3)
        Loops around the tasks, innermost first: rows of an `OuterLoop`, in bytes.
    tables : tuple of int64 arrays
        Byte offsets within a block; see the kernel.
    geometry : int64 array
        The kernel's own numbers, as its record names them.
    tasks : int
        All iterations of `outer`, times the blocks that the kernel counts itself. Threads take them in any order, so no
        two of them may write the same byte.
    task_bytes : int
        How much a task writes, the most where they differ.
    source_start, destination_start : int
        Bytes from the start of each side to the first task.
    why : str
        The reason for this kernel, for `describe`.
    inner : tuple of (Pass, bool, bool)
        The passes that run within each box, and whether they read from scratch memory, and write to it.
    """

    kernel: str
    width: int
    ways: int
    outer: NDArray[np.int64]
    tables: tuple[NDArray[np.int64], ...]
    geometry: NDArray[np.int64]
    tasks: int
    task_bytes: int
    source_start: int
    destination_start: int
    why: str
    inner: tuple[tuple[Pass, bool, bool], ...] = ()

    def describe(self) -> str:
        """Return the pass in one line."""
        has_ways = self.ways > 1 and self.kernel not in ("block permute", "column gather")
        name = f"{self.kernel} {self.ways} ways" if has_ways else self.kernel
        size = self.tasks * self.task_bytes
        steps = f" ({', '.join(one.kernel for one, _, _ in self.inner)})" if self.inner else ""
        return f"{name}, {self.width}-byte units, {counted(self.tasks, 'task')}, about {size} bytes: {self.why}{steps}"


Tables = tuple[NDArray[np.int64], ...]


def no_tables() -> Tables:
    """Return no tables: for kernels that need only their geometry."""
    return ()


class Draft(NamedTuple):
    """A pass whose tables are not written yet.

    Attributes
    ----------
    kernel, width, task_bytes, why, ways
        As of a `Pass`.
    around : Nest
        The loops around the tasks, innermost first, and where the first task begins; in bytes.
    geometry : tuple of int
        A record of `fastindex.moving.numbers` or of the folder of the move.
    counts : Counts
        What all tasks do, counted: the cost follows from it. Of passes that no others stand against, nothing.
    tables : callable
        Returns the tables of the pass.
    blocks : int
        How many tasks the kernel counts itself at each iteration of the loops: task `t` is block ``t % blocks`` of
        iteration ``t // blocks``.
    inner : tuple of (Draft, bool, bool)
        As of a `Pass`.
    """

    kernel: str
    width: int
    around: Nest
    geometry: tuple[int, ...]
    task_bytes: int
    why: str
    counts: Counts
    tables: Callable[[], Tables] = no_tables
    ways: int = 1
    blocks: int = 1
    inner: tuple[tuple[Draft, bool, bool], ...] = ()

    def written(self) -> Pass:
        """Return the pass, with its tables."""
        rows = [OuterLoop(*loop) for loop in self.around.loops]
        return Pass(
            self.kernel,
            self.width,
            self.ways,
            np.array(rows, np.int64).reshape(len(rows), 3),
            self.tables(),
            np.array(self.geometry, np.int64),
            self.blocks * self.around.element_count,
            self.task_bytes,
            self.around.source_start,
            self.around.destination_start,
            self.why,
            tuple((one.written(), reads, writes) for one, reads, writes in self.inner),
        )


def with_tables(drafts: Iterable[Draft]) -> tuple[Pass, ...]:
    """Return drafts as passes, with their tables."""
    return tuple(draft.written() for draft in drafts)


def iterations(loops: Sequence[Loop]) -> int:
    """Return how many iterations nested loops have together."""
    return math.prod([k.size for k in loops])


def readable_bytes(nest: Nest, width: int) -> int:
    """Return how many bytes may be read from the start of a nest, in bytes, in the source."""
    return width + sum([(k.size - 1) * k.source_stride for k in nest.loops if k.source_stride > 0])


def cost(found: Iterable[Draft]) -> float:
    """Return what passes cost, all tasks together."""
    return cycles(total(one.counts for one in found))
