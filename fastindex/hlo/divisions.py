"""Shardings in HLO text: the part of each program argument that a device holds.

After SPMD partitioning, arguments keep the shardings of the whole arrays, but their shapes are already those of one
device. The text does not say this outright, so the report lists the evidence.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError, LayoutError
from fastindex.hlo.modules import Module
from fastindex.hlo.presentation import Record, json_of

if TYPE_CHECKING:
    from fastindex.sharding.sharding import Sharding


#: The host's memory space.
HOST_SPACE = 5


@dataclass(frozen=True, slots=True)
class DividedArray(Record):
    """An argument with a sharding.

    Attributes
    ----------
    instruction : str
    shape : Shape
        As written: of the whole array, or, in a partitioned module, of one device's part.
    sharding : Sharding
    part : Shape
        The part on each device.
    shard_padding_nbytes : int or None
        Padding bytes in `part` due to uneven division, averaged over the devices; None in a partitioned module, where
        the size of the whole array is no longer known.
    """

    instruction: str
    shape: Shape
    sharding: Sharding
    part: Shape
    shard_padding_nbytes: int | None

    @property
    def is_on_host(self) -> bool:
        """Whether it is in host memory, S(5)."""
        return self.part.layout.memory_space == HOST_SPACE

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON, and the bytes of the part."""
        return Record.to_json(self) | {"nbytes": self.part.nbytes}


