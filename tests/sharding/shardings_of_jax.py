"""Run in a process with eight host devices: shardings of JAX, both ways, against JAX's own map of devices to parts."""

from __future__ import annotations

import itertools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import fastindex as fi

SPECS = (("a", "b"), ("b", "a"), (("a", "b"), None), (None, "b"), (), ("b",))
ORDERS = (tuple(range(8)), (7, 1, 2, 3, 5, 4, 6, 0))
TEXTS = (
    "{devices=[2,4]<=[4,2]T(1,0)}",
    "{mesh['a'=2,'b'=4], [{'b'}, {'a'}]}",
    "{mesh['a'=4,'b'=2], [{'a':(1)2}, {'b'}]}",
    "{replicated}",
    "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
)


def main() -> None:
    """Compare, and fail where something differs."""
    devices = jax.devices()
    for order, spec in itertools.product(ORDERS, SPECS):
        mesh = Mesh(np.array([devices[i] for i in order]).reshape(2, 4), ("a", "b"))
        named = NamedSharding(mesh, PartitionSpec(*spec))
        sharding = fi.sharding.Sharding.from_jax(named, 2)
        placed = named.devices_indices_map((16, 8))
        for device, part in zip(mesh.devices.flat, fi.sharding.shards("f32[16,8]", sharding, 8), strict=True):
            spans = [along.indices(size)[:2] for along, size in zip(placed[device], (16, 8), strict=True)]
            assert spans == list(zip(part.start, part.stop, strict=True)), (spec, sharding)
        assert sharding.to_jax(list(mesh.devices.flat)).is_equivalent_to(named, 2)
        assert fi.sharding.Sharding.from_jax(jax.device_put(np.zeros((16, 8), np.float32), named)) == sharding
    for text in TEXTS:
        sharding = fi.sharding.Sharding.parse(text)
        assert fi.sharding.Sharding.from_jax(sharding.to_jax(devices), 2) == sharding


if __name__ == "__main__":
    main()
