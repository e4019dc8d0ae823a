"""Format shardings as XLA prints them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fastindex.sharding.device_order import DeviceOrder
from fastindex.sharding.mesh import Axis, Mesh, MeshSharding

# Characters that end a name or start an escape; XLA prints them unescaped, and cannot read them back.
_ESCAPES = {code: f"\\{code:03o}" for code in (*range(32), 127)} | {ord(mark): f"\\{mark}" for mark in "\\'"}


def format_sharding(sharding: Any) -> str:
    """Return the canonical text of a sharding, without its metadata.

    Source: ``HloSharding::Print`` in ``xla/hlo/ir/hlo_sharding.cc``.
    """
    if sharding.kind == "tuple":
        texts = [format_sharding(element) for element in sharding.elements]
        numbered = (f"/*index={i}*/{text}" if i and i % 5 == 0 else text for i, text in enumerate(texts))
        return "{" + ", ".join(numbered) + "}"
    if sharding.mesh is not None:
        return format_mesh_sharding(sharding.mesh)
    if sharding.kind == "tiled":
        text = "devices=[" + _joined(sharding.dimensions) + "]" + _order_text(sharding.order)
        if sharding.subgroup_types == ("replicated",):
            text += " last_tile_dim_replicate"
        elif sharding.subgroup_types:
            text += " last_tile_dims={" + ", ".join(sharding.subgroup_types) + "}"
    elif sharding.kind == "maximal":
        text = f"maximal device={sharding.device}"
    else:
        text = sharding.kind
    if sharding.shard_group is not None:
        text += f" {sharding.shard_group[0]} {sharding.shard_group[1]}"
    return "{" + text + "}"


def format_mesh_sharding(sharding: MeshSharding) -> str:
    """Return the canonical text of a mesh form.

    Source: ``NamedSharding::ToString`` in ``xla/hlo/ir/named_sharding.cc``.
    """
    mesh = sharding.mesh
    if mesh.device is not None:
        return f"{{single_device[device_id={mesh.device}]}}"
    text = (
        "mesh[" + ",".join(f"{_quoted(name)}={size}" for name, size in zip(mesh.names, mesh.sizes, strict=True)) + "]"
    )
    if mesh.order is not None and not mesh.order.is_identity:
        ids = _joined(mesh.order.ids) if mesh.order.ids is not None else _iota_text(mesh.order)
        text += f", device_ids=({ids})"
    named = {name: axes for name, axes in sharding.kept_whole.items() if axes}
    if not sharding.dimensions and not named:
        return "{" + text + ", replicated}"
    for name, other in (("unreduced", "manual"), ("manual", "unreduced")):
        # Axes of size 1 may be omitted, or listed elsewhere; if there are only such axes, both must be named to read
        # back.
        covered = math.prod(mesh.size_of(axis) for axis in named.get(name, ()))
        told = name in named and (covered > 1 or other not in named)
        if not sharding.dimensions and told and covered == math.prod(mesh.sizes):
            return "{" + text + f", {name}{_unreduced_text(sharding) if name == 'unreduced' else ''}}}"
    dimensions = []
    for dimension in sharding.dimensions:
        parts = [_axis_text(axis, mesh) for axis in dimension.axes] + ["?"] * dimension.is_open
        dimensions.append("{" + ", ".join(parts) + "}")
    text += ", [" + ", ".join(dimensions) + "]"
    for name, axes in named.items():
        reduction = sharding.reduction if name == "unreduced" and sharding.reduction != "sum" else ""
        text += f", {name}={reduction}{_axes_text(axes, mesh)}"
    return "{" + text + "}"


def _unreduced_text(sharding: MeshSharding) -> str:
    """Return the text after a final ``unreduced``: no reduction for a sum, and no axes if all are unreduced."""
    is_all = len(sharding.unreduced) == len(sharding.mesh.names)
    reduction = "" if sharding.reduction == "sum" else f"={sharding.reduction}"
    return reduction + ("" if is_all else _axes_text(sharding.unreduced, sharding.mesh))


def _axes_text(axes: Iterable[Axis], mesh: Mesh) -> str:
    return "{" + ", ".join(_axis_text(axis, mesh) for axis in axes) + "}"


def _axis_text(axis: Axis, mesh: Mesh) -> str:
    text = _quoted(mesh.names[axis.number])
    return text if axis.part is None else f"{text}:({axis.part[0]}){axis.part[1]}"


def _quoted(name: str) -> str:
    return f"'{name.translate(_ESCAPES)}'"


def _order_text(order: DeviceOrder) -> str:
    return _joined(order.ids) if order.ids is not None else "<=" + _iota_text(order)


def _iota_text(order: DeviceOrder) -> str:
    sizes = order.reshape_dimensions
    text = f"[{_joined(sizes)}]"
    return text if len(sizes) == 1 else f"{text}T({_joined(order.permutation)})"


def _joined(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))
