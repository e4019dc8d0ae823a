"""The part of an array that each device holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastindex.core.shape import Shape
from fastindex.sharding.sharding import Sharding

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placement:
    """The parts of an array, by device.

    Attributes
    ----------
    shard : Shape
        The shape of each device's buffer.
    tile_index : int64 array of (devices, rank)
        Position of a device's part along each dimension; (devices, 0) if nothing is partitioned.
    start, stop : int64 arrays of (devices, rank)
        Range of the elements on each device; empty for a device that holds only padding.
    holds : bool array of (devices,)
        Whether a device holds elements: a scalar has no range that could be empty.
    """

    shard: Shape
    tile_index: Numbers
    start: Numbers
    stop: Numbers
    holds: NDArray[np.bool_]


def placement(shape: Shape, sharding: Sharding, device_count: int) -> Placement:
    """Return the part of the array on each device.

    Raises
    ------
    LayoutError, UnsupportedError
        As `Sharding.shard_shape`.
    """
    shard = sharding.shard_shape(shape)
    sizes = np.array(shape.dimensions, np.int64)
    if sharding.order is None:
        nothing = np.zeros((device_count, shape.rank), np.int64)
        whole = np.broadcast_to(sizes, nothing.shape).copy()
        holds = np.full(device_count, True) if sharding.device is None else np.arange(device_count) == sharding.device
        whole[~holds] = 0
        return Placement(shard, np.zeros((device_count, 0), np.int64), nothing, whole, holds)
    devices = sharding.order.array()
    place = np.empty(device_count, np.int64)
    place[devices] = np.arange(device_count)
    # np.unravel_index rejects a shape without dimensions.
    parts = np.unravel_index(place, sharding.dimensions)[: shape.rank] if shape.rank else ()
    index = np.stack(parts, axis=1).astype(np.int64) if parts else np.zeros((device_count, 0), np.int64)
    held = np.array(shard.dimensions, np.int64)
    start, stop = np.minimum(index * held, sizes), np.minimum((index + 1) * held, sizes)
    return Placement(shard, index, start, stop, (start < stop).all(axis=1))


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of an array on one device.

    Attributes
    ----------
    device : int
        Its position in the device assignment.
    tile_index : tuple of int
        Position of the part along each dimension; () if nothing is partitioned.
    start, stop : tuple of int
        Range of its elements, per dimension; empty in some dimension if the device holds only padding.
    nbytes : int
        Bytes of its buffer, including all padding.
    logical_nbytes : int
        Bytes of its elements.
    """

    device: int
    tile_index: tuple[int, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]
    nbytes: int
    logical_nbytes: int

    @property
    def slices(self) -> tuple[slice, ...]:
        """The elements on the device, as an index into the array.

        Examples
        --------
        >>> Shard(0, (0,), (2,), (4,), 8, 8).slices
        (slice(2, 4, None),)
        """
        return tuple(slice(start, stop) for start, stop in zip(self.start, self.stop, strict=True))


def shards_of(shape: Shape, sharding: Sharding, device_count: int) -> list[Shard]:
    """Return one record per device."""
    placed = placement(shape, sharding, device_count)
    bits, nbytes = placed.shard.element_bits, placed.shard.nbytes
    columns = placed.tile_index, placed.start, placed.stop, placed.holds
    records = []
    for device, (index, start, stop, holds) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        count = math.prod(end - begin for begin, end in zip(start, stop, strict=True)) * holds
        records.append(Shard(device, tuple(index), tuple(start), tuple(stop), nbytes, -(-count * bits // 8)))
    return records
