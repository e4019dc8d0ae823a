"""Offsets of the steps of loops in a GPU table; divisions are done by multiplications and shifts."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastindex.cuda import numbers as cuda_tables
from fastindex.cuda.kernels.device import device_function
from fastindex.cuda.kernels.memory import load_int64
from fastindex.index.numbers import narrow_quotient

# Offsets in a table, in bytes.
SIZE, MAGIC, SHIFT = (8 * column for column in (cuda_tables.SIZE, cuda_tables.MAGIC, cuda_tables.SHIFT))
SOURCE, DESTINATION = 8 * cuda_tables.SOURCE_STRIDE, 8 * cuda_tables.DESTINATION_STRIDE
LOOP_BYTES = 8 * cuda_tables.COLUMNS

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
        above = quotient(number, load_int64(table + MAGIC), load_int64(table + SHIFT)) & _LOW
        digit = digit_below(number, above, load_int64(table + SIZE))
        source += digit * load_int64(table + SOURCE)
        destination += digit * load_int64(table + DESTINATION)
        number = above
        table += LOOP_BYTES
    source += number * load_int64(table + SOURCE)
    destination += number * load_int64(table + DESTINATION)
    return source, destination


@device_function
def four_places(n0: Any, n1: Any, n2: Any, n3: Any, table: Any, loops: Any) -> Any:
    """Return the source and the destination offsets of four steps; the table is read once for all of them."""
    s0 = s1 = s2 = s3 = np.int64(0)
    d0 = d1 = d2 = d3 = np.int64(0)
    for loop in range(loops):
        q0, q1, q2, q3 = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        if loop < loops - 1:
            magic, shift = load_int64(table + MAGIC), load_int64(table + SHIFT)
            q0, q1 = quotient(n0, magic, shift) & _LOW, quotient(n1, magic, shift) & _LOW
            q2, q3 = quotient(n2, magic, shift) & _LOW, quotient(n3, magic, shift) & _LOW
        size = load_int64(table + SIZE)
        source, destination = load_int64(table + SOURCE), load_int64(table + DESTINATION)
        n0, n1 = digit_below(n0, q0, size), digit_below(n1, q1, size)
        n2, n3 = digit_below(n2, q2, size), digit_below(n3, q3, size)
        s0, s1, s2, s3 = s0 + n0 * source, s1 + n1 * source, s2 + n2 * source, s3 + n3 * source
        d0, d1 = d0 + n0 * destination, d1 + n1 * destination
        d2, d3 = d2 + n2 * destination, d3 + n3 * destination
        n0, n1, n2, n3 = q0, q1, q2, q3
        table += LOOP_BYTES
    return (s0, s1, s2, s3), (d0, d1, d2, d3)


# Tiles: the header before the loops, and the offsets of a block's tile

ROWS, TILE_ROWS = 8 * cuda_tables.ROWS, 8 * cuda_tables.TILE_ROWS
TILE_COLUMNS, COLUMN_COUNT = 8 * cuda_tables.TILE_COLUMNS, 8 * cuda_tables.COLUMN_COUNT
SKEW = 8 * cuda_tables.SKEW
HEADER_BYTES = 8 * cuda_tables.HEADER


@device_function
def _divided(number: Any, loop: Any) -> Any:
    """Return the quotient and the remainder of a number below 2**31 by the size of a loop, uint32."""
    above = np.uint32(quotient(np.int64(number), load_int64(loop + MAGIC), load_int64(loop + SHIFT)))
    return above, np.uint32(number - np.uint32(above * np.uint32(load_int64(loop + SIZE))))


@device_function
def _no_loops_beyond(row_block: Any, second: Any, loops: Any) -> Any:
    return row_block, np.int64(0), np.int64(0)


@device_function
def _loops_beyond(row_block: Any, second: Any, loops: Any) -> Any:
    """Return the index of a block in the second loop, and the offsets of the loops after it."""
    if loops > 2:
        above, row_block = _divided(row_block, second)
        source, destination = places(np.int64(above), second + LOOP_BYTES, loops - 2)
        return row_block, source, destination
    return row_block, np.int64(0), np.int64(0)


def _tile_finder(beyond: Any) -> Any:
    @device_function
    def find(number: Any, table: Any, loops: Any) -> Any:
        """Return how many rows and columns a tile has, and its offset on both sides; `number` is uint32.

        The first loop goes over tiles along the columns, the second over tiles along the rows.
        """
        first = table + HEADER_BYTES
        second = first + LOOP_BYTES
        row_block, column_block = _divided(number, first)
        row_block, source, destination = beyond(row_block, second, loops)
        row_block, column_block = np.int64(row_block), np.int64(column_block)
        rows, columns = load_int64(table + TILE_ROWS), load_int64(table + TILE_COLUMNS)
        rows = min(rows, load_int64(table + ROWS) - row_block * rows)
        columns = min(columns, load_int64(table + COLUMN_COUNT) - column_block * columns)
        source += column_block * load_int64(first + SOURCE) + row_block * load_int64(second + SOURCE)
        destination += column_block * load_int64(first + DESTINATION) + row_block * load_int64(second + DESTINATION)
        return rows, columns, source, destination

    return find


tile = _tile_finder(_loops_beyond)
tile_of_two_loops = _tile_finder(_no_loops_beyond)
