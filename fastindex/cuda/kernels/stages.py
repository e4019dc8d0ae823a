"""GPU kernels that interleave or deinterleave a few rows through shared memory; each block moves one tile.

Table layout: `cuda.numbers`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, cuda, device_function, one_of
from fastindex.cuda.kernels.geometry import padded_bytes, skewed_place
from fastindex.cuda.kernels.loops import HEADER_BYTES, LOOP_BYTES, SKEW, tile
from fastindex.cuda.kernels.memory import LOAD, LOAD_SHARED, STORE, STORE_SHARED, load_int64, shared_memory

#: The kinds of the kernel: bytes of an element, and of what moves at once. Elements below 4 bytes move in words if all
#: offsets and the bytes of each row are multiples of 4.
STAGED_UNITS = ((1, 1), (2, 2), (1, 4), (2, 4), (4, 4), (8, 8))


@cache
def staged_kernel(size: int) -> Kernel:
    """Make the kernel that interleaves a few rows through shared memory, or deinterleaves them.

    Parameters: destination, source, table, loops, which of `STAGED_UNITS`, and whether it deinterleaves, 0 or 1. On one
    side the rows are separate; the table ends with the byte offset of each row there. On the other side, element ``c``
    of row ``r`` is number ``c * rows + r``. The loop over columns is the first; there is one block of rows.
    """
    shared = shared_memory(padded_bytes(size, max(unit for _, unit in STAGED_UNITS)))
    move = one_of([_staging(width, unit) for width, unit in STAGED_UNITS])

    def stage(destination, source, table, loops, kind, deinterleave):  # type: ignore[no-untyped-def]
        move(kind, shared(), destination, source, table, loops, deinterleave)

    return Kernel(stage, "iiiiii", "stage", resident=3)


def _staging(width: int, unit: int) -> Callable[..., None]:
    per_word, pad = unit // width, max(unit, 4)
    load, store = LOAD[unit], STORE[unit]
    load_unit, store_unit = LOAD_SHARED[unit], STORE_SHARED[unit]
    load_element, store_element = LOAD_SHARED[width], STORE_SHARED[width]
    place = skewed_place(pad)
    row_bytes, bits, mask = np.uint32(width), np.uint32(8 * width), np.uint32((1 << min(8 * width, 32)) - 1)
    step = np.uint32(THREADS * unit)
    first_four, columns_step = 4 * THREADS * unit, THREADS * per_word

    @device_function
    def scatter_word(memory: Any, skew: Any, offset: Any, stride: Any, value: Any) -> None:
        for _ in range(per_word):
            store_element(memory + np.int64(place(offset, skew)), np.uint32(value & mask))
            value = np.uint32(value >> bits)
            offset = np.uint32(offset + stride)

    @device_function
    def scatter_element(memory: Any, skew: Any, offset: Any, stride: Any, value: Any) -> None:
        store_element(memory + np.int64(place(offset, skew)), value)

    @device_function
    def gather_word(memory: Any, skew: Any, offset: Any, stride: Any) -> Any:
        value = np.uint32(0)
        for i in range(per_word):
            found = load_element(memory + np.int64(place(offset, skew)))
            value = np.uint32(value | np.uint32(found << np.uint32(i * 8 * width)))
            offset = np.uint32(offset + stride)
        return value

    @device_function
    def gather_element(memory: Any, skew: Any, offset: Any, stride: Any) -> Any:
        return load_element(memory + np.int64(place(offset, skew)))

    scatter, gather = (scatter_word, gather_word) if per_word > 1 else (scatter_element, gather_element)

    @device_function
    def bounded(at: Any, offset: Any, total: Any) -> Any:
        # Not by a conditional expression, which numba-cuda-mlir keeps in local memory.
        ones_if_below = np.uint32((np.int64(offset) - np.int64(total)) >> 32)
        return np.uint32(at + np.uint32(np.uint32(offset - at) & ones_if_below))

    @device_function
    def four_units(at: Any, total: Any) -> Any:
        """Return a thread's second to fourth offset, `step` bytes each after the last; out of range, the first."""
        b, c, d = np.uint32(at + step), np.uint32(at + step + step), np.uint32(at + step + step + step)
        return bounded(at, b, total), bounded(at, c, total), bounded(at, d, total)

    @device_function
    def start(row: Any, column: Any, stride: Any) -> Any:
        """Return the offset of an element in the interleaved rows."""
        return np.uint32(np.uint32(np.uint32(column) * stride) + np.uint32(np.uint32(row) * row_bytes))

    @device_function
    def interleave_four_rows(
        memory: Any, skew: Any, source: Any, row_places: Any, row: Any, rows: Any, columns: Any
    ) -> None:
        stride, places = np.uint32(np.uint32(rows) * row_bytes), row_places + 8 * row
        p0, p1, p2, p3 = load_int64(places), load_int64(places + 8), load_int64(places + 16), load_int64(places + 24)
        for column in range(cuda.threadIdx.x * per_word, columns, columns_step):
            s = source + column * width
            v0, v1, v2, v3 = load(s + p0), load(s + p1), load(s + p2), load(s + p3)
            scatter(memory, skew, start(row, column, stride), stride, v0)
            scatter(memory, skew, start(row + 1, column, stride), stride, v1)
            scatter(memory, skew, start(row + 2, column, stride), stride, v2)
            scatter(memory, skew, start(row + 3, column, stride), stride, v3)

    @device_function
    def interleave_row(memory: Any, skew: Any, source: Any, row: Any, rows: Any, columns: Any) -> None:
        stride, column = np.uint32(np.uint32(rows) * row_bytes), np.int64(cuda.threadIdx.x * per_word)
        while column + 3 * columns_step < columns:
            c1, c2, c3 = column + columns_step, column + 2 * columns_step, column + 3 * columns_step
            v0, v1 = load(source + column * width), load(source + c1 * width)
            v2, v3 = load(source + c2 * width), load(source + c3 * width)
            scatter(memory, skew, start(row, column, stride), stride, v0)
            scatter(memory, skew, start(row, c1, stride), stride, v1)
            scatter(memory, skew, start(row, c2, stride), stride, v2)
            scatter(memory, skew, start(row, c3, stride), stride, v3)
            column += 4 * columns_step
        while column < columns:
            scatter(memory, skew, start(row, column, stride), stride, load(source + column * width))
            column += columns_step

    @device_function
    def interleave_rows(memory: Any, skew: Any, source: Any, row_places: Any, rows: Any, columns: Any) -> None:
        """Interleave four rows at a time, then the remainder one by one."""
        row = np.int64(0)
        while row + 4 <= rows:
            interleave_four_rows(memory, skew, source, row_places, row, rows, columns)
            row += 4
        while row < rows:
            interleave_row(memory, skew, source + load_int64(row_places + 8 * row), row, rows, columns)
            row += 1

    @device_function
    def deinterleave_row(memory: Any, skew: Any, destination: Any, row: Any, rows: Any, columns: Any) -> None:
        stride = np.uint32(np.uint32(rows) * row_bytes)
        for column in range(cuda.threadIdx.x * per_word, columns, columns_step):
            store(destination + column * width, gather(memory, skew, start(row, column, stride), stride))

    @device_function
    def deinterleave_four_rows(
        memory: Any, skew: Any, destination: Any, row_places: Any, row: Any, rows: Any, columns: Any
    ) -> None:
        stride, places = np.uint32(np.uint32(rows) * row_bytes), row_places + 8 * row
        p0, p1, p2, p3 = load_int64(places), load_int64(places + 8), load_int64(places + 16), load_int64(places + 24)
        for column in range(cuda.threadIdx.x * per_word, columns, columns_step):
            d = destination + column * width
            store(d + p0, gather(memory, skew, start(row, column, stride), stride))
            store(d + p1, gather(memory, skew, start(row + 1, column, stride), stride))
            store(d + p2, gather(memory, skew, start(row + 2, column, stride), stride))
            store(d + p3, gather(memory, skew, start(row + 3, column, stride), stride))

    @device_function
    def deinterleave_rows(memory: Any, skew: Any, destination: Any, row_places: Any, rows: Any, columns: Any) -> None:
        row = np.int64(0)
        while row + 4 <= rows:
            deinterleave_four_rows(memory, skew, destination, row_places, row, rows, columns)
            row += 4
        while row < rows:
            deinterleave_row(memory, skew, destination + load_int64(row_places + 8 * row), row, rows, columns)
            row += 1

    @device_function
    def store_interleaved(memory: Any, skew: Any, destination: Any, total: Any) -> None:
        for first in range(cuda.threadIdx.x * unit, total, first_four):
            at = np.uint32(first)
            b, c, e = four_units(at, total)
            v0, v1 = load_unit(memory + np.int64(place(at, skew))), load_unit(memory + np.int64(place(b, skew)))
            v2, v3 = load_unit(memory + np.int64(place(c, skew))), load_unit(memory + np.int64(place(e, skew)))
            store(destination + np.int64(at), v0)
            store(destination + np.int64(b), v1)
            store(destination + np.int64(c), v2)
            store(destination + np.int64(e), v3)

    @device_function
    def load_interleaved(memory: Any, skew: Any, source: Any, total: Any) -> None:
        for first in range(cuda.threadIdx.x * unit, total, first_four):
            at = np.uint32(first)
            b, c, e = four_units(at, total)
            v0, v1 = load(source + np.int64(at)), load(source + np.int64(b))
            v2, v3 = load(source + np.int64(c)), load(source + np.int64(e))
            store_unit(memory + np.int64(place(at, skew)), v0)
            store_unit(memory + np.int64(place(b, skew)), v1)
            store_unit(memory + np.int64(place(c, skew)), v2)
            store_unit(memory + np.int64(place(e, skew)), v3)

    @device_function
    def move(memory: Any, destination: Any, source: Any, table: Any, loops: Any, deinterleave: Any) -> None:
        rows, columns, s, d = tile(np.uint32(cuda.blockIdx.x), table, loops)
        skew, total = np.uint32(load_int64(table + SKEW)), np.uint32(rows * columns * width)
        row_places = table + HEADER_BYTES + loops * LOOP_BYTES
        if deinterleave:
            load_interleaved(memory, skew, source + s, total)
            cuda.syncthreads()
            deinterleave_rows(memory, skew, destination + d, row_places, rows, columns)
        else:
            interleave_rows(memory, skew, source + s, row_places, rows, columns)
            cuda.syncthreads()
            store_interleaved(memory, skew, destination + d, total)

    return move
