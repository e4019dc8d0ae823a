"""Meshes with named axes of devices, and the axes that partition each dimension of an array.

Source: ``xla/hlo/ir/mesh_and_axis.cc``, ``xla/hlo/ir/named_sharding.cc``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastindex.core.integers import as_integers, spelled
from fastindex.errors import LayoutError
from fastindex.sharding.tile_assignment import Assignment, DeviceOrder, canonical_assignment, device_count_of

#: More axes than any mesh has, but few enough to compare all pairs.
MOST_AXES = 256


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a mesh, or a sub-axis.

    Attributes
    ----------
    number : int
        Number of the axis in the mesh.
    part : (int, int) or None
        Of a sub-axis: the product of the more major sub-axes, and its own size.
    """

    number: int
    part: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class DimensionAxes:
    """The axes that partition one dimension, from major to minor; `is_open` if the compiler may add more."""

    axes: tuple[Axis, ...] = ()
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Mesh:
    """Devices arranged along named axes.

    Attributes
    ----------
    names : tuple of str
    sizes : tuple of int
    order : DeviceOrder or None
        The devices, with the last axis most minor. A mesh without axes has no order, only an optional `device`.
    device : int or None
        The device of a ``single_device`` mesh.
    """

    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    order: DeviceOrder | None = None
    device: int | None = None

    def __post_init__(self) -> None:
        if len(self.names) > MOST_AXES:
            raise LayoutError(f"at most {MOST_AXES} axes are supported, got {len(self.names)}", field="names")
        for i, name in enumerate(self.names):
            if name in self.names[:i]:
                raise LayoutError(f"a mesh must name each axis once: {name!r} appears twice", field="names", index=i)
        for i, size in enumerate(self.sizes):
            if size < 1:
                raise LayoutError(f"mesh axes must have at least 1 device: {size}", field="sizes", index=i)
        if self.device is not None and self.device < 0:
            raise LayoutError(f"devices count from 0, got {self.device}", field="device")
        count = device_count_of(self.sizes, "sizes")
        if self.names and self.order is None:
            object.__setattr__(self, "order", DeviceOrder.transposed_iota((count,), (0,)))
        if self.order is not None and self.order.count != count:
            raise LayoutError(
                f"the mesh has {count} places, but there are {self.order.count} devices", field="device_ids"
            )

    def size_of(self, axis: Axis) -> int:
        """Return the number of devices along an axis or sub-axis."""
        return self.sizes[axis.number] if axis.part is None else axis.part[1]


