"""Validated canonical tile assignments: the number of parts along each dimension, and the device of each part.

Source: ``OpSharding`` in ``xla/xla_data.proto``, ``xla/hlo/ir/tile_assignment.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex

from fastindex.core.integers import as_integers, spelled
from fastindex.errors import LayoutError
from fastindex.sharding.device_order import DeviceOrder, device_count_of
from fastindex.sharding.mesh import MeshSharding
from fastindex.sharding.subgroups import SUBGROUP_TYPES, Assignment, canonical_assignment


def assignment_of_mesh(mesh: MeshSharding) -> Assignment:
    """Return the canonical assignment of a mesh sharding."""
    if mesh.mesh.device is not None:
        return "maximal", (), None, ()
    if mesh.divides_nothing and not mesh.unreduced and not mesh.manual:
        return "replicated", (), None, ()
    return canonical_assignment(*mesh.assignment(), of_mesh=True)


def checked_assignment(
    dimensions: tuple[int, ...], devices: Iterable[SupportsIndex] | DeviceOrder | None, types: tuple[str, ...]
) -> Assignment:
    """Validate a caller's assignment and return it in canonical form.

    Parameters
    ----------
    dimensions : tuple of int
        Number of parts along each dimension, then the sizes of the subgroups.
    devices : sequence of int, DeviceOrder, or None
        None for 0, 1, 2 and so on.
    types : tuple of str
        Types of the subgroups.

    Raises
    ------
    LayoutError
        The assignment is invalid.
    """
    if not dimensions:
        raise LayoutError("a tiled sharding must have at least one dimension", field="dimensions")
    for i, size in enumerate(dimensions):
        if size < 1:
            raise LayoutError(
                f"every dimension must be at least 1: {size} in {spelled(dimensions)}", field="dimensions", index=i
            )
    count = device_count_of(dimensions, "dimensions")
    for i, name in enumerate(types):
        if name not in SUBGROUP_TYPES:
            raise LayoutError(
                f"a subgroup must be manual, replicated or unreduced, got {name!r}", field="subgroup_types", index=i
            )
    if len(types) > len(dimensions):
        raise LayoutError(
            f"{len(types)} subgroups need as many dimensions, there are {len(dimensions)}", field="subgroup_types"
        )
    if isinstance(devices, DeviceOrder):
        order = devices
    elif devices is None:
        order = DeviceOrder.iota(count)
    else:
        order = DeviceOrder.listed(as_integers(devices, "devices"))
    if order.count != count:
        raise LayoutError(
            f"the dimensions {spelled(dimensions)} have {count} places, but there are {order.count} devices",
            field="devices",
        )
    return canonical_assignment(dimensions, order, types)


def maximal_device(kind: str, devices: Any, mesh: MeshSharding | None) -> int | None:
    """Return the device of a maximal sharding; None for other kinds.

    Raises
    ------
    LayoutError
        There is not exactly one device, or devices are given for a kind that has none.
    """
    if mesh is not None:
        return mesh.mesh.device
    if kind != "maximal":
        if devices is not None and kind != "tiled":
            raise LayoutError(f"a {kind} sharding names no devices", field="devices")
        return None
    ids = as_integers(devices if devices is not None else (), "devices")
    if len(ids) != 1:
        raise LayoutError(f"a maximal sharding must have exactly one device, got {spelled(ids)}", field="devices")
    if ids[0] < 0:
        raise LayoutError(f"devices count from 0, got {ids[0]}", field="devices")
    return ids[0]
