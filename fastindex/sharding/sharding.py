"""Shardings: the assignment of parts of an array to devices; frozen, hashable, validated once; their HTML.

Source: ``OpSharding`` in ``xla/xla_data.proto``, ``xla/hlo/ir/hlo_sharding.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, SupportsIndex

from fastindex.core.integers import as_integer, as_integers
from fastindex.core.layout_fields import MOST_DIMENSIONS
from fastindex.core.shape import Shape, as_shape
from fastindex.core.wire import bytes_of_message
from fastindex.errors import ArgumentTypeError, LayoutError, UnsupportedError
from fastindex.lazy import lazy_property
from fastindex.sharding.mesh import MeshSharding, assignment_of_mesh, maximal_device, same_division
from fastindex.sharding.proto import (
    GROUPS,
    OpMetadata,
    proto_of_jax,
    reduction_in,
    sharding_from_bytes,
    sharding_to_bytes,
    sharding_to_jax,
)
from fastindex.sharding.text import format_sharding, parse_sharding
from fastindex.sharding.tile_assignment import DeviceOrder, checked_assignment
from fastindex.terminal import ShownInNotebooks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KINDS = ("replicated", "maximal", "manual", "unknown", "unreduced", "tiled", "tuple")

#: Limit on the rows and on the columns of the table in notebooks.
_MOST_CELLS = 32


class Sharding(ShownInNotebooks):
    """A partition of an array over devices, as in XLA; frozen, hashable, validated once, in XLA's canonical form.

    Usually created by `Sharding.parse`, `Sharding.from_jax` or `Sharding.from_proto`. A device is a position in the
    program's device assignment (in JAX: in ``mesh.devices.flat``), not a ``Device.id``.

    Source: ``OpSharding`` in ``xla/xla_data.proto``.

    Parameters
    ----------
    kind : str
        "tiled"; or "replicated", "maximal", "manual", "unknown", "unreduced", where every buffer has the whole shape;
        or "tuple".
    dimensions : sequence of int
        Of a tiled sharding: the number of parts along each dimension, then the sizes of the subgroups.
    devices : sequence of int, DeviceOrder, or None
        The devices, with the last dimension most minor; None for 0, 1, 2 and so on. Of a maximal sharding: its device.
    subgroup_types : sequence of str
        "manual", "replicated" or "unreduced" for each subgroup dimension, along which devices have the same part.
    mesh : MeshSharding, optional
        Named axes, in place of all of the above; `kind` is then derived from them, so pass "tiled".
    elements : sequence of Sharding
        Elements of a tuple.
    shard_group : (str, int), optional
        ``("shard_as", number)`` or ``("shard_like", number)``.
    metadata : sequence of OpMetadata
        The operations it originates from; not printed or compared, except ``sdy::reduction_op``, see `reduction`.

    Attributes
    ----------
    kind : str
        One of the seven kinds above, also for mesh forms.
    dimensions, subgroup_types, mesh, elements, shard_group, metadata
        As above, in canonical form; mesh forms have dimensions, too.
    order : DeviceOrder or None
        The devices as a counter or a list; `devices` has the same order as an array.
    reduction : str
        The reduction that combines the parts of an unreduced sharding: "sum", "max" or "min".

    Raises
    ------
    LayoutError
        The sharding is invalid.
    ArgumentTypeError
        A dimension is not an integer.

    Notes
    -----
    Lists, counters and meshes compare equal if their dimensions and devices are equal, as in XLA. Axis names and
    metadata are ignored. Between two meshes, open dimensions and axis sizes matter. Reductions are compared as in
    jaxlib 0.12; earlier versions support only sums.

    Examples
    --------
    >>> s = Sharding("tiled", (2, 4))
    >>> str(s), s.device_count
    ('{devices=[2,4]<=[8]}', 8)
    >>> s == Sharding.parse("{mesh['a'=2,'b'=4], [{'a'}, {'b'}]}")
    True
    """

    kind: str
    dimensions: tuple[int, ...]
    order: DeviceOrder | None
    subgroup_types: tuple[str, ...]
    mesh: MeshSharding | None
    elements: tuple[Sharding, ...]
    shard_group: tuple[str, int] | None
    metadata: tuple[OpMetadata, ...]
    reduction: str
    _device: int | None

    def __init__(
        self,
        kind: str,
        dimensions: Iterable[SupportsIndex] = (),
        devices: Iterable[SupportsIndex] | DeviceOrder | None = None,
        subgroup_types: Sequence[str] = (),
        *,
        mesh: MeshSharding | None = None,
        elements: Iterable[Sharding] = (),
        shard_group: tuple[str, int] | None = None,
        metadata: Iterable[OpMetadata] = (),
    ) -> None:
        if kind not in KINDS:
            raise LayoutError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}", field="kind")
        members = tuple(elements)
        if members and kind != "tuple":
            raise LayoutError(f"only a tuple has elements, not {kind}", field="elements")
        for member in members:
            if not isinstance(member, Sharding) or member.kind == "tuple":
                raise LayoutError(f"a tuple must hold shardings of arrays, got {member!r}", field="elements")
        if shard_group is not None and (shard_group[0] not in GROUPS or kind == "tuple" or mesh is not None):
            raise LayoutError(f"a shard group must be shard_as or shard_like of one array: {shard_group}")
        if mesh is not None:
            found = assignment_of_mesh(mesh)
        elif kind == "tiled":
            found = checked_assignment(as_integers(dimensions, "dimensions"), devices, tuple(subgroup_types))
        else:
            found = kind, (), None, ()
        put = object.__setattr__
        for name, value in zip(("kind", "dimensions", "order", "subgroup_types"), found, strict=True):
            put(self, name, value)
        put(self, "_device", maximal_device(kind, devices, mesh))
        put(self, "mesh", mesh)
        put(self, "elements", members)
        put(self, "shard_group", shard_group)
        put(self, "metadata", tuple(metadata))
        own = "sum" if kind == "tuple" else reduction_in(self.metadata)
        put(self, "reduction", own if mesh is None else mesh.reduction)

    @staticmethod
    def parse(text: str) -> Sharding:
        """Parse a sharding in XLA's text format.

        Raises
        ------
        ParseError
            The text is not a sharding, or an invalid one; `position` is where.

        Examples
        --------
        >>> s = Sharding.parse("{devices=[2,1,4]<=[8] last_tile_dim_replicate}")
        >>> s.kind, s.rank, s.subgroup_types
        ('tiled', 2, ('replicated',))
        """
        return parse_sharding(text, Sharding)

    @staticmethod
    def from_proto(proto: object) -> Sharding:
        """Parse an ``OpSharding``, given as bytes or as a message object with ``SerializeToString``.

        Raises
        ------
        FastIndexError
            The bytes are not a proto, or not that of a valid sharding.

        Examples
        --------
        >>> Sharding.from_proto(bytes.fromhex("08031a0202044a0108520100"))
        Sharding.parse('{devices=[2,4]<=[8]}')
        """
        return sharding_from_bytes(bytes_of_message(proto), Sharding)

    def to_proto(self) -> bytes:
        """Serialise as an ``OpSharding``, byte for byte like XLA.

        Examples
        --------
        >>> Sharding.parse("{devices=[2,4]<=[8]}").to_proto().hex()
        '08031a0202044a0108520100'
        """
        return sharding_to_bytes(self)

    @staticmethod
    def from_jax(sharding: Any, rank: int | None = None) -> Sharding:
        """Convert a JAX sharding, for an array of `rank` dimensions.

        Devices are numbered by their place in the device assignment, as in XLA, not by ``jax.Device.id``: of a
        ``NamedSharding``, device d is ``sharding.mesh.devices.flat[d]``.

        Parameters
        ----------
        sharding : jax.sharding.Sharding, a jax.Array, or XLA's HloSharding or OpSharding
        rank : int, optional
            The rank of the array; not needed for a ``jax.Array`` or for XLA's own objects.

        Raises
        ------
        FastIndexError
            `rank` is missing, or too small for the sharding.
        TypeError
            `sharding` is of another type.
        """
        return Sharding.from_proto(proto_of_jax(sharding, rank))

    def to_jax(self, devices: Iterable[Any]) -> Any:
        """Return this as a ``jax.sharding.Sharding`` over `devices`, in the order of the device assignment.

        A mesh becomes a ``NamedSharding``; meshes with sub-axes and all other shardings become a ``GSPMDSharding``.

        Raises
        ------
        LayoutError
            The number of devices differs, or the sharding is that of a tuple.
        """
        return sharding_to_jax(self, list(devices))

    @property
    def rank(self) -> int | None:
        """Rank of the arrays that the sharding is for; None for any rank.

        Examples
        --------
        >>> Sharding.parse("{devices=[2,1,4]<=[8] last_tile_dim_replicate}").rank
        2
        """
        if self.kind == "tiled":
            return len(self.dimensions) - len(self.subgroup_types)
        return None

    @property
    def parts(self) -> tuple[int, ...]:
        """Number of parts along each dimension of the array; () if it is not partitioned.

        Examples
        --------
        >>> Sharding.parse("{devices=[2,1,4]<=[8] last_tile_dim_replicate}").parts
        (2, 1)
        """
        return self.dimensions[: self.rank] if self.kind == "tiled" else ()

    @lazy_property
    def devices(self) -> NDArray[np.int64] | None:
        """Tile assignment: the device of each part, subgroup dimensions last, read-only; None if there is none.

        Examples
        --------
        >>> Sharding.parse("{devices=[2,1,4]<=[8] last_tile_dim_replicate}").devices[1, 0]
        array([4, 5, 6, 7])
        """
        if self.order is None:
            return None
        if len(self.dimensions) > MOST_DIMENSIONS:
            raise UnsupportedError(
                f"an array has at most {MOST_DIMENSIONS} dimensions, the tile assignment has {len(self.dimensions)}"
            )
        array = self.order.array().reshape(self.dimensions)
        array.flags.writeable = False
        return array

    @property
    def device(self) -> int | None:
        """The device of a maximal sharding; None for others.

        Examples
        --------
        >>> Sharding.parse("{maximal device=3}").device
        3
        """
        return self._device

    @property
    def device_count(self) -> int | None:
        """Number of devices; None if the sharding does not determine it, like ``{replicated}``.

        Examples
        --------
        >>> Sharding.parse("{mesh['a'=2,'b'=4], replicated}").device_count
        8
        """
        if self.kind == "tuple":
            counts = {member.device_count for member in self.elements} - {None}
            return counts.pop() if len(counts) == 1 else None
        if self.order is not None:
            return self.order.count
        if self.mesh is not None and self.mesh.mesh.order is not None:
            return self.mesh.mesh.order.count
        return None

    @property
    def replica_count(self) -> int | None:
        """Number of devices that hold each element; None if all do and their number is unknown.

        Examples
        --------
        >>> Sharding.parse("{devices=[2,1,4]<=[8] last_tile_dim_replicate}").replica_count
        4
        """
        if self.kind == "tiled":
            return math.prod(self.dimensions) // math.prod(self.parts)
        return 1 if self.kind == "maximal" else self.device_count

    def shard_dimensions(self, shape: Shape) -> tuple[int, ...]:
        """Return the dimensions of each device's part: those of `shape`, divided and rounded up.

        Raises
        ------
        LayoutError
            The rank differs, or the sharding is that of a tuple.
        UnsupportedError
            `shape` is not an array, or has an unbounded dimension.
        """
        if self.kind == "tuple":
            raise LayoutError(f"{_cut(str(self))} is for a tuple; use one of its elements for the array {shape}")
        if not shape.is_array:
            raise UnsupportedError(f"a sharding of one array divides arrays only, not {shape.cut_text()}")
        if self.rank is not None and self.rank != shape.rank:
            raise LayoutError(f"{_cut(str(self))} is for {self.rank} dimensions; {shape} has {shape.rank}")
        if any(size < 0 for size in shape.dimensions):
            raise UnsupportedError(f"{shape} has an unbounded dimension; give it a size or a bound")
        if self.rank is None:
            return shape.dimensions
        return tuple(-(-size // parts) for size, parts in zip(shape.dimensions, self.parts, strict=True))

    def shard_shape(self, shape: Shape | str) -> Shape:
        """Return the shape of each shard: dimensions divided and rounded up, with the same order and tiles.

        Raises
        ------
        LayoutError
            The rank differs, or the sharding is that of a tuple.
        UnsupportedError
            `shape` is not an array or has an unbounded dimension; or a partitioned dimension has legacy padding.
        LayoutError
            The layout does not fit the smaller dimensions (its split configs).

        Notes
        -----
        ``HloSharding::TileShape``. All devices hold shards of the same shape; uneven ones are padded at the end.

        Examples
        --------
        >>> s = Sharding.parse("{devices=[4,1]<=[4]}")
        >>> str(s.shard_shape("bf16[7,5]{1,0:T(8,128)(2,1)}"))
        'bf16[2,5]{1,0:T(8,128)(2,1)}'
        """
        shape = as_shape(shape)
        sizes = self.shard_dimensions(shape)
        if sizes == shape.dimensions:
            return shape
        if shape.layout.padded_dimensions is not None:
            raise UnsupportedError(f"the padded dimensions of {shape} belong to the whole array, not to a part of it")
        try:
            return Shape(shape.element_type, sizes, shape.layout, shape.dynamic_dimensions)
        except LayoutError as error:
            raise LayoutError(f"{shape} has no layout for a part of {sizes}: {error}") from None

    def checked_device_count(self, device_count: int | None) -> int:
        """Return the number of devices.

        Raises
        ------
        LayoutError
            `device_count` contradicts the sharding, is missing although the sharding does not determine it, or is too
            small.
        """
        known = self.device_count
        if device_count is None:
            if known is None:
                raise LayoutError(f"{_cut(str(self))} does not say how many devices there are; give device_count")
            return known
        count = as_integer(device_count, "device_count")
        if known is not None and count != known:
            raise LayoutError(f"{_cut(str(self))} is for {known} devices, not {count}")
        if count < 1 or (self.device is not None and self.device >= count):
            raise LayoutError(f"device_count {count} is too small for {_cut(str(self))}")
        return count

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Sharding cannot be changed: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Sharding cannot be changed: {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return sharding_from_bytes, (sharding_to_bytes(self, keeps_devices=True), Sharding)

    def __str__(self) -> str:
        return format_sharding(self)

    def __repr__(self) -> str:
        return f"Sharding.parse({str(self)!r})"

    def _repr_html_(self) -> str:
        return _sharding_html(self)

    def __hash__(self) -> int:
        return hash((self.kind, self.device, self.dimensions, self.subgroup_types, self.shard_group, self.elements))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sharding):
            return NotImplemented
        if hash(self) != hash(other) or self.elements != other.elements or self.kind != other.kind:
            return False
        names = ("dimensions", "subgroup_types", "device", "shard_group", "reduction")
        if any(getattr(self, name) != getattr(other, name) for name in names):
            return False
        if self.mesh is not None and other.mesh is not None:
            return self.kind in ("replicated", "maximal") or same_division(self.mesh, other.mesh)
        return self.order is None or other.order is None or self.order.same_order(other.order)


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "..."


def as_sharding(sharding: Sharding | str) -> Sharding:
    """Return a sharding given as a `Sharding` or as text.

    Raises
    ------
    ParseError
        The text is not a sharding.
    ArgumentTypeError
        The argument is neither.
    """
    if isinstance(sharding, Sharding):
        return sharding
    if isinstance(sharding, str):
        return Sharding.parse(sharding)
    raise ArgumentTypeError(f"expected a Sharding or its text, got {sharding!r}; Sharding.from_jax takes JAX's")


def _sharding_html(sharding: Sharding) -> str:
    """Return the HTML for a notebook: a table of the parts with their devices.

    Rows are parts along the first partitioned dimension; columns are parts along all others.
    """
    count = sharding.device_count
    words = sharding.kind if count is None else f"{sharding.kind}, {count} device{'s' * (count != 1)}"
    head = f"<div><code>{escape(str(sharding))}</code>, {words}</div>"
    if sharding.devices is None or sharding.kind != "tiled":
        return head
    parts = sharding.parts
    divided = [dimension for dimension, number in enumerate(parts) if number > 1]
    rows = parts[divided[0]] if divided else 1
    devices = sharding.devices.reshape(rows, math.prod(parts) // rows, -1)
    lines = [_line(f"part {row} of dimension {divided[0]}" if divided else "", devices[row]) for row in range(rows)]
    others = " and ".join(f"dimension {dimension} ({parts[dimension]})" for dimension in divided[1:])
    note = f"<div>columns: parts of {others}</div>" if others else ""
    cut = f"<div>{rows - _MOST_CELLS} more rows</div>" if rows > _MOST_CELLS else ""
    return f"{head}{note}<table>{''.join(lines[:_MOST_CELLS])}</table>{cut}"


def _line(name: str, cells: NDArray[np.int64]) -> str:
    texts = [_devices_text(cell.tolist()) for cell in cells[:_MOST_CELLS]]
    more = f"<td>… {len(cells) - _MOST_CELLS} more</td>" if len(cells) > _MOST_CELLS else ""
    return f"<tr><th>{name}</th>{''.join(f'<td>{text}</td>' for text in texts)}{more}</tr>"


def _devices_text(devices: Sequence[int]) -> str:
    """Return the first few devices, and their number if there are more."""
    shown = ", ".join(map(str, devices[:8]))
    return shown if len(devices) <= 8 else f"{shown}, … ({len(devices)})"
