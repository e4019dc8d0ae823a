"""Convert shardings from and to JAX; JAX is imported only to create one."""

from __future__ import annotations

from typing import Any

from fastindex.errors import ArgumentTypeError, FastIndexError, LayoutError


def proto_of_jax(sharding: Any, rank: int | None) -> bytes:
    """Return the serialised ``OpSharding`` of a JAX sharding, an array, or XLA's own object.

    Raises
    ------
    FastIndexError
        `rank` is missing, or does not fit the sharding.
    ArgumentTypeError
        `sharding` is of another type.
    """
    if hasattr(sharding, "sharding") and hasattr(sharding, "ndim"):
        rank, sharding = sharding.ndim, sharding.sharding
    to_hlo = getattr(sharding, "_to_xla_hlo_sharding", None)
    if to_hlo is not None:
        if rank is None:
            raise FastIndexError(f"a {type(sharding).__name__} needs the rank of the array: Sharding.from_jax(s, rank)")
        try:
            sharding = to_hlo(rank)
        except ValueError as error:
            raise LayoutError(f"the sharding does not fit an array of {rank} dimensions: {error}") from None
    to_proto = getattr(sharding, "to_proto", None)
    proto = to_proto() if to_proto is not None else sharding
    serialise = getattr(proto, "SerializeToString", None)
    data = proto if serialise is None else serialise()
    if not isinstance(data, bytes):
        raise ArgumentTypeError(f"expected a jax.sharding.Sharding, a jax.Array or an HloSharding, got {sharding!r}")
    return data


def sharding_to_jax(sharding: Any, devices: list[Any]) -> Any:
    """Return a ``NamedSharding`` for a mesh of whole axes (no sub-axes), else a ``GSPMDSharding``.

    Raises
    ------
    LayoutError
        The number of devices differs, or the sharding is that of a tuple.
    """
    if sharding.kind == "tuple":
        raise LayoutError("JAX has no sharding of a tuple; take one of its elements")
    sharding.checked_device_count(len(devices))
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from jaxlib import xla_client

    named = sharding.mesh
    if named is not None and named.mesh.names and not named.unreduced and not named.manual:
        axes = [axis for dimension in named.dimensions for axis in dimension.axes]
        if all(axis.part is None for axis in (*axes, *named.replicated)):
            placed = np.array([devices[i] for i in named.mesh.order.array()], dtype=object)
            mesh = Mesh(placed.reshape(named.mesh.sizes), named.mesh.names)
            names = [tuple(named.mesh.names[axis.number] for axis in d.axes) for d in named.dimensions]
            return NamedSharding(mesh, PartitionSpec(*[entry or None for entry in names]))
    from jax._src.sharding_impls import GSPMDSharding

    proto = xla_client.OpSharding()
    proto.ParseFromString(sharding.to_proto())
    return GSPMDSharding(devices, xla_client.HloSharding.from_proto(proto))
