"""The GPU kernels that turn tiles in shared memory: transposes, and few rows woven into one or apart again.

Each block moves one tile. Tables as `cuda_tables` says.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fastindex.kernels.cuda.compilation import Kernel
from fastindex.kernels.cuda.device import THREADS, cuda, device_function
from fastindex.kernels.cuda.loops import LOOP_BYTES, MAGIC, SHIFT, SIZE, places, quotient
from fastindex.kernels.cuda.memory import LOAD, LOAD_SHARED, STORE, STORE_SHARED, load_int64, shared_memory
from fastindex.kernels.cuda.registers import high_halves, low_halves, turned_bytes, words
from fastindex.tables import cuda_launches as cuda_tables

_ROWS, _TILE_ROWS = 8 * cuda_tables.ROWS, 8 * cuda_tables.TILE_ROWS
_TILE_COLUMNS, _COLUMN_COUNT = 8 * cuda_tables.TILE_COLUMNS, 8 * cuda_tables.COLUMN_COUNT
_HEADER_BYTES = 8 * cuda_tables.HEADER
_WARP = 32
_WARPS = THREADS // _WARP
_SPREAD = 8  # most vectors next to each other that the lanes of a warp take


@device_function
def _tile(table: Any, loops: Any) -> Any:
    """Give the rows and the columns of this block's tile that exist, and where it is on both sides.

    The first loop goes over tiles along the columns, the second over tiles along the rows.
    """
    number = np.int64(cuda.blockIdx.x)
    first = table + _HEADER_BYTES
    row_block = quotient(number, load_int64(first + MAGIC), load_int64(first + SHIFT))
    column_number = number - row_block * load_int64(first + SIZE)
    if loops > 2:
        second = first + LOOP_BYTES
        above = quotient(row_block, load_int64(second + MAGIC), load_int64(second + SHIFT))
        row_block -= above * load_int64(second + SIZE)
    rows, columns = load_int64(table + _TILE_ROWS), load_int64(table + _TILE_COLUMNS)
    rows = min(rows, load_int64(table + _ROWS) - row_block * rows)
    columns = min(columns, load_int64(table + _COLUMN_COUNT) - column_number * columns)
    source, destination = places(number, first, loops)
    return rows, columns, source, destination


@cache
def transpose_kernel(width: int, tile_rows: int, tile_columns: int) -> Kernel:
    """Make the kernel that transposes tiles, 16 bytes at a time on both sides: destination, source, table, loops.

    Columns are contiguous in the source, rows in the destination. The table ends with where each row of a tile starts
    in the source and each column in the destination, in bytes. Numbers of rows and of columns, and all places, are
    multiples of 16 bytes.

    A tile stands in shared memory column by column, in granules of 16 bytes of rows. Granules of a column are swapped
    by the number of the vector the column came with, so that neither side meets in a bank. Elements below 4 bytes are
    first put together to words of several rows.
    """
    vector = 16 // width
    packed = max(4 // width, 1)
    pitch = tile_rows * width
    shared = shared_memory(pitch * tile_columns)
    load, store = LOAD[16], STORE[16]
    load_granule = LOAD_SHARED[16]
    store_word, store_eight, store_granule = STORE_SHARED[4], STORE_SHARED[8], STORE_SHARED[16]
    lane_vectors = min(_SPREAD, tile_columns // vector)
    lane_rows = _WARP // lane_vectors
    across = tile_columns // vector // lane_vectors
    load_steps = tile_rows // packed // lane_rows * across
    lane_granules = min(_SPREAD, pitch // 16)
    lane_columns = _WARP // lane_granules
    granules = pitch // 16 // lane_granules
    store_steps = granules * (tile_columns // lane_columns)

    @device_function
    def put_words(at: Any, w0: Any, w1: Any, w2: Any, w3: Any) -> None:
        store_word(at, w0)
        store_word(at + pitch, w1)
        store_word(at + 2 * pitch, w2)
        store_word(at + 3 * pitch, w3)

    @device_function
    def put_bytes(at: Any, r0: Any, r1: Any, r2: Any, r3: Any) -> None:
        a0, a1, a2, a3 = words(r0)
        b0, b1, b2, b3 = words(r1)
        c0, c1, c2, c3 = words(r2)
        d0, d1, d2, d3 = words(r3)
        w0, w1, w2, w3 = turned_bytes(a0, b0, c0, d0)
        put_words(at, w0, w1, w2, w3)
        w0, w1, w2, w3 = turned_bytes(a1, b1, c1, d1)
        put_words(at + 4 * pitch, w0, w1, w2, w3)
        w0, w1, w2, w3 = turned_bytes(a2, b2, c2, d2)
        put_words(at + 8 * pitch, w0, w1, w2, w3)
        w0, w1, w2, w3 = turned_bytes(a3, b3, c3, d3)
        put_words(at + 12 * pitch, w0, w1, w2, w3)

    @device_function
    def put_halves(at: Any, r0: Any, r1: Any) -> None:
        a0, a1, a2, a3 = words(r0)
        b0, b1, b2, b3 = words(r1)
        put_words(at, low_halves(a0, b0), high_halves(a0, b0), low_halves(a1, b1), high_halves(a1, b1))
        at += 4 * pitch
        put_words(at, low_halves(a2, b2), high_halves(a2, b2), low_halves(a3, b3), high_halves(a3, b3))

    @device_function
    def put_four_rows(at: Any, source: Any, rows: Any) -> None:
        r0, r1 = load(source + load_int64(rows)), load(source + load_int64(rows + 8))
        r2, r3 = load(source + load_int64(rows + 16)), load(source + load_int64(rows + 24))
        put_bytes(at, r0, r1, r2, r3)

    @device_function
    def put_two_rows(at: Any, source: Any, rows: Any) -> None:
        put_halves(at, load(source + load_int64(rows)), load(source + load_int64(rows + 8)))

    @device_function
    def put_four_elements(at: Any, value: Any) -> None:
        w0, w1, w2, w3 = words(value)
        put_words(at, w0, w1, w2, w3)

    @device_function
    def put_two_elements(at: Any, value: Any) -> None:
        store_eight(at, value[0])
        store_eight(at + pitch, value[1])

    @device_function
    def put_element(at: Any, value: Any) -> None:
        store_granule(at, value)

    put_vector = {4: put_four_elements, 8: put_two_elements}.get(width, put_element)

    @device_function
    def place_of(step: Any, lane: Any) -> Any:
        """Give the row and the vector that a lane takes in a step."""
        row = (step // across * lane_rows + lane // lane_vectors) * packed
        return row, step % across * lane_vectors + (lane & (lane_vectors - 1))

    @device_function
    def cell_of(memory: Any, row: Any, number: Any) -> Any:
        """Give where the first element of a vector is in shared memory."""
        granule = (row // vector) ^ (number & (lane_granules - 1))
        return memory + number * (vector * pitch) + granule * 16 + row % vector * width

    @device_function
    def read_rows(memory: Any, source: Any, row_places: Any, rows: Any, columns: Any) -> None:
        """Fill shared memory with elements below 4 bytes, a word of several rows at a time."""
        lane, warp = cuda.threadIdx.x & (_WARP - 1), cuda.threadIdx.x // _WARP
        for step in range(warp, load_steps, _WARPS):
            row, number = place_of(step, lane)
            if row < rows and number * vector < columns:
                put_rows(cell_of(memory, row, number), source + number * 16, row_places + 8 * row)

    @device_function
    def read_vectors(memory: Any, source: Any, row_places: Any, rows: Any, columns: Any) -> None:
        """Fill shared memory with elements from 4 bytes on; four vectors of a thread are on their way at a time."""
        lane, warp = cuda.threadIdx.x & (_WARP - 1), cuda.threadIdx.x // _WARP
        for step in range(warp, load_steps, 4 * _WARPS):
            r0, n0 = place_of(step, lane)
            r1, n1 = place_of(step + _WARPS, lane)
            r2, n2 = place_of(step + 2 * _WARPS, lane)
            r3, n3 = place_of(step + 3 * _WARPS, lane)
            here0, here1 = r0 < rows and n0 * vector < columns, r1 < rows and n1 * vector < columns
            here2, here3 = r2 < rows and n2 * vector < columns, r3 < rows and n3 * vector < columns
            # What is outside the array is read from its first vector, and dropped.
            v0 = load(source + load_int64(row_places + 8 * r0 * here0) + n0 * 16 * here0)
            v1 = load(source + load_int64(row_places + 8 * r1 * here1) + n1 * 16 * here1)
            v2 = load(source + load_int64(row_places + 8 * r2 * here2) + n2 * 16 * here2)
            v3 = load(source + load_int64(row_places + 8 * r3 * here3) + n3 * 16 * here3)
            if here0:
                put_vector(cell_of(memory, r0, n0), v0)
            if here1:
                put_vector(cell_of(memory, r1, n1), v1)
            if here2:
                put_vector(cell_of(memory, r2, n2), v2)
            if here3:
                put_vector(cell_of(memory, r3, n3), v3)

    put_rows = put_four_rows if width == 1 else put_two_rows
    read = read_rows if width < 4 else read_vectors

    def transpose_tiles(destination, source, table, loops):  # type: ignore[no-untyped-def]
        memory = shared()
        rows, columns, s, d = _tile(table, loops)
        row_places = table + _HEADER_BYTES + loops * LOOP_BYTES
        column_places = row_places + 8 * load_int64(table + _TILE_ROWS)
        read(memory, source + s, row_places, rows, columns)
        cuda.syncthreads()
        lane, warp = cuda.threadIdx.x & (_WARP - 1), cuda.threadIdx.x // _WARP
        for step in range(warp, store_steps, _WARPS):
            granule = step % granules * lane_granules + (lane & (lane_granules - 1))
            column = step // granules * lane_columns + lane // lane_granules
            if granule * vector < rows and column < columns:
                swapped = granule ^ ((column // vector) & (lane_granules - 1))
                value = load_granule(memory + column * pitch + swapped * 16)
                store(destination + d + load_int64(column_places + 8 * column) + granule * 16, value)

    return Kernel(transpose_tiles, "iiii", f"transpose {width} {tile_rows} {tile_columns}")


@cache
def scalar_transpose_kernel(width: int, tile_rows: int, tile_columns: int) -> Kernel:
    """Make the kernel that transposes tiles element by element, for any places; parameters as `transpose_kernel`."""
    cell = max(width, 4)
    pitch = (tile_rows + 1) * cell
    shared = shared_memory(pitch * tile_columns)
    load, store = LOAD[width], STORE[width]
    load_cell, store_cell = LOAD_SHARED[cell], STORE_SHARED[cell]

    def transpose_elements(destination, source, table, loops):  # type: ignore[no-untyped-def]
        memory = shared()
        rows, columns, s, d = _tile(table, loops)
        row_places = table + _HEADER_BYTES + loops * LOOP_BYTES
        column_places = row_places + 8 * load_int64(table + _TILE_ROWS)
        for number in range(cuda.threadIdx.x, tile_rows * tile_columns, THREADS):
            row, column = number // tile_columns, number % tile_columns
            if row < rows and column < columns:
                value = load(source + s + load_int64(row_places + 8 * row) + column * width)
                store_cell(memory + column * pitch + row * cell, value)
        cuda.syncthreads()
        for number in range(cuda.threadIdx.x, tile_rows * tile_columns, THREADS):
            column, row = number // tile_rows, number % tile_rows
            if row < rows and column < columns:
                value = load_cell(memory + column * pitch + row * cell)
                store(destination + d + load_int64(column_places + 8 * column) + row * width, value)

    return Kernel(transpose_elements, "iiii", f"transpose elements {width} {tile_rows} {tile_columns}")


@cache
def staged_kernel(width: int, apart: bool, vectors: bool, size: int) -> Kernel:
    """Make the kernel that weaves any few rows into one, or apart again, through shared memory.

    Parameters: destination, source, table, loops. On one side the rows are apart; the table ends with where each
    starts there, in bytes. On the other side, element ``c`` of row ``r`` is number ``c * rows + r``. With `vectors`,
    all places and the bytes of each row are multiples of 16. The loop over columns is the first; there is one block
    of rows.
    """
    vector = 16 // width if vectors else 1
    unit = vector * width
    shared = shared_memory(size)
    load, store = LOAD[unit], STORE[unit]
    load_unit, store_unit = LOAD_SHARED[unit], STORE_SHARED[unit]
    load_element, store_element = LOAD_SHARED[width], STORE_SHARED[width]
    mask = np.uint64((1 << min(8 * width, 64)) - 1)

    @device_function
    def element_of(value: Any, i: Any) -> Any:
        shifted = value[i * width // 8] >> np.uint64(8 * (i * width % 8))
        return np.uint32(shifted & mask)

    @device_function
    def eight_of(value: Any, i: Any) -> Any:
        return value[i]

    part = eight_of if width == 8 else element_of

    @device_function
    def scatter_vector(at: Any, value: Any, stride: Any) -> None:
        for i in range(vector):
            store_element(at + i * stride, part(value, i))

    @device_function
    def scatter_one(at: Any, value: Any, stride: Any) -> None:
        store_element(at, value)

    @device_function
    def gather_vector(at: Any, stride: Any) -> Any:
        low, high = np.uint64(0), np.uint64(0)
        for i in range(vector // 2):
            shift = np.uint64(8 * width * i)
            low |= np.uint64(load_element(at + i * stride)) << shift
            high |= np.uint64(load_element(at + (i + vector // 2) * stride)) << shift
        return low, high

    @device_function
    def gather_one(at: Any, stride: Any) -> Any:
        return load_element(at)

    scatter, gather = (scatter_vector, gather_vector) if vectors else (scatter_one, gather_one)

    def weave(destination, source, table, loops):  # type: ignore[no-untyped-def]
        memory = shared()
        rows, columns, s, d = _tile(table, loops)
        row_places = table + _HEADER_BYTES + loops * LOOP_BYTES
        for row in range(rows):
            start = source + s + load_int64(row_places + 8 * row)
            for column in range(cuda.threadIdx.x * vector, columns, THREADS * vector):
                scatter(memory + (column * rows + row) * width, load(start + column * width), rows * width)
        cuda.syncthreads()
        for at in range(cuda.threadIdx.x * unit, rows * columns * width, THREADS * unit):
            store(destination + d + at, load_unit(memory + at))

    def part_rows(destination, source, table, loops):  # type: ignore[no-untyped-def]
        memory = shared()
        rows, columns, s, d = _tile(table, loops)
        row_places = table + _HEADER_BYTES + loops * LOOP_BYTES
        for at in range(cuda.threadIdx.x * unit, rows * columns * width, THREADS * unit):
            store_unit(memory + at, load(source + s + at))
        cuda.syncthreads()
        for row in range(rows):
            start = destination + d + load_int64(row_places + 8 * row)
            for column in range(cuda.threadIdx.x * vector, columns, THREADS * vector):
                store(start + column * width, gather(memory + (column * rows + row) * width, rows * width))

    return Kernel(part_rows if apart else weave, "iiii", f"{'unstage' if apart else 'stage'} {width} {vectors} {size}")
