"""Run loops on the GPU: launches chosen by the alignment of addresses, with tables cached in GPU memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import division
from fastindex.algebra.loops import RelayoutLoops
from fastindex.core.shape import Shape
from fastindex.cuda import numbers as cuda_tables
from fastindex.cuda.arrays import DeviceArray
from fastindex.cuda.gathers import gather, unit_of
from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.copies import copy_kernel, fill_kernel, weave_kernel
from fastindex.cuda.kernels.device import THREADS
from fastindex.cuda.kernels.rows import part_rows_kernel, weave_rows_kernel
from fastindex.cuda.kernels.shifts import packing_kernel, shift_kernel
from fastindex.cuda.kernels.stages import staged_kernel
from fastindex.cuda.kernels.tiles import scalar_transpose_kernel, transpose_kernel
from fastindex.cuda.kernels.word_tiles import word_transpose_kernel
from fastindex.cuda.launches.launches import MOST_LAUNCHES, STAGE_BYTES, VECTOR_BYTES, converting_launches, launches
from fastindex.cuda.launches.records import Launch
from fastindex.cuda.queues import Queue, Tables, watched
from fastindex.errors import FastIndexError
from fastindex.index.programs import conversion_program


@dataclass(frozen=True, slots=True)
class _Started:
    """A launch without its addresses: its kernel, number of blocks, offset of its table, and other arguments."""

    launch: Launch
    kernel: Kernel
    blocks: int
    table_start: int
    others: tuple[int, ...]


class Movement:
    """A move of values of `width` bytes from one side to the other on the GPU.

    Without loops that both sides share, slots are gathered one by one. With `packed`, a number of bits and a direction,
    one side has packed elements of these bits ("expand": the source, "compress": the destination), and the other has a
    byte for each.
    """

    def __init__(
        self,
        loops: RelayoutLoops | None,
        sides: tuple[Shape, Shape] | None,
        width: int,
        packed: tuple[int, Literal["expand", "compress"]] | None = None,
    ) -> None:
        self._loops = loops
        self._sides = sides
        self._width = width
        self._packed = packed
        self._plans: dict[int, tuple[tuple[_Started, ...], NDArray[np.int64]] | None] = {}
        self._tables = Tables()

    def run(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> bool:
        """Move, and write `pattern`, `width` bytes long, to all padding; do not wait for the GPU.

        Returns
        -------
        bool
            Whether it has moved: packed elements cannot always be converted while they move.
        """
        alignment = math.gcd(VECTOR_BYTES, source.address, target.address)
        if alignment not in self._plans:
            self._plans[alignment] = self._planned(alignment)
        plan = self._plans[alignment]
        if plan is None:
            if self._packed is not None:
                return False
            self._gather(source, target, pattern, queue)
            return True
        started, numbers = plan
        if not started:
            return True
        table = self._tables.place(alignment, numbers, queue)
        with watched((table.address, table.nbytes), source, target):
            for one in started:
                _start(one, source, target.address, table.address, pattern, queue)
        return True

    def _planned(self, alignment: int) -> tuple[tuple[_Started, ...], NDArray[np.int64]] | None:
        """Return the launches and their tables; None if slots are gathered, or packed elements cannot be converted."""
        if self._loops is None:
            return None
        if self._packed is not None:
            bits, direction = self._packed
            converting = converting_launches(self._loops, bits, direction == "expand", alignment)
            return None if converting is None else _started(converting)
        found = launches(self._loops, self._width, alignment)
        if self._sides is not None and len(found) > MOST_LAUNCHES:
            return None
        return _started(found)

    def _gather(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        sides = self._sides
        assert sides is not None
        if math.gcd(self._width, source.address, target.address) < self._width:
            raise FastIndexError(
                f"a buffer of {self._width}-byte elements must start at a multiple of {self._width} bytes to move "
                "slot by slot; copy it to separate memory"
            )
        gather(conversion_program(sides[1], sides[0]), self._width, source, target, pattern, queue)


def _started(found: Sequence[Launch]) -> tuple[tuple[_Started, ...], NDArray[np.int64]]:
    """Return launches with their kernels, and their tables concatenated."""
    started: list[_Started] = []
    tables = [np.empty(0, np.int64)]
    for launch in found:
        others: tuple[int, ...] = (len(launch.loops),)
        if launch.tile is None:
            others = (launch.units, *others)
        if launch.pieces is not None:
            others = (*others, launch.length)
        if launch.kernel in ("weave", "part", "shift", "weave rows", "part rows"):
            others = (*others, launch.step)
        blocks = cuda_tables.blocks(launch.kernel, launch.units, THREADS)
        start = sum(table.nbytes for table in tables)
        started.append(_Started(launch, _kernel_of(launch), blocks, start, others))
        tables.append(table_of(launch))
    return tuple(started), np.concatenate(tables)


def table_of(launch: Launch) -> NDArray[np.int64]:
    """Return the numbers that the kernel of a launch reads."""
    loops = []
    for loop in (*(() if launch.pieces is None else (launch.pieces,)), *launch.loops):
        constants = division(loop.size, 1)
        loops.append((loop.size, constants.magic, constants.shift, loop.source_stride, loop.destination_stride))
    tile = launch.tile
    if tile is None:
        return cuda_tables.table(loops)
    header = (tile.rows, tile.tile_rows, tile.tile_columns, tile.columns, tile.skew)
    places = (*tile.row_places, *tile.column_places)
    if launch.kernel == "transpose words":
        places = (*places, min(tile.row_places), max(tile.row_places))
    return cuda_tables.table(loops, header, places)


def _kernel_of(launch: Launch) -> Kernel:
    width, tile = launch.width, launch.tile
    match launch.kernel:
        case "copy":
            return copy_kernel(width)
        case "fill":
            return fill_kernel(width)
        case "shift":
            return shift_kernel(width)
        case "expand" | "compress":
            return packing_kernel(width, launch.kernel == "expand")
        case "weave" | "part":
            return weave_kernel(width, launch.kernel == "part")
        case "weave rows":
            return weave_rows_kernel(4 // width)
        case "part rows":
            return part_rows_kernel(4 // width)
        case "transpose" if tile is not None:
            return transpose_kernel(width, *tile.room)
        case "transpose words" if tile is not None:
            return word_transpose_kernel(width, *tile.room)
        case "transpose elements" if tile is not None:
            return scalar_transpose_kernel(width, *tile.room)
        case _:
            return staged_kernel(width, launch.kernel == "unstage", launch.words, STAGE_BYTES)


def _start(started: _Started, source: DeviceArray, target: int, table: int, pattern: bytes, queue: Queue) -> None:
    launch, table = started.launch, table + started.table_start
    target += launch.destination_start
    if launch.kernel == "fill":
        low, high = unit_of(pattern[launch.step :] + pattern[: launch.step], VECTOR_BYTES)
        queue.launch(started.kernel, started.blocks, target, low, high, table, *started.others)
    elif launch.kernel == "shift":
        start, others = launch.source_start, started.others
        queue.launch(started.kernel, started.blocks, target, source.address, start, table, *others, *source.extent)
    else:
        place = source.address + launch.source_start
        ends = source.extent if launch.kernel in ("transpose words", "weave rows", "part rows") else ()
        queue.launch(started.kernel, started.blocks, target, place, table, *started.others, *ends)
