"""Which element each slot of a buffer holds: the definition of tiling, as NumPy's pads, reshapes and transposes.

As `reference`, but fast enough for a million slots, and sharing no code with it beyond the parsed shape.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from tests.oracles.reference import STAR, ReferenceShape, element_bits

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


def slots_of_elements(owner: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slot of each element, in C order."""
    inside = np.flatnonzero(owner >= 0)
    slots = np.empty(len(inside), np.int64)
    slots[owner[inside]] = inside
    return slots


def buffer_of(shape: ReferenceShape, owner: NDArray[np.int64], values: Bytes, fill: bytes = b"") -> Bytes:
    """The buffer whose slots hold the elements that `owner` says, and `fill`, a value, or zeros elsewhere.

    `values` has the bytes of an element in each row; of packed elements, the first is in the low bits of a byte.
    """
    bits, width = element_bits(shape), values.shape[1]
    slots = np.zeros((len(owner), max(bits // 8, width)), np.uint8)
    slots[:, :width] = np.frombuffer(fill or bytes(width), np.uint8)
    inside = owner >= 0
    slots[inside, :width] = values[owner[inside]]
    if bits >= 8:
        return slots.reshape(-1)
    ways = 8 // bits
    parts = np.append(slots[:, 0], np.zeros(-len(slots) % ways, np.uint8)).reshape(-1, ways)
    return functools.reduce(np.bitwise_or, (parts[:, k] << np.uint8(k * bits) for k in range(ways))).astype(np.uint8)
