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
from fastindex.cuda.kernels.device import THREADS, cuda, device_function, one_of, several
from fastindex.cuda.kernels.geometry import PaddedGeometry, SwizzledGeometry, TileGeometry
from fastindex.cuda.kernels.loops import HEADER_BYTES, LOOP_BYTES, TILE_ROWS, tile_of_two_loops
from fastindex.cuda.kernels.loops import tile as any_tile
from fastindex.cuda.kernels.memory import LOAD, LOAD_SHARED, STORE, STORE_SHARED, load_int64, shared_memory
from fastindex.cuda.kernels.registers import high_halves, low_halves, turned_bytes, words

#: Rows and columns of tiles; a kernel has code for several.
Sizes = Sequence[tuple[int, int]]


class Tile(NamedTuple):
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


def tile_kernel(name: str, tiles: Sequence[Tile], resident: int, common_path: bool = False) -> Kernel:
    """Make a kernel that transposes tiles of several kinds.

    Full tiles take a branch-free path, on which the loads of four vectors are in flight at once. With `common_path`,
    every tile is full and there are two loops: for counting instructions.
    """
    shared = shared_memory(max(tile.geometry.size for tile in tiles))
    move = one_of([_transpose(tile, common_path) for tile in tiles])

    def transpose_tiles(destination, source, table, loops, which, extra):  # type: ignore[no-untyped-def]
        move(which, shared(), destination, source, table, loops, extra)

    return Kernel(transpose_tiles, f"{name} {common_path}" if common_path else name, resident=resident)


def _transpose(tile: Tile, common_path: bool) -> Callable[..., None]:
    """Make the function that transposes a tile."""
    geometry, load, put, take, store = tile
    # Numba can capture functions and numbers, but not the objects that hold them.
    reading, writing = geometry.reading, geometry.writing
    begin_reading, rows_on, vectors_on, read_place = reading.begin, reading.across, reading.along, reading.place
    begin_writing, columns_on, parts_on, write_place = writing.begin, writing.across, writing.along, writing.place
    read_steps, write_steps = reading.steps, writing.steps
    tile_rows, tile_columns, columns_at_once = geometry.tile_rows, geometry.tile_columns, geometry.columns
    rows_at_once, read_bytes, written_bytes = geometry.rows, geometry.read_bytes, geometry.written_bytes
    read_together, write_together = math.gcd(read_steps, 4 // geometry.packed), math.gcd(write_steps, 4)
    tile_at = tile_of_two_loops if common_path else any_tile

    @device_function
    def row_place(number: Any, places: Any) -> Any:
        return load_int64(places + 8 * number)

    @device_function
    def row_at(number: Any, source: Any, place: Any) -> Any:
        return load(source + place)

    row_places_of, rows_at = several(geometry.packed, row_place), several(geometry.packed, row_at, ("place",))

    @device_function
    def places_of_step(number: Any, first: Any, places: Any) -> Any:
        return row_places_of(places + 8 * rows_on(first + number))

    @device_function
    def rows_of_step(number: Any, first: Any, source: Any, place: Any) -> Any:
        return rows_at(source + vectors_on(first + number) * read_bytes, place)

    @device_function
    def put_step(number: Any, first: Any, memory: Any, cell: Any, rows: Any, extra: Any) -> None:
        put(read_place(memory, cell, first + number), rows, extra)

    @device_function
    def column_place(number: Any, first: Any, places: Any) -> Any:
        return load_int64(places + 8 * columns_on(first + number))

    @device_function
    def take_step(number: Any, first: Any, memory: Any, cell: Any) -> Any:
        return take(write_place(memory, cell, first + number))

    @device_function
    def write_step(number: Any, first: Any, destination: Any, place: Any, value: Any) -> None:
        store(destination + place + parts_on(first + number) * written_bytes, value)

    places_together = several(read_together, places_of_step)
    rows_together = several(read_together, rows_of_step, ("place",))
    put_together = several(read_together, put_step, ("rows",), returns=False)
    column_places, take_together = several(write_together, column_place), several(write_together, take_step)
    write_steps_together = several(write_together, write_step, ("place", "value"), returns=False)

    @device_function
    def read(memory: Any, source: Any, table: Any, rows: Any, columns: Any, extra: Any) -> None:
        row, vector, cell = begin_reading(np.uint32(cuda.threadIdx.x))
        source += np.int64(vector) * read_bytes
        table += 8 * np.int64(row)
        if common_path or (rows == tile_rows and columns == tile_columns):
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
        if common_path or (rows == tile_rows and columns == tile_columns):
            for k in range(0, write_steps, write_together):
                places = column_places(k, table)
                write_steps_together(k, destination, places, take_together(k, memory, cell))
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
def transpose_kernel(width: int, sizes: Sizes, common_path: bool = False) -> Kernel:
    """Make the kernel that transposes tiles of `sizes`, 16 bytes at a time on both sides.

    Numbers of rows and of columns, and all offsets, are multiples of 16 bytes. Elements below 4 bytes are first
    combined to words of several rows.
    """
    tiles = [_of_vectors(width, SwizzledGeometry(width, *size, THREADS)) for size in sizes]
    # Words of four rows take more registers.
    return tile_kernel(f"transpose {width} {sizes}", tiles, 5 if width == 1 else 6, common_path)


def _of_vectors(width: int, geometry: SwizzledGeometry) -> Tile:
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

    @device_function
    def put_word_of_bytes(number: Any, at: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        w0, w1, w2, w3 = turned_bytes(a, b, c, d)
        put_words(at + 4 * pitch * number, w0, w1, w2, w3)

    put_words_of_bytes = several(4, put_word_of_bytes, ("a", "b", "c", "d"), returns=False)

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
    return Tile(geometry, LOAD[16], put, LOAD_SHARED[16], STORE[16])


@cache
def scalar_transpose_kernel(width: int, sizes: Sizes, common_path: bool = False) -> Kernel:
    """Make the kernel that transposes tiles of `sizes`, element by element, at any alignment."""
    store_cell = STORE_SHARED[width]

    @device_function
    def put(at: Any, rows: Any, extra: Any) -> None:
        store_cell(at, rows[0])

    geometries = [PaddedGeometry((width, width), size, THREADS) for size in sizes]
    tiles = [Tile(one, LOAD[width], put, LOAD_SHARED[width], STORE[width]) for one in geometries]
    return tile_kernel(f"transpose elements {width} {sizes}", tiles, 6, common_path)
