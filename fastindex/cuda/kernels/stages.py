"""GPU kernels that interleave or deinterleave a few rows through shared memory; each block moves one tile.

Table layout: `cuda.numbers`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, Each, cuda, device_function, one_of, several
from fastindex.cuda.kernels.geometry import padded_bytes, skewed_place, tile
from fastindex.cuda.kernels.memory import LOAD, LOAD_SHARED, STORE, STORE_SHARED, load_int64, shared_memory
from fastindex.cuda.numbers import HEADER_BYTES, LOOP_BYTES, SKEW

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

    return Kernel(stage, "stage", resident=3, units=1)


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

    @several(4)
    def offsets(number: Any, at: Any, total: Any) -> Any:
        """Return a thread's offset in the interleaved rows, `number` steps after the first; out of range, the first."""
        found = np.uint32(at + np.uint32(number * step))
        # Not by a conditional expression, which numba-cuda-mlir keeps in local memory.
        ones_if_below = np.uint32((np.int64(found) - np.int64(total)) >> 32)
        return np.uint32(at + np.uint32(np.uint32(found - at) & ones_if_below))

    @several(4)
    def take_units(number: Any, memory: Any, skew: Any, offset: Each) -> Any:
        return load_unit(memory + np.int64(place(offset, skew)))

    @several(4)
    def put_units(number: Any, memory: Any, skew: Any, offset: Each, value: Each) -> None:
        store_unit(memory + np.int64(place(offset, skew)), value)

    @several(4)
    def load_offsets(number: Any, source: Any, offset: Each) -> Any:
        return load(source + np.int64(offset))

    @several(4)
    def store_offsets(number: Any, destination: Any, offset: Each, value: Each) -> None:
        store(destination + np.int64(offset), value)

    @device_function
    def start(row: Any, column: Any, stride: Any) -> Any:
        """Return the offset of an element in the interleaved rows."""
        return np.uint32(np.uint32(np.uint32(column) * stride) + np.uint32(np.uint32(row) * row_bytes))

    @several(4)
    def places_of(number: Any, places: Any) -> Any:
        return load_int64(places + 8 * number)

    @several(4)
    def load_rows(number: Any, at: Any, place: Each) -> Any:
        return load(at + place)

    @several(4)
    def load_columns(number: Any, at: Any) -> Any:
        return load(at + number * columns_step * width)

    @device_function
    def put_row(number: Any, memory: Any, skew: Any, row: Any, column: Any, stride: Any, value: Each) -> None:
        scatter(memory, skew, start(row + number, column, stride), stride, value)

    @several(4)
    def put_columns(number: Any, memory: Any, skew: Any, row: Any, column: Any, stride: Any, value: Each) -> None:
        scatter(memory, skew, start(row, column + number * columns_step, stride), stride, value)

    @device_function
    def store_row(
        number: Any, memory: Any, skew: Any, row: Any, column: Any, stride: Any, at: Any, place: Each
    ) -> None:
        store(at + place, gather(memory, skew, start(row + number, column, stride), stride))

    put_rows, store_rows = several(4)(put_row), several(4)(store_row)

    @device_function
    def interleave_row(memory: Any, skew: Any, source: Any, row: Any, stride: Any, columns: Any) -> None:
        column = np.int64(cuda.threadIdx.x * per_word)
        while column + 3 * columns_step < columns:
            put_columns(memory, skew, row, column, stride, load_columns(source + column * width))
            column += 4 * columns_step
        while column < columns:
            put_row(0, memory, skew, row, column, stride, load(source + column * width))
            column += columns_step

    @device_function
    def interleave_rows(memory: Any, skew: Any, source: Any, row_places: Any, rows: Any, columns: Any) -> None:
        """Interleave four rows at a time, then the remainder one by one."""
        row, stride = np.int64(0), np.uint32(np.uint32(rows) * row_bytes)
        while row + 4 <= rows:
            places = places_of(row_places + 8 * row)
            for column in range(cuda.threadIdx.x * per_word, columns, columns_step):
                put_rows(memory, skew, row, column, stride, load_rows(source + column * width, places))
            row += 4
        while row < rows:
            interleave_row(memory, skew, source + load_int64(row_places + 8 * row), row, stride, columns)
            row += 1

    @device_function
    def deinterleave_rows(memory: Any, skew: Any, destination: Any, row_places: Any, rows: Any, columns: Any) -> None:
        row, stride = np.int64(0), np.uint32(np.uint32(rows) * row_bytes)
        while row + 4 <= rows:
            places = places_of(row_places + 8 * row)
            for column in range(cuda.threadIdx.x * per_word, columns, columns_step):
                store_rows(memory, skew, row, column, stride, destination + column * width, places)
            row += 4
        while row < rows:
            to = load_int64(row_places + 8 * row)
            for column in range(cuda.threadIdx.x * per_word, columns, columns_step):
                store_row(0, memory, skew, row, column, stride, destination + column * width, to)
            row += 1

    @device_function
    def store_interleaved(memory: Any, skew: Any, destination: Any, total: Any) -> None:
        for first in range(cuda.threadIdx.x * unit, total, first_four):
            four = offsets(np.uint32(first), total)
            store_offsets(destination, four, take_units(memory, skew, four))

    @device_function
    def load_interleaved(memory: Any, skew: Any, source: Any, total: Any) -> None:
        for first in range(cuda.threadIdx.x * unit, total, first_four):
            four = offsets(np.uint32(first), total)
            put_units(memory, skew, four, load_offsets(source, four))

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
