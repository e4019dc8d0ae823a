"""Pairs of strided arrays of one shape: transposed, reversed, with steps and gaps, broadcast, off any boundary."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
#: Allocates a number of bytes.
Memory = Callable[[int], NDArray[np.uint8]]

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 65, 130)
DTYPES = ("u1", "?", ">u2", "f4", "M8[s]", "c16", "V3", "S5", "V6", "U3", "f4,f8", "V24", "V40")
MOST_ELEMENTS = 200_000


def plain_memory(size: int) -> NDArray[np.uint8]:
    """Ordinary memory, eight bytes off a line as NumPy's may be."""
    return np.empty(size + 8, np.uint8)[8:]


def random_pair(source: random.Random, memory: Memory = plain_memory, most: int = MOST_ELEMENTS) -> tuple[Array, Array]:
    """A destination and a source of one shape and dtype, in separate memory; both hold random bytes."""
    dimensions = [source.choice(SIZES) for _ in range(source.randint(1, 5))]
    while math.prod(dimensions) > most:
        dimensions[source.randrange(len(dimensions))] = 2
    dtype = np.dtype(source.choice(DTYPES))
    destination = _array(source, dimensions, dtype, memory)
    repeated = [1 if source.random() < 0.1 else size for size in dimensions]
    return destination, np.broadcast_to(_array(source, repeated, dtype, memory), dimensions)


def _array(source: random.Random, dimensions: list[int], dtype: np.dtype[Any], memory: Memory) -> Array:
    rank = len(dimensions)
    order = source.sample(range(rank), rank)
    steps = [source.choice((1, 1, 1, 2, -1, -2)) for _ in order]
    gaps = [source.choice((0, 0, 0, 1, 3)) for _ in order]
    sizes = [dimensions[d] for d in order]
    whole = [(size - 1) * abs(step) + 1 + gap for size, step, gap in zip(sizes, steps, gaps, strict=True)]
    size = math.prod(whole) * dtype.itemsize
    offset = source.choice((0, 0, 1, 4))
    held = memory(size + offset)
    held[:] = np.frombuffer(source.randbytes(len(held)), np.uint8)
    # An array that starts at the memory's end, or ends there, is what fences are for.
    array = (held[offset:] if source.random() < 0.5 else held[:size]).view(dtype).reshape(whole)
    for axis, (length, step, gap) in enumerate(zip(sizes, steps, gaps, strict=True)):
        at = [slice(None)] * rank
        first = gap if source.random() < 0.5 else 0
        reached = first + (length - 1) * abs(step)
        at[axis] = slice(first, reached + 1, step) if step > 0 else slice(reached, first - 1 if first else None, step)
        array = array[tuple(at)]
    return array.transpose(np.argsort(order))
