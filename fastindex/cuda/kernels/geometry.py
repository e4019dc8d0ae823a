"""The part of a tile that each thread moves, and its offset in shared memory.

A tile is stored there column by column, in granules of 16 bytes of rows. The granules of a column are XOR-swizzled by
the number of the 16-byte vector that its elements were loaded in, so that neither loads nor stores have bank conflicts.
All sizes are powers of two, and lane, warp and step set different bits of an offset: it is the XOR of the three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fastindex.cuda.kernels.device import device_function

_WARP = 32
_SPREAD = 8  # vectors that span all banks, and the most adjacent ones that a warp takes of smaller elements


class Walk:
    """How the threads of a block traverse a tile: vectors of 16 bytes `along` it, rows or columns `across` it.

    Attributes
    ----------
    steps : int
        Per thread.
    begin : callable
        Maps lane and warp, uint32, to the start of a thread: across, along, and the offset of its cell in shared
        memory; uint32.
    across, along, cell : callable
        Map the number of a step to what it adds; to the cell, by XOR.
    """

    def __init__(
        self, along: tuple[int, int], across: tuple[int, int], warps: int, cell_of: Callable[..., Any]
    ) -> None:
        """Distribute vectors: their count `along`, and the most lanes there; the count `across`, and those at once."""
        (count_along, most_lanes), (count_across, unit) = along, across
        lanes_along = min(most_lanes, count_along)
        lanes_across = _WARP // lanes_along
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
        cell_place = device_function(cell_of)

        @device_function
        def begin(lane: Any, warp: Any) -> Any:
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
            across, along = (step >> step_shift) * across_step, (step & step_mask) * along_step
            return cell_place(np.uint32(across), np.uint32(along))

        self.begin, self.across, self.along, self.cell = begin, across_at, along_at, cell_at


class Lines:
    """How the threads of a block traverse a tile one element at a time, along its lines.

    Attributes
    ----------
    steps : int
        Per thread.
    begin : callable
        Maps the number of a thread, uint32, to its start: across, along; uint32.
    across, along : callable
        Map the number of a step to what it adds.
    """

    def __init__(self, count_along: int, count_across: int, threads: int) -> None:
        self.steps = count_along * count_across // threads
        mask, shift = np.uint32(count_along - 1), np.uint32(_log(count_along))
        parts = max(count_along // threads, 1)
        along_step, across_step = threads, max(threads // count_along, 1)
        step_mask, step_shift = parts - 1, _log(parts)

        @device_function
        def begin(thread: Any) -> Any:
            return np.uint32(thread >> shift), np.uint32(thread & mask)

        @device_function
        def across_at(step: Any) -> Any:
            return (step >> step_shift) * across_step

        @device_function
        def along_at(step: Any) -> Any:
            return (step & step_mask) * along_step

        self.begin, self.across, self.along = begin, across_at, along_at


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
    """The tile of a transpose that moves 16 bytes at a time.

    Attributes
    ----------
    vector : int
        Elements per 16-byte vector.
    packed : int
        Rows that a word in shared memory holds.
    pitch : int
        Bytes of a column in shared memory.
    swaps_columns : bool
        Whether a column may swap places with its neighbour: if two columns span the 128 bytes of all banks.
    reading : Walk
        Across are rows, along are vectors of columns.
    writing : Walk
        Across are columns, along are vectors of rows.
    """

    def __init__(self, width: int, tile_rows: int, tile_columns: int, threads: int) -> None:
        self.vector = vector = 16 // width
        self.packed = max(4 // width, 1)
        self.pitch = pitch = tile_rows * width
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
        warps, most_lanes = threads // _WARP, _WARP if vector == 1 else _SPREAD
        self.reading = Walk((tile_columns // vector, most_lanes), (tile_rows, self.packed), warps, cell_of_row)
        self.writing = Walk((pitch // 16, most_lanes), (tile_columns, 1), warps, cell_of_column)


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
        stretch = _WARP - 1
        stretches, remainder = divmod(tile_columns // per, stretch)
        if remainder:
            raise ValueError(f"{tile_columns} columns are not stretches of {stretch} words")
        warps = threads // _WARP
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


class CastGeometry:
    """The tile of a transpose that converts, 64 rows by 64 columns: a cell of shared memory for each element.

    A warp reads vectors of `columns` columns: 32 columns of `columns` rows. It writes vectors of `rows` rows: 32 rows
    of `rows` columns. A column has one cell of padding, so neither loads nor stores have bank conflicts.

    Attributes
    ----------
    side : int
        Rows, and columns.
    pitch, cells : int
        Cells between columns, and in total.
    read_steps, write_steps : int
        Per thread.
    reading, writing : callable
        Map the number of a thread, uint32, and of a step to the first row and column of its vector; int64.
    """

    def __init__(self, rows: int, columns: int, threads: int) -> None:
        self.side = side = 64
        self.pitch = side + 1
        self.cells = side * self.pitch
        self.read_steps = -(-side * side // columns // threads)
        self.write_steps = -(-side * side // rows // threads)
        self.reading = _patches(columns, side, threads // _WARP)
        across = _patches(rows, side, threads // _WARP)

        @device_function
        def writing(thread: Any, step: Any) -> Any:
            column, row = across(thread, step)
            return row, column

        self.writing = writing


def _patches(vector: int, side: int, warps: int) -> Callable[[Any, Any], Any]:
    """Make the map from thread and step to a line and a place along it; a warp takes 32 places of `vector` lines."""
    lanes = _WARP // vector
    lane_mask, lane_shift, vector_shift = lanes - 1, _log(lanes), _log(vector)
    patches_along = side // _WARP
    patch_mask, patch_shift = patches_along - 1, _log(patches_along)

    @device_function
    def patch(thread: Any, step: Any) -> Any:
        lane, number = np.int64(thread) & (_WARP - 1), (np.int64(thread) >> 5) + np.int64(step) * warps
        line = ((number >> patch_shift) << vector_shift) + (lane >> lane_shift)
        along = ((number & patch_mask) << 5) + ((lane & lane_mask) << vector_shift)
        return line, along

    return patch
