"""Moves on the GPU, from loops to kernels: launches chosen by the alignment of addresses, with tables in GPU memory.

A cast gives the CPU's results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import Cast, of_type
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, relayout_loops
from fastindex.algebra.shared_digits import Strides
from fastindex.core.shape import Shape
from fastindex.core.sizes import SlotFormat, slot_format
from fastindex.cuda import numbers as cuda_tables
from fastindex.cuda.arrays import DeviceArray, new_device_array
from fastindex.cuda.index_programs import gather
from fastindex.cuda.kernels import casts, granules, stages, tiles, units
from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.memory import WIDTHS
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
from fastindex.cuda.launches.records import Launch, table_numbers
from fastindex.cuda.queues import Queue, Tables
from fastindex.errors import FastIndexError
from fastindex.index.programs import conversion_program
from fastindex.moving.movements import cast_between
from fastindex.moving.problem import SlotMove, packed_byte, packing_loops, slot_move, unpacking_loops

_NO_NUMBERS = np.empty(0, np.int64)


class Move(Protocol):
    """A move on the GPU."""

    def run(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        """Move, and write `pattern`, an unpacked element, to all padding; do not wait for the GPU."""


class Movement:
    """A move by launches, which depend on the alignment of the two addresses, with their tables in GPU memory.

    Parameters
    ----------
    loops : RelayoutLoops or None
        In values of `width` bytes. If both sides share none, slots are gathered one by one.
    width : int
        Bytes of a value of the destination.
    sides : pair of Shape, optional
        Both sides, if slots may be gathered.
    packed : (bits, direction), optional
        If one side has packed elements of these bits ("expand": the source, "compress": the destination), and the other
        has a byte for each.
    cast : Cast, optional
        If values are converted to another type.
    padding : callable, optional
        Returns `width` bytes of padding for the pattern of an unpacked element, by default the pattern.
    otherwise : Move, optional
        What moves where packed elements cannot be converted on the way.
    """

    def __init__(
        self,
        loops: RelayoutLoops | None,
        width: int,
        sides: tuple[Shape, Shape] | None = None,
        packed: tuple[int, Literal["expand", "compress"]] | None = None,
        cast: Cast | None = None,
        padding: Callable[[bytes], bytes] = bytes,
        otherwise: Move | None = None,
    ) -> None:
        self._loops, self._width, self._sides, self._packed, self._cast = loops, width, sides, packed, cast
        self._padding, self._otherwise = padding, otherwise
        self._made: dict[tuple[int, int], tuple[tuple[_Started, ...], NDArray[np.int64], int] | None] = {}
        self._tables = Tables()

    def run(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        """Do what `Move.run` does.

        Raises
        ------
        FastIndexError
            Elements that are cast, or that move slot by slot, are not aligned to their size.
        """
        alignments = math.gcd(VECTOR_BYTES, source.address), math.gcd(VECTOR_BYTES, target.address)
        if alignments not in self._made:
            self._made[alignments] = self._planned(alignments)
        plan, padding = self._made[alignments], self._padding(pattern)
        if plan is None and self._otherwise is not None:
            self._otherwise.run(source, target, pattern, queue)
        elif plan is None:
            self._gather(source, target, padding, queue)
        elif plan[0]:
            started, numbers, results = plan
            table = self._tables.place(alignments, numbers, queue)
            for one in started:
                one.launch_on(queue, source, target.address, table.address, table.address + results, padding)

    def _planned(self, alignments: tuple[int, int]) -> tuple[tuple[_Started, ...], NDArray[np.int64], int] | None:
        """Return launches, the numbers of their tables, and where the results of a cast begin there, in bytes."""
        chosen = self._chosen(alignments)
        if chosen is None:
            return None
        started, numbers = _started(chosen)
        results = _NO_NUMBERS if self._cast is None else self._cast.results
        return started, np.concatenate([numbers, results]), numbers.nbytes

    def _chosen(self, alignments: tuple[int, int]) -> Sequence[Launch] | None:
        """Return the launches; None if slots are gathered, or packed elements cannot be converted."""
        loops, cast, alignment = self._loops, self._cast, math.gcd(*alignments)
        if loops is None:
            return None
        if cast is not None:
            for aligned, kind in zip(alignments, (cast.source, cast.target), strict=True):
                if aligned % kind.nbytes:
                    raise FastIndexError(
                        f"elements of {kind.nbytes} bytes are cast on the GPU where they start at a multiple of "
                        f"{kind.nbytes} bytes; copy the array to separate memory"
                    )
            fills = launches(RelayoutLoops((), loops.fills), self._width, alignments[1])
            return (*fills, *cast_launches(loops, cast, alignments))
        if self._packed is not None:
            bits, direction = self._packed
            return converting_launches(loops, bits, direction == "expand", alignment)
        found = launches(loops, self._width, alignment, widens=bool(loops.copies))
        return None if self._sides is not None and len(found) > MOST_LAUNCHES else found

    def _gather(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        sides = self._sides
        assert sides is not None
        if math.gcd(self._width, source.address, target.address) < self._width:
            raise FastIndexError(
                f"a buffer of {self._width}-byte elements must start at a multiple of {self._width} bytes to move "
                "slot by slot; copy it to separate memory"
            )
        gather(conversion_program(sides[1], sides[0]), self._width, source, target, pattern, queue)


@dataclass(frozen=True, slots=True)
class _Started:
    """A launch without its addresses: its kernel, the offset of its table, and other arguments."""

    launch: Launch
    kernel: Kernel
    table_start: int
    others: tuple[int, ...]

    def launch_on(
        self, queue: Queue, source: DeviceArray, target: int, table: int, results: int, pattern: bytes
    ) -> None:
        launch = self.launch
        last: tuple[int, ...] = () if launch.cast is None else (results,)
        if launch.kernel == "fill":
            last = cuda_tables.unit_of(pattern[launch.step :] + pattern[: launch.step], VECTOR_BYTES)
        elif launch.kernel in ("shift", "interleave rows", "deinterleave rows", "transpose words"):
            last = source.extent
        place = (8 if launch.kernel == "shift" else 1) * source.address + launch.source_start
        sides = target + launch.destination_start, place, table + self.table_start
        queue.launch(self.kernel, launch.units, *sides, *self.others, *last)


def _started(found: Sequence[Launch]) -> tuple[tuple[_Started, ...], NDArray[np.int64]]:
    """Return launches with their kernels, and their tables concatenated."""
    started: list[_Started] = []
    tables = [_NO_NUMBERS]
    for launch in found:
        kernel, last = _kernel_of(launch)
        loops = len(launch.loops)
        others = (loops, *last) if launch.tile is not None else (launch.units, loops, *last)
        start = sum(table.nbytes for table in tables)
        started.append(_Started(launch, kernel, start, others))
        tables.append(table_of(launch))
    return tuple(started), np.concatenate(tables)


def table_of(launch: Launch) -> NDArray[np.int64]:
    """Return the numbers that the kernel of a launch reads."""
    loops = launch.loops if launch.pieces is None else (launch.pieces, *launch.loops)
    tile = launch.tile
    if tile is None:
        return table_numbers(loops)
    header = (tile.rows, tile.tile_rows, tile.tile_columns, tile.columns, tile.skew)
    places = (*tile.row_places, *tile.column_places)
    if launch.kernel == "transpose words":
        places = (*places, min(tile.row_places), max(tile.row_places))
    return table_numbers(loops, header, places)


def _kernel_of(launch: Launch) -> tuple[Kernel, tuple[int, ...]]:
    """Return the kernel of a launch, and its arguments after the loops: the number of a kind, and what is not cast."""
    width, tile, cast = launch.width, launch.tile, launch.cast
    match launch.kernel:
        case "copy":
            return units.copy_kernel(), (WIDTHS.index(width), 0, 0)
        case "fill":
            return units.fill_kernel(), (WIDTHS.index(width),)
        case "pack bits":
            return units.pack_bits_kernel(), (units.PACKED_BITS.index(width),)
        case "compress" | "expand":
            return units.packing_kernel(launch.kernel == "expand"), (units.PACKED_BITS.index(width), 0, 0)
        case "interleave" | "deinterleave":
            first = len(units.FEW_ROWS) if launch.kernel == "deinterleave" else 0
            return units.interleave_kernel(), (first + units.FEW_ROWS.index(4 // width), launch.step, 0)
        case "shift":
            return granules.shift_kernel(), (granules.SHIFTED_BITS.index(width), launch.length, 0)
        case "interleave rows":
            kind = granules.ROW_COUNTS.index(4 // width)
            return granules.interleave_rows_kernel(), (kind, launch.length, launch.step)
        case "deinterleave rows":
            return granules.deinterleave_rows_kernel(4 // width), (0, launch.length, launch.step)
        case "transpose" if tile is not None:
            # With fewer rows first, the assembler spills no registers.
            sizes = tuple(sorted(VECTOR_TILES[width]))
            return tiles.transpose_kernel(width, sizes), (sizes.index(tile.capacity), 0)
        case "transpose words" if tile is not None:
            return tiles.word_transpose_kernel(width, *tile.capacity), ()
        case "transpose elements" if tile is not None:
            sizes = ELEMENT_TILES[width]
            return tiles.scalar_transpose_kernel(width, sizes), (sizes.index(tile.capacity), 0)
        case "cast" if cast is not None:
            return casts.cast_kernel(cast.code, cast.columns), (0, 0)
        case "cast rows" | "cast parts" if cast is not None:
            kernel = casts.cast_rows_kernel(cast.code, cast.rows, cast.columns, launch.kernel == "cast parts")
            return kernel, (launch.step,)
        case "cast transpose" if cast is not None:
            return casts.cast_transpose_kernel(cast.code, cast.rows, cast.columns), (0,)
        case _:
            kind = stages.STAGED_UNITS.index((width, WORD_BYTES if launch.words else width))
            return stages.staged_kernel(STAGE_BYTES), (kind, int(launch.kernel == "unstage"))


# Between two sides


class Through:
    """A move in two steps, through `size` bytes of scratch memory."""

    def __init__(self, first: Move, size: int, then: Move) -> None:
        self._first, self._size, self._then = first, size, then

    def run(self, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue) -> None:
        # The library of the source reuses it in the order of the stream.
        _, between = new_device_array(source, (self._size,), np.uint8, queue.handle)
        self._first.run(source, between, pattern, queue)
        self._then.run(between, target, pattern, queue)


def _unpacked(source: Shape | Strides, form: SlotFormat, then: Move) -> Move:
    """Return a move of the values of a side, with what unpacks them first unless its slots hold plain values."""
    if not isinstance(source, Shape) or form.is_plain or source.slot_count == 0:
        return then
    count = source.slot_count
    if form.is_packed:
        first = Movement(_run_of(count), 1, packed=(form.bits, "expand"))
    else:
        first = Movement(unpacking_loops(form, count), 1)
    return Through(first, count * form.value_bytes, then)


def _packed(form: SlotFormat, count: int) -> Movement:
    """Return the move of values into as many slots that are packed, or wider than a value; the remainder becomes 0."""
    if form.is_packed:
        return Movement(_run_of(count), 1, packed=(form.bits, "compress"))
    return Movement(packing_loops(form, count), 1, padding=lambda _: bytes(1))


def _run_of(count: int) -> RelayoutLoops:
    return RelayoutLoops((Nest((Loop(count, 1, 1),)),) if count else (), ())


def _of_slots(source: Shape | Strides, destination: Shape | Strides, move: SlotMove) -> Move:
    """Return a move of slots: packed elements are unpacked, or packed, while they move, if their runs allow it."""
    both = (source, destination) if isinstance(source, Shape) and isinstance(destination, Shape) else None
    moved: Move = Movement(move.loops, move.width, None if move.unit == "byte" else both, padding=move.padding)
    form = move.destination
    if move.unit == "value":
        if isinstance(destination, Shape) and not form.is_plain and destination.slot_count:
            count = destination.slot_count
            moved = Through(moved, count * move.width, _packed(form, count))
        moved = _unpacked(source, move.source, moved)
    if move.conversion is None or move.loops is None:
        return moved
    bits = (move.source if move.conversion == "expand" else form).bits
    padding = partial(packed_byte, bits=bits) if form.is_packed else move.padding
    return Movement(move.loops, 1, packed=(bits, move.conversion), padding=padding, otherwise=moved)


@lru_cache(maxsize=512)
def transfer(source: Shape | Strides, destination: Shape | Strides, cast: Cast | None = None) -> Move | None:
    """Return the move, with a cast to another element type; None if strides and tiles share no loops.

    If both sides hold plain values and share loops, one kernel converts and moves them. Otherwise elements are first
    converted in the layout of the source, or if that has only strides, moved to that of the destination.
    """
    if cast is None:
        move = slot_move(source, destination)
        if move.loops is None and not (isinstance(source, Shape) and isinstance(destination, Shape)):
            return None
        return _of_slots(source, destination, move)
    loops = slot_move(source, destination, cast).loops_of_values
    if loops is not None:
        return Movement(loops, cast.target.nbytes, cast=cast)
    if isinstance(source, Shape):
        between = of_type(source, cast.target)
        values = Movement(_run_of(source.slot_count), cast.target.nbytes, cast=cast)
        converted = _unpacked(source, slot_format(source), values)
    else:
        assert isinstance(destination, Shape)
        between = of_type(destination, cast.target)
        found = transfer(source, between, cast) if relayout_loops(source, destination) is not None else None
        if found is None:
            return None
        converted = found
    then = transfer(between, destination)
    return None if then is None else Through(converted, between.nbytes, then)


def transfer_of_shapes(source: Shape, destination: Shape) -> Move:
    """Return the move between two layouts, with a cast if their element types differ."""
    found = transfer(source, destination, cast_between(source.element_type, destination.element_type, False))
    assert found is not None
    return found
