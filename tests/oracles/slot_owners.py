"""Which element each slot of a buffer holds: the definition of tiling, as NumPy's pads, reshapes and transposes.

As `reference`, but fast enough for a million slots, and sharing no code with it beyond the parsed shape.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.oracles.reference import STAR, ReferenceShape

Bytes = NDArray[np.uint8]


def elements_of_slots(shape: ReferenceShape) -> NDArray[np.int64]:
    """Return the number of the element, in C order, that lies in each slot; -1 for padding."""
    array = np.arange(np.prod(shape.dimensions, dtype=np.int64), dtype=np.int64).reshape(shape.dimensions)
    if shape.padded_dimensions is not None:
        wider = [(0, padded - size) for padded, size in zip(shape.padded_dimensions, shape.dimensions, strict=True)]
        array = np.pad(array, wider, constant_values=-1)
    array = array.transpose(shape.minor_to_major[::-1])
    for tile in shape.tiles:
        array = _tiled(array, tile)
    flat = array.reshape(-1)
    return np.pad(flat, (0, -len(flat) % shape.tail_alignment), constant_values=-1)


def _tiled(array: NDArray[np.int64], tile: tuple[int | str, ...]) -> NDArray[np.int64]:
    array = array.reshape((1,) * (len(tile) - array.ndim) + array.shape)
    outside = array.ndim - len(tile)
    sizes, tile_sizes = list(array.shape[:outside]), []
    merged = 1
    for size, entry in zip(array.shape[outside:], tile, strict=True):
        merged *= size
        if entry != STAR:
            sizes.append(merged)
            tile_sizes.append(int(entry))
            merged = 1
    array = array.reshape(sizes)
    rests = [-size % entry for size, entry in zip(sizes[outside:], tile_sizes, strict=True)]
    array = np.pad(array, [(0, 0)] * outside + [(0, rest) for rest in rests], constant_values=-1)
    split = list(array.shape[:outside])
    for size, entry in zip(array.shape[outside:], tile_sizes, strict=True):
        split += [size // entry, entry]
    count = len(tile_sizes)
    which = [outside + 2 * k for k in range(count)]
    return array.reshape(split).transpose([*range(outside), *which, *(axis + 1 for axis in which)])


def buffer_of(values: Bytes, owner: NDArray[np.int64], fill: Bytes, packed: bool) -> Bytes:
    """The buffer whose slots hold the elements that `owner` says, and `fill` elsewhere.

    `values` has the bytes of an element in each row; packed elements have four bits of a byte, the first the low ones.
    """
    slots = np.where((owner >= 0)[:, None], values[owner], fill)
    if not packed:
        return np.ascontiguousarray(slots.reshape(-1))
    halves = np.append(slots.reshape(-1), np.zeros(len(slots) % 2, np.uint8))
    return np.asarray(halves[::2] | halves[1::2] << 4, np.uint8)
