"""The form of passes: one kernel, run over many tasks, with the tables of numbers that it reads.

Planning tries several candidates and keeps one, so it makes drafts, whose costs follow from a few numbers. The drafts
of the candidate that is kept become passes: only then are their tables written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Loop, Nest
from fastindex.core.integers import counted
from fastindex.lowering.relayout.passes.counts import Counts
from fastindex.tables.assemblies import AssemblyGeometry, ColumnsGeometry
from fastindex.tables.boxes import BoxGeometry, PairGeometry
from fastindex.tables.casts import CastGeometry
from fastindex.tables.digit_swaps import SwapGeometry
from fastindex.tables.gathers import GatherGeometry
from fastindex.tables.passes import FillGeometry, OuterLoop, StridedGeometry
from fastindex.tables.streams import StreamGeometry
from fastindex.tables.transposes import TransposeGeometry

#: The numbers of a kernel; a new kernel's record joins them.
Geometry = (
    AssemblyGeometry
    | BoxGeometry
    | CastGeometry
    | ColumnsGeometry
    | FillGeometry
    | GatherGeometry
    | PairGeometry
    | StreamGeometry
    | StridedGeometry
    | SwapGeometry
    | TransposeGeometry
)


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One kernel, run over ``tasks`` independent tasks.

    Attributes
    ----------
    kernel : {"copy", "interleave", "deinterleave", "transpose", "gather pieces", "strided", "fill",
            "expand", "compress", "block permute", "column gather", "boxes", "pair nibbles",
            "swap digits", "cast"}
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
        The kernel's own numbers, a `Geometry`.
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
    geometry : Geometry
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
    geometry: Geometry
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
