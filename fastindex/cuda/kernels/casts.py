"""GPU kernels that convert elements to another type: runs, interleaved or deinterleaved rows, and tiles.

Parameters are those of the kernels that do not convert, and last the address of a table of results, for conversions
that look them up. Table layout: `cuda.numbers`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fastindex.algebra.cast_numbers import bytes_read, bytes_written, names_of
from fastindex.cuda.kernels.cast_values import Vectors, converter
from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, cuda, device_function, several
from fastindex.cuda.kernels.geometry import PaddedGeometry
from fastindex.cuda.kernels.loops import places
from fastindex.cuda.kernels.memory import LOAD, LOAD_SHARED, STORE, STORE_SHARED
from fastindex.cuda.kernels.tiles import Tile, tile_kernel
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
    def read_vector(at: Any, extra: Any) -> Any:
        return load(at)

    @device_function
    def write_converted(at: Any, extra: Any, vector: Any) -> None:
        store(at, convert((vector,), extra[1])[0])

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

    return Kernel(cast_rows, f"cast rows {code} {rows} {columns} {deinterleave}", resident=4)


@cache
def cast_transpose_kernel(code: int, rows: int, columns: int) -> Kernel:
    """Make the kernel that transposes tiles and converts `columns` elements that are read, and `rows` that are written.

    A `tile_kernel` whose last parameter is the address of the table of results; shared memory holds converted elements.
    """
    read, written = _widths(code)
    geometry = PaddedGeometry((read, written), (64, 64), THREADS, (columns, rows))
    cell, pitch = max(written, 4), geometry.pitch
    load_cell, store_cell = LOAD_SHARED[cell], STORE_SHARED[cell]
    convert = converter(code, Vectors(1, columns, read), Vectors(columns, 1, written), list(range(columns)))
    join = converter(None, Vectors(rows, 1, written), Vectors(1, rows, written), list(range(rows)))

    @device_function
    def put_cell(number: Any, at: Any, value: Any) -> None:
        store_cell(at + number * pitch, value)

    @device_function
    def take_cell(number: Any, at: Any) -> Any:
        return load_cell(at + number * cell)

    put_cells, take_cells = several(columns, put_cell, ("value",), returns=False), several(rows, take_cell)

    @device_function
    def put(at: Any, vectors: Any, results: Any) -> None:
        put_cells(at, convert(vectors, results))

    @device_function
    def take(at: Any) -> Any:
        return join(take_cells(at), 0)[0]

    moved = Tile(geometry, LOAD[columns * read], put, take, STORE[rows * written])
    resident = 3 if read == 8 else 5 if max(cell, read) == 4 else 4
    return tile_kernel(f"cast transpose {code} {rows} {columns}", [moved], resident)