@dataclass(frozen=True, slots=True)
class MeshSharding:
    """The mesh axes that partition each dimension, and the role of the other axes.

    Attributes
    ----------
    mesh : Mesh
    dimensions : tuple of DimensionAxes
    replicated, unreduced, manual : tuple of Axis
        Axes that partition nothing. Axes that are not listed replicate.
    reduction : str
        The reduction that combines the parts of unreduced axes: "sum", "max" or "min".
    """

    mesh: Mesh
    dimensions: tuple[DimensionAxes, ...] = ()
    replicated: tuple[Axis, ...] = ()
    unreduced: tuple[Axis, ...] = ()
    manual: tuple[Axis, ...] = ()
    reduction: str = "sum"

    def __post_init__(self) -> None:
        groups: list[tuple[str, int | None, tuple[Axis, ...]]]
        groups = [("dimensions", i, d.axes) for i, d in enumerate(self.dimensions)]
        groups += [(name, None, axes) for name, axes in self.kept_whole.items()]
        used: list[Axis] = []
        for field, index, axes in groups:
            for axis in axes:
                self._check(axis, used, field, index)
                used.append(axis)
            for first, second in itertools.pairwise(axes):
                if first.number == second.number and _end(first) == _begin(second):
                    name = self.mesh.names[first.number]
                    raise LayoutError(
                        f"adjacent parts of axis {name!r} must be written as one",
                        field=field,
                        index=index,
                    )
            if index is None and list(axes) != sorted(axes, key=lambda axis: (axis.number, _begin(axis))):
                raise LayoutError(f"{field} axes must be in the order of the mesh", field=field)

    def _check(self, axis: Axis, used: Sequence[Axis], field: str, index: int | None) -> None:
        name, size = self.mesh.names[axis.number], self.mesh.sizes[axis.number]
        if axis.part is not None:
            before, own = axis.part
            if before < 1 or own < 2 or own >= size or size % (before * own):
                raise LayoutError(
                    f"{name!r}:({before}){own} is not a part of an axis of {size}: the part must have at least 2 and"
                    f" less than {size}, and {before} times {own} must divide {size}",
                    field=field,
                    index=index,
                )
        for other in used:
            if other.number == axis.number and not _are_disjoint(axis, other):
                raise LayoutError(
                    f"axis {name!r} is used twice, or in incompatible parts",
                    field=field,
                    index=index,
                )

    @property
    def kept_whole(self) -> dict[str, tuple[Axis, ...]]:
        """The axes that partition nothing, by role, in XLA's printing order."""
        return {"replicated": self.replicated, "unreduced": self.unreduced, "manual": self.manual}

    @property
    def divides_nothing(self) -> bool:
        """Whether no dimension is partitioned."""
        return not any(d.axes for d in self.dimensions)

    def assignment(self) -> tuple[tuple[int, ...], DeviceOrder, tuple[str, ...]]:
        """Return this as a tile assignment: dimensions, device order, and the types of the subgroup dimensions.

        The dimensions of the array come first, then the manual, the unreduced and the replicated axes, merged to one
        dimension each.
        """
        order = self.mesh.order
        assert order is not None
        groups = [d.axes for d in self.dimensions]
        named = [*itertools.chain(*groups), *self.manual, *self.unreduced]
        parts = self._parts([*named, *self.replicated])
        taken = [self._pieces(axis, parts) for axis in named]
        unnamed = [part for part in parts if not any(part in pieces for pieces in taken)]
        ordered = [*itertools.chain(*taken), *unnamed]
        permutation = [parts.index(part) for part in ordered]
        order = order.transposed([size for _, _, size in parts], permutation)
        sizes = [math.prod(self.mesh.size_of(axis) for axis in axes) for axes in groups]
        types = []
        for name, axes in (("manual", self.manual), ("unreduced", self.unreduced)):
            if axes:
                sizes.append(math.prod(self.mesh.size_of(axis) for axis in axes))
                types.append(name)
        replicas = math.prod(size for _, _, size in unnamed)
        if replicas > 1 or (math.prod(sizes) == 1 and not types):
            sizes.append(replicas)
            types.append("replicated")
        return tuple(sizes), order, tuple(types)

    def _parts(self, named: Iterable[Axis]) -> list[tuple[int, int, int]]:
        """Split every axis at the bounds of its named sub-axes: (axis, product of the more major parts, size)."""
        cuts = [{1, size} for size in self.mesh.sizes]
        for axis in named:
            if axis.part is not None:
                cuts[axis.number] |= {_begin(axis), axis.part[0] * axis.part[1]}
        parts = []
        for number, of_axis in enumerate(cuts):
            ordered = sorted(of_axis)
            parts += [(number, less, more // less) for less, more in itertools.pairwise(ordered)]
            if len(ordered) == 1:
                parts.append((number, 1, 1))
        return parts

    def _pieces(self, axis: Axis, parts: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        begin, end = _begin(axis), self.mesh.sizes[axis.number] if axis.part is None else math.prod(axis.part)
        inside = [p for p in parts if p[0] == axis.number and begin <= p[1] < end]
        return inside or [p for p in parts if p[0] == axis.number]


def _begin(axis: Axis) -> int:
    return 1 if axis.part is None else axis.part[0]


def _end(axis: Axis) -> int | None:
    return None if axis.part is None else axis.part[0] * axis.part[1]


def _are_disjoint(a: Axis, b: Axis) -> bool:
    """Whether two sub-axes of the same axis are disjoint and compatible."""
    if a.part is None or b.part is None:
        return False
    low, high = sorted((a.part, b.part))
    return high[0] % (low[0] * low[1]) == 0


def same_division(a: MeshSharding, b: MeshSharding) -> bool:
    """Whether two mesh shardings partition an array in the same way, whatever their axes are called."""
    if a.mesh.sizes != b.mesh.sizes or (a.mesh.order is None) != (b.mesh.order is None):
        return False
    if a.dimensions != b.dimensions:
        return False
    if any(
        _dividing(mine, a) != _dividing(other, b) for mine, other in ((a.unreduced, b.unreduced), (a.manual, b.manual))
    ):
        return False
    return a.mesh.order is None or b.mesh.order is None or a.mesh.order.same_order(b.mesh.order)


def _dividing(axes: tuple[Axis, ...], sharding: MeshSharding) -> tuple[Axis, ...]:
    """Return the axes with more than one device; XLA's text may omit the others."""
    return tuple(axis for axis in axes if sharding.mesh.size_of(axis) > 1)


def assignment_of_mesh(mesh: MeshSharding) -> Assignment:
    """Return the canonical assignment of a mesh sharding."""
    if mesh.mesh.device is not None:
        return "maximal", (), None, ()
    if mesh.divides_nothing and not mesh.unreduced and not mesh.manual:
        return "replicated", (), None, ()
    return canonical_assignment(*mesh.assignment(), of_mesh=True)


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
