"""Parameters of the GPU's relayout kernels: tables of numbers, and numbers of blocks. It needs no CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Columns of a loop: its size, the constants of a division by it, and its strides, in bytes.
SIZE = 0
MAGIC = 1
SHIFT = 2
SOURCE_STRIDE = 3
DESTINATION_STRIDE = 4
COLUMNS = 5

# The header, before the loops of a tile kernel.
ROWS = 0
TILE_ROWS = 1
TILE_COLUMNS = 2
COLUMN_COUNT = 3
SKEW = 4
HEADER = 5

#: Lanes of a warp, and how many of its 4 * WARP values a warp finishes if each value needs its successor: four fewer
#: than it holds, so that a warp begins with a whole sector of 8-byte values.
WARP = 32
FOLLOWED = 4 * WARP - 4


def table(loops: Sequence[Sequence[int]], header: Sequence[int] = (), places: Sequence[int] = ()) -> NDArray[np.int64]:
    """Return the table of a launch.

    Parameters
    ----------
    loops : sequence of (size, magic, shift, source stride, destination stride)
    header : sequence of int
        Of a tile kernel: `HEADER` numbers.
    places : sequence of int
        Of a tile kernel: the offsets of the rows of a tile, then of its columns.
    """
    return np.array([*header, *(number for loop in loops for number in loop), *places], np.int64)


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
