"""Passes: one kernel over many tasks, with its tables; splitting of loop nests into tasks and blocks.

Planning compares several candidates, so it makes drafts, whose costs need only a few numbers. Only the drafts of the
selected candidate become passes, with their tables written.
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
from fastindex.moving.numbers import Chunks, OuterLoop

#: Offsets, counts or other numbers of a table.
Offsets = NDArray[np.int64]
#: The tables of a pass.
Tables = tuple[Offsets, ...]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocking of loops, innermost first: the iterations within a block, and the strides between blocks.

    Attributes
    ----------
    inner : tuple of Loop
        The loops within a block.
    places : int
        Iterations of `inner`: those of a block.
    count : int
        Iterations of all blocks together.
    source_stride, destination_stride : int
        Strides of blocks.
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
    def chunks(self) -> Chunks:
        """The blocks as chunks of tasks."""
        return Chunks(self.places, self.count, self.source_stride, self.destination_stride)

    def around(self, nest: Nest) -> Nest:
        """Return the loops around the blocks as a nest, with the starts of `nest`."""
        return Nest(self.outer, nest.source_start, nest.destination_start)

    def sources(self) -> Offsets:
        """Return the source offset of each iteration of a block."""
        return _offsets([(k.size, k.source_stride) for k in self.inner])

    def targets(self) -> Offsets:
        """Return the destination offset of each iteration of a block."""
        return _offsets([(k.size, k.destination_stride) for k in self.inner])

    def offsets(self) -> Offsets:
        """Return the source and destination offsets of each iteration, an array of (places, 2)."""
        both = np.empty((self.places, 2), np.int64)
        both[:, 0], both[:, 1] = self.sources(), self.targets()
        return both


def _offsets(loops: Iterable[tuple[int, int]]) -> Offsets:
    found: Offsets | None = None
    for size, stride in loops:
        places = np.arange(size) * stride
        found = places if found is None else (places[:, None] + found).reshape(-1)
    return np.zeros(1, np.int64) if found is None else found


def blocks(loops: Sequence[Loop], most: int) -> Blocks:
    """Combine loops to a block, innermost first, of at most `most` iterations."""
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
    """Return the loops that are not `taken`, sorted by stride in the destination, or in the source."""
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
    """Split a long loop into inner loops of `piece` iterations, for threads; a remainder becomes a separate nest."""
    if loop.size <= 2 * piece:
        yield nest
        return
    others = tuple(other for other in nest.loops if other is not loop)
    source_stride, destination_stride = loop.source_stride, loop.destination_stride
    count, remainder = divmod(loop.size, piece)
    whole = Loop(count, piece * source_stride, piece * destination_stride)
    pieces = (Loop(piece, source_stride, destination_stride), whole, *others)
    yield Nest(pieces, nest.source_start, nest.destination_start)
    if remainder:
        end = count * piece
        starts = nest.source_start + end * source_stride, nest.destination_start + end * destination_stride
        yield Nest((Loop(remainder, source_stride, destination_stride), *others), *starts)


def along(nest: Nest, whole: Loop) -> Loop:
    """Return the loop of a nest that has the strides of `whole`, which `cut` has split."""
    strides = whole.source_stride, whole.destination_stride
    return next(k for k in nest.loops if (k.source_stride, k.destination_stride) == strides)


def rows_and_columns(
    loops: Sequence[Loop], row: Loop, column: Loop, width: int
) -> tuple[tuple[Loop, ...], tuple[Loop, ...]]:
    """Extend a row along the destination and a column along the source, the shorter first, while loops continue them.

    Strides are in bytes, `width` is the bytes of an element.

    Examples
    --------
    >>> row, column, outer = Loop(2, 24, 1), Loop(3, 1, 8), Loop(4, 48, 2)
    >>> rows_and_columns((row, column, outer), row, column, 1)[0] == (row, outer)
    True
    """
    rows, columns = [row], [column]
    free = [loop for loop in loops if loop not in (row, column)]
    while True:
        row_bytes, column_bytes = (width * math.prod(k.size for k in chosen) for chosen in (rows, columns))
        next_row = next((k for k in free if k.destination_stride == row_bytes), None)
        next_column = next((k for k in free if k.source_stride == column_bytes), None)
        if next_row is not None and (next_column is None or row_bytes <= column_bytes):
            rows.append(next_row)
            free.remove(next_row)
        elif next_column is not None:
            columns.append(next_column)
            free.remove(next_column)
        else:
            return tuple(rows), tuple(columns)


def even_steps(nest: Nest, side: int = 0) -> Iterator[Nest]:
    """Split every loop of odd stride into its even and its odd iterations, with twice the stride.

    The stride is that in the source, side 0, or in the destination, side 1.
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
        The name of a `fastindex.moving.moves.PassKernel`.
    width : int
        Bytes of the unit that is moved: an element, a run of elements that both sides keep, a vector of a block
        permute. For a cast, the code of the conversion.
    ways : int
        Rows to interleave, columns to deinterleave, packed elements per byte; for a block permute, 2 for nibbles; 1
        for other kernels.
    outer : int64 array of (loops, 3)
        Loops around the tasks, innermost first: `OuterLoop` records, in bytes.
    tables : tuple of int64 arrays
        Byte offsets within a block; see the kernel.
    geometry : int64 array
        The kernel's geometry record.
    tasks : int
        Iterations of `outer`, times the blocks that the kernel counts itself. Threads take tasks in any order, so no
        two tasks may write the same byte.
    task_bytes : int
        Bytes that a task writes, the largest number where tasks differ.
    source_start, destination_start : int
        Byte offset of the first task on each side.
    why : str
        The reason for this kernel, for `describe`.
    inner : tuple of (Pass, bool, bool)
        The passes that run within each box, whether each reads from scratch memory, and whether it writes there.
    """

    kernel: str
    width: int
    ways: int
    outer: Offsets
    tables: Tables
    geometry: Offsets
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
        size = f"{self.tasks * self.task_bytes:,} bytes"
        steps = f" ({', '.join(one.kernel for one, _, _ in self.inner)})" if self.inner else ""
        return f"{name}, {self.width}-byte units, {counted(self.tasks, 'task')}, about {size}: {self.why}{steps}"


def no_tables() -> Tables:
    """Return no tables, for kernels that need only their geometry."""
    return ()


class Draft(NamedTuple):
    """A pass whose tables are not written yet.

    Attributes
    ----------
    kernel, width, task_bytes, why, ways
        As in a `Pass`.
    around : Nest
        The loops around the tasks, innermost first, and the start of the first task; in bytes.
    geometry : tuple of int
        A geometry record, of `fastindex.moving.numbers` or of the folder of the move.
    counts : Counts
        Counts of all tasks, from which the cost follows. Empty for passes without alternatives.
    tables : callable
        Returns the tables of the pass.
    blocks : int
        Number of tasks per iteration of `around`, counted by the kernel: task `t` is block ``t % blocks`` of iteration
        ``t // blocks``.
    inner : tuple of (Draft, bool, bool)
        As in a `Pass`.
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
        """Return the pass, with its tables written."""
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
    """Return drafts as passes, with their tables written."""
    return tuple(draft.written() for draft in drafts)


def iterations(loops: Sequence[Loop]) -> int:
    """Return the total number of iterations of nested loops."""
    return math.prod([k.size for k in loops])


def readable_bytes(nest: Nest, width: int) -> int:
    """Return how many bytes may be read, counted from the source start of a nest; the nest is in bytes."""
    return width + sum([(k.size - 1) * k.source_stride for k in nest.loops if k.source_stride > 0])


def cost(found: Iterable[Draft]) -> float:
    """Return the cost of passes, over all tasks."""
    return cycles(total(one.counts for one in found))
