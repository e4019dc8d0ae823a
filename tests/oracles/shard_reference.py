"""Which device holds which element in which slot, by the definition, slowly and with the standard library only.

Nothing here is shared with the package: own reading of the list and counter forms, own arithmetic.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from dataclasses import dataclass

from tests.oracles import reference
from tests.oracles.reference import MultiIndex, ReferenceShape


@dataclass(frozen=True)
class ReferenceSharding:
    """A tile assignment: its dimensions, the devices in order, and how many of the dimensions divide the array."""

    dimensions: tuple[int, ...]
    devices: tuple[int, ...]
    rank: int

    def devices_of(self, tile: MultiIndex) -> list[int]:
        """Return the devices that hold a tile, in the order of the assignment."""
        found = []
        for trailing in itertools.product(*(range(size) for size in self.dimensions[self.rank :])):
            place = 0
            for size, index in zip(self.dimensions, (*tile, *trailing), strict=True):
                place = place * size + index
            found.append(self.devices[place])
        return found


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def parse(text: str, rank: int, device_count: int) -> ReferenceSharding:
    """Read a list or counter form, ``{replicated}``, ``{manual}`` or ``{unknown}``; `rank` is that of the array."""
    found = re.match(r"\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))", text)
    if found is None:
        return ReferenceSharding((1,) * rank + (device_count,), tuple(range(device_count)), rank)
    dimensions = tuple(_integers(found[1]))
    types = re.search(r"last_tile_dims=\{(.*?)\}", text)
    subgroups = len(types[1].split(",")) if types else int("last_tile_dim_replicate" in text)
    if found[4]:
        devices = _integers(found[4])
    else:
        sizes = _integers(found[2])
        order = _integers(found[3]) if found[3] else list(range(len(sizes)))
        devices = []
        for counted in itertools.product(*(range(sizes[d]) for d in order)):
            digits = dict(zip(order, counted, strict=True))
            device = 0
            for d, size in enumerate(sizes):
                device = device * size + digits[d]
            devices.append(device)
    assert math.prod(dimensions) == len(devices)
    return ReferenceSharding(dimensions, tuple(devices), len(dimensions) - subgroups)


def shard_shape(shape: ReferenceShape, sharding: ReferenceSharding) -> ReferenceShape:
    """Return what each device has room for."""
    sizes = tuple(-(-n // parts) for n, parts in zip(shape.dimensions, sharding.dimensions, strict=False))
    return dataclasses.replace(shape, dimensions=sizes)


def places(shape: ReferenceShape, sharding: ReferenceSharding) -> dict[MultiIndex, tuple[list[int], int]]:
    """Return the devices that hold each element, and its slot on each of them."""
    shard = shard_shape(shape, sharding)
    slots = reference.linear_indices(shard)
    found = {}
    for element in reference.every_index(shape.dimensions):
        tile = tuple(x // size for x, size in zip(element, shard.dimensions, strict=True))
        within = tuple(x % size for x, size in zip(element, shard.dimensions, strict=True))
        found[element] = sharding.devices_of(tile), slots[within]
    return found
