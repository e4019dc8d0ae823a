"""The GPU kernels that transpose tiles of 1- and 2-byte elements whose rows and columns start anywhere.

Memory moves in aligned words of 4 bytes on both sides; what a word holds too much of, or too little, is shifted to its
place in registers. A word that is partly outside the buffer is read byte by byte. Tables: `tables.cuda_launches`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fastindex.kernels.cuda.compilation import Kernel
from fastindex.kernels.cuda.device import THREADS, cuda, device_function
from fastindex.kernels.cuda.geometry import WordGeometry
from fastindex.kernels.cuda.loops import HEADER_BYTES, LOOP_BYTES, TILE_ROWS, tile
from fastindex.kernels.cuda.memory import LOAD, LOAD_SHARED, STORE_SHARED, load_int64, shared_memory
from fastindex.kernels.cuda.partial_stores import put_word
from fastindex.kernels.cuda.registers import funnelled, high_halves, low_halves, turned_bytes

_LANE, _WARP_SHIFT = np.uint32(31), np.uint32(5)


@cache
def word_transpose_kernel(width: int, tile_rows: int, tile_columns: int) -> Kernel:
    """Make the kernel that transposes tiles by words, for any places.

    Parameters: destination, source, table, loops, and the addresses where the source begins and ends. Columns are
    contiguous in the source, rows in the destination. The table ends with where each row of a tile starts in the source
    and each column in the destination, in bytes. The rows of a tile are a word less than a warp has lanes, so that
    wherever a column starts, it takes a word of each lane at most.
    """
    geometry = WordGeometry(width, tile_rows, tile_columns, THREADS)
    per, pitch = geometry.per_word, geometry.pitch
    shared = shared_memory(pitch * tile_columns)
    load_word, load_byte = LOAD[4], LOAD[1]
    load_shared, store_shared = LOAD_SHARED[4], STORE_SHARED[4]
    block_of, place_of = geometry.block_of, geometry.place_of
    steps, warps = geometry.steps, THREADS // 32
    low_byte = np.uint32(0xFF)

    @device_function
    def single_bytes(at: Any, begin: Any, end: Any) -> Any:
        value = np.uint32(0)
        for j in range(4):
            if begin <= at + j and at + j < end:
                value = np.uint32(value | np.uint32(np.uint32(load_byte(at + j) & low_byte) << np.uint32(8 * j)))
        return value

    @device_function
    def two_words(at: Any) -> Any:
        low = at & ~3
        return load_word(low), load_word(low + 4)

    @device_function
    def inside(lowest: Any, highest: Any, begin: Any, end: Any) -> Any:
        return begin <= lowest & ~3 and (highest & ~3) + 8 <= end

    @device_function
    def shifted(at: Any, two: Any) -> Any:
        return funnelled(two[0], two[1], np.uint64(8 * (at & 3)))

    @device_function
    def put_two_rows(at: Any, source: Any, places: Any, last: Any, begin: Any, end: Any) -> None:
        a, b = source + load_int64(places), source + load_int64(places + 8 * min(1, last))
        if inside(min(a, b), max(a, b), begin, end):
            wide_a, wide_b = two_words(a), two_words(b)
            r0, r1 = shifted(a, wide_a), shifted(b, wide_b)
        else:
            r0, r1 = single_bytes(a, begin, end), single_bytes(b, begin, end)
        store_shared(at, low_halves(r0, r1))
        store_shared(at + pitch, high_halves(r0, r1))

    @device_function
    def put_four_rows(at: Any, source: Any, places: Any, last: Any, begin: Any, end: Any) -> None:
        a, b = source + load_int64(places), source + load_int64(places + 8 * min(1, last))
        c, d = source + load_int64(places + 8 * min(2, last)), source + load_int64(places + 8 * min(3, last))
        if inside(min(min(a, b), min(c, d)), max(max(a, b), max(c, d)), begin, end):
            wide_a, wide_b, wide_c, wide_d = two_words(a), two_words(b), two_words(c), two_words(d)
            r0, r1, r2, r3 = shifted(a, wide_a), shifted(b, wide_b), shifted(c, wide_c), shifted(d, wide_d)
        else:
            r0, r1 = single_bytes(a, begin, end), single_bytes(b, begin, end)
            r2, r3 = single_bytes(c, begin, end), single_bytes(d, begin, end)
        w0, w1, w2, w3 = turned_bytes(r0, r1, r2, r3)
        store_shared(at, w0)
        store_shared(at + pitch, w1)
        store_shared(at + 2 * pitch, w2)
        store_shared(at + 3 * pitch, w3)

    put_block = put_two_rows if width == 2 else put_four_rows

    def transpose_words(destination, source, table, loops, begin, end):  # type: ignore[no-untyped-def]
        memory = shared()
        rows, columns, s, d = tile(np.uint32(cuda.blockIdx.x), table, loops)
        row_places = table + HEADER_BYTES + loops * LOOP_BYTES
        column_places = row_places + 8 * load_int64(table + TILE_ROWS)
        thread = np.uint32(cuda.threadIdx.x)
        s += source
        for step in range(steps):
            group, number = block_of(thread, step)
            row, column = group * per, number * per
            if row < rows and column < columns:
                at = memory + place_of(group, number)
                put_block(at, s + column * width, row_places + 8 * row, rows - row - 1, begin, end)
        cuda.syncthreads()
        lane: Any = np.int64(np.uint32(thread & _LANE))
        column = np.int64(np.uint32(thread >> _WARP_SHIFT))
        # A lane writes a word of each column, from the words of shared memory that it stands across.
        d += destination
        nbytes = rows * width
        last = (nbytes - 1) & ~3
        low, high = memory + min(max(4 * lane - 4, 0), last), memory + min(4 * lane, last)
        while column < columns:
            at = d + load_int64(column_places + 8 * column)
            behind = at & 3
            above, below = load_shared(high + column * pitch), load_shared(low + column * pitch)
            first = 4 * lane - behind
            if first < nbytes:
                put_word(at + first, -first, nbytes - first, funnelled(below, above, np.uint64(32 - 8 * behind)))
            column += warps

    return Kernel(transpose_words, "iiiiii", f"transpose words {width} {tile_rows} {tile_columns}", resident=4)
