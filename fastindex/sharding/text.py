"""Parse the text of shardings by XLA's grammar, strictly, and format shardings as XLA prints them.

The class to build is an argument of the parser.

Source: ``HloParserImpl::ParseSharding`` and ``ParseSingleSharding`` in ``xla/hlo/parser/hlo_parser.cc``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from fastindex.core.layout_text import SKIPPED, TokenReader
from fastindex.errors import LayoutError, ParseError
from fastindex.sharding.mesh import Axis, DimensionAxes, Mesh, MeshSharding
from fastindex.sharding.proto import ATTRIBUTES, REDUCTIONS, OpMetadata, Value, ordered_metadata
from fastindex.sharding.tile_assignment import DeviceOrder

Built = TypeVar("Built")

_QUOTED = r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\""
_TOKEN = rf"({_QUOTED}|-?[0-9][0-9A-Za-z_.]*|[A-Za-z_][A-Za-z0-9_.\-]*=?|<=|(?s:.)|\Z)"
#: XLA's names for a mesh of one device; jaxlib before 0.12 prints the second, and 0.12 reads both.
_SINGLE_DEVICE = ("single_device", "maximal_mesh")
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]+|[0-7]{1,3}|(?s:.))")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}

#: Precedence if several kinds are named: the first in this order.
_KINDS = ("replicated", "maximal", "manual", "unknown", "unreduced")
_TYPES = ("manual", "replicated", "unreduced")
_ITEMS = "replicated, maximal, manual, unknown, unreduced, devices=, device=, last_tile_dims= or metadata="


def parse_sharding(text: str, build: Callable[..., Built]) -> Built:
    """Parse a sharding and build it.

    Raises
    ------
    ParseError
        The text is not a sharding, or an invalid one; the error has the position.
    """
    parser = _Parser(text, build)
    sharding = parser.sharding()
    parser.end("sharding")
    return sharding


class _Parser(TokenReader, Generic[Built]):
    """Recursive descent parser over the tokens of a sharding."""

    notation = "sharding"
    pattern = re.compile(SKIPPED + _TOKEN)

    def __init__(self, text: str, build: Callable[..., Built]) -> None:
        super().__init__(text)
        self.build = build

    @property
    def token(self) -> str:
        return self.tokens[self.at]

    def checked(self, default: int, make: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call `make`; convert its errors to errors with a position in the text."""
        try:
            return make(*arguments, **named)
        except LayoutError as error:
            self.invalid(error, default)

    def taken(self, token: str) -> bool:
        """Consume the next token if it equals the given one; return whether it did."""
        if self.token != token:
            return False
        self.at += 1
        return True

    def listed(self, field: str, end: str | None = None) -> list[int]:
        """Parse comma-separated integers, and the closing `end` if one is given."""
        self.begins[field, None] = self.at
        values: list[int] = []
        while True:
            self.begins[field, len(values)] = self.at
            values.append(self.integer())
            if self.taken(","):
                continue
            if end is not None:
                self.expect(end, f"',' or {end!r}")
            return values

    # Tuples and single shardings

    def sharding(self) -> Built:
        begin = self.at
        if self.token == "sharding=":
            self.fail_at("write the braces without 'sharding='", 0)
        if self.token == "<" or self.text.lstrip("#").startswith("sdy"):
            self.fail_at("Shardy names a mesh of the module; write its axes: {mesh['x'=2,'y'=4], [{'x'}, {}]}", 0)
        self.expect("{", "a sharding such as {devices=[2,4]<=[8]} or {replicated} (Sharding.from_jax reads JAX's)")
        if self.token != "{":
            if self.taken("}"):
                return self.build("tuple")
            return self.single(begin)
        elements = []
        while True:
            inner = self.at
            self.expect("{", "'{' and a sharding in the tuple")
            if self.token == "{":
                self.fail("the sharding of one array: tuples are flat")
            elements.append(self.single(inner))
            if not self.taken(","):
                break
        self.expect("}", "',' or '}' in the tuple")
        return self.build("tuple", elements=elements)

    def single(self, begin: int) -> Built:
        """Parse from after the opening brace through the closing one."""
        self.begins = {}
        if self.token in ("mesh", *_SINGLE_DEVICE):
            return self.mesh_form(begin)
        found: dict[str, Any] = {"kinds": set(), "metadata": []}
        while not self.taken("}"):
            self.item(found)
        kind = next((name for name in _KINDS if name in found["kinds"]), "tiled")
        named = {"shard_group": found.get("shard_group"), "metadata": found["metadata"]}
        devices, types = found.get("devices"), found.get("types", ())
        if kind != "tiled":
            explicit = None if isinstance(devices, DeviceOrder) else devices
            if kind != "maximal" and explicit is None:
                devices = None
            return self.checked(begin, self.build, kind, (), devices or None, **named)  # type: ignore[no-any-return]
        if "dimensions" not in found:
            self.fail("devices=[...], or one of replicated, maximal, manual, unknown and unreduced", self.at - 1)
        if isinstance(devices, list) and len(devices) == 1:
            raise ParseError(
                f"a list must have more than one device: write {{maximal device={devices[0]}}}, or <=[1]",
                self.text,
                self.offset(self.begins["devices", None]),
            )
        return self.checked(begin, self.build, kind, found["dimensions"], devices, types, **named)  # type: ignore[no-any-return]

    def item(self, found: dict[str, Any]) -> None:
        token = self.token
        if token in _KINDS:
            self.at += 1
            found["kinds"].add(token)
        elif token == "devices=":
            self.once("dimensions", found)
            self.at += 1
            self.assignment(found)
        elif token == "device=":
            self.once("devices", found)
            self.at += 1
            self.begins["devices", None] = self.at
            found["devices"] = [self.integer()]
        elif token in ("last_tile_dim_replicate", "last_tile_dims="):
            self.once("types", found, "last_tile_dims and last_tile_dim_replicate exclude each other")
            self.begins["subgroup_types", None] = self.at
            self.at += 1
            found["types"] = ["replicated"] if token == "last_tile_dim_replicate" else self.subgroup_types()
        elif token in ("shard_as", "shard_like"):
            self.at += 1
            found["shard_group"] = self.group(token, found.get("shard_group"))
        elif token == "metadata=":
            self.at += 1
            found["metadata"] += self.metadata()
        else:
            self.fail(f"'}}', or {_ITEMS}" if token != "," else "a space: items are not separated by commas")

    def once(self, name: str, found: dict[str, Any], rule: str | None = None) -> None:
        if name in found:
            rule = rule or f"{self.token} must not follow another device= or devices="
            raise ParseError(rule, self.text, self.offset(self.at))

    def group(self, name: str, before: tuple[str, int] | None) -> tuple[str, int]:
        """Parse the number of a shard group; the last of several numbers is used, and shard_as beats shard_like."""
        number = self.integer()
        kind = "shard_as" if before is not None and before[0] == "shard_as" else name
        return kind, number

    def assignment(self, found: dict[str, Any]) -> None:
        """Parse the tile assignment after ``devices=``."""
        self.expect("[")
        found["dimensions"] = self.listed("dimensions", "]")
        if self.token != "<=":
            found["devices"] = self.listed("devices")
            return
        self.at += 1
        self.begins["devices", None] = self.at + 1
        found["devices"] = self.counter()

    def counter(self) -> DeviceOrder:
        """Parse an iota order, ``[4,2]T(1,0)``."""
        begin = self.at
        self.expect("[")
        sizes = self.listed("reshape", "]")
        permutation = [0]
        if len(sizes) > 1:
            self.expect("T", "'T(' and the order of the dimensions, since there is more than one")
            self.expect("(", "'(' after T")
            permutation = self.listed("permutation", ")")
        order: DeviceOrder = self.checked(begin, DeviceOrder.transposed_iota, sizes, permutation)
        return order

    def subgroup_types(self) -> list[str]:
        self.expect("{")
        types: list[str] = []
        while not self.taken("}"):
            if types:
                self.expect(",", "',' or '}'")
            if self.token not in _TYPES:
                self.fail("manual, replicated or unreduced")
            self.begins["subgroup_types", len(types)] = self.at
            types.append(self.token)
            self.at += 1
        return types

    # Mesh forms

    def mesh_form(self, begin: int) -> Built:
        if self.token in _SINGLE_DEVICE:
            self.at += 1
            self.expect("[")
            self.expect("device_id=")
            self.begins["device", None] = self.at
            device = self.integer()
            self.expect("]")
            sharding = MeshSharding(self.checked(begin, Mesh, device=device))
        else:
            sharding = self.mesh_sharding(begin)
        metadata = []
        if self.taken(","):
            if self.token != "metadata=":
                self.fail("replicated=, unreduced=, manual= or metadata=, each once")
            self.at += 1
            metadata = self.metadata()
        self.expect("}", "',' or '}'")
        return self.checked(begin, self.build, "tiled", mesh=sharding, metadata=metadata)  # type: ignore[no-any-return]

    def mesh_sharding(self, begin: int) -> MeshSharding:
        mesh = self.mesh(begin)
        self.expect(",", "',' and what the axes divide")
        every = tuple(Axis(i) for i in range(len(mesh.names)))
        if self.taken("replicated"):
            return MeshSharding(mesh)
        if self.taken("manual"):
            return MeshSharding(mesh, manual=every)
        if self.token in ("unreduced", "unreduced="):
            self.at += 1
            reduction = self.reduction() if self.tokens[self.at - 1] == "unreduced=" else "sum"
            self.begins["unreduced", None] = self.at
            unreduced = self.braced_axes(mesh) if self.token == "{" else every
            named = {"unreduced": unreduced, "reduction": reduction}
            return self.checked(begin, MeshSharding, mesh, **named)  # type: ignore[no-any-return]
        self.expect("[", "replicated, manual, unreduced, or '[' and the axes of each dimension")
        dimensions: list[DimensionAxes] = []
        while not self.taken("]"):
            if dimensions:
                self.expect(",", "',' or ']'")
            self.begins["dimensions", len(dimensions)] = self.at
            self.expect("{", "'{' and axes")
            axes = self.axes(mesh)
            is_open = self.taken("?")
            self.expect("}", "'}': ? must be the last" if is_open else "',' or '}'")
            dimensions.append(DimensionAxes(axes, is_open))
        kept: dict[str, Any] = {}
        while self.token == "," and self.tokens[self.at + 1] in ("replicated=", "unreduced=", "manual="):
            name = self.tokens[self.at + 1][:-1]
            if name in kept:
                self.fail(f"{name}= only once", self.at + 1)
            self.at += 2
            if name == "unreduced" and self.token != "{":
                kept["reduction"] = self.reduction()
            self.begins[name, None] = self.at
            kept[name] = self.braced_axes(mesh)
        sharding: MeshSharding = self.checked(begin, MeshSharding, mesh, tuple(dimensions), **kept)
        return sharding

    def mesh(self, begin: int) -> Mesh:
        self.expect("mesh")
        self.expect("[")
        names: list[str] = []
        sizes: list[int] = []
        while not self.taken("]"):
            if names:
                self.expect(",", "',' or ']'")
            self.begins["names", len(names)] = self.at
            names.append(self.quoted("the name of an axis in quotes"))
            self.expect("=")
            self.begins["sizes", len(sizes)] = self.at
            sizes.append(self.integer())
        order = None
        if self.token == "," and self.tokens[self.at + 1] == "device_ids=":
            self.at += 2
            self.expect("(")
            self.begins["device_ids", None] = self.at
            if self.token == "[":
                order = self.counter()
            else:
                order = self.checked(begin, DeviceOrder.listed, self.listed("devices"))
                if list(order.ids or ()) == list(range(order.count)):
                    self.fail("no device_ids where they are 0, 1, 2 and so on", self.begins["device_ids", None])
            self.expect(")", "')' after the devices")
        mesh: Mesh = self.checked(begin, Mesh, tuple(names), tuple(sizes), order)
        return mesh

    def reduction(self) -> str:
        """Parse the reduction of unreduced axes."""
        if self.token not in REDUCTIONS:
            self.fail("sum, max or min, or the axes that are unreduced")
        self.at += 1
        return self.tokens[self.at - 1]

    def braced_axes(self, mesh: Mesh) -> tuple[Axis, ...]:
        self.expect("{")
        axes = self.axes(mesh)
        self.expect("}", "',' or '}'")
        return axes

    def axes(self, mesh: Mesh) -> tuple[Axis, ...]:
        """Parse axes up to '?' or '}', which is not consumed."""
        axes: list[Axis] = []
        while self.token not in ("}", "?"):
            axes.append(self.axis(mesh))
            if not self.taken(","):
                break
            if self.token == "}":
                self.fail("an axis after ','")
        return tuple(axes)

    def axis(self, mesh: Mesh) -> Axis:
        at = self.at
        name = self.quoted("the name of an axis in quotes, or '?'")
        if name in mesh.names:
            number = mesh.names.index(name)
        elif name.isdecimal() and name.isascii() and len(name) < 10 and int(name) < len(mesh.names):
            number = int(name)
        else:
            self.fail(f"an axis of the mesh ({', '.join(map(repr, mesh.names)) or 'it has none'})", at)
        if not self.taken(":"):
            return Axis(number)
        self.expect("(")
        before = self.integer()
        self.expect(")")
        return Axis(number, (before, self.integer()))

    # Texts and metadata

    def quoted(self, what: str) -> str:
        token = self.token
        if len(token) < 2 or token[0] not in "'\"":
            self.fail(what)
        self.at += 1
        return _ESCAPE.sub(_unescaped, token[1:-1])

    def metadata(self) -> list[OpMetadata]:
        self.expect("{")
        if self.token != "{":
            return [self.attributes()]
        items: list[OpMetadata] = []
        while not self.taken("}"):
            if items:
                self.expect(",", "',' or '}' in the list of metadata")
            self.expect("{")
            items.append(self.attributes())
        return items

    def attributes(self) -> OpMetadata:
        """Parse attributes through the closing brace."""
        found: dict[str, Value] = {}
        while not self.taken("}"):
            if found:
                self.taken(",")
            name = self.token[:-1]
            if self.token[-1:] != "=" or name not in ATTRIBUTES or name in found:
                self.fail(f"one of the attributes {', '.join(ATTRIBUTES)}, each once")
            self.at += 1
            kind = ATTRIBUTES[name][1]
            if kind is str:
                found[name] = self.quoted("text in quotes")
            elif kind is int:
                found[name] = self.integer()
            else:
                self.expect("{")
                found[name] = tuple(self.listed(name, "}"))
        return ordered_metadata(found)


def _unescaped(match: re.Match[str]) -> str:
    what = match[1]
    if what[0] == "x" and len(what) > 1:
        return chr(int(what[1:], 16) & 0xFF)
    if what[0] in "01234567":
        return chr(int(what, 8) & 0xFF)
    return _ESCAPED.get(what, what)


# Characters that end a name or start an escape; XLA prints them unescaped, and cannot read them back.
_PRINTED_AS = {code: f"\\{code:03o}" for code in (*range(32), 127)} | {ord(mark): f"\\{mark}" for mark in "\\'"}


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
        is_printed = name in named and (covered > 1 or other not in named)
        if not sharding.dimensions and is_printed and covered == math.prod(mesh.sizes):
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
    return f"'{name.translate(_PRINTED_AS)}'"


def _order_text(order: DeviceOrder) -> str:
    return _joined(order.ids) if order.ids is not None else "<=" + _iota_text(order)


def _iota_text(order: DeviceOrder) -> str:
    sizes = order.reshape_dimensions
    text = f"[{_joined(sizes)}]"
    return text if len(sizes) == 1 else f"{text}T({_joined(order.permutation)})"


def _joined(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))
