"""GPU kernels that convert elements to another type: runs, interleaved or deinterleaved rows, and tiles.

Parameters are those of the kernels that do not convert, and last the address of a table of results, for conversions
that look them up. Table layout: `cuda.numbers`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from fastindex.algebra.cast_numbers import bytes_read, bytes_written, names_of
from fastindex.cuda.kernels.cast_values import Vectors, converter
from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, cuda, device_function
from fastindex.cuda.kernels.geometry import CastGeometry
from fastindex.cuda.kernels.loops import HEADER_BYTES, LOOP_BYTES, TILE_ROWS, places, tile
from fastindex.cuda.kernels.memory import LOAD, LOAD_SHARED, STORE, STORE_SHARED, load_int64, shared_memory
from fastindex.cuda.kernels.units import unit_kernel


def _widths(code: int) -> tuple[int, int]:
    source, target = names_of(code)
    return bytes_read(source), bytes_written(target)


@cache
def cast_kernel(code: int, together: int) -> Kernel:
    """Make the kernel that converts `together` elements at once: a `unit_kernel` of one kind.

    Its last parameter is the address of the table of results.
    """
    read, written = _widths(code)
    load, store = LOAD[together * read], STORE[together * written]
    in_order = list(range(together))
    convert = converter(code, Vectors(1, together, read), Vectors(1, together, written), in_order)

    @device_function
    def read_vector(at: Any, results: Any) -> Any:
        return load(at)

    @device_function
    def write_converted(at: Any, results: Any, vector: Any) -> None:
        store(at, convert((vector,), results)[0])

    return unit_kernel(f"cast {code} {together}", [(read_vector, write_converted)])


@cache
def cast_rows_kernel(code: int, rows: int, columns: int, deinterleave: bool) -> Kernel:
    """Make the kernel that converts `columns` elements of 2 or 4 rows at once, and interleaves or deinterleaves them.

    The rows have a stride of `step` bytes. Parameters: destination, source, table, units, loops, step, results.
    """
    read, written = _widths(code)
    count = rows * columns
    by_columns = [row * columns + column for column in range(columns) for row in range(rows)]
    by_rows = [column * rows + row for row in range(rows) for column in range(columns)]
    given = Vectors(1, count, read) if deinterleave else Vectors(rows, columns, read)
    made = Vectors(rows, columns, written) if deinterleave else Vectors(1, count, written)
    convert = converter(code, given, made, by_rows if deinterleave else by_columns)
    load, store = LOAD[given.elements * read], STORE[made.elements * written]

    @device_function
    def read_two(at: Any, step: Any) -> Any:
        return load(at), load(at + step)

    @device_function
    def read_four(at: Any, step: Any) -> Any:
        return load(at), load(at + step), load(at + 2 * step), load(at + 3 * step)

    @device_function
    def read_one(at: Any, step: Any) -> Any:
        return (load(at),)

    @device_function
    def write_two(at: Any, step: Any, vectors: Any) -> None:
        store(at, vectors[0])
        store(at + step, vectors[1])

    @device_function
    def write_four(at: Any, step: Any, vectors: Any) -> None:
        store(at, vectors[0])
        store(at + step, vectors[1])
        store(at + 2 * step, vectors[2])
        store(at + 3 * step, vectors[3])

    @device_function
    def write_one(at: Any, step: Any, vectors: Any) -> None:
        store(at, vectors[0])

    read_rows = {1: read_one, 2: read_two, 4: read_four}[given.count]
    write_rows = {1: write_one, 2: write_two, 4: write_four}[made.count]

    def cast_rows(destination, source, table, count, loops, step, results):  # type: ignore[no-untyped-def]
        n = np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if n < count:
            s, d = places(n, table, loops)
            write_rows(destination + d, step, convert(read_rows(source + s, step), results))

    return Kernel(cast_rows, "iiiiiii", f"cast rows {code} {rows} {columns} {deinterleave}", resident=4)


def _cells_stored(count: int, cell: int, step: int) -> Callable[[Any, Any], Any]:
    """Make the function that stores `count` values, a power of two, to cells of shared memory with stride `step`."""
    if count == 1:
        store_cell = STORE_SHARED[cell]

        @device_function
        def store_one(at: Any, values: Any) -> None:
            store_cell(at, values[0])

        return store_one
    half = count // 2
    store_half, ahead = _cells_stored(half, cell, step), half * step

    @device_function
    def store_all(at: Any, values: Any) -> None:
        store_half(at, values[:half])
        store_half(at + ahead, values[half:])

    return store_all


def _cells_loaded(count: int, cell: int) -> Callable[[Any], Any]:
    """Make the function that loads `count` adjacent cells, a power of two, from shared memory."""
    if count == 1:
        load_cell = LOAD_SHARED[cell]

        @device_function
        def load_one(at: Any) -> Any:
            return (load_cell(at),)

        return load_one
    load_half, ahead = _cells_loaded(count // 2, cell), count // 2 * cell

    @device_function
    def load_all(at: Any) -> Any:
        return load_half(at) + load_half(at + ahead)

    return load_all


@cache
def cast_transpose_kernel(code: int, rows: int, columns: int) -> Kernel:
    """Make the kernel that transposes tiles and converts: destination, source, table, loops, results.

    Consecutive columns are adjacent in the source, where `columns` of them are read at once; consecutive rows in the
    destination, where `rows` of them are written at once. The table ends with the byte offset of each row of a tile in
    the source, and of each column in the destination. Shared memory holds converted elements, as in `CastGeometry`.
    """
    read, written = _widths(code)
    cell = max(written, 4)
    geometry = CastGeometry(rows, columns, THREADS)
    pitch, side, read_steps, write_steps = geometry.pitch, geometry.side, geometry.read_steps, geometry.write_steps
    column_bytes = pitch * cell
    reading, writing = geometry.reading, geometry.writing
    shared = shared_memory(-(-geometry.cells * cell // 16) * 16)
    load, store = LOAD[columns * read], STORE[rows * written]
    put, take = _cells_stored(columns, cell, column_bytes), _cells_loaded(rows, cell)
    convert = converter(code, Vectors(1, columns, read), Vectors(columns, 1, written), list(range(columns)))
    join = converter(None, Vectors(rows, 1, written), Vectors(1, rows, written), list(range(rows)))

    @device_function
    def read_four(thread: Any, step: Any, memory: Any, source: Any, row_places: Any, results: Any) -> None:
        """Read four vectors of a full tile, with all four loads in flight at once."""
        (r0, c0), (r1, c1) = reading(thread, step), reading(thread, step + 1)
        (r2, c2), (r3, c3) = reading(thread, step + 2), reading(thread, step + 3)
        p0, p1 = load_int64(row_places + 8 * r0), load_int64(row_places + 8 * r1)
        p2, p3 = load_int64(row_places + 8 * r2), load_int64(row_places + 8 * r3)
        v0, v1 = load(source + p0 + c0 * read), load(source + p1 + c1 * read)
        v2, v3 = load(source + p2 + c2 * read), load(source + p3 + c3 * read)
        put(memory + c0 * column_bytes + r0 * cell, convert((v0,), results))
        put(memory + c1 * column_bytes + r1 * cell, convert((v1,), results))
        put(memory + c2 * column_bytes + r2 * cell, convert((v2,), results))
        put(memory + c3 * column_bytes + r3 * cell, convert((v3,), results))

    @device_function
    def read_one(row: Any, column: Any, memory: Any, source: Any, row_places: Any, results: Any) -> None:
        vector = load(source + load_int64(row_places + 8 * row) + column * read)
        put(memory + column * column_bytes + row * cell, convert((vector,), results))

    in_fours = read_steps % 4 == 0

    def cast_transpose(destination, source, table, loops, results):  # type: ignore[no-untyped-def]
        memory = shared()
        rows_here, columns_here, s, d = tile(np.uint32(cuda.blockIdx.x), table, loops)
        row_places = table + HEADER_BYTES + loops * LOOP_BYTES
        column_places = row_places + 8 * load_int64(table + TILE_ROWS)
        thread = np.uint32(cuda.threadIdx.x)
        s += source
        d += destination
        singly = read_steps
        if in_fours and rows_here == side and columns_here == side:
            singly = 0
            for step in range(0, read_steps, 4):
                read_four(thread, step, memory, s, row_places, results)
        for step in range(singly):
            row, column = reading(thread, step)
            if row < rows_here and column < columns_here:
                read_one(row, column, memory, s, row_places, results)
        cuda.syncthreads()
        for step in range(write_steps):
            row, column = writing(thread, step)
            if row < rows_here and column < columns_here:
                values = join(take(memory + column * column_bytes + row * cell), 0)
                store(d + load_int64(column_places + 8 * column) + row * written, values[0])

    resident = 3 if read == 8 else 5 if max(cell, read) == 4 else 4
    return Kernel(cast_transpose, "iiiii", f"cast transpose {code} {rows} {columns}", resident=resident)
