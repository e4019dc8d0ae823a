"""GPU kernels that transpose tiles in shared memory; each block moves one tile. Table layout: `cuda.numbers`.

All have the same parameters: destination, source, table, loops, which of its kinds of tiles a kernel moves, and a
number that the functions of a tile get. Consecutive columns are adjacent in the source, consecutive rows in the
destination. The table ends with the byte offset of each row of a tile in the source, and of each column in the
destination.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, Each, cuda, device_function, one_of, several
from fastindex.cuda.kernels.geometry import PaddedGeometry, SwizzledGeometry, TileGeometry, WordGeometry, tile
from fastindex.cuda.kernels.memory import LOAD, LOAD_SHARED, STORE, STORE_SHARED, load_int64, put_word, shared_memory
from fastindex.cuda.kernels.registers import (
    TURNED,
    funnelled,
    high_halves,
    low_halves,
    of_next_lane,
    turned_bytes,
    words,
)
from fastindex.cuda.numbers import HEADER_BYTES, LOOP_BYTES, TILE_COLUMNS, TILE_ROWS

#: Rows and columns of tiles; a kernel has code for several.
Sizes = Sequence[tuple[int, int]]


class Mover(NamedTuple):
    """How a tile moves.

    Attributes
    ----------
    geometry : TileGeometry
    load, store : callable
        A vector, of an address, and for `store` of what `take` returned.
    put : callable
        Stores the vectors of `geometry.packed` rows in shared memory, given the address of their cell, these vectors,
        and the last number of the kernel.
    take : callable
        Returns a vector of a column, given the address of its cell.
    """

    geometry: TileGeometry
    load: Callable[..., Any]
    put: Callable[..., None]
    take: Callable[..., Any]
    store: Callable[..., None]


def tile_kernel(name: str, tiles: Sequence[Mover], resident: int) -> Kernel:
    """Make a kernel that transposes tiles of several kinds.

    Full tiles take a branch-free path, on which the loads of four vectors are in flight at once.
    """
    shared = shared_memory(max(one.geometry.size for one in tiles))
    move = one_of([_transpose(one) for one in tiles])

    def transpose_tiles(destination, source, table, loops, which, extra):  # type: ignore[no-untyped-def]
        move(which, shared(), destination, source, table, loops, extra)

    return Kernel(transpose_tiles, name, resident, units=1)


def _transpose(mover: Mover) -> Callable[..., None]:
    """Make the function that transposes a tile."""
    geometry, load, put, take, store = mover
    # Numba can capture functions and numbers, but not the objects that hold them.
    reading, writing = geometry.reading, geometry.writing
    begin_reading, rows_on, vectors_on, read_place = reading.begin, reading.across, reading.along, reading.place
    begin_writing, columns_on, parts_on, write_place = writing.begin, writing.across, writing.along, writing.place
    read_steps, write_steps = reading.steps, writing.steps
    tile_rows, tile_columns, columns_at_once = geometry.tile_rows, geometry.tile_columns, geometry.columns
    rows_at_once, read_bytes, written_bytes = geometry.rows, geometry.read_bytes, geometry.written_bytes
    tile_at = tile
    read_together, at_once = math.gcd(read_steps, 4 // geometry.packed), math.gcd(write_steps, 4)

    @several(geometry.packed)
    def row_places_of(number: Any, places: Any) -> Any:
        return load_int64(places + 8 * number)

    @several(geometry.packed)
    def rows_at(number: Any, source: Any, place: Each) -> Any:
        return load(source + place)

    @device_function
    def places_of_step(number: Any, first: Any, places: Any) -> Any:
        return row_places_of(places + 8 * rows_on(first + number))

    @device_function
    def rows_of_step(number: Any, first: Any, source: Any, place: Each) -> Any:
        return rows_at(source + vectors_on(first + number) * read_bytes, place)

    @device_function
    def put_step(number: Any, first: Any, memory: Any, cell: Any, rows: Each, extra: Any) -> None:
        put(read_place(memory, cell, first + number), rows, extra)

    @device_function
    def column_place(number: Any, first: Any, places: Any) -> Any:
        return load_int64(places + 8 * columns_on(first + number))

    @device_function
    def take_step(number: Any, first: Any, memory: Any, cell: Any) -> Any:
        return take(write_place(memory, cell, first + number))

    @device_function
    def write_step(number: Any, first: Any, destination: Any, place: Each, value: Each) -> None:
        store(destination + place + parts_on(first + number) * written_bytes, value)

    reads, writes = several(read_together), several(at_once)
    places_together, rows_together, put_together = reads(places_of_step), reads(rows_of_step), reads(put_step)
    column_places, take_together, write_together = writes(column_place), writes(take_step), writes(write_step)

    @device_function
    def read(memory: Any, source: Any, table: Any, rows: Any, columns: Any, extra: Any) -> None:
        row, vector, cell = begin_reading(np.uint32(cuda.threadIdx.x))
        source += np.int64(vector) * read_bytes
        table += 8 * np.int64(row)
        if rows == tile_rows and columns == tile_columns:
            for k in range(0, read_steps, read_together):
                found = rows_together(k, source, places_together(k, table))
                put_together(k, memory, cell, found, extra)
        else:
            rows -= np.int64(row)
            columns -= np.int64(vector) * columns_at_once
            for k in range(read_steps):
                if rows_on(k) < rows and vectors_on(k) * columns_at_once < columns:
                    put_step(0, k, memory, cell, rows_of_step(0, k, source, places_of_step(0, k, table)), extra)

    @device_function
    def write(memory: Any, destination: Any, table: Any, rows: Any, columns: Any) -> None:
        column, part, cell = begin_writing(np.uint32(cuda.threadIdx.x))
        destination += np.int64(part) * written_bytes
        table += 8 * np.int64(column)
        if rows == tile_rows and columns == tile_columns:
            for k in range(0, write_steps, at_once):
                places = column_places(k, table)
                write_together(k, destination, places, take_together(k, memory, cell))
        else:
            rows -= np.int64(part) * rows_at_once
            columns -= np.int64(column)
            for k in range(write_steps):
                if parts_on(k) * rows_at_once < rows and columns_on(k) < columns:
                    write_step(0, k, destination, column_place(0, k, table), take_step(0, k, memory, cell))

    @device_function
    def transpose(memory: Any, destination: Any, source: Any, table: Any, loops: Any, extra: Any) -> None:
        rows, columns, s, d = tile_at(np.uint32(cuda.blockIdx.x), table, loops)
        row_places = table + HEADER_BYTES + loops * LOOP_BYTES
        read(memory, source + s, row_places, rows, columns, extra)
        cuda.syncthreads()
        write(memory, destination + d, row_places + 8 * load_int64(table + TILE_ROWS), rows, columns)

    return transpose


@cache
def transpose_kernel(width: int, sizes: Sizes) -> Kernel:
    """Make the kernel that transposes tiles of `sizes`, 16 bytes at a time on both sides.

    Numbers of rows and of columns, and all offsets, are multiples of 16 bytes. Elements below 4 bytes are first
    combined to words of several rows.
    """
    tiles = [_of_vectors(width, SwizzledGeometry(width, *size, THREADS)) for size in sizes]
    # Words of four rows take more registers.
    return tile_kernel(f"transpose {width} {sizes}", tiles, 5 if width == 1 else 6)


def _of_vectors(width: int, geometry: SwizzledGeometry) -> Mover:
    pitch = geometry.pitch
    store_word, store_eight, store_granule = STORE_SHARED[4], STORE_SHARED[8], STORE_SHARED[16]

    @device_function
    def next_column(at: Any) -> Any:
        return at + pitch

    @device_function
    def swapped_with(at: Any) -> Any:
        return at ^ pitch

    # If neighbouring columns are swapped, the second may come before the first.
    second = swapped_with if geometry.swaps_columns else next_column

    @device_function
    def put_words(at: Any, w0: Any, w1: Any, w2: Any, w3: Any) -> None:
        next_at = second(at)
        store_word(at, w0)
        store_word(next_at, w1)
        store_word(at + 2 * pitch, w2)
        store_word(next_at + 2 * pitch, w3)

    @several(4)
    def put_words_of_bytes(number: Any, at: Any, a: Each, b: Each, c: Each, d: Each) -> None:
        w0, w1, w2, w3 = turned_bytes(a, b, c, d)
        put_words(at + 4 * pitch * number, w0, w1, w2, w3)

    @device_function
    def put_bytes(at: Any, rows: Any, extra: Any) -> None:
        put_words_of_bytes(at, words(rows[0]), words(rows[1]), words(rows[2]), words(rows[3]))

    @device_function
    def put_halves(at: Any, rows: Any, extra: Any) -> None:
        a0, a1, a2, a3 = words(rows[0])
        b0, b1, b2, b3 = words(rows[1])
        put_words(at, low_halves(a0, b0), high_halves(a0, b0), low_halves(a1, b1), high_halves(a1, b1))
        at += 4 * pitch
        put_words(at, low_halves(a2, b2), high_halves(a2, b2), low_halves(a3, b3), high_halves(a3, b3))

    @device_function
    def put_four_elements(at: Any, rows: Any, extra: Any) -> None:
        w0, w1, w2, w3 = words(rows[0])
        put_words(at, w0, w1, w2, w3)

    @device_function
    def put_two_elements(at: Any, rows: Any, extra: Any) -> None:
        store_eight(at, rows[0][0])
        store_eight(second(at), rows[0][1])

    @device_function
    def put_element(at: Any, rows: Any, extra: Any) -> None:
        store_granule(at, rows[0])

    put = {1: put_bytes, 2: put_halves, 4: put_four_elements, 8: put_two_elements}.get(width, put_element)
    return Mover(geometry, LOAD[16], put, LOAD_SHARED[16], STORE[16])


@cache
def scalar_transpose_kernel(width: int, sizes: Sizes) -> Kernel:
    """Make the kernel that transposes tiles of `sizes`, element by element, at any alignment."""
    store_cell = STORE_SHARED[width]

    @device_function
    def put(at: Any, rows: Any, extra: Any) -> None:
        store_cell(at, rows[0])

    geometries = [PaddedGeometry((width, width), size, THREADS) for size in sizes]
    tiles = [Mover(one, LOAD[width], put, LOAD_SHARED[width], STORE[width]) for one in geometries]
    return tile_kernel(f"transpose elements {width} {sizes}", tiles, 6)


# Tiles of 1- and 2-byte elements whose rows and columns have any alignment: memory moves in aligned words of 4 bytes
# on both sides, which funnel shifts in registers realign. A word that is partly outside the buffer is read byte by
# byte.

_LANE, _WARP_SHIFT = np.uint32(31), np.uint32(5)


@cache
def word_transpose_kernel(width: int, tile_rows: int, tile_columns: int) -> Kernel:
    """Make the kernel that transposes tiles by words, at any alignment.

    Parameters: destination, source, table, loops, and the addresses where the source begins and ends. Consecutive
    columns are adjacent in the source, consecutive rows in the destination. The table ends with the byte offset of each
    row of a tile in the source and of each column in the destination, and with the lowest and the highest row offset.
    The rows of a tile take 31 words, one less than a warp has lanes, so that at any alignment a column spans at most
    one word per lane. A warp also reads stretches of 31 words of columns: a lane gets the bytes that its word lacks
    from the next lane.
    """
    geometry = WordGeometry(width, tile_rows, tile_columns, THREADS)
    per, pitch, steps = geometry.per_word, geometry.pitch, geometry.steps
    patch_of, column_place = geometry.patch_of, geometry.column_place
    shared = shared_memory(geometry.size)
    load_word, load_byte = LOAD[4], LOAD[1]
    load_shared, store_shared = LOAD_SHARED[4], STORE_SHARED[4]
    next_words = of_next_lane(per)
    warps = THREADS // 32
    low_byte = np.uint32(0xFF)

    @device_function
    def single_bytes(at: Any, begin: Any, end: Any) -> Any:
        value = np.uint32(0)
        for j in range(4):
            if begin <= at + j and at + j < end:
                value = np.uint32(value | np.uint32(np.uint32(load_byte(at + j) & low_byte) << np.uint32(8 * j)))
        return value

    @several(per)
    def starts_of(number: Any, source: Any, places: Any, row: Any, last: Any) -> Any:
        return source + load_int64(places + 8 * min(row + number, last))

    @several(per)
    def aligned_words(number: Any, start: Each, lane: Any) -> Any:
        return load_word((start & ~3) + lane)

    @several(per)
    def clamped_words(number: Any, start: Each, lane: Any, last_byte: Any, bounds: Any) -> Any:
        """Return the aligned word of a lane, clamped to the last byte of its row and to the whole words inside."""
        return load_word(min(max(min(start + lane, start + last_byte) & ~3, bounds[0]), bounds[1]))

    @several(per)
    def all_inside(number: Any, start: Each, lane: Any, last_byte: Any, bounds: Any) -> bool:
        at = start + lane
        last = min(at + 3, start + last_byte)
        return at & ~3 >= bounds[0] and last & ~3 <= bounds[1]  # type: ignore[no-any-return]

    @several(per)
    def all_bytes(number: Any, start: Each, lane: Any, bounds: Any) -> Any:
        return single_bytes(start + lane, bounds[2], bounds[3])

    @several(per)
    def all_shifted(number: Any, start: Each, here: Each, after: Each) -> Any:
        return funnelled(here, after, np.uint64(8 * (start & 3)))

    @several(per)
    def store_columns(number: Any, to: Any, word: Each) -> None:
        store_shared(to + number * pitch, word)

    turned = TURNED[per]

    @device_function
    def put_block(to: Any, lane: Any, starts: Any, last_byte: Any, is_there: Any, bounds: Any) -> None:
        here = clamped_words(starts, lane, last_byte, bounds)
        after = next_words(here)
        if is_there:
            if all_inside(starts, lane, last_byte, bounds):
                store_columns(to, turned(all_shifted(starts, here, after)))
            else:
                store_columns(to, turned(all_bytes(starts, lane, bounds)))

    @device_function
    def put_whole_block(to: Any, lane: Any, starts: Any, is_there: Any) -> None:
        here = aligned_words(starts, lane)
        after = next_words(here)
        if is_there:
            store_columns(to, turned(all_shifted(starts, here, after)))

    last_group = tile_rows // per - 1

    @device_function
    def read_whole(memory: Any, warp: Any, lane: Any, source: Any, row_places: Any) -> None:
        """Read a full tile whose aligned words, including the one after its last byte, are inside the buffer."""
        for step in range(steps):
            group, number = patch_of(warp, step)
            here, starts = number + lane, starts_of(source, row_places, per * min(group, last_group), tile_rows)
            to = memory + column_place(here * per) + 4 * group
            put_whole_block(to, 4 * here, starts, group <= last_group and lane < 31)

    @device_function
    def read_part(memory: Any, warp: Any, lane: Any, source: Any, row_places: Any, sizes: Any, bounds: Any) -> None:
        rows, columns = sizes
        for step in range(steps):
            group, number = patch_of(warp, step)
            starts = starts_of(source, row_places, group * per, rows - 1)
            here, column = number + lane, (number + lane) * per
            is_there = group * per < rows and column < columns and lane < 31
            to = memory + column_place(column) + 4 * group
            put_block(to, 4 * here, starts, columns * width - 1, is_there, bounds)

    def transpose_words(destination, source, table, loops, begin, end):  # type: ignore[no-untyped-def]
        memory = shared()
        rows, columns, s, d = tile(np.uint32(cuda.blockIdx.x), table, loops)
        row_places = table + HEADER_BYTES + loops * LOOP_BYTES
        column_places = row_places + 8 * load_int64(table + TILE_ROWS)
        thread = np.uint32(cuda.threadIdx.x)
        lane: Any = np.int64(np.uint32(thread & _LANE))
        warp = np.int64(np.uint32(thread >> _WARP_SHIFT))
        s += source
        # The aligned words inside the buffer; if there are none, one of the table: safe to load, and not used.
        first, last = (begin + 3) & ~3, (end & ~3) - 4
        if last < first:
            first = last = table
        extremes = column_places + 8 * load_int64(table + TILE_COLUMNS)
        lowest, highest = s + load_int64(extremes), s + load_int64(extremes + 8) + tile_columns * width
        is_full = rows == tile_rows and columns == tile_columns
        if is_full and lowest & ~3 >= first and highest & ~3 <= last:
            read_whole(memory, warp, lane, s, row_places)
        else:
            read_part(memory, warp, lane, s, row_places, (rows, columns), (first, last, begin, end))
        cuda.syncthreads()
        column = warp
        # A lane writes a word of each column, from the two words of shared memory that it overlaps.
        d += destination
        nbytes = rows * width
        last = (nbytes - 1) & ~3
        low, high = memory + min(max(4 * lane - 4, 0), last), memory + min(4 * lane, last)
        while column < columns:
            at = d + load_int64(column_places + 8 * column)
            skipped = at & 3
            stands = column_place(column)
            above, below = load_shared(high + stands), load_shared(low + stands)
            first = 4 * lane - skipped
            if first < nbytes:
                word = funnelled(below, above, np.uint64(32 - 8 * skipped))
                put_word(at + first, -first, nbytes - first, (word,))
            column += warps

    return Kernel(transpose_words, f"transpose words {width} {tile_rows} {tile_columns}", resident=4, units=1)
