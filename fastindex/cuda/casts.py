"""Casts on the GPU: elements are converted to another type while they move, with the CPU's results.

If both sides hold plain values and share loops, one kernel converts and moves them. Otherwise, for packed elements and
tiles that share no loops, elements are first converted without a change of layout, and then moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import Cast, cast_of, of_type
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, relayout_loops
from fastindex.algebra.shared_digits import Strides
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape
from fastindex.core.sizes import slot_format
from fastindex.cuda import numbers as cuda_tables
from fastindex.cuda.arrays import DeviceArray
from fastindex.cuda.kernels.casts import cast_kernel, cast_rows_kernel, cast_transpose_kernel
from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS
from fastindex.cuda.launches.casts import cast_launches
from fastindex.cuda.launches.launches import VECTOR_BYTES
from fastindex.cuda.launches.records import Launch
from fastindex.cuda.libraries import new_device_array
from fastindex.cuda.movements import Movement, table_of
from fastindex.cuda.queues import Queue, Tables, watched
from fastindex.cuda.transfers import Transfer, sure_transfer, to_values, transfer
from fastindex.errors import FastIndexError
from fastindex.moving.problem import loops_of_values


@dataclass(frozen=True, slots=True)
class _Started:
    """A launch without its addresses: its kernel, number of blocks, offset of its table, and other arguments."""

    launch: Launch
    kernel: Kernel
    blocks: int
    table_start: int
    others: tuple[int, ...]


class CastLoops:
    """Loops that convert elements on the GPU."""

    def __init__(self, loops: RelayoutLoops, cast: Cast) -> None:
        self._loops, self._cast = loops, cast
        self._fills = Movement(RelayoutLoops((), loops.fills), None, cast.target.nbytes)
        self._plans: dict[tuple[int, int], tuple[tuple[_Started, ...], NDArray[np.int64]]] = {}
        self._tables = Tables()

    def run(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        """Move, and write `pattern`, an element of the new type, to all padding; do not wait for the GPU.

        Raises
        ------
        FastIndexError
            An address is no multiple of the bytes of its elements.
        """
        sides = (source, self._cast.source), (target, self._cast.target)
        for array, kind in sides:
            if array.address % kind.nbytes:
                raise FastIndexError(
                    f"elements of {kind.nbytes} bytes are cast on the GPU where they start at a multiple of "
                    f"{kind.nbytes} bytes; copy the array to separate memory"
                )
        self._fills.run(target, target, pattern, queue)
        alignments = math.gcd(VECTOR_BYTES, source.address), math.gcd(VECTOR_BYTES, target.address)
        if alignments not in self._plans:
            self._plans[alignments] = self._planned(alignments)
        started, numbers = self._plans[alignments]
        if not started:
            return
        table = self._tables.place(alignments[0] + 2 * VECTOR_BYTES * alignments[1], numbers, queue)
        results = table.address + numbers.nbytes - self._cast.results.nbytes
        with watched((table.address, table.nbytes), source, target):
            for one in started:
                launch = one.launch
                places = target.address + launch.destination_start, source.address + launch.source_start
                queue.launch(one.kernel, one.blocks, *places, table.address + one.table_start, *one.others, results)

    def _planned(self, alignments: tuple[int, int]) -> tuple[tuple[_Started, ...], NDArray[np.int64]]:
        """Return the launches, and their tables concatenated, followed by the table of results."""
        started: list[_Started] = []
        tables: list[NDArray[np.int64]] = []
        for launch in cast_launches(self._loops, self._cast, alignments):
            others: tuple[int, ...] = (len(launch.loops),)
            if launch.tile is None:
                others = (launch.units, *others)
            if launch.kernel in ("cast rows", "cast parts"):
                others = (*others, launch.step)
            blocks = cuda_tables.blocks(launch.kernel, launch.units, THREADS)
            start = sum(table.nbytes for table in tables)
            started.append(_Started(launch, _kernel_of(launch), blocks, start, others))
            tables.append(table_of(launch))
        return tuple(started), np.concatenate([*tables, self._cast.results])


def _kernel_of(launch: Launch) -> Kernel:
    unit = launch.cast
    assert unit is not None
    match launch.kernel:
        case "cast":
            return cast_kernel(unit.code, unit.columns)
        case "cast transpose":
            return cast_transpose_kernel(unit.code, unit.rows, unit.columns)
        case _:
            return cast_rows_kernel(unit.code, unit.rows, unit.columns, launch.kernel == "cast parts")


class CastTransfer:
    """A move on the GPU from the slots of one side to those of the other, with a cast to another element type."""

    def __init__(self, source: Shape | Strides, destination: Shape | Strides, cast: Cast) -> None:
        self._source, self._cast = source, cast
        loops = loops_of_values(source, destination)
        self._loops = None if loops is None else CastLoops(loops, cast)
        self._before: CastTransfer | CastLoops
        if self._loops is not None:
            return
        # Convert in the layout of the source, or if that has only strides, of the destination.
        side = source if isinstance(source, Shape) else destination
        assert isinstance(side, Shape)
        self._between = of_type(side, cast.target)
        self._after: Transfer = sure_transfer(self._between, destination)
        if isinstance(source, Shape):
            count = Nest((Loop(source.slot_count, 1, 1),) if source.slot_count > 1 else ())
            self._before = CastLoops(RelayoutLoops((count,) if source.slot_count else (), ()), cast)
        else:
            self._before = CastTransfer(source, self._between, cast)

    def run(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        """Move, and write `pattern`, an unpacked element of the new type, to all padding; do not wait for the GPU."""
        if self._loops is not None:
            self._loops.run(source, target, pattern, queue)
            return
        _, converted = new_device_array(target, (self._between.nbytes,), np.uint8, queue.handle)
        if isinstance(self._source, Shape):
            source = to_values(source, slot_format(self._source), self._source.slot_count, queue)
        self._before.run(source, converted, bytes(self._cast.target.nbytes), queue)
        self._after.run(converted, target, pattern, queue)


@lru_cache(maxsize=512)
def cast_transfer(source: Shape | Strides, destination: Shape | Strides, cast: Cast) -> CastTransfer | None:
    """Return the move with its cast, or None if strides and tiles share no loops."""
    if not (isinstance(source, Shape) and isinstance(destination, Shape)) and (
        relayout_loops(source, destination) is None
    ):
        return None
    return CastTransfer(source, destination, cast)


def either_transfer(
    source: tuple[Shape | Strides, ElementType], destination: tuple[Shape | Strides, ElementType]
) -> Transfer | CastTransfer | None:
    """Return the move between two sides of given element types; None if strides share no loops with a shape."""
    if source[1] == destination[1]:
        return transfer(source[0], destination[0])
    return cast_transfer(source[0], destination[0], cast_of(source[1], destination[1]))
