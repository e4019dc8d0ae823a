"""The GPU kernels that weave few rows into one, or apart again, through shared memory; each block moves one tile.

Tables as `tables.cuda_launches` says.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fastindex.kernels.cuda.compilation import Kernel
from fastindex.kernels.cuda.device import THREADS, cuda, device_function
from fastindex.kernels.cuda.geometry import padded_bytes, skewed_place
from fastindex.kernels.cuda.loops import HEADER_BYTES, LOOP_BYTES, SKEW, tile
from fastindex.kernels.cuda.memory import LOAD, LOAD_SHARED, STORE, STORE_SHARED, load_int64, shared_memory


@cache
def staged_kernel(width: int, apart: bool, whole_words: bool, size: int) -> Kernel:
    """Make the kernel that weaves any few rows into one, or apart again, through shared memory.

    Parameters: destination, source, table, loops. On one side the rows are apart; the table ends with where each
    starts there, in bytes. On the other side, element ``c`` of row ``r`` is number ``c * rows + r``. With
    `whole_words`, all places and the bytes of each row are multiples of 4, and words move where elements are smaller.
    The loop over columns is the first; there is one block of rows.
    """
    per_word = 4 // width if whole_words and width < 4 else 1
    unit = per_word * width
    pad = max(unit, 4)
    shared = shared_memory(padded_bytes(size, pad))
    load, store = LOAD[unit], STORE[unit]
    load_unit, store_unit = LOAD_SHARED[unit], STORE_SHARED[unit]
    load_element, store_element = LOAD_SHARED[width], STORE_SHARED[width]
    place = skewed_place(pad)
    row_bytes, bits, mask = np.uint32(width), np.uint32(8 * width), np.uint32((1 << min(8 * width, 32)) - 1)
    step = np.uint32(THREADS * unit)
    first_four = 4 * THREADS * unit

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
    def four_rows(row: Any, rows: Any, row_places: Any) -> Any:
        """Return four rows and where they start; the last row stands in for those that do not exist."""
        last = rows - 1
        r1, r2, r3 = min(row + 1, last), min(row + 2, last), min(row + 3, last)
        p0, p1 = load_int64(row_places + 8 * row), load_int64(row_places + 8 * r1)
        p2, p3 = load_int64(row_places + 8 * r2), load_int64(row_places + 8 * r3)
        return r1, r2, r3, p0, p1, p2, p3

    @device_function
    def four_units(at: Any, total: Any) -> Any:
        """Return four places of a thread, a block apart; the first stands in for those that do not exist."""
        b, c, d = np.uint32(at + step), np.uint32(at + step + step), np.uint32(at + step + step + step)
        return b if b < total else at, c if c < total else at, d if d < total else at

    @device_function
    def weave_rows(memory: Any, skew: Any, source: Any, row_places: Any, rows: Any, columns: Any) -> None:
        stride = np.uint32(np.uint32(rows) * row_bytes)
        for row in range(0, rows, 4):
            r1, r2, r3, p0, p1, p2, p3 = four_rows(row, rows, row_places)
            for column in range(cuda.threadIdx.x * per_word, columns, THREADS * per_word):
                s = source + column * width
                v0, v1, v2, v3 = load(s + p0), load(s + p1), load(s + p2), load(s + p3)
                offset = np.uint32(np.uint32(column) * stride)
                scatter(memory, skew, np.uint32(offset + np.uint32(np.uint32(row) * row_bytes)), stride, v0)
                scatter(memory, skew, np.uint32(offset + np.uint32(np.uint32(r1) * row_bytes)), stride, v1)
                scatter(memory, skew, np.uint32(offset + np.uint32(np.uint32(r2) * row_bytes)), stride, v2)
                scatter(memory, skew, np.uint32(offset + np.uint32(np.uint32(r3) * row_bytes)), stride, v3)

    @device_function
    def part_rows(memory: Any, skew: Any, destination: Any, row_places: Any, rows: Any, columns: Any) -> None:
        stride = np.uint32(np.uint32(rows) * row_bytes)
        for row in range(0, rows, 4):
            r1, r2, r3, p0, p1, p2, p3 = four_rows(row, rows, row_places)
            for column in range(cuda.threadIdx.x * per_word, columns, THREADS * per_word):
                d = destination + column * width
                offset = np.uint32(np.uint32(column) * stride)
                store(d + p0, gather(memory, skew, np.uint32(offset + np.uint32(np.uint32(row) * row_bytes)), stride))
                store(d + p1, gather(memory, skew, np.uint32(offset + np.uint32(np.uint32(r1) * row_bytes)), stride))
                store(d + p2, gather(memory, skew, np.uint32(offset + np.uint32(np.uint32(r2) * row_bytes)), stride))
                store(d + p3, gather(memory, skew, np.uint32(offset + np.uint32(np.uint32(r3) * row_bytes)), stride))

    def weave(destination, source, table, loops):  # type: ignore[no-untyped-def]
        memory = shared()
        rows, columns, s, d = tile(np.uint32(cuda.blockIdx.x), table, loops)
        skew = np.uint32(load_int64(table + SKEW))
        weave_rows(memory, skew, source + s, table + HEADER_BYTES + loops * LOOP_BYTES, rows, columns)
        cuda.syncthreads()
        total = np.uint32(rows * columns * width)
        d += destination
        for first in range(cuda.threadIdx.x * unit, total, first_four):
            at = np.uint32(first)
            b, c, e = four_units(at, total)
            v0, v1 = load_unit(memory + np.int64(place(at, skew))), load_unit(memory + np.int64(place(b, skew)))
            v2, v3 = load_unit(memory + np.int64(place(c, skew))), load_unit(memory + np.int64(place(e, skew)))
            store(d + np.int64(at), v0)
            store(d + np.int64(b), v1)
            store(d + np.int64(c), v2)
            store(d + np.int64(e), v3)

    def part(destination, source, table, loops):  # type: ignore[no-untyped-def]
        memory = shared()
        rows, columns, s, d = tile(np.uint32(cuda.blockIdx.x), table, loops)
        skew = np.uint32(load_int64(table + SKEW))
        total = np.uint32(rows * columns * width)
        s += source
        for first in range(cuda.threadIdx.x * unit, total, first_four):
            at = np.uint32(first)
            b, c, e = four_units(at, total)
            v0, v1 = load(s + np.int64(at)), load(s + np.int64(b))
            v2, v3 = load(s + np.int64(c)), load(s + np.int64(e))
            store_unit(memory + np.int64(place(at, skew)), v0)
            store_unit(memory + np.int64(place(b, skew)), v1)
            store_unit(memory + np.int64(place(c, skew)), v2)
            store_unit(memory + np.int64(place(e, skew)), v3)
        cuda.syncthreads()
        part_rows(memory, skew, destination + d, table + HEADER_BYTES + loops * LOOP_BYTES, rows, columns)

    name = f"{'unstage' if apart else 'stage'} {width} {whole_words} {size}"
    return Kernel(part if apart else weave, "iiii", name, resident=3 if per_word > 1 else 4)
