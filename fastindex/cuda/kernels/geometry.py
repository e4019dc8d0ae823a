"""Which thread takes which part of a tile, and where that stands in shared memory.

A tile stands there column by column, in granules of 16 bytes of rows. The granules of a column are swapped by the
number of the vector that the column came with, so that neither side meets in a bank. All sizes are powers of two, and
what a lane, a warp and a step add to a place are different bits of it: a place is the XOR of the three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fastindex.cuda.kernels.device import device_function

_WARP = 32
_SPREAD = 8  # vectors of all banks, and most next to each other that the lanes of a warp take of smaller elements


class Walk:
    """How the threads of a block go over a tile: vectors of 16 bytes `along` it, rows or columns `across` it.

    Attributes
    ----------
    steps : int
        Of a thread.
    begin : callable
        From lane and warp, uint32, to where a thread starts: across, along, and its cell in shared memory; uint32.
    across, along, cell : callable
        From the number of a step to what it adds; to the cell, by XOR.
    """

    def __init__(
        self, along: tuple[int, int], across: tuple[int, int], warps: int, cell_of: Callable[..., Any]
    ) -> None:
        """Share out vectors: how many `along`, and the most lanes there; how many `across`, and how many at once."""
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
    """How the threads of a block go over a tile one element at a time, along its lines.

    Attributes
    ----------
    steps : int
        Of a thread.
    begin : callable
        From the number of a thread, uint32, to where it starts: across, along; uint32.
    across, along : callable
        From the number of a step to what it adds.
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
    """Make the function from the place of a byte of woven rows, and a shift, to where it stands in shared memory.

    Behind every ``1 << shift`` bytes `unit` bytes stay empty, which keeps lanes out of each other's banks.
    """
    scale = np.uint32(unit)

    @device_function
    def place(offset: Any, skew: Any) -> Any:
        return np.uint32(offset + np.uint32(np.uint32(offset >> skew) * scale))

    return place


def padded_bytes(size: int, unit: int) -> int:
    """Return the shared memory for `size` bytes of woven rows, a multiple of 16."""
    return -(-(size + (size >> 7) * unit) // 16) * 16


def _log(size: int) -> int:
    return size.bit_length() - 1


class TileGeometry:
    """The tile of a transpose that moves 16 bytes at a time.

    Attributes
    ----------
    vector : int
        Elements of 16 bytes.
    packed : int
        Rows that a word in shared memory holds.
    pitch : int
        Bytes of a column in shared memory.
    swaps_columns : bool
        Whether a column may stand in the place of its neighbour: where two have the 128 bytes of all banks.
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

        # Where a row has four vectors, eight lanes take two rows; where vectors take 64 bytes of columns, two have
        # the 128 bytes of all banks: then the next bit swaps what is next to each other.
        spread = np.uint32(_log(_SPREAD // min(_SPREAD, tile_columns // vector)))
        shared_banks = np.uint32(_log(max(128 // (vector * pitch), 1)))

        @device_function
        def swap_of(number: Any) -> Any:
            return np.uint32(np.uint32(np.uint32(number << spread) >> shared_banks) & swaps)

        def cell_of_row(row: Any, number: Any) -> Any:
            """Return where the first element of a row and a vector of columns stands."""
            swapped = np.uint32(np.uint32(row >> vector_shift) ^ swap_of(number))
            inside = np.uint32(np.uint32(row & row_mask) << width_shift)
            return np.uint32(np.uint32(number << vector_pitch) ^ np.uint32(np.uint32(swapped * granule) ^ inside))

        def cell_of_column(column: Any, number: Any) -> Any:
            """Return where a granule of a column stands."""
            swapped = np.uint32(number ^ swap_of(np.uint32(column >> vector_shift)))
            return np.uint32(np.uint32(column << column_shift) ^ np.uint32(swapped * granule))

        # Lines of 16-byte elements may start in the middle of a sector: the fewer of them, the better.
        warps, most_lanes = threads // _WARP, _WARP if vector == 1 else _SPREAD
        self.reading = Walk((tile_columns // vector, most_lanes), (tile_rows, self.packed), warps, cell_of_row)
        self.writing = Walk((pitch // 16, most_lanes), (tile_columns, 1), warps, cell_of_column)


class WordGeometry:
    """The tile of a transpose that moves words of small elements, wherever these start.

    A block of as many rows and columns as a word has elements is transposed at once. The lanes of a warp take a stretch
    of blocks along the rows, one fewer than they are: the last one reads what the others' words lack. The tile stands
    in shared memory column by column, with a word of room behind each and another behind every 32, so that the lanes
    write to different banks.

    Attributes
    ----------
    per_word : int
        Elements of a word.
    pitch : int
        Bytes from column to column in shared memory, but for what stands behind every 32.
    size : int
        Bytes of shared memory.
    steps : int
        Of a warp.
    patch_of : callable
        From the number of a warp, uint32, and of a step to its group of rows and to the first block of its stretch;
        int64.
    column_place : callable
        From a column to where it stands in shared memory.
    """

    def __init__(self, width: int, tile_rows: int, tile_columns: int, threads: int) -> None:
        self.per_word = per = 4 // width
        groups = 1 << _log(-(-tile_rows // per) * 2 - 1)
        self.pitch = pitch = 4 * groups + 4
        stretch = _WARP - 1
        stretches, rest = divmod(tile_columns // per, stretch)
        if rest:
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

    A warp reads vectors of `columns` columns: 32 columns of as many rows as a vector has columns. It writes vectors of
    `rows` rows: 32 rows of as many columns. With one cell more than rows to a column, either way the lanes meet in no
    bank.

    Attributes
    ----------
    side : int
        Rows, and columns.
    pitch, cells : int
        From column to column, and in all.
    read_steps, write_steps : int
        Of a thread.
    reading, writing : callable
        From the number of a thread, uint32, and of a step to the first row and column of its vector; int64.
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
    """Make the function from a thread and a step to lines and places along these: a warp takes 32 of `vector` lines."""
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
