"""Where a thread reads and writes: its part of a tile in shared memory, and the steps of loops in a GPU table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fastindex.cuda import numbers as at
from fastindex.cuda.kernels.device import device_function
from fastindex.cuda.kernels.memory import load_int64
from fastindex.index.numbers import narrow_quotient

_SPREAD = 8  # vectors that span all banks, and the most adjacent ones that a warp takes of smaller elements


class Walk:
    """How the threads of a block traverse a tile: vectors `along` it, rows or columns `across` it.

    Attributes
    ----------
    steps : int
        Per thread.
    begin : callable
        Maps the number of a thread, uint32, to its start: across, along, and the offset of its cell in shared memory;
        uint32.
    across, along : callable
        Map the number of a step to what it adds.
    place : callable
        Maps the address of shared memory, the offset of a thread's first cell, and a step to the address of its cell.
    """

    def __init__(
        self,
        along: tuple[int, int],
        across: tuple[int, int],
        threads: int,
        cell_of: Callable[..., Any],
        swizzled: bool = False,
    ) -> None:
        """Distribute vectors: their count `along`, and the most lanes there; the count `across`, and those at once."""
        (count_along, most_lanes), (count_across, unit) = along, across
        warps = threads // at.WARP
        lanes_along = min(most_lanes, count_along)
        lanes_across = at.WARP // lanes_along
        parts = count_along // lanes_along
        self.steps = parts * (count_across // unit) // lanes_across // warps
        warps_along = min(parts, warps)
        warps_across = warps // warps_along
        parts_left = parts // warps_along
        along_step, across_step = warps_along * lanes_along, warps_across * lanes_across * unit
        lane_mask, lane_shift = np.uint32(lanes_along - 1), np.uint32(_log(lanes_along))
        warp_mask, warp_shift = np.uint32(warps_along - 1), np.uint32(_log(warps_along))
        lanes, rows, unit_size = np.uint32(lanes_along), np.uint32(lanes_across), np.uint32(unit)
        step_mask, step_shift = parts_left - 1, _log(parts_left)
        last_lane, to_warp = np.uint32(at.WARP - 1), np.uint32(_log(at.WARP))
        cell_place = device_function(cell_of)

        @device_function
        def begin(thread: Any) -> Any:
            lane, warp = np.uint32(thread & last_lane), np.uint32(thread >> to_warp)
            here = np.uint32(np.uint32(warp & warp_mask) * lanes)
            along = np.uint32(here + np.uint32(lane & lane_mask))
            group = np.uint32(np.uint32(np.uint32(warp >> warp_shift) * rows) + np.uint32(lane >> lane_shift))
            across = np.uint32(group * unit_size)
            return across, along, cell_place(across, along)

        @device_function
        def across_at(step: Any) -> Any:
            return (step >> step_shift) * across_step

        @device_function
        def along_at(step: Any) -> Any:
            return (step & step_mask) * along_step

        @device_function
        def cell_at(step: Any) -> Any:
            return cell_place(np.uint32(across_at(step)), np.uint32(along_at(step)))

        @device_function
        def swizzled_place(memory: Any, cell: Any, step: Any) -> Any:
            return memory + np.int64(np.uint32(cell ^ cell_at(step)))

        @device_function
        def padded_place(memory: Any, cell: Any, step: Any) -> Any:
            return memory + np.int64(cell) + np.int64(cell_at(step))

        self.begin, self.across, self.along = begin, across_at, along_at
        self.place = swizzled_place if swizzled else padded_place


def skewed_place(unit: int) -> Callable[[Any, Any], Any]:
    """Make the function that maps an offset in interleaved rows, and a shift, to the offset in shared memory.

    A padding of `unit` bytes after every ``1 << shift`` bytes avoids bank conflicts.
    """
    scale = np.uint32(unit)

    @device_function
    def place(offset: Any, skew: Any) -> Any:
        return np.uint32(offset + np.uint32(np.uint32(offset >> skew) * scale))

    return place


def padded_bytes(size: int, unit: int) -> int:
    """Return the bytes of shared memory for `size` bytes of interleaved rows and their padding, a multiple of 16."""
    return -(-(size + (size >> 7) * unit) // 16) * 16


def _log(size: int) -> int:
    return size.bit_length() - 1


class TileGeometry:
    """A tile of a transpose: what a thread reads and writes at once, and where that is in shared memory.

    Attributes
    ----------
    tile_rows, tile_columns : int
    columns, rows : int
        Elements of a vector that is read, along a row, and of one that is written, along a column.
    read_bytes, written_bytes : int
        Of these vectors.
    packed : int
        Rows that a thread reads at once.
    pitch : int
        Bytes of a column in shared memory.
    size : int
        Bytes of shared memory.
    reading : Walk
        Across are rows, along are vectors of columns.
    writing : Walk
        Across are columns, along are vectors of rows.
    """

    tile_rows: int
    tile_columns: int
    columns: int
    rows: int
    read_bytes: int
    written_bytes: int
    packed: int
    pitch: int
    size: int
    reading: Walk
    writing: Walk


class SwizzledGeometry(TileGeometry):
    """A tile that moves 16 bytes at a time on both sides.

    It is stored column by column, in granules of 16 bytes of rows; elements below 4 bytes in words of several rows. The
    granules of a column are XOR-swizzled by the number of the vector that its elements were loaded in, so that neither
    loads nor stores have bank conflicts. All sizes are powers of two, and lane, warp and step set different bits of an
    offset: it is the XOR of the three.

    Attributes
    ----------
    swaps_columns : bool
        Whether a column may swap places with its neighbour: if two columns span the 128 bytes of all banks.
    """

    def __init__(self, width: int, tile_rows: int, tile_columns: int, threads: int) -> None:
        self.tile_rows, self.tile_columns = tile_rows, tile_columns
        self.rows = self.columns = vector = 16 // width
        self.read_bytes = self.written_bytes = 16
        self.packed = max(4 // width, 1)
        self.pitch = pitch = tile_rows * width
        self.size = tile_columns * pitch
        self.swaps_columns = pitch == 64 and vector > 1
        swaps = np.uint32(_SPREAD - 1 if self.swaps_columns else min(_SPREAD, pitch // 16) - 1)
        granule, column_shift = np.uint32(16), np.uint32(_log(pitch))
        vector_shift, row_mask, width_shift = np.uint32(_log(vector)), np.uint32(vector - 1), np.uint32(_log(width))
        vector_pitch = np.uint32(_log(vector * pitch))

        # If a row has four vectors, eight lanes take two rows. If the columns of a vector take 64 bytes, two vectors
        # span the 128 bytes of all banks: then the swizzle uses the next higher bit of the number.
        spread = np.uint32(_log(_SPREAD // min(_SPREAD, tile_columns // vector)))
        shared_banks = np.uint32(_log(max(128 // (vector * pitch), 1)))

        @device_function
        def swap_of(number: Any) -> Any:
            return np.uint32(np.uint32(np.uint32(number << spread) >> shared_banks) & swaps)

        def cell_of_row(row: Any, number: Any) -> Any:
            """Return the offset of the first element of a vector of columns in a row."""
            swapped = np.uint32(np.uint32(row >> vector_shift) ^ swap_of(number))
            inside = np.uint32(np.uint32(row & row_mask) << width_shift)
            return np.uint32(np.uint32(number << vector_pitch) ^ np.uint32(np.uint32(swapped * granule) ^ inside))

        def cell_of_column(column: Any, number: Any) -> Any:
            """Return the offset of a granule of a column."""
            swapped = np.uint32(number ^ swap_of(np.uint32(column >> vector_shift)))
            return np.uint32(np.uint32(column << column_shift) ^ np.uint32(swapped * granule))

        # Lines of 16-byte elements may start in the middle of a sector, so a warp takes as few lines as possible.
        most_lanes = at.WARP if vector == 1 else _SPREAD
        self.reading = Walk((tile_columns // vector, most_lanes), (tile_rows, self.packed), threads, cell_of_row, True)
        self.writing = Walk((pitch // 16, most_lanes), (tile_columns, 1), threads, cell_of_column, True)


class PaddedGeometry(TileGeometry):
    """A tile that moves an element at a time, or on each side another number of them.

    It is stored column by column, a cell of at least 4 bytes for each element. A column has one cell of padding, and a
    warp takes 32 elements along a line, so neither loads nor stores have bank conflicts.
    """

    def __init__(
        self,
        widths: tuple[int, int],
        tile: tuple[int, int],
        threads: int,
        vectors: tuple[int, int] = (1, 1),
    ) -> None:
        """Lay out a tile of elements of `widths` bytes, read and written, `vectors` of them at once."""
        (read, written), (self.columns, self.rows) = widths, vectors
        self.tile_rows, self.tile_columns = tile
        self.read_bytes, self.written_bytes = self.columns * read, self.rows * written
        self.packed, cell = 1, max(written, 4)
        self.pitch = (self.tile_rows + 1) * cell
        self.size = -(-self.pitch * self.tile_columns // 16) * 16
        pitch, cell_bytes, rows, columns = map(np.uint32, (self.pitch, cell, self.rows, self.columns))

        def cell_of_row(row: Any, number: Any) -> Any:
            return np.uint32(np.uint32(np.uint32(number * columns) * pitch) + np.uint32(row * cell_bytes))

        def cell_of_column(column: Any, number: Any) -> Any:
            return np.uint32(np.uint32(column * pitch) + np.uint32(np.uint32(number * rows) * cell_bytes))

        along = self.tile_columns // self.columns, at.WARP // self.columns
        self.reading = Walk(along, (self.tile_rows, 1), threads, cell_of_row)
        along = self.tile_rows // self.rows, at.WARP // self.rows
        self.writing = Walk(along, (self.tile_columns, 1), threads, cell_of_column)


class WordGeometry:
    """The tile of a transpose that moves words of small elements, at any alignment.

    A block of as many rows and columns as a word has elements is transposed at once. The lanes of a warp take a stretch
    of blocks along the rows, one block fewer than lanes: the last lane only reads the bytes that its neighbour lacks.
    The tile is stored in shared memory column by column, with a word of padding after each column and another after
    every 32, so that the lanes write to different banks.

    Attributes
    ----------
    per_word : int
        Elements per word.
    pitch : int
        Bytes between columns in shared memory, without the padding after every 32.
    size : int
        Bytes of shared memory.
    steps : int
        Per warp.
    patch_of : callable
        Maps the number of a warp, uint32, and of a step to its group of rows and to the first block of its stretch;
        int64.
    column_place : callable
        Maps a column to its offset in shared memory.
    """

    def __init__(self, width: int, tile_rows: int, tile_columns: int, threads: int) -> None:
        self.per_word = per = 4 // width
        groups = 1 << _log(-(-tile_rows // per) * 2 - 1)
        self.pitch = pitch = 4 * groups + 4
        stretch = at.WARP - 1
        stretches, remainder = divmod(tile_columns // per, stretch)
        if remainder:
            raise ValueError(f"{tile_columns} columns are not stretches of {stretch} words")
        warps = threads // at.WARP
        self.steps = groups * stretches // warps
        self.size = -(-(tile_columns * pitch + 4 * (tile_columns >> 5)) // 16) * 16
        group_mask, group_shift = groups - 1, _log(groups)

        @device_function
        def patch_of(warp: Any, step: Any) -> Any:
            patch = np.int64(warp) + step * warps
            return patch & group_mask, (patch >> group_shift) * stretch

        @device_function
        def column_place(column: Any) -> Any:
            return column * pitch + 4 * (column >> 5)

        self.patch_of, self.column_place = patch_of, column_place


# Steps of loops; divisions are done by multiplications and shifts

quotient = device_function(narrow_quotient)

# Steps, sizes and digits are below 2**31: a mask of their low half lets the compiler compute in 32 bits.
_LOW = 0xFFFFFFFF


@device_function
def digit_below(number: Any, above: Any, size: Any) -> Any:
    """Return the remainder of a division by `size` whose quotient is `above`."""
    return (number - above * size) & _LOW


@device_function
def places(number: Any, table: Any, loops: Any) -> Any:
    """Return the source and destination offset of step `number` of loops, the fastest first."""
    source = np.int64(0)
    destination = np.int64(0)
    for _ in range(loops - 1):
        above = quotient(number, load_int64(table + at.MAGIC), load_int64(table + at.SHIFT)) & _LOW
        digit = digit_below(number, above, load_int64(table + at.SIZE))
        source += digit * load_int64(table + at.SOURCE)
        destination += digit * load_int64(table + at.DESTINATION)
        number = above
        table += at.LOOP_BYTES
    source += number * load_int64(table + at.SOURCE)
    destination += number * load_int64(table + at.DESTINATION)
    return source, destination


@device_function
def four_places(n0: Any, n1: Any, n2: Any, n3: Any, table: Any, loops: Any) -> Any:
    """Return the source and the destination offsets of four steps; the table is read once for all of them."""
    s0 = s1 = s2 = s3 = np.int64(0)
    d0 = d1 = d2 = d3 = np.int64(0)
    for loop in range(loops):
        q0, q1, q2, q3 = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        if loop < loops - 1:
            magic, shift = load_int64(table + at.MAGIC), load_int64(table + at.SHIFT)
            q0, q1 = quotient(n0, magic, shift) & _LOW, quotient(n1, magic, shift) & _LOW
            q2, q3 = quotient(n2, magic, shift) & _LOW, quotient(n3, magic, shift) & _LOW
        size = load_int64(table + at.SIZE)
        source, destination = load_int64(table + at.SOURCE), load_int64(table + at.DESTINATION)
        n0, n1 = digit_below(n0, q0, size), digit_below(n1, q1, size)
        n2, n3 = digit_below(n2, q2, size), digit_below(n3, q3, size)
        s0, s1, s2, s3 = s0 + n0 * source, s1 + n1 * source, s2 + n2 * source, s3 + n3 * source
        d0, d1 = d0 + n0 * destination, d1 + n1 * destination
        d2, d3 = d2 + n2 * destination, d3 + n3 * destination
        n0, n1, n2, n3 = q0, q1, q2, q3
        table += at.LOOP_BYTES
    return (s0, s1, s2, s3), (d0, d1, d2, d3)


# Tiles: the header before the loops, and the offsets of a block's tile


@device_function
def _divided(number: Any, loop: Any) -> Any:
    """Return the quotient and the remainder of a number below 2**31 by the size of a loop, uint32."""
    above = np.uint32(quotient(np.int64(number), load_int64(loop + at.MAGIC), load_int64(loop + at.SHIFT)))
    return above, np.uint32(number - np.uint32(above * np.uint32(load_int64(loop + at.SIZE))))


@device_function
def tile(number: Any, table: Any, loops: Any) -> Any:
    """Return how many rows and columns a tile has, and its offset on both sides; `number` is uint32.

    The first loop goes over tiles along the columns, the second over tiles along the rows.
    """
    first = table + at.HEADER_BYTES
    second = first + at.LOOP_BYTES
    row_block, column_block = _divided(number, first)
    source, destination = np.int64(0), np.int64(0)
    if loops > 2:
        above, row_block = _divided(row_block, second)
        source, destination = places(np.int64(above), second + at.LOOP_BYTES, loops - 2)
    down, along = np.int64(row_block), np.int64(column_block)
    rows, columns = load_int64(table + at.TILE_ROWS), load_int64(table + at.TILE_COLUMNS)
    rows = min(rows, load_int64(table + at.ROWS) - down * rows)
    columns = min(columns, load_int64(table + at.COLUMN_COUNT) - along * columns)
    source += along * load_int64(first + at.SOURCE) + down * load_int64(second + at.SOURCE)
    destination += along * load_int64(first + at.DESTINATION) + down * load_int64(second + at.DESTINATION)
    return rows, columns, source, destination
