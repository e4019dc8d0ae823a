"""The form of passes: one kernel, run over many tasks, with the tables of numbers that it reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastindex.lowering.relayout_loops import Loop, Nest
from fastindex.lowering.tuning import Tuning
from fastindex.shapes.integers import counted
from fastindex.tables.assemblies import AssemblyGeometry, ColumnsGeometry
from fastindex.tables.boxes import BoxGeometry, HalvesGeometry
from fastindex.tables.passes import FillGeometry, OuterLoop, StridedGeometry
from fastindex.tables.streams import StreamGeometry
from fastindex.tables.transposes import TransposeGeometry

#: The numbers of a kernel.
Geometry = (
    AssemblyGeometry
    | BoxGeometry
    | ColumnsGeometry
    | FillGeometry
    | HalvesGeometry
    | StreamGeometry
    | StridedGeometry
    | TransposeGeometry
)


@dataclass(frozen=True, slots=True)
class Goal:
    """What the passes of a relayout have in common.

    Attributes
    ----------
    width : int
        Bytes of an element.
    streamed : bool
        Whether the destination is large enough to be written past the cache.
    tuning : Tuning
    """

    width: int
    streamed: bool
    tuning: Tuning


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One kernel, run over ``tasks`` independent tasks.

    Attributes
    ----------
    kernel : {"copy", "interleave", "deal", "transpose", "narrow transpose", "strided", "fill", "expand", "compress",
            "assemble", "assemble columns", "assemble half columns", "boxes", "halves"}
    width : int
        Bytes that move as one: an element, a run of elements that both sides keep, a vector of an assembly.
    ways : int
        Rows that are interleaved, columns that are dealt out, packed elements of a byte; of an assembly, 2 where halves
        of bytes move, or by columns the bytes of a vector; 1 for other kernels.
    outer : int64 array of (loops, 3)
        Loops around the blocks, innermost first: rows of an `OuterLoop`.
    tables : tuple of int64 arrays
        Byte offsets within a block; see the kernel.
    geometry : int64 array
        The kernel's own numbers, a `Geometry`.
    tasks : int
    task_bytes : int
        How much a task writes.
    source_start, destination_start : int
        Bytes.
    why : str
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
        has_ways = self.ways > 1 and not self.kernel.startswith("assemble")
        name = f"{self.kernel} {self.ways} ways" if has_ways else self.kernel
        size = self.tasks * self.task_bytes
        steps = f" ({', '.join(one.kernel for one, _, _ in self.inner)})" if self.inner else ""
        return f"{name}, {self.width}-byte units, {counted(self.tasks, 'task')}, about {size} bytes: {self.why}{steps}"


def geometry_table(geometry: Geometry) -> NDArray[np.int64]:
    return np.array(geometry, np.int64)


def outer_table(loops: Sequence[Loop]) -> NDArray[np.int64]:
    """Return loops around the blocks as a table."""
    rows = [OuterLoop(k.size, k.source_stride, k.destination_stride) for k in loops]
    return np.array(rows, np.int64).reshape(len(rows), 3)


def iterations(loops: Sequence[Loop]) -> int:
    """Return how often loops run together."""
    return math.prod(k.size for k in loops)


def readable_bytes(nest: Nest, width: int) -> int:
    """Return how many bytes may be read from the start of the source on."""
    return width + sum((k.size - 1) * max(k.source_stride, 0) for k in nest.loops)
