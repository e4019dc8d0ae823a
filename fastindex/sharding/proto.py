"""Serialise shardings as XLA's protocol buffers, byte for byte like XLA, and convert them from and to JAX's objects.

No protobuf library is needed, and JAX is imported only to create one of its objects. `OpMetadata` is the operation that
a sharding originates from. The parser takes the class to build as an argument, to avoid a circular import.

Source: ``OpSharding``, ``NamedShardingProto``, ``MeshProto``, ``AxisRefProto`` and ``OpMetadata`` in
``xla/xla_data.proto``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastindex.core.wire import Fields, bytes_field, int_field, packed_field
from fastindex.errors import ArgumentTypeError, FastIndexError, LayoutError
from fastindex.sharding.mesh import Axis, DimensionAxes, Mesh, MeshSharding
from fastindex.sharding.tile_assignment import DeviceOrder

Value = str | int | tuple[int, ...]

#: The field number and type of each attribute that XLA prints.
ATTRIBUTES: dict[str, tuple[int, type]] = {
    "op_type": (1, str),
    "op_name": (2, str),
    "source_file": (3, str),
    "source_line": (4, int),
    "profile_type": (5, tuple),
    "deduplicated_name": (12, str),
    "stack_frame_id": (15, int),
    "scheduling_name": (16, str),
    "source_end_line": (17, int),
    "source_column": (18, int),
    "source_end_column": (19, int),
}


@dataclass(frozen=True, slots=True)
class OpMetadata:
    """Attributes of the operation that a sharding originates from: (name, value) pairs in field number order.

    Examples
    --------
    >>> OpMetadata((("op_name", "jit(f)/add"), ("source_line", 3)))
    OpMetadata(attributes=(('op_name', 'jit(f)/add'), ('source_line', 3)))
    """

    attributes: tuple[tuple[str, Value], ...] = ()

    def value(self, name: str) -> str:
        """Return a text attribute; "" if it is missing."""
        return next((value for attribute, value in self.attributes if attribute == name and isinstance(value, str)), "")

    def to_proto(self) -> bytes:
        """Serialise as an ``OpMetadata``; zeros and empty strings are omitted."""
        written = []
        for name, value in self.attributes:
            number, _ = ATTRIBUTES[name]
            if isinstance(value, str):
                written.append(bytes_field(number, value.encode(errors="replace")) if value else b"")
            elif isinstance(value, int):
                written.append(int_field(number, value))
            else:
                written.append(packed_field(number, value))
        return b"".join(written)


def metadata_from_proto(data: bytes) -> OpMetadata:
    """Parse a serialised ``OpMetadata``; fields that XLA does not print are skipped.

    Raises
    ------
    FastIndexError
        The bytes are not a valid proto.
    """
    fields = Fields(data, "OpMetadata")
    attributes: list[tuple[str, Value]] = []
    for name, (number, kind) in ATTRIBUTES.items():
        value: Value
        if kind is str:
            messages = fields.messages(number)
            value = messages[-1].decode(errors="replace") if messages else ""
        else:
            value = fields.integer(number) if kind is int else tuple(fields.integers(number))
        if value:
            attributes.append((name, value))
    return OpMetadata(tuple(attributes))


#: Reductions of an unreduced sharding; the index is the number in a ``NamedShardingProto``.
REDUCTIONS = ("sum", "max", "min")

_REDUCTION = "sdy::reduction_op"


def reduction_in(metadata: Sequence[OpMetadata]) -> str:
    """Return the last reduction named in metadata, where XLA stores it since jaxlib 0.12; "sum" by default.

    Examples
    --------
    >>> reduction_in([OpMetadata((("op_type", "sdy::reduction_op"), ("op_name", "MAX")))])
    'max'
    """
    names = [item.value("op_name") for item in metadata if item.value("op_type") == _REDUCTION]
    return next((name.lower() for name in reversed(names) if name in ("MAX", "MIN")), "sum")


def with_reduction(metadata: Sequence[OpMetadata], reduction: str | None) -> list[OpMetadata]:
    """Return metadata with one reduction item, placed last; without any for None."""
    others = [item for item in metadata if item.value("op_type") != _REDUCTION]
    if reduction is None:
        return others
    return [*others, OpMetadata((("op_type", _REDUCTION), ("op_name", reduction.upper())))]


def ordered_metadata(attributes: dict[str, Value]) -> OpMetadata:
    """Return metadata with its attributes in field number order."""
    return OpMetadata(tuple((name, attributes[name]) for name in ATTRIBUTES if name in attributes))


Built = TypeVar("Built")

#: ``OpSharding.Type``.
_TYPES = {"replicated": 0, "maximal": 1, "tuple": 2, "tiled": 3, "manual": 4, "unknown": 5, "unreduced": 6}
_KINDS = {number: kind for kind, number in _TYPES.items()}
_SUBGROUPS = {0: "replicated", 4: "manual", 6: "unreduced"}
GROUPS = ("shard_as", "shard_like")


def sharding_to_bytes(sharding: Any, keeps_devices: bool = False) -> bytes:
    """Serialise a sharding as an ``OpSharding``.

    Parameters
    ----------
    keeps_devices : bool
        Whether a sharding whose devices are all in one unreduced subgroup must keep its devices when it is read back.
        XLA's own proto of such a sharding reads back as ``{unreduced}``; an extra subgroup of size 1 prevents that.
    """
    if sharding.mesh is not None:
        return bytes_field(14, _mesh_sharding_to_bytes(sharding.mesh, sharding.metadata))
    is_unreduced = "unreduced" in (sharding.kind, *sharding.subgroup_types)
    reduction = sharding.reduction if is_unreduced or sharding.reduction != "sum" else None
    items = with_reduction(sharding.metadata, reduction)
    metadata = b"".join(bytes_field(7, item.to_proto()) for item in items)
    if sharding.kind == "tuple":
        elements = b"".join(bytes_field(5, sharding_to_bytes(element, keeps_devices)) for element in sharding.elements)
        return int_field(1, _TYPES["tuple"]) + elements + metadata
    order, types, dimensions = sharding.order, sharding.subgroup_types, sharding.dimensions
    if keeps_devices and types == ("unreduced",):
        types, dimensions = (*types, "replicated"), (*dimensions, 1)
    written = [int_field(1, _TYPES[sharding.kind]), packed_field(3, dimensions)]
    if sharding.kind == "maximal":
        written.append(packed_field(4, (sharding.device,)))
    if order is not None and order.ids is not None:
        written.append(packed_field(4, order.ids))
    written.append(int_field(6, types == ("replicated",)))
    written.append(metadata)
    if types != ("replicated",):
        written.append(packed_field(8, [_TYPES[name] for name in types]))
    if order is not None and order.ids is None:
        written += [packed_field(9, order.reshape_dimensions), packed_field(10, order.permutation)]
    if sharding.shard_group is not None:
        name, number = sharding.shard_group
        written += [int_field(11, 1), int_field(12, number), int_field(13, GROUPS.index(name))]
    return b"".join(written)


def _mesh_sharding_to_bytes(sharding: MeshSharding, metadata: Any) -> bytes:
    written = [bytes_field(2, _mesh_to_bytes(sharding.mesh))]
    for dimension in sharding.dimensions:
        axes = b"".join(bytes_field(1, _axis_to_bytes(axis)) for axis in dimension.axes)
        written.append(bytes_field(3, axes + int_field(2, not dimension.is_open)))
    written += [bytes_field(4, _axis_to_bytes(axis)) for axis in sharding.replicated]
    written += [bytes_field(5, _axis_to_bytes(axis)) for axis in sharding.unreduced]
    written += [bytes_field(6, item.to_proto()) for item in metadata]
    written += [bytes_field(7, _axis_to_bytes(axis)) for axis in sharding.manual]
    written.append(int_field(8, REDUCTIONS.index(sharding.reduction)))
    return b"".join(written)


def _axis_to_bytes(axis: Axis) -> bytes:
    part = b"" if axis.part is None else bytes_field(2, int_field(1, axis.part[0]) + int_field(2, axis.part[1]))
    return int_field(1, axis.number) + part


def _mesh_to_bytes(mesh: Mesh) -> bytes:
    if mesh.device is not None:
        return packed_field(2, (mesh.device,))
    written = b"".join(
        bytes_field(1, (bytes_field(1, name.encode(errors="replace")) if name else b"") + int_field(2, size))
        for name, size in zip(mesh.names, mesh.sizes, strict=True)
    )
    order = mesh.order
    if order is None or order.is_identity:
        return written
    if order.ids is not None:
        return written + packed_field(2, order.ids)
    counter = packed_field(1, order.reshape_dimensions) + packed_field(2, order.permutation)
    return written + bytes_field(3, counter)


def sharding_from_bytes(data: bytes, build: Callable[..., Built]) -> Built:
    """Parse a serialised ``OpSharding`` and build a sharding; unknown fields are skipped.

    Raises
    ------
    FastIndexError
        The bytes are not a valid proto.
    LayoutError
        The proto is not a valid sharding.
    """
    fields = Fields(data, "OpSharding")
    named = fields.message(14)
    if named is not None:
        return _mesh_sharding_from_bytes(named, build)
    kind = _KINDS.get(fields.integer(1))
    if kind is None:
        raise LayoutError(f"not an OpSharding: type {fields.integer(1)} is unknown", field="kind")
    metadata = [metadata_from_proto(item) for item in fields.messages(7)]
    if kind == "tuple":
        elements = [sharding_from_bytes(item, build) for item in fields.messages(5)]
        return build(kind, elements=elements, metadata=metadata)
    group = None
    if fields.integer(11):
        number = fields.integer(13)
        if not 0 <= number < len(GROUPS):
            raise LayoutError(f"not an OpSharding: shard group type {number} is unknown", field="shard_group")
        group = GROUPS[number], fields.integer(12)
    if kind == "maximal":
        return build(kind, (), fields.integers(4), shard_group=group, metadata=metadata)
    if kind != "tiled":
        return build(kind, shard_group=group, metadata=metadata)
    types = _subgroup_types(fields)
    devices: DeviceOrder | list[int] = fields.integers(4)
    reshape = fields.integers(9)
    if reshape:
        devices = DeviceOrder.transposed_iota(reshape, fields.integers(10))
    return build(kind, fields.integers(3), devices, types, shard_group=group, metadata=metadata)


def _subgroup_types(fields: Fields) -> list[str]:
    numbers = fields.integers(8)
    for number in numbers:
        if number not in _SUBGROUPS:
            raise LayoutError(f"not an OpSharding: subgroup type {number} is unknown", field="subgroup_types")
    types = [_SUBGROUPS[number] for number in numbers]
    if fields.integer(6):
        if types:
            raise LayoutError("an OpSharding must not have both last_tile_dims and replicate_on_last_tile_dim")
        return ["replicated"]
    return types


def _mesh_sharding_from_bytes(data: bytes, build: Callable[..., Built]) -> Built:
    fields = Fields(data, "NamedShardingProto")
    mesh = _mesh_from_bytes(fields.message(2) or b"")
    dimensions = []
    for item in fields.messages(3):
        of_dimension = Fields(item, "NamedShardingProto.DimensionSharding")
        axes = tuple(_axis_from_bytes(axis, mesh) for axis in of_dimension.messages(1))
        dimensions.append(DimensionAxes(axes, not of_dimension.integer(2)))
    replicated, unreduced, manual = (
        tuple(_axis_from_bytes(axis, mesh) for axis in fields.messages(number)) for number in (4, 5, 7)
    )
    number = fields.integer(8)
    reduction = REDUCTIONS[number] if 0 <= number < len(REDUCTIONS) else "sum"
    sharding = MeshSharding(mesh, tuple(dimensions), replicated, unreduced, manual, reduction)
    return build("tiled", mesh=sharding, metadata=[metadata_from_proto(item) for item in fields.messages(6)])


def _mesh_from_bytes(data: bytes) -> Mesh:
    fields = Fields(data, "MeshProto")
    ids = fields.integers(2)
    names, sizes = [], []
    for item in fields.messages(1):
        axis = Fields(item, "MeshProto.MeshAxis")
        names.append((axis.message(1) or b"").decode(errors="replace"))
        sizes.append(axis.integer(2))
    if not names:
        if len(ids) > 1:
            raise LayoutError(f"a mesh without axes can have one device, got {len(ids)}", field="device_ids")
        return Mesh(device=ids[0] if ids else None)
    counter = fields.message(3)
    order = DeviceOrder.listed(ids) if ids else None
    if counter is not None:
        of_counter = Fields(counter, "IotaTileAssignmentProto")
        order = DeviceOrder.transposed_iota(of_counter.integers(1), of_counter.integers(2))
    return Mesh(tuple(names), tuple(sizes), order)


def _axis_from_bytes(data: bytes, mesh: Mesh) -> Axis:
    fields = Fields(data, "AxisRefProto")
    number = fields.integer(1)
    if not 0 <= number < len(mesh.names):
        raise LayoutError(f"axis {number} is not one of the {len(mesh.names)} axes of the mesh", field="dimensions")
    part = fields.message(2)
    if part is None:
        return Axis(number)
    sizes = Fields(part, "AxisRefProto.SubAxis")
    return Axis(number, (sizes.integer(1), sizes.integer(2)))


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
