"""GPU kernels that transpose tiles in shared memory; each block moves one tile. Table layout: `cuda.numbers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, cuda, device_function, one_of
from fastindex.cuda.kernels.geometry import Lines, TileGeometry
from fastindex.cuda.kernels.loops import HEADER_BYTES, LOOP_BYTES, TILE_ROWS, tile_of_two_loops
from fastindex.cuda.kernels.loops import tile as any_tile
from fastindex.cuda.kernels.memory import LOAD, LOAD_SHARED, STORE, STORE_SHARED, load_int64, shared_memory
from fastindex.cuda.kernels.registers import high_halves, low_halves, turned_bytes, words

_WARP = 32


#: Rows and columns of tiles; a kernel has code for several.
Sizes = Sequence[tuple[int, int]]


@cache
def transpose_kernel(width: int, sizes: Sizes, common_path: bool = False) -> Kernel:
    """Make the kernel that transposes tiles, 16 bytes at a time on both sides.

    Parameters: destination, source, table, loops, and which of `sizes` a tile has. Consecutive columns are adjacent in
    the source, consecutive rows in the destination. The table ends with the byte offset of each row of a tile in the
    source, and of each column in the destination. Numbers of rows and of columns, and all offsets, are multiples of 16
    bytes. With `common_path`, every tile is full and there are two loops: for counting instructions.

    `TileGeometry` defines the layout of a tile in shared memory. Elements below 4 bytes are first combined to words of
    several rows. Full tiles take a branch-free path, on which all loads of a thread are in flight at once, in 32-bit
    arithmetic: Numba's integers have 64 bits unless each result is cast.
    """
    shared = shared_memory(max(width * rows * columns for rows, columns in sizes))
    move = one_of([_vector_transpose(width, *size, common_path) for size in sizes])

    def transpose_tiles(destination, source, table, loops, which):  # type: ignore[no-untyped-def]
        move(which, shared(), destination, source, table, loops)

    # Words of four rows take more registers.
    resident = 5 if width == 1 else 6
    return Kernel(transpose_tiles, "iiiii", f"transpose {width} {sizes} {common_path}", resident=resident)


def _vector_transpose(width: int, tile_rows: int, tile_columns: int, common_path: bool) -> Callable[..., None]:
    """Make the function that transposes a tile 16 bytes at a time."""
    geometry = TileGeometry(width, tile_rows, tile_columns, THREADS)
    vector, packed, pitch = geometry.vector, geometry.packed, geometry.pitch
    load, store = LOAD[16], STORE[16]
    load_granule = LOAD_SHARED[16]
    store_word, store_eight, store_granule = STORE_SHARED[4], STORE_SHARED[8], STORE_SHARED[16]
    reading, writing = geometry.reading, geometry.writing
    # Numba can capture functions, but not the objects that hold them.
    begin_reading, rows_on, vectors_on, read_cell = reading.begin, reading.across, reading.along, reading.cell
    begin_writing, columns_on, granules_on, write_cell = writing.begin, writing.across, writing.along, writing.cell
    read_steps, write_steps = reading.steps, writing.steps
    tile = tile_of_two_loops if common_path else any_tile
    lane_mask, warp_shift = np.uint32(_WARP - 1), np.uint32(5)
    # A thread has four 16-byte loads in flight: of one step if a word packs four rows, else of several steps.
    together = 4 // packed
    read_groups, read_left = divmod(reading.steps, together)
    write_groups, write_left = divmod(writing.steps, 4)
    if read_left or write_left or vector * width != 16:
        raise ValueError(f"tiles of {tile_rows} by {tile_columns} do not fill {THREADS} threads")

    @device_function
    def next_column(at: Any, cell: Any) -> Any:
        return at + pitch

    @device_function
    def swapped_with(at: Any, cell: Any) -> Any:
        return at - np.int64(cell) + np.int64(np.uint32(cell ^ np.uint32(pitch)))

    # If neighbouring columns are swapped, the second may come before the first.
    second = swapped_with if geometry.swaps_columns else next_column

    @device_function
    def put_words(at: Any, next_at: Any, w0: Any, w1: Any, w2: Any, w3: Any) -> None:
        store_word(at, w0)
        store_word(next_at, w1)
        store_word(at + 2 * pitch, w2)
        store_word(next_at + 2 * pitch, w3)

    @device_function
    def put_bytes(at: Any, next_at: Any, r0: Any, r1: Any, r2: Any, r3: Any) -> None:
        a0, a1, a2, a3 = words(r0)
        b0, b1, b2, b3 = words(r1)
        c0, c1, c2, c3 = words(r2)
        d0, d1, d2, d3 = words(r3)
        w0, w1, w2, w3 = turned_bytes(a0, b0, c0, d0)
        put_words(at, next_at, w0, w1, w2, w3)
        w0, w1, w2, w3 = turned_bytes(a1, b1, c1, d1)
        put_words(at + 4 * pitch, next_at + 4 * pitch, w0, w1, w2, w3)
        w0, w1, w2, w3 = turned_bytes(a2, b2, c2, d2)
        put_words(at + 8 * pitch, next_at + 8 * pitch, w0, w1, w2, w3)
        w0, w1, w2, w3 = turned_bytes(a3, b3, c3, d3)
        put_words(at + 12 * pitch, next_at + 12 * pitch, w0, w1, w2, w3)

    @device_function
    def put_halves(at: Any, next_at: Any, r0: Any, r1: Any) -> None:
        a0, a1, a2, a3 = words(r0)
        b0, b1, b2, b3 = words(r1)
        put_words(at, next_at, low_halves(a0, b0), high_halves(a0, b0), low_halves(a1, b1), high_halves(a1, b1))
        at, next_at = at + 4 * pitch, next_at + 4 * pitch
        put_words(at, next_at, low_halves(a2, b2), high_halves(a2, b2), low_halves(a3, b3), high_halves(a3, b3))

    @device_function
    def put_four_elements(at: Any, next_at: Any, value: Any) -> None:
        w0, w1, w2, w3 = words(value)
        put_words(at, next_at, w0, w1, w2, w3)

    @device_function
    def put_two_elements(at: Any, next_at: Any, value: Any) -> None:
        store_eight(at, value[0])
        store_eight(next_at, value[1])

    @device_function
    def put_element(at: Any, next_at: Any, value: Any) -> None:
        store_granule(at, value)

    put_vector = {4: put_four_elements, 8: put_two_elements}.get(width, put_element)

    @device_function
    def read_byte_rows(memory: Any, cell: Any, source: Any, row_places: Any) -> None:
        for k in range(read_groups):
            s, r = source + vectors_on(k) * 16, row_places + 8 * rows_on(k)
            p0, p1, p2, p3 = load_int64(r), load_int64(r + 8), load_int64(r + 16), load_int64(r + 24)
            v0, v1, v2, v3 = load(s + p0), load(s + p1), load(s + p2), load(s + p3)
            c = cell ^ read_cell(k)
            at = memory + np.int64(c)
            put_bytes(at, second(at, c), v0, v1, v2, v3)

    @device_function
    def read_half_rows(memory: Any, cell: Any, source: Any, row_places: Any) -> None:
        for group in range(read_groups):
            i, j = 2 * group, 2 * group + 1
            s, r = source + vectors_on(i) * 16, row_places + 8 * rows_on(i)
            p0, p1 = load_int64(r), load_int64(r + 8)
            t, r = source + vectors_on(j) * 16, row_places + 8 * rows_on(j)
            p2, p3 = load_int64(r), load_int64(r + 8)
            v0, v1, v2, v3 = load(s + p0), load(s + p1), load(t + p2), load(t + p3)
            c = cell ^ read_cell(i)
            at = memory + np.int64(c)
            put_halves(at, second(at, c), v0, v1)
            c = cell ^ read_cell(j)
            at = memory + np.int64(c)
            put_halves(at, second(at, c), v2, v3)

    @device_function
    def read_vectors(memory: Any, cell: Any, source: Any, row_places: Any) -> None:
        for group in range(read_groups):
            g, h, i, j = 4 * group, 4 * group + 1, 4 * group + 2, 4 * group + 3
            p0 = load_int64(row_places + 8 * rows_on(g))
            p1 = load_int64(row_places + 8 * rows_on(h))
            p2 = load_int64(row_places + 8 * rows_on(i))
            p3 = load_int64(row_places + 8 * rows_on(j))
            v0, v1 = load(source + p0 + vectors_on(g) * 16), load(source + p1 + vectors_on(h) * 16)
            v2, v3 = load(source + p2 + vectors_on(i) * 16), load(source + p3 + vectors_on(j) * 16)
            c = cell ^ read_cell(g)
            at = memory + np.int64(c)
            put_vector(at, second(at, c), v0)
            c = cell ^ read_cell(h)
            at = memory + np.int64(c)
            put_vector(at, second(at, c), v1)
            c = cell ^ read_cell(i)
            at = memory + np.int64(c)
            put_vector(at, second(at, c), v2)
            c = cell ^ read_cell(j)
            at = memory + np.int64(c)
            put_vector(at, second(at, c), v3)

    read_full = {1: read_byte_rows, 2: read_half_rows}.get(width, read_vectors)

    @device_function
    def write_full(memory: Any, cell: Any, destination: Any, column_places: Any) -> None:
        for group in range(write_groups):
            g, h, i, j = 4 * group, 4 * group + 1, 4 * group + 2, 4 * group + 3
            p0 = load_int64(column_places + 8 * columns_on(g))
            p1 = load_int64(column_places + 8 * columns_on(h))
            p2 = load_int64(column_places + 8 * columns_on(i))
            p3 = load_int64(column_places + 8 * columns_on(j))
            v0 = load_granule(memory + np.int64(cell ^ write_cell(g)))
            v1 = load_granule(memory + np.int64(cell ^ write_cell(h)))
            v2 = load_granule(memory + np.int64(cell ^ write_cell(i)))
            v3 = load_granule(memory + np.int64(cell ^ write_cell(j)))
            store(destination + p0 + granules_on(g) * 16, v0)
            store(destination + p1 + granules_on(h) * 16, v1)
            store(destination + p2 + granules_on(i) * 16, v2)
            store(destination + p3 + granules_on(j) * 16, v3)

    @device_function
    def put_one(at: Any, next_at: Any, source: Any, row_places: Any) -> None:
        put_vector(at, next_at, load(source + load_int64(row_places)))

    @device_function
    def put_two_rows(at: Any, next_at: Any, source: Any, row_places: Any) -> None:
        put_halves(at, next_at, load(source + load_int64(row_places)), load(source + load_int64(row_places + 8)))

    @device_function
    def put_four_rows(at: Any, next_at: Any, source: Any, row_places: Any) -> None:
        r0, r1 = load(source + load_int64(row_places)), load(source + load_int64(row_places + 8))
        r2, r3 = load(source + load_int64(row_places + 16)), load(source + load_int64(row_places + 24))
        put_bytes(at, next_at, r0, r1, r2, r3)

    put_part = {1: put_four_rows, 2: put_two_rows}.get(width, put_one)

    @device_function
    def read_part(memory: Any, cell: Any, source: Any, row_places: Any, rows: Any, columns: Any) -> None:
        """Read a partial tile step by step; `rows` and `columns` are those left from where the thread starts."""
        for k in range(read_steps):
            if rows_on(k) < rows and vectors_on(k) * vector < columns:
                c = cell ^ read_cell(k)
                at = memory + np.int64(c)
                put_part(at, second(at, c), source + vectors_on(k) * 16, row_places + 8 * rows_on(k))

    @device_function
    def write_part(memory: Any, cell: Any, destination: Any, column_places: Any, rows: Any, columns: Any) -> None:
        for k in range(write_steps):
            if granules_on(k) * vector < rows and columns_on(k) < columns:
                value = load_granule(memory + np.int64(cell ^ write_cell(k)))
                place = load_int64(column_places + 8 * columns_on(k)) + granules_on(k) * 16
                store(destination + place, value)

    @device_function
    def transpose(memory: Any, destination: Any, source: Any, table: Any, loops: Any) -> None:
        rows, columns, s, d = tile(np.uint32(cuda.blockIdx.x), table, loops)
        row_places = table + HEADER_BYTES + loops * LOOP_BYTES
        column_places = row_places + 8 * load_int64(table + TILE_ROWS)
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = np.uint32(thread & lane_mask), np.uint32(thread >> warp_shift)
        row, number, cell = begin_reading(lane, warp)
        s += source + np.int64(number) * 16
        row_places += 8 * np.int64(row)
        full = common_path or (rows == tile_rows and columns == tile_columns)
        if full:
            read_full(memory, cell, s, row_places)
        else:
            read_part(memory, cell, s, row_places, rows - np.int64(row), columns - np.int64(number) * vector)
        cuda.syncthreads()
        column, granule, cell = begin_writing(lane, warp)
        d += destination + np.int64(granule) * 16
        column_places += 8 * np.int64(column)
        if full:
            write_full(memory, cell, d, column_places)
        else:
            rows -= np.int64(granule) * vector
            write_part(memory, cell, d, column_places, rows, columns - np.int64(column))

    return transpose


@cache
def scalar_transpose_kernel(width: int, sizes: Sizes, common_path: bool = False) -> Kernel:
    """Make the kernel that transposes tiles element by element, at any alignment; parameters as `transpose_kernel`."""
    shared = shared_memory(max(width * (rows + 1) * columns for rows, columns in sizes))
    move = one_of([_scalar_transpose(width, *size, common_path) for size in sizes])

    def transpose_elements(destination, source, table, loops, which):  # type: ignore[no-untyped-def]
        move(which, shared(), destination, source, table, loops)

    return Kernel(transpose_elements, "iiiii", f"transpose elements {width} {sizes} {common_path}", resident=6)


def _scalar_transpose(width: int, tile_rows: int, tile_columns: int, common_path: bool) -> Callable[..., None]:
    """Make the function that transposes a tile of elements of at least 4 bytes."""
    pitch = (tile_rows + 1) * width
    load, store = LOAD[width], STORE[width]
    load_cell, store_cell = LOAD_SHARED[width], STORE_SHARED[width]
    reading, writing = Lines(tile_columns, tile_rows, THREADS), Lines(tile_rows, tile_columns, THREADS)
    begin_reading, rows_on, columns_along = reading.begin, reading.across, reading.along
    begin_writing, columns_on, rows_along = writing.begin, writing.across, writing.along
    steps = reading.steps
    together = min(steps, 4)
    tile = tile_of_two_loops if common_path else any_tile

    @device_function
    def read_four(k: Any, at: Any, source: Any, row_places: Any) -> None:
        i, j, m = k + 1, k + 2, k + 3
        p0, p1 = load_int64(row_places + 8 * rows_on(k)), load_int64(row_places + 8 * rows_on(i))
        p2, p3 = load_int64(row_places + 8 * rows_on(j)), load_int64(row_places + 8 * rows_on(m))
        v0, v1 = load(source + p0 + columns_along(k) * width), load(source + p1 + columns_along(i) * width)
        v2, v3 = load(source + p2 + columns_along(j) * width), load(source + p3 + columns_along(m) * width)
        store_cell(at + columns_along(k) * pitch + rows_on(k) * width, v0)
        store_cell(at + columns_along(i) * pitch + rows_on(i) * width, v1)
        store_cell(at + columns_along(j) * pitch + rows_on(j) * width, v2)
        store_cell(at + columns_along(m) * pitch + rows_on(m) * width, v3)

    @device_function
    def read_one(k: Any, at: Any, source: Any, row_places: Any) -> None:
        value = load(source + load_int64(row_places + 8 * rows_on(k)) + columns_along(k) * width)
        store_cell(at + columns_along(k) * pitch + rows_on(k) * width, value)

    @device_function
    def write_four(k: Any, at: Any, destination: Any, column_places: Any) -> None:
        i, j, m = k + 1, k + 2, k + 3
        p0, p1 = load_int64(column_places + 8 * columns_on(k)), load_int64(column_places + 8 * columns_on(i))
        p2, p3 = load_int64(column_places + 8 * columns_on(j)), load_int64(column_places + 8 * columns_on(m))
        v0 = load_cell(at + columns_on(k) * pitch + rows_along(k) * width)
        v1 = load_cell(at + columns_on(i) * pitch + rows_along(i) * width)
        v2 = load_cell(at + columns_on(j) * pitch + rows_along(j) * width)
        v3 = load_cell(at + columns_on(m) * pitch + rows_along(m) * width)
        store(destination + p0 + rows_along(k) * width, v0)
        store(destination + p1 + rows_along(i) * width, v1)
        store(destination + p2 + rows_along(j) * width, v2)
        store(destination + p3 + rows_along(m) * width, v3)

    @device_function
    def write_one(k: Any, at: Any, destination: Any, column_places: Any) -> None:
        value = load_cell(at + columns_on(k) * pitch + rows_along(k) * width)
        store(destination + load_int64(column_places + 8 * columns_on(k)) + rows_along(k) * width, value)

    read, write = (read_four, write_four) if together == 4 else (read_one, write_one)

    @device_function
    def transpose(memory: Any, destination: Any, source: Any, table: Any, loops: Any) -> None:
        rows, columns, s, d = tile(np.uint32(cuda.blockIdx.x), table, loops)
        row_places = table + HEADER_BYTES + loops * LOOP_BYTES
        column_places = row_places + 8 * load_int64(table + TILE_ROWS)
        thread = np.uint32(cuda.threadIdx.x)
        row, column = begin_reading(thread)
        at = memory + np.int64(column) * pitch + np.int64(row) * width
        s += source + np.int64(column) * width
        row_places += 8 * np.int64(row)
        full = common_path or (rows == tile_rows and columns == tile_columns)
        if full:
            for k in range(0, steps, together):
                read(k, at, s, row_places)
        else:
            for k in range(steps):
                if rows_on(k) < rows - np.int64(row) and columns_along(k) < columns - np.int64(column):
                    read_one(k, at, s, row_places)
        cuda.syncthreads()
        column, row = begin_writing(thread)
        at = memory + np.int64(column) * pitch + np.int64(row) * width
        d += destination + np.int64(row) * width
        column_places += 8 * np.int64(column)
        if full:
            for k in range(0, steps, together):
                write(k, at, d, column_places)
        else:
            for k in range(steps):
                if rows_along(k) < rows - np.int64(row) and columns_on(k) < columns - np.int64(column):
                    write_one(k, at, d, column_places)

    return transpose