@dataclass(frozen=True, slots=True)
class Division:
    """How the arguments of a module are divided over the devices.

    Attributes
    ----------
    is_partitioned : bool
        Whether the shapes in the text are those of one device.
    signs : tuple of str
        The evidence that the module is partitioned.
    arrays : tuple of DividedArray
    problems : tuple of str
        Shardings that could not be parsed, or do not fit their arrays.
    """

    is_partitioned: bool
    signs: tuple[str, ...]
    arrays: tuple[DividedArray, ...]
    problems: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes on each device of the arguments with a sharding, except those in host memory."""
        return sum(array.part.nbytes for array in self.arrays if not array.is_on_host)

    @property
    def host_nbytes(self) -> int:
        """Bytes of these arguments in host memory."""
        return sum(array.part.nbytes for array in self.arrays if array.is_on_host)

    @property
    def shard_padding_nbytes(self) -> int | None:
        """Padding bytes among these due to uneven division; None in a partitioned module."""
        if self.is_partitioned:
            return None
        return sum(array.shard_padding_nbytes or 0 for array in self.arrays)

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "is_partitioned": self.is_partitioned,
            "signs": json_of(self.signs),
            "nbytes": self.nbytes,
            "host_nbytes": self.host_nbytes,
            "shard_padding_nbytes": self.shard_padding_nbytes,
            "arguments": json_of(self.arrays),
            "problems": json_of(self.problems),
        }


def partitioned_signs(module: Module, stage: str) -> tuple[str, ...]:
    """Return the evidence that a module is partitioned, so that its shapes are those of one device.

    ``num_partitions`` is no evidence: the header has it before and after partitioning.
    """
    signs = []
    if module.entry is not None and module.entry.name.endswith("_spmd"):
        signs.append(f"the entry is called {module.entry.name}")
    if module.is_scheduled:
        signs.append("is_scheduled=true")
    if "after_spmd-partitioning" in stage:
        signs.append(f"the file is called {stage}")
    return tuple(signs)


def division_of(module: Module, stage: str) -> Division | None:
    """Return the division of a module's arguments; None if none has a sharding.

    Parameters
    ----------
    module : Module
    stage : str
        The file name, or the stage in it; or "".
    """
    entry = module.entry
    if entry is None or not any(details.sharding for details in entry.details):
        return None
    shapes, names, meshes = list(module.shapes), entry.names(), tuple(meshes_of(module.header).items())
    signs = partitioned_signs(module, stage)
    arrays: list[DividedArray] = []
    problems: list[str] = []
    for place, details in enumerate(entry.details):
        if not details.sharding:
            continue
        try:
            arrays += _divided(names[place], shapes[entry.shape(place)], details.sharding, meshes, bool(signs))
        except FastIndexError as error:
            problems.append(f"the sharding of {names[place]}: {str(error).splitlines()[0]}")
    return Division(bool(signs), signs, tuple(arrays), tuple(problems))


@lru_cache(maxsize=1024)
def _divided(
    name: str, shape: bytes, sharding: str, meshes: tuple[tuple[str, str], ...], is_partitioned: bool
) -> tuple[DividedArray, ...]:
    """Return the arrays of one argument; cached because the modules of a report share many arguments."""
    # Lazy: most reports do not need it.
    from fastindex.sharding.sharding import Sharding

    read = sharding_of_sdy(sharding, dict(meshes)) if sharding.startswith("#sdy") else Sharding.parse(sharding)
    leaves = _leaves(Shape.parse(shape.decode("utf-8", "replace")), read)
    return tuple(_divided_array(name, leaf, of_leaf, is_partitioned) for leaf, of_leaf in leaves)


def _leaves(shape: Shape, sharding: Sharding) -> list[tuple[Shape, Sharding]]:
    leaves = [leaf for leaf in shape.leaves() if leaf.is_array] if shape.is_tuple else [shape]
    if sharding.kind != "tuple":
        return [(leaf, sharding) for leaf in leaves]
    return list(zip(leaves, sharding.elements, strict=False))


def _divided_array(name: str, shape: Shape, sharding: Sharding, is_partitioned: bool) -> DividedArray:
    # An error if a size is unknown.
    shape.nbytes  # noqa: B018
    if is_partitioned:
        return DividedArray(name, shape, sharding, shape, None)
    part = sharding.shard_shape(shape)
    capacity = math.prod(part.dimensions) * math.prod(sharding.parts)
    padding = part.nbytes * (capacity - shape.element_count) // capacity if capacity and sharding.kind == "tiled" else 0
    return DividedArray(name, shape, sharding, part, padding)


def division_notes(division: Division) -> list[str]:
    """Return notes for the reader: whether the module is taken as partitioned, and how much each device holds."""
    count = len(division.arrays)
    arguments = f"{count} argument{'s' * (count != 1)} with a sharding"
    on_host = f", and {division.host_nbytes:,} are in the memory of its host" if division.host_nbytes else ""
    if division.is_partitioned:
        notes = [
            f"taken for a partitioned module ({', '.join(division.signs)}): shapes are those of one device already"
        ]
        notes.append(f"{arguments}: each device holds {division.nbytes:,} bytes of them{on_host}")
    else:
        notes = ["taken for a module before partitioning: shapes are those of whole arrays"]
        padding = division.shard_padding_nbytes or 0
        share = f", {padding:,} of it padding of uneven parts" if padding else ""
        notes.append(f"{arguments}: divided, each device holds {division.nbytes:,} bytes of them{share}{on_host}")
    return notes + list(division.problems)


# Shardy attributes: ``shardy/dialect/sdy/ir/attrs.td`` in openxla/shardy.

_MESH = re.compile(r'([\w.$-]+|"[^"]*")\s*=\s*#sdy\.mesh<\[(.*?)\](?:\s*,\s*device_ids\s*=\s*\[([\d,\s]*)\])?\s*>')
_SHARDING = re.compile(r"#sdy\.sharding<\s*(?:@([\w.$-]+)|mesh<\[(.*?)\](?:,\s*device_ids=\[([\d,\s]*)\])?>)\s*,?\s*")
_PRIORITY = re.compile(r"\}\s*p\d+")


def meshes_of(text: str) -> dict[str, str]:
    """Return the meshes in a module's header by name, as the beginnings of XLA's mesh forms.

    Examples
    --------
    >>> meshes_of('xla.sdy.meshes={mesh = #sdy.mesh<["a"=2, "b"=4]>}')
    {'mesh': "mesh['a'=2,'b'=4]"}
    """
    return {found[1].strip('"'): _mesh_text(found[2], found[3]) for found in _MESH.finditer(text.replace('\\"', '"'))}


def _mesh_text(axes: str, device_ids: str | None) -> str:
    sizes = ",".join(f"'{name}'={size}" for name, size in re.findall(r'"([^"]*)"\s*=\s*(\d+)', axes))
    ids = re.findall(r"\d+", device_ids or "")
    if not sizes and len(ids) == 1:
        return f"single_device[device_id={ids[0]}]"
    return f"mesh[{sizes}]" + (f", device_ids=({','.join(ids)})" if ids else "")


def sharding_of_sdy(text: str, meshes: dict[str, str]) -> Sharding:
    """Parse a Shardy sharding, given the meshes of the module.

    Priorities, which only guide propagation, are ignored.

    Raises
    ------
    LayoutError
        The text is not a Shardy sharding, or its mesh is unknown.

    Examples
    --------
    >>> meshes = {"mesh": "mesh['a'=2,'b'=4]"}
    >>> str(sharding_of_sdy('#sdy.sharding<@mesh, [{"a"}p1, {"b", ?}], replicated={}>', meshes))
    "{mesh['a'=2,'b'=4], [{'a'}, {'b', ?}]}"
    """
    from fastindex.sharding.sharding import Sharding

    plain = text.replace('\\"', '"').strip()
    found = _SHARDING.match(plain)
    if found is None or not plain.endswith(">"):
        raise LayoutError(f"not a Shardy sharding: {plain[:80]!r}")
    mesh = meshes.get(found[1]) if found[1] else _mesh_text(found[2], found[3])
    if mesh is None:
        raise LayoutError(f"the mesh @{found[1]} is not among {', '.join(meshes) or 'the meshes: there are none'}")
    if mesh.startswith("single_device"):
        return Sharding.parse(f"{{{mesh}}}")
    fields = _PRIORITY.sub("}", plain[found.end() : -1]).strip()
    return Sharding.parse(f"{{{mesh}, {fields}}}")
