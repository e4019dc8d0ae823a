"""GPU kernels that transpose tiles of 1- and 2-byte elements whose rows and columns have any alignment.

Memory moves in aligned words of 4 bytes on both sides; funnel shifts in registers realign them. A word that is partly
outside the buffer is read byte by byte. Table layout: `cuda.numbers`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, cuda, device_function, every, several
from fastindex.cuda.kernels.geometry import WordGeometry
from fastindex.cuda.kernels.lanes import of_next_lane
from fastindex.cuda.kernels.loops import HEADER_BYTES, LOOP_BYTES, TILE_COLUMNS, TILE_ROWS, tile
from fastindex.cuda.kernels.memory import LOAD, LOAD_SHARED, STORE_SHARED, load_int64, shared_memory
from fastindex.cuda.kernels.partial_stores import put_word
from fastindex.cuda.kernels.registers import funnelled, high_halves, low_halves, turned_bytes

_LANE, _WARP_SHIFT = np.uint32(31), np.uint32(5)


@cache
def word_transpose_kernel(width: int, tile_rows: int, tile_columns: int) -> Kernel:
    """Make the kernel that transposes tiles by words, at any alignment.

    Parameters: destination, source, table, loops, and the addresses where the source begins and ends. Consecutive
    columns are adjacent in the source, consecutive rows in the destination. The table ends with the byte offset of each
    row of a tile in the source and of each column in the destination, and with the lowest and the highest row offset.
    The rows of a tile take 31 words, one less than a warp has lanes, so that at any alignment a column spans at most
    one word per lane. A warp also reads stretches of 31 words of columns: a lane gets the bytes that its word lacks
    from the next lane.
    """
    geometry = WordGeometry(width, tile_rows, tile_columns, THREADS)
    per, pitch, steps = geometry.per_word, geometry.pitch, geometry.steps
    patch_of, column_place = geometry.patch_of, geometry.column_place
    shared = shared_memory(geometry.size)
    load_word, load_byte = LOAD[4], LOAD[1]
    load_shared, store_shared = LOAD_SHARED[4], STORE_SHARED[4]
    next_words = of_next_lane(per)
    warps = THREADS // 32
    low_byte = np.uint32(0xFF)

    @device_function
    def single_bytes(at: Any, begin: Any, end: Any) -> Any:
        value = np.uint32(0)
        for j in range(4):
            if begin <= at + j and at + j < end:
                value = np.uint32(value | np.uint32(np.uint32(load_byte(at + j) & low_byte) << np.uint32(8 * j)))
        return value

    @device_function
    def start(number: Any, source: Any, places: Any, row: Any, last: Any) -> Any:
        return source + load_int64(places + 8 * min(row + number, last))

    @device_function
    def aligned_word(number: Any, start: Any, lane: Any) -> Any:
        return load_word((start & ~3) + lane)

    @device_function
    def clamped_word(number: Any, start: Any, lane: Any, last_byte: Any, bounds: Any) -> Any:
        """Return the aligned word of a lane, clamped to the last byte of its row and to the whole words inside."""
        return load_word(min(max(min(start + lane, start + last_byte) & ~3, bounds[0]), bounds[1]))

    @device_function
    def is_inside(number: Any, start: Any, lane: Any, last_byte: Any, bounds: Any) -> Any:
        at = start + lane
        return at & ~3 >= bounds[0] and min(at + 3, start + last_byte) & ~3 <= bounds[1]

    @device_function
    def bytes_of(number: Any, start: Any, lane: Any, bounds: Any) -> Any:
        return single_bytes(start + lane, bounds[2], bounds[3])

    @device_function
    def shifted(number: Any, start: Any, here: Any, after: Any) -> Any:
        return funnelled(here, after, np.uint64(8 * (start & 3)))

    @device_function
    def store_column(number: Any, to: Any, word: Any) -> None:
        store_shared(to + number * pitch, word)

    @device_function
    def turned_two(rows: Any) -> Any:
        return low_halves(rows[0], rows[1]), high_halves(rows[0], rows[1])

    @device_function
    def turned_four(rows: Any) -> Any:
        return turned_bytes(rows[0], rows[1], rows[2], rows[3])

    turned = turned_two if width == 2 else turned_four
    starts_of, store_columns = several(per, start), several(per, store_column, ("word",), returns=False)
    aligned_words, clamped_words = (several(per, f, ("start",)) for f in (aligned_word, clamped_word))
    all_inside, all_bytes = every(per, is_inside, ("start",)), several(per, bytes_of, ("start",))
    all_shifted = several(per, shifted, ("start", "here", "after"))

    @device_function
    def put_block(to: Any, lane: Any, starts: Any, last_byte: Any, is_there: Any, bounds: Any) -> None:
        here = clamped_words(starts, lane, last_byte, bounds)
        after = next_words(here)
        if is_there:
            if all_inside(starts, lane, last_byte, bounds):
                store_columns(to, turned(all_shifted(starts, here, after)))
            else:
                store_columns(to, turned(all_bytes(starts, lane, bounds)))

    @device_function
    def put_whole_block(to: Any, lane: Any, starts: Any, is_there: Any) -> None:
        here = aligned_words(starts, lane)
        after = next_words(here)
        if is_there:
            store_columns(to, turned(all_shifted(starts, here, after)))

    last_group = tile_rows // per - 1

    @device_function
    def read_whole(memory: Any, warp: Any, lane: Any, source: Any, row_places: Any) -> None:
        """Read a full tile whose aligned words, including the one after its last byte, are inside the buffer."""
        for step in range(steps):
            group, number = patch_of(warp, step)
            here, starts = number + lane, starts_of(source, row_places, per * min(group, last_group), tile_rows)
            to = memory + column_place(here * per) + 4 * group
            put_whole_block(to, 4 * here, starts, group <= last_group and lane < 31)

    @device_function
    def read_part(memory: Any, warp: Any, lane: Any, source: Any, row_places: Any, sizes: Any, bounds: Any) -> None:
        rows, columns = sizes
        for step in range(steps):
            group, number = patch_of(warp, step)
            starts = starts_of(source, row_places, group * per, rows - 1)
            here, column = number + lane, (number + lane) * per
            is_there = group * per < rows and column < columns and lane < 31
            to = memory + column_place(column) + 4 * group
            put_block(to, 4 * here, starts, columns * width - 1, is_there, bounds)

    def transpose_words(destination, source, table, loops, begin, end):  # type: ignore[no-untyped-def]
        memory = shared()
        rows, columns, s, d = tile(np.uint32(cuda.blockIdx.x), table, loops)
        row_places = table + HEADER_BYTES + loops * LOOP_BYTES
        column_places = row_places + 8 * load_int64(table + TILE_ROWS)
        thread = np.uint32(cuda.threadIdx.x)
        lane: Any = np.int64(np.uint32(thread & _LANE))
        warp = np.int64(np.uint32(thread >> _WARP_SHIFT))
        s += source
        # The aligned words inside the buffer; if there are none, one of the table: safe to load, and not used.
        first, last = (begin + 3) & ~3, (end & ~3) - 4
        if last < first:
            first = last = table
        extremes = column_places + 8 * load_int64(table + TILE_COLUMNS)
        lowest, highest = s + load_int64(extremes), s + load_int64(extremes + 8) + tile_columns * width
        is_full = rows == tile_rows and columns == tile_columns
        if is_full and lowest & ~3 >= first and highest & ~3 <= last:
            read_whole(memory, warp, lane, s, row_places)
        else:
            read_part(memory, warp, lane, s, row_places, (rows, columns), (first, last, begin, end))
        cuda.syncthreads()
        column = warp
        # A lane writes a word of each column, from the two words of shared memory that it overlaps.
        d += destination
        nbytes = rows * width
        last = (nbytes - 1) & ~3
        low, high = memory + min(max(4 * lane - 4, 0), last), memory + min(4 * lane, last)
        while column < columns:
            at = d + load_int64(column_places + 8 * column)
            skipped = at & 3
            stands = column_place(column)
            above, below = load_shared(high + stands), load_shared(low + stands)
            first = 4 * lane - skipped
            if first < nbytes:
                word = funnelled(below, above, np.uint64(32 - 8 * skipped))
                put_word(at + first, -first, nbytes - first, (word,))
            column += warps

    return Kernel(transpose_words, f"transpose words {width} {tile_rows} {tile_columns}", resident=4)
