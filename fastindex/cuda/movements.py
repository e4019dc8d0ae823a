"""Moves on the GPU, from loops to kernels: launches chosen by the alignment of addresses, with tables in GPU memory.

A cast gives the CPU's results. If both sides hold plain values and share loops, one kernel converts and moves them.
Otherwise, for packed elements and tiles that share no loops, elements are first converted without a change of layout,
and then moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import Cast, cast_of, of_type
from fastindex.algebra.forms import division
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, relayout_loops
from fastindex.algebra.shared_digits import Strides
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape
from fastindex.core.sizes import SlotFormat, slot_format
from fastindex.cuda import numbers as cuda_tables
from fastindex.cuda.arrays import DeviceArray, new_device_array
from fastindex.cuda.index_programs import gather
from fastindex.cuda.kernels.casts import cast_kernel, cast_rows_kernel, cast_transpose_kernel
from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS
from fastindex.cuda.kernels.granules import (
    ROW_COUNTS,
    SHIFTED_BITS,
    deinterleave_rows_kernel,
    interleave_rows_kernel,
    shift_kernel,
)
from fastindex.cuda.kernels.memory import WIDTHS
from fastindex.cuda.kernels.stages import STAGED_UNITS, staged_kernel
from fastindex.cuda.kernels.tiles import scalar_transpose_kernel, transpose_kernel, word_transpose_kernel
from fastindex.cuda.kernels.units import (
    FEW_ROWS,
    PACKED_BITS,
    copy_kernel,
    fill_kernel,
    interleave_kernel,
    pack_bits_kernel,
    packing_kernel,
)
from fastindex.cuda.launches.casts import cast_launches
from fastindex.cuda.launches.launches import (
    ELEMENT_TILES,
    MOST_LAUNCHES,
    STAGE_BYTES,
    VECTOR_BYTES,
    VECTOR_TILES,
    WORD_BYTES,
    converting_launches,
    launches,
)
from fastindex.cuda.launches.records import Launch
from fastindex.cuda.queues import Queue, Tables
from fastindex.errors import FastIndexError
from fastindex.index.programs import conversion_program
from fastindex.moving.problem import loops_of_values, packed_byte, packing_loops, slot_move, unpacking_loops

_NO_NUMBERS = np.empty(0, np.int64)


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
        self._sides = sides
        self._width = width
        self._packed = packed
        self._plans = _Plans(partial(_chosen, loops, width, packed, sides is not None))

    def run(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> bool:
        """Move, and write `pattern`, `width` bytes long, to all padding; do not wait for the GPU.

        Returns
        -------
        bool
            Whether it has moved: packed elements cannot always be converted while they move.
        """
        if self._plans.run(source, target, pattern, queue):
            return True
        if self._packed is None:
            self._gather(source, target, pattern, queue)
        return self._packed is None

    def _gather(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        sides = self._sides
        assert sides is not None
        if math.gcd(self._width, source.address, target.address) < self._width:
            raise FastIndexError(
                f"a buffer of {self._width}-byte elements must start at a multiple of {self._width} bytes to move "
                "slot by slot; copy it to separate memory"
            )
        gather(conversion_program(sides[1], sides[0]), self._width, source, target, pattern, queue)


def _chosen(
    loops: RelayoutLoops | None,
    width: int,
    packed: tuple[int, Literal["expand", "compress"]] | None,
    may_gather: bool,
    alignments: tuple[int, int],
) -> Sequence[Launch] | None:
    """Return the launches of a move; None if slots are gathered, or packed elements cannot be converted."""
    if loops is None:
        return None
    alignment = math.gcd(*alignments)
    if packed is not None:
        bits, direction = packed
        return converting_launches(loops, bits, direction == "expand", alignment)
    found = launches(loops, width, alignment)
    return None if may_gather and len(found) > MOST_LAUNCHES else found


class CastLoops:
    """Loops that convert elements on the GPU to another type."""

    def __init__(self, loops: RelayoutLoops, cast: Cast) -> None:
        self._cast = cast
        self._fills = Movement(RelayoutLoops((), loops.fills), None, cast.target.nbytes)
        self._plans = _Plans(partial(cast_launches, loops, cast), cast.results)

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
        self._plans.run(source, target, pattern, queue)


class _Plans:
    """The launches of a move for each alignment of its two addresses, and their tables in GPU memory.

    Parameters
    ----------
    choose : callable
        Returns the launches for the alignments of source and destination, powers of two up to 16; or None.
    results : int64 array
        The results of a cast that are looked up: they follow the tables of the launches.
    """

    def __init__(
        self,
        choose: Callable[[tuple[int, int]], Sequence[Launch] | None],
        results: NDArray[np.int64] = _NO_NUMBERS,
    ) -> None:
        self._choose, self._results = choose, results
        self._made: dict[tuple[int, int], tuple[tuple[_Started, ...], NDArray[np.int64], int] | None] = {}
        self._tables = Tables()

    def run(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> bool:
        """Launch; return whether there are launches that do."""
        alignments = math.gcd(VECTOR_BYTES, source.address), math.gcd(VECTOR_BYTES, target.address)
        if alignments not in self._made:
            self._made[alignments] = self._planned(alignments)
        plan = self._made[alignments]
        if plan is None:
            return False
        started, numbers, results = plan
        if not started:
            return True
        table = self._tables.place(alignments, numbers, queue)
        for one in started:
            one.launch_on(queue, source, target.address, table.address, table.address + results, pattern)
        return True

    def _planned(self, alignments: tuple[int, int]) -> tuple[tuple[_Started, ...], NDArray[np.int64], int] | None:
        """Return launches, the numbers of their tables, and where the results begin, in bytes."""
        chosen = self._choose(alignments)
        if chosen is None:
            return None
        started, numbers = _started(chosen)
        return started, np.concatenate([numbers, self._results]), numbers.nbytes


@dataclass(frozen=True, slots=True)
class _Started:
    """A launch without its addresses: its kernel, number of blocks, offset of its table, and other arguments."""

    launch: Launch
    kernel: Kernel
    blocks: int
    table_start: int
    others: tuple[int, ...]

    def launch_on(
        self, queue: Queue, source: DeviceArray, target: int, table: int, results: int, pattern: bytes
    ) -> None:
        launch, others, table = self.launch, self.others, table + self.table_start
        place, target = source.address + launch.source_start, target + launch.destination_start
        sides: tuple[int, ...] = target, place
        match launch.kernel:
            case "fill":
                others = (*others, *cuda_tables.unit_of(pattern[launch.step :] + pattern[: launch.step], VECTOR_BYTES))
            case "shift":
                sides = SHIFTED_BITS.index(launch.width), target, source.address, launch.source_start
                others = (*others, *source.extent)
            case "interleave rows" | "deinterleave rows":
                kind = ROW_COUNTS.index(4 // launch.width) if launch.kernel == "interleave rows" else 0
                sides = kind, target, place, 0
                others = (*others, *source.extent)
            case "transpose words":
                others = (*others, *source.extent)
            case _ if launch.cast is not None:
                others = (*others, results)
        queue.launch(self.kernel, self.blocks, *sides, table, *others)


def _started(found: Sequence[Launch]) -> tuple[tuple[_Started, ...], NDArray[np.int64]]:
    """Return launches with their kernels, and their tables concatenated."""
    started: list[_Started] = []
    tables = [_NO_NUMBERS]
    for launch in found:
        kernel, last = _kernel_of(launch)
        loops = len(launch.loops)
        others = (loops, *last) if launch.tile is not None else (launch.units, loops, *last)
        blocks = cuda_tables.blocks(launch.kernel, launch.units, THREADS)
        start = sum(table.nbytes for table in tables)
        started.append(_Started(launch, kernel, blocks, start, others))
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


def _kernel_of(launch: Launch) -> tuple[Kernel, tuple[int, ...]]:
    """Return the kernel of a launch, and its arguments after the loops: the number of a kind, and what is not cast."""
    width, tile, cast = launch.width, launch.tile, launch.cast
    match launch.kernel:
        case "copy":
            return copy_kernel(), (WIDTHS.index(width), 0, 0)
        case "fill":
            return fill_kernel(), (WIDTHS.index(width),)
        case "compress" | "expand":
            return packing_kernel(launch.kernel == "expand"), (PACKED_BITS.index(width), 0, 0)
        case "interleave" | "deinterleave":
            first = len(FEW_ROWS) if launch.kernel == "deinterleave" else 0
            return interleave_kernel(), (first + FEW_ROWS.index(4 // width), launch.step, 0)
        case "shift":
            return shift_kernel(), (launch.length, 0)
        case "interleave rows":
            return interleave_rows_kernel(), (launch.length, launch.step)
        case "deinterleave rows":
            return deinterleave_rows_kernel(4 // width), (launch.length, launch.step)
        case "transpose" if tile is not None:
            # With fewer rows first, the assembler spills no registers.
            sizes = tuple(sorted(VECTOR_TILES[width]))
            return transpose_kernel(width, sizes), (sizes.index(tile.capacity), 0)
        case "transpose words" if tile is not None:
            return word_transpose_kernel(width, *tile.capacity), ()
        case "transpose elements" if tile is not None:
            sizes = ELEMENT_TILES[width]
            return scalar_transpose_kernel(width, sizes), (sizes.index(tile.capacity), 0)
        case "cast" if cast is not None:
            return cast_kernel(cast.code, cast.columns), (0, 0)
        case "cast rows" | "cast parts" if cast is not None:
            kernel = cast_rows_kernel(cast.code, cast.rows, cast.columns, launch.kernel == "cast parts")
            return kernel, (launch.step,)
        case "cast transpose" if cast is not None:
            return cast_transpose_kernel(cast.code, cast.rows, cast.columns), (0,)
        case _:
            kind = STAGED_UNITS.index((width, WORD_BYTES if launch.words else width))
            return staged_kernel(STAGE_BYTES), (kind, int(launch.kernel == "unstage"))


# Between the slots of two sides


class Transfer:
    """A move on the GPU from the slots of one side to those of the other."""

    def __init__(self, source: Shape | Strides, destination: Shape | Strides, movement: Movement) -> None:
        self._slots = slot_move(source, destination)
        self._counts = _count(source), _count(destination)
        self._movement = movement
        # Packed elements are unpacked, or packed, while they move, if their runs allow it.
        move = self._slots
        self._fused: Movement | None = None
        if move.conversion is not None and move.loops is not None:
            bits = (move.source if move.conversion == "expand" else move.destination).bits
            self._fused = Movement(move.loops, None, 1, (bits, move.conversion))

    def run(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        """Move, without waiting for the GPU."""
        move = self._slots
        values = pattern if move.unit == "value" else move.padding(pattern)
        if self._fused is not None:
            packed = move.destination.is_packed
            padding = packed_byte(pattern, move.destination.bits) if packed else pattern
            if self._fused.run(source, target, padding, queue):
                return
        if move.unit == "value":
            source = _to_values(source, move.source, self._counts[0], queue)
        if move.unit != "value" or move.destination.is_plain or self._counts[1] == 0:
            self._movement.run(source, target, values, queue)
            return
        unpacked = scratch(target, self._counts[1] * move.width, queue)
        self._movement.run(source, unpacked, values, queue)
        _to_slots(unpacked, target, move.destination, self._counts[1], queue)


def _count(side: Shape | Strides) -> int:
    return side.slot_count if isinstance(side, Shape) else 0


@lru_cache(maxsize=512)
def transfer(source: Shape | Strides, destination: Shape | Strides) -> Transfer | None:
    """Return the move, or None if strides and tiles share no loops."""
    move = slot_move(source, destination)
    sides = None
    if isinstance(source, Shape) and isinstance(destination, Shape) and move.unit != "byte":
        sides = source, destination
    if move.loops is None and sides is None:
        return None
    return Transfer(source, destination, Movement(move.loops, sides, move.width))


def sure_transfer(source: Shape | Strides, destination: Shape | Strides) -> Transfer:
    """Return the move between two sides for which there is one."""
    found = transfer(source, destination)
    assert found is not None
    return found


def scratch(like: DeviceArray, size: int, queue: Queue) -> DeviceArray:
    """Return scratch memory of the library of `like`, which reuses it in the order of the stream."""
    return new_device_array(like, (size,), np.uint8, queue.handle)[1]


def _to_values(slots: DeviceArray, form: SlotFormat, count: int, queue: Queue) -> DeviceArray:
    """Return the unpacked values of the slots of a buffer; the buffer itself if it holds plain values."""
    if form.is_plain or count == 0:
        return slots
    values = scratch(slots, count * form.value_bytes, queue)
    _unpacking(count, form).run(slots, values, bytes(1), queue)
    return values


def _to_slots(values: DeviceArray, target: DeviceArray, form: SlotFormat, count: int, queue: Queue) -> None:
    if not form.is_packed:
        _packing(count, form).run(values, target, bytes(1), queue)
        return
    blocks = -(-count // (8 * THREADS))
    kind = PACKED_BITS.index(form.bits)
    queue.launch(pack_bits_kernel(), blocks, target.address, values.address, count, kind)


@lru_cache(maxsize=64)
def _unpacking(count: int, form: SlotFormat) -> Movement:
    if form.is_packed:
        return Movement(RelayoutLoops((Nest((Loop(count, 1, 1),)),), ()), None, 1, (form.bits, "expand"))
    return Movement(unpacking_loops(form, count), None, 1)


@lru_cache(maxsize=64)
def _packing(count: int, form: SlotFormat) -> Movement:
    return Movement(packing_loops(form, count), None, 1)


# Casts


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
            source = _to_values(source, slot_format(self._source), self._source.slot_count, queue)
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
