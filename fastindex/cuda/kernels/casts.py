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
from fastindex.cuda.kernels.device import THREADS, cuda, device_function, several
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
    def read_row(number: Any, at: Any, step: Any) -> Any:
        return load(at + number * step)

    @device_function
    def write_row(number: Any, at: Any, step: Any, vector: Any) -> None:
        store(at + number * step, vector)

    read_rows, write_rows = several(given.count, read_row), several(made.count, write_row, ("vector",), returns=False)

    def cast_rows(destination, source, table, count, loops, step, results):  # type: ignore[no-untyped-def]
        n = np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if n < count:
            s, d = places(n, table, loops)
            write_rows(destination + d, step, convert(read_rows(source + s, step), results))

    return Kernel(cast_rows, "iiiiiii", f"cast rows {code} {rows} {columns} {deinterleave}", resident=4)


def _cells(cell: int, rows: int, columns: int, step: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make functions that store `columns` cells of shared memory with stride `step`, and that load `rows` adjacent."""
    load_cell, store_cell = LOAD_SHARED[cell], STORE_SHARED[cell]

    @device_function
    def put(number: Any, at: Any, value: Any) -> None:
        store_cell(at + number * step, value)

    @device_function
    def take(number: Any, at: Any) -> Any:
        return load_cell(at + number * cell)

    return several(columns, put, ("value",), returns=False), several(rows, take)


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
    put, take = _cells(cell, rows, columns, column_bytes)
    convert = converter(code, Vectors(1, columns, read), Vectors(columns, 1, written), list(range(columns)))
    join = converter(None, Vectors(rows, 1, written), Vectors(1, rows, written), list(range(rows)))

    @device_function
    def start(number: Any, thread: Any, step: Any) -> Any:
        return reading(thread, step + number)

    @device_function
    def place(number: Any, at: Any, row_places: Any) -> Any:
        return load_int64(row_places + 8 * at[0])

    @device_function
    def vector(number: Any, at: Any, source: Any, place: Any) -> Any:
        return load(source + place + at[1] * read)

    @device_function
    def put_converted(number: Any, at: Any, memory: Any, vector: Any, results: Any) -> None:
        put(memory + at[1] * column_bytes + at[0] * cell, convert((vector,), results))

    four_starts, four_places = several(4, start), several(4, place, ("at",))
    four_vectors = several(4, vector, ("at", "place"))
    put_four = several(4, put_converted, ("at", "vector"), returns=False)

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
                four = four_starts(thread, step)
                put_four(four, memory, four_vectors(four, s, four_places(four, row_places)), results)
        for step in range(singly):
            one = reading(thread, step)
            if one[0] < rows_here and one[1] < columns_here:
                put_converted(0, one, memory, vector(0, one, s, place(0, one, row_places)), results)
        cuda.syncthreads()
        for step in range(write_steps):
            row, column = writing(thread, step)
            if row < rows_here and column < columns_here:
                values = join(take(memory + column * column_bytes + row * cell), 0)
                store(d + load_int64(column_places + 8 * column) + row * written, values[0])

    resident = 3 if read == 8 else 5 if max(cell, read) == 4 else 4
    return Kernel(cast_transpose, "iiiii", f"cast transpose {code} {rows} {columns}", resident=resident)
