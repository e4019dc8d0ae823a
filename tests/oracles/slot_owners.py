"""Which element each slot of a buffer holds: the definition of tiling, as NumPy's pads, reshapes and transposes.

As `reference`, but fast enough for a million slots, and sharing no code with it beyond the parsed shape.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tests.oracles.reference import STAR, ReferenceShape

Owners = NDArray[np.int64]
Bytes = NDArray[np.uint8]


def owners(shape: ReferenceShape) -> Owners:
    """The number of the element in each slot, row-major; -1 where there is padding."""
    array = np.arange(math.prod(shape.dimensions), dtype=np.int64).reshape(shape.dimensions)
    array = array.transpose(shape.minor_to_major[::-1])
    for tile in shape.tiles:
        array = _tiled(array, tile)
    slots = array.reshape(-1)
    return np.pad(slots, (0, -len(slots) % shape.tail_alignment), constant_values=-1)


def _tiled(array: Owners, tile: tuple[int | str, ...]) -> Owners:
    """Pad the most minor axes to whole tiles, split them, and move the parts within a tile to the end."""
    array = array.reshape((1,) * (len(tile) - array.ndim) + array.shape)
    first = array.ndim - len(tile)
    outer, joined, sizes, pending = array.shape[:first], [], [], 1
    for extent, size in zip(array.shape[first:], tile, strict=True):
        if size == STAR:
            pending *= extent
            continue
        joined.append(pending * extent)
        sizes.append(int(size))
        pending = 1
    assert pending == 1, "a merged dimension has to have one behind it"
    array = array.reshape(*outer, *joined)
    ends = [(0, -extent % size) for extent, size in zip(joined, sizes, strict=True)]
    array = np.pad(array, [(0, 0)] * first + ends, constant_values=-1)
    split = [part for extent, size in zip(array.shape[first:], sizes, strict=True) for part in (extent // size, size)]
    array = array.reshape(*outer, *split)
    count = len(sizes)
    counts, within = ([first + 2 * k + part for k in range(count)] for part in (0, 1))
    return array.transpose(*range(first), *counts, *within)


def buffer_of(values: Bytes, owner: Owners, fill: Bytes, packed: bool) -> Bytes:
    """The buffer whose slots hold the elements that `owner` says, and `fill` elsewhere.

    `values` has the bytes of an element in each row; packed elements have four bits of a byte, the first the low ones.
    """
    slots = np.where((owner >= 0)[:, None], values[owner], fill)
    if not packed:
        return np.ascontiguousarray(slots.reshape(-1))
    halves = np.append(slots.reshape(-1), np.zeros(len(slots) % 2, np.uint8))
    return np.asarray(halves[::2] | halves[1::2] << 4, np.uint8)
