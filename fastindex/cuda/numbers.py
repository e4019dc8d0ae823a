"""Numbers that the GPU's relayout kernels share with their launches: offsets in tables. It needs no CUDA."""

from __future__ import annotations

# Offsets in a table, in bytes. Of a loop: its size, the constants of a division by it, and its strides, in bytes.
SIZE, MAGIC, SHIFT, SOURCE, DESTINATION, LOOP_BYTES = range(0, 48, 8)

# The header of a tile kernel, before the loops.
ROWS, TILE_ROWS, TILE_COLUMNS, COLUMN_COUNT, SKEW, HEADER_BYTES = range(0, 48, 8)

#: Lanes of a warp, and how many of its 4 * WARP values a warp finishes if each value needs its successor: four fewer
#: than it holds, so that a warp begins with a whole sector of 8-byte values.
WARP = 32
FOLLOWED = 4 * WARP - 4


def unit_of(pattern: bytes, size: int) -> tuple[int, int]:
    """Return a pattern, repeated to `size` bytes, as the low and the high 8 bytes of a unit: two signed integers."""
    unit = (pattern * -(-size // len(pattern)))[:size]
    return int.from_bytes(unit[:8], "little", signed=True), int.from_bytes(unit[8:], "little", signed=True)
