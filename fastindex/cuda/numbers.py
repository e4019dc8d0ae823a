"""Parameters of the GPU's relayout kernels: tables of numbers, and numbers of blocks. It needs no CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import division
from fastindex.algebra.loops import Loop

# Offsets in a table, in bytes. Of a loop: its size, the constants of a division by it, and its strides, in bytes.
SIZE, MAGIC, SHIFT, SOURCE, DESTINATION, LOOP_BYTES = range(0, 48, 8)

# The header of a tile kernel, before the loops.
ROWS, TILE_ROWS, TILE_COLUMNS, COLUMN_COUNT, SKEW, HEADER_BYTES = range(0, 48, 8)

#: Lanes of a warp, and how many of its 4 * WARP values a warp finishes if each value needs its successor: four fewer
#: than it holds, so that a warp begins with a whole sector of 8-byte values.
WARP = 32
FOLLOWED = 4 * WARP - 4


def table(loops: Sequence[Loop], header: Sequence[int] = (), places: Sequence[int] = ()) -> NDArray[np.int64]:
    """Return the table of a launch.

    Parameters
    ----------
    loops : sequence of Loop
        In bytes.
    header : sequence of int
        Of a tile kernel: five numbers.
    places : sequence of int
        Of a tile kernel: the offsets of the rows of a tile, then of its columns.
    """
    numbers = [*header]
    for loop in loops:
        constants = division(loop.size, 1)
        numbers += [loop.size, constants.magic, constants.shift, loop.source_stride, loop.destination_stride]
    return np.array([*numbers, *places], np.int64)


def blocks(kernel: str, units: int, threads: int) -> int:
    """Return the number of blocks of `threads` threads of a launch."""
    if kernel in ("shift", "interleave rows", "deinterleave rows"):
        return -(-units // (threads // WARP * FOLLOWED))
    if kernel in ("cast rows", "cast parts"):
        return -(-units // threads)
    one_tile = ("transpose", "transpose words", "transpose elements", "stage", "unstage", "cast transpose")
    return -(-units // (1 if kernel in one_tile else 4 * threads))


def unit_of(pattern: bytes, size: int) -> tuple[int, int]:
    """Return a pattern, repeated to `size` bytes, as the low and the high 8 bytes of a unit: two signed integers."""
    unit = (pattern * -(-size // len(pattern)))[:size]
    return int.from_bytes(unit[:8], "little", signed=True), int.from_bytes(unit[8:], "little", signed=True)
