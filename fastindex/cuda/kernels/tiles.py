"""GPU kernels that transpose tiles in shared memory; each block moves one tile. Table layout: `cuda.numbers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, cuda, device_function, one_of, several
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
    def put_word_of_bytes(number: Any, at: Any, next_at: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        w0, w1, w2, w3 = turned_bytes(a, b, c, d)
        put_words(at + 4 * pitch * number, next_at + 4 * pitch * number, w0, w1, w2, w3)

    put_words_of_bytes = several(4, put_word_of_bytes, ("a", "b", "c", "d"), returns=False)

    @device_function
    def put_bytes(at: Any, next_at: Any, rows: Any) -> None:
        put_words_of_bytes(at, next_at, words(rows[0]), words(rows[1]), words(rows[2]), words(rows[3]))

    @device_function
    def put_halves(at: Any, next_at: Any, rows: Any) -> None:
        a0, a1, a2, a3 = words(rows[0])
        b0, b1, b2, b3 = words(rows[1])
        put_words(at, next_at, low_halves(a0, b0), high_halves(a0, b0), low_halves(a1, b1), high_halves(a1, b1))
        at, next_at = at + 4 * pitch, next_at + 4 * pitch
        put_words(at, next_at, low_halves(a2, b2), high_halves(a2, b2), low_halves(a3, b3), high_halves(a3, b3))

    @device_function
    def put_four_elements(at: Any, next_at: Any, rows: Any) -> None:
        w0, w1, w2, w3 = words(rows[0])
        put_words(at, next_at, w0, w1, w2, w3)

    @device_function
    def put_two_elements(at: Any, next_at: Any, rows: Any) -> None:
        store_eight(at, rows[0][0])
        store_eight(next_at, rows[0][1])

    @device_function
    def put_element(at: Any, next_at: Any, rows: Any) -> None:
        store_granule(at, rows[0])

    put_rows = {1: put_bytes, 2: put_halves, 4: put_four_elements, 8: put_two_elements}.get(width, put_element)

    @device_function
    def place_of(number: Any, places: Any) -> Any:
        return load_int64(places + 8 * number)

    row_places_of = several(packed, place_of)

    @device_function
    def row_at(number: Any, source: Any, place: Any) -> Any:
        return load(source + place)

    rows_at = several(packed, row_at, ("place",))

    @device_function
    def places_of_step(number: Any, first: Any, places: Any) -> Any:
        return row_places_of(places + 8 * rows_on(first + number))

    @device_function
    def rows_of_step(number: Any, first: Any, source: Any, place: Any) -> Any:
        return rows_at(source + vectors_on(first + number) * 16, place)

    @device_function
    def put_step(number: Any, first: Any, memory: Any, cell: Any, rows: Any) -> None:
        c = cell ^ read_cell(first + number)
        at = memory + np.int64(c)
        put_rows(at, second(at, c), rows)

    places_together, rows_together = several(together, places_of_step), several(together, rows_of_step, ("place",))
    put_together = several(together, put_step, ("rows",), returns=False)

    @device_function
    def read_full(memory: Any, cell: Any, source: Any, row_places: Any) -> None:
        for group in range(read_groups):
            first = together * group
            put_together(first, memory, cell, rows_together(first, source, places_together(first, row_places)))

    @device_function
    def column_place(number: Any, first: Any, places: Any) -> Any:
        return load_int64(places + 8 * columns_on(first + number))

    @device_function
    def granule_of(number: Any, first: Any, memory: Any, cell: Any) -> Any:
        return load_granule(memory + np.int64(cell ^ write_cell(first + number)))

    @device_function
    def write_granule(number: Any, first: Any, destination: Any, place: Any, value: Any) -> None:
        store(destination + place + granules_on(first + number) * 16, value)

    four_places, four_granules = several(4, column_place), several(4, granule_of)
    write_four = several(4, write_granule, ("place", "value"), returns=False)

    @device_function
    def write_full(memory: Any, cell: Any, destination: Any, column_places: Any) -> None:
        for group in range(write_groups):
            places = four_places(4 * group, column_places)
            write_four(4 * group, destination, places, four_granules(4 * group, memory, cell))

    @device_function
    def read_part(memory: Any, cell: Any, source: Any, row_places: Any, rows: Any, columns: Any) -> None:
        """Read a partial tile step by step; `rows` and `columns` are those left from where the thread starts."""
        for k in range(read_steps):
            if rows_on(k) < rows and vectors_on(k) * vector < columns:
                put_step(0, k, memory, cell, rows_of_step(0, k, source, places_of_step(0, k, row_places)))

    @device_function
    def write_part(memory: Any, cell: Any, destination: Any, column_places: Any, rows: Any, columns: Any) -> None:
        for k in range(write_steps):
            if granules_on(k) * vector < rows and columns_on(k) < columns:
                write_granule(0, k, destination, column_place(0, k, column_places), granule_of(0, k, memory, cell))

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
    def row_place(number: Any, first: Any, places: Any) -> Any:
        return load_int64(places + 8 * rows_on(first + number))

    @device_function
    def element_of(number: Any, first: Any, source: Any, place: Any) -> Any:
        return load(source + place + columns_along(first + number) * width)

    @device_function
    def put(number: Any, first: Any, at: Any, value: Any) -> None:
        store_cell(at + columns_along(first + number) * pitch + rows_on(first + number) * width, value)

    @device_function
    def column_place(number: Any, first: Any, places: Any) -> Any:
        return load_int64(places + 8 * columns_on(first + number))

    @device_function
    def take(number: Any, first: Any, at: Any) -> Any:
        return load_cell(at + columns_on(first + number) * pitch + rows_along(first + number) * width)

    @device_function
    def write(number: Any, first: Any, destination: Any, place: Any, value: Any) -> None:
        store(destination + place + rows_along(first + number) * width, value)

    row_places_of, elements_of = several(together, row_place), several(together, element_of, ("place",))
    put_all, write_all = (
        several(together, f, over, False) for f, over in ((put, ("value",)), (write, ("place", "value")))
    )
    column_places_of, take_all = several(together, column_place), several(together, take)

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
                put_all(k, at, elements_of(k, s, row_places_of(k, row_places)))
        else:
            for k in range(steps):
                if rows_on(k) < rows - np.int64(row) and columns_along(k) < columns - np.int64(column):
                    put(0, k, at, element_of(0, k, s, row_place(0, k, row_places)))
        cuda.syncthreads()
        column, row = begin_writing(thread)
        at = memory + np.int64(column) * pitch + np.int64(row) * width
        d += destination + np.int64(row) * width
        column_places += 8 * np.int64(column)
        if full:
            for k in range(0, steps, together):
                places = column_places_of(k, column_places)
                write_all(k, d, places, take_all(k, at))
        else:
            for k in range(steps):
                if rows_along(k) < rows - np.int64(row) and columns_on(k) < columns - np.int64(column):
                    write(0, k, d, column_place(0, k, column_places), take(0, k, at))

    return transpose
