"""The loops of a table in GPU memory: where a step of them is, by multiplications and shifts."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastindex.kernels import element
from fastindex.kernels.cuda.device import device_function
from fastindex.kernels.cuda.memory import load_int64
from fastindex.tables import cuda_launches as cuda_tables

# Offsets in a table, in bytes.
SIZE, MAGIC, SHIFT = (8 * column for column in (cuda_tables.SIZE, cuda_tables.MAGIC, cuda_tables.SHIFT))
SOURCE, DESTINATION = 8 * cuda_tables.SOURCE_STRIDE, 8 * cuda_tables.DESTINATION_STRIDE
LOOP_BYTES = 8 * cuda_tables.COLUMNS

quotient = device_function(element.narrow_quotient)


@device_function
def places(number: Any, table: Any, loops: Any) -> Any:
    """Give where step `number` of some loops, the fastest first, is in the source and in the destination."""
    source = np.int64(0)
    destination = np.int64(0)
    for _ in range(loops - 1):
        above = quotient(number, load_int64(table + MAGIC), load_int64(table + SHIFT))
        digit = number - above * load_int64(table + SIZE)
        source += digit * load_int64(table + SOURCE)
        destination += digit * load_int64(table + DESTINATION)
        number = above
        table += LOOP_BYTES
    source += number * load_int64(table + SOURCE)
    destination += number * load_int64(table + DESTINATION)
    return source, destination


@device_function
def four_places(n0: Any, n1: Any, n2: Any, n3: Any, table: Any, loops: Any) -> Any:
    """Give the places of four steps at once: the table is read once for all of them."""
    s0 = s1 = s2 = s3 = np.int64(0)
    d0 = d1 = d2 = d3 = np.int64(0)
    for loop in range(loops):
        q0, q1, q2, q3 = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        if loop < loops - 1:
            magic, shift = load_int64(table + MAGIC), load_int64(table + SHIFT)
            q0, q1 = quotient(n0, magic, shift), quotient(n1, magic, shift)
            q2, q3 = quotient(n2, magic, shift), quotient(n3, magic, shift)
        size = load_int64(table + SIZE)
        source, destination = load_int64(table + SOURCE), load_int64(table + DESTINATION)
        n0, n1, n2, n3 = n0 - q0 * size, n1 - q1 * size, n2 - q2 * size, n3 - q3 * size
        s0, s1, s2, s3 = s0 + n0 * source, s1 + n1 * source, s2 + n2 * source, s3 + n3 * source
        d0, d1 = d0 + n0 * destination, d1 + n1 * destination
        d2, d3 = d2 + n2 * destination, d3 + n3 * destination
        n0, n1, n2, n3 = q0, q1, q2, q3
        table += LOOP_BYTES
    return s0, s1, s2, s3, d0, d1, d2, d3
