"""Planes: the elements of one kind in a pool of pages (keys, values, scales), and their byte offsets.

A plane is separable: the offset of an element is a sum of one term per coordinate, so five small tables describe any
page. Tiled layout texts, the strides of tensors and packed heads are all lowered to these tables. The axes of a tensor
are named by the caller, or inferred from the sizes.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.arrays import Array, described, strides_overlap
from fastindex.arrays.engines import is_cuda_array
from fastindex.arrays.fills import element_type_of
from fastindex.core.element_types import ElementType
from fastindex.core.foreign_arrays import host_array
from fastindex.core.integers import as_integer
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.index.box_nests import cuts_of, slots_along

Numbers = NDArray[np.int64]

#: Valid dimension names of a text; the dimension of size 2 for keys and values needs no name.
AXES = ("layers", "num_blocks", "kv", "kv_heads", "block_size", "head_dim")

_TEXT = re.compile(r"\s*(\w+)\s*\[([^\]]*)\](.*)", re.DOTALL)


@dataclass(frozen=True, eq=False, slots=True)
class Plane:
    """The location of the elements of one kind; all offsets and strides are in bytes.

    Attributes
    ----------
    name : str
        "k" or "v"; "kv" for a plane shared by keys and values; or the name of a part.
    element_type : ElementType
    unit_bytes, per_unit : int
        Size of the unit that is moved, and the elements in it: two for elements of 4 bits.
    layer_offsets : int64 array
        Offset of block 0 of each layer.
    block_stride : int
    head_offsets, token_offsets, dim_offsets : int64 arrays
        Offset added by each head, each token of a block and each unit along the last dimension.
    """

    name: str
    element_type: ElementType
    unit_bytes: int
    per_unit: int
    layer_offsets: Numbers
    block_stride: int
    head_offsets: Numbers
    token_offsets: Numbers
    dim_offsets: Numbers

    @property
    def head_dim(self) -> int:
        """Elements per head and token."""
        return len(self.dim_offsets) * self.per_unit

    @property
    def page_extent(self) -> tuple[int, int]:
        """First byte and end of the plane in a page, relative to the start of a block of its layer."""
        tables = self.head_offsets, self.token_offsets, self.dim_offsets
        return sum(int(t.min()) for t in tables), sum(int(t.max()) for t in tables) + self.unit_bytes

    def end(self, num_blocks: int) -> int:
        """Return the end of the plane: the offset after its last byte."""
        return int(self.layer_offsets.max()) + max(num_blocks - 1, 0) * self.block_stride + self.page_extent[1]


@dataclass(frozen=True, eq=False, slots=True)
class Pool:
    """The common result of the constructors of a cache.

    Attributes
    ----------
    text : str
        Description for messages.
    planes : list of Plane
    num_blocks, nbytes : int
    tensors : sequence of Array, optional
        The tensors that the pool was made from.
    """

    text: str
    planes: list[Plane]
    num_blocks: int
    nbytes: int
    tensors: Sequence[Array] | None = None


@dataclass(frozen=True, eq=False, slots=True)
class NamedAxes:
    """The axes of a text or of a tensor.

    Attributes
    ----------
    text : str
        Description for messages.
    element_type : ElementType
    nbytes : int
    tables : dict of int64 arrays
        Byte offset of each index of an axis; ``head_dim`` has one entry per unit.
    per_unit : int
        Elements per unit.
    """

    text: str
    element_type: ElementType
    nbytes: int
    tables: Mapping[str, Numbers]
    per_unit: int = 1

    def offsets(self, axis: str) -> Numbers:
        """Return the table of an axis: a single 0 if there is no such axis."""
        return self.tables.get(axis, np.zeros(1, np.int64))


def read_text(text: str) -> NamedAxes:
    """Parse a text with named dimensions; a repeated name is one axis whose more major digits come first.

    Raises
    ------
    FastIndexError
        A dimension without a name or with an unknown name; a size below 1.
    ParseError, LayoutError
        As `Shape.parse`, for the text without the names.
    UnsupportedError
        A tile merges dimensions, or elements are packed along a dimension other than ``head_dim``.

    Examples
    --------
    >>> found = read_text("bf16[num_blocks=2,2,kv_heads=2,block_size=4,head_dim=8]{4,2,3,1,0}")
    >>> {name: table.tolist() for name, table in found.tables.items() if name != "head_dim"}
    {'num_blocks': [0, 256], 'kv': [0, 128], 'kv_heads': [0, 16], 'block_size': [0, 32, 64, 96]}
    """
    matched = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if matched is None:
        Shape.parse(text)
        raise FastIndexError(f"a cache is an array such as bf16[num_blocks=8,block_size=16,head_dim=64], got {text!r}")
    names, sizes = [], []
    for entry in filter(None, (part.strip() for part in matched[2].split(","))):
        name, _, size = entry.rpartition("=")
        names.append(_axis_name(name.strip(), size.strip(), text))
        sizes.append(size.strip())
    shape = Shape.parse(f"{matched[1]}[{','.join(sizes)}]{matched[3]}")
    if any(size < 1 for size in shape.dimensions):
        raise FastIndexError(f"every dimension of a cache has at least one element, got {text!r}")
    if cuts_of(shape) is None:
        raise UnsupportedError(f"a tile of {text!r} merges dimensions, so a head or a token has no separate offset")
    slots: dict[str, Numbers] = {}
    for d, name in enumerate(names):
        along = slots_along(shape, d, np.arange(shape.dimensions[d]))
        slots[name] = along if name not in slots else (slots[name][:, None] + along).reshape(-1)
    return NamedAxes(str(shape), shape.element_type, shape.nbytes, *_in_bytes(slots, shape.element_bits, text))


def _axis_name(name: str, size: str, text: str) -> str:
    name = name or ("kv" if size == "2" else "")
    if name not in AXES:
        shown = f"dimension {name!r}" if name else f"the dimension of size {size} without a name"
        raise FastIndexError(
            f"{shown} of {text!r} is not one of {', '.join(AXES)}; only the 2 of keys and values needs no name"
        )
    return name


def _in_bytes(slots: dict[str, Numbers], bits: int, text: str) -> tuple[dict[str, Numbers], int]:
    if bits % 8 == 0:
        return {name: np.ascontiguousarray(table) * (bits // 8) for name, table in slots.items()}, 1
    per_unit = 8 // bits
    dims = slots.get("head_dim", np.zeros(1, np.int64))
    others = [table for name, table in slots.items() if name != "head_dim"]
    groups = dims[: len(dims) // per_unit * per_unit].reshape(-1, per_unit)
    together = len(dims) % per_unit == 0 and bool(np.all(groups == groups[:, :1] + np.arange(per_unit)))
    if bits * per_unit != 8 or not together or any((table % per_unit).any() for table in (groups[:, 0], *others)):
        raise UnsupportedError(
            f"elements of {bits} bits are moved where whole bytes of them lie along head_dim, and those of {text!r} "
            "do not"
        )
    slots = {**slots, "head_dim": groups[:, 0]}
    return {name: table // per_unit for name, table in slots.items()}, per_unit


def stride_of(table: Numbers, what: str) -> int:
    """Return the constant stride of a table, 0 if it has a single entry.

    Raises
    ------
    UnsupportedError
        The stride is not constant.
    """
    if len(table) < 2:
        return 0
    stride = int(table[1] - table[0])
    if (np.diff(table) != stride).any():
        raise UnsupportedError(f"{what} must lie at equal distances, and a tile cuts num_blocks; tile the page only")
    return stride


def planes_of(
    found: NamedAxes, name: str, offset: int, layer_offsets: Numbers, block_stride: int, used: Mapping[str, int | None]
) -> list[Plane]:
    """Return the planes of a text: one, or two if it has a dimension of keys and values.

    `used` gives the logical sizes of axes that the text pads: heads and elements per head.
    """
    tables = {axis: found.offsets(axis) for axis in AXES}
    for axis, size in used.items():
        per = found.per_unit if axis == "head_dim" else 1
        count = len(tables[axis]) * per if size is None else as_integer(size, axis)
        if not 0 < count <= len(tables[axis]) * per or count % per:
            raise FastIndexError(f"{axis}={count} must be from 1 to the {len(tables[axis]) * per} of {found.text}")
        tables[axis] = tables[axis][: count // per]
    halves = tables["kv"]
    names = (f"k{name}", f"v{name}") if len(halves) == 2 else (name or "kv",)
    if len(halves) > 2:
        raise FastIndexError(f"kv has two values, keys and values, got {len(halves)} in {found.text}")
    return [
        Plane(
            half_name,
            found.element_type,
            max(found.element_type.bits // 8, 1),
            found.per_unit,
            layer_offsets + (offset + int(half)),
            block_stride,
            tables["kv_heads"],
            tables["block_size"],
            tables["head_dim"],
        )
        for half_name, half in zip(names, halves, strict=True)
    ]


def require_disjoint(planes: Sequence[Plane], text: str) -> None:
    """Raise FastIndexError where two elements of a page share bytes."""
    used = []
    for plane in planes:
        outer = plane.head_offsets[:, None] + plane.token_offsets
        units = (outer[:, :, None] + plane.dim_offsets).reshape(-1) + int(plane.layer_offsets[0])
        used.append((units[:, None] + np.arange(plane.unit_bytes)).reshape(-1))
    places = np.sort(np.concatenate(used))
    again = np.flatnonzero(places[1:] == places[:-1])
    if len(again):
        raise FastIndexError(f"two elements of {text} share byte {int(places[again[0]])} of a page; check offsets")


def may_meet(low: int, high: int, steps: Sequence[tuple[int, int]]) -> bool:
    """Whether some sum of strides, each times at most its size less 1 either way, is between `low` and `high`.

    Parameters
    ----------
    low, high : int
        Exclusive bounds: the negative length of one range of bytes and the length of another, plus their distance.
    steps : sequence of (int, int)
        Strides of at least 1 and sizes, the largest stride first.

    Examples
    --------
    >>> may_meet(30 - 8, 30 + 8, [(100, 3), (40, 2)]), may_meet(20 - 8, 20 + 8, [(100, 3), (40, 2)])
    (False, False)
    """
    if not steps:
        return low < 0 < high
    (stride, size), *inner = steps
    reach = sum(step * (count - 1) for step, count in inner)
    counts = range(max((low - reach) // stride + 1, 1 - size), min((high + reach - 1) // stride, size - 1) + 1)
    return any(may_meet(low - count * stride, high - count * stride, inner) for count in counts)


# Memory of other libraries


def memory_of(value: Any, name: str, writes: bool) -> Array:
    """Return the record of an object's memory, on the host or on a GPU; the caller keeps the object.

    Raises
    ------
    FastIndexError
        `writes` is set, and the object is read-only.
    ArgumentTypeError
        The object does not expose its memory.
    """
    if is_cuda_array(value):
        from fastindex.cuda.arrays import as_device_array

        found: Array = as_device_array(value, name)
    elif isinstance(value, bytes | bytearray | memoryview):
        found = described(np.frombuffer(value, np.uint8))
    elif isinstance(value, np.ndarray) or hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__"):
        found = described(host_array(value))
    else:
        raise ArgumentTypeError(f"{name} must be an array or bytes, to share its memory; got {type(value).__name__}")
    if writes and found.read_only:
        raise FastIndexError(f"{name} is read-only; give memory that can be written")
    return found


def memories_of(tensors: Any, name: str, writes: bool) -> list[Array]:
    """Return the records of a tensor, or of a flat or nested sequence of tensors."""
    if isinstance(tensors, Sequence) and not isinstance(tensors, str | bytes | bytearray | memoryview):
        return [record for tensor in tensors for record in memories_of(tensor, name, writes)]
    return [memory_of(tensors, name, writes)]


# Pools of tensors


#: The sets of axes that engines use for the tensor of a layer, in any order.
_KINDS = (
    ("num_blocks", "block_size", "kv_heads", "head_dim"),
    ("num_blocks", "block_size", "kv_heads", "head_dim", "2"),
    ("num_blocks", "block_size", "kv_heads", "(2 head_dim)"),
    ("num_blocks", "block_size", "(2 kv_heads)", "head_dim"),
    ("num_blocks", "block_size", "head_dim"),
    ("(num_blocks block_size)", "kv_heads", "head_dim"),
)
_ITEM = re.compile(r"\(([^()]*)\)|(\S+)")


def pool_of_tensors(tensors: Any, axes: str | None, sizes: Mapping[str, int]) -> Pool:
    """Return the pool of tensors: one per layer, a pair of keys and values per layer, or one for all layers.

    Raises as `Cache.from_tensors`.
    """
    nested = tensors if isinstance(tensors, list | tuple) else [tensors]
    layers = [memories_of(layer, "tensors", False) for layer in nested]
    halves = len(layers[0]) if layers else 0
    if halves not in (1, 2) or any(len(layer) != halves for layer in layers):
        raise FastIndexError("give one tensor a layer, or a pair of keys and values a layer")
    first = layers[0][0]
    if any((one.shape, one.strides, one.dtype) != (first.shape, first.strides, first.dtype) for one in _all(layers)):
        raise FastIndexError("the tensors of a cache have the same dimensions, strides and type")
    if strides_overlap(first.shape, first.dtype.itemsize, first.strides) or min(first.strides, default=1) < 0:
        raise FastIndexError(f"the elements of a tensor with strides of {first.strides} bytes overlap, or go backwards")
    element_type = element_type_of(first.dtype)
    if element_type is None:
        raise ArgumentTypeError(f"no element type is stored as {first.dtype}")
    tables = _tables(first, axes if axes is not None else _guessed(first, halves, sizes), sizes)
    width, reach = first.dtype.itemsize, first.extent[1] - first.extent[0]
    steps = [step for step in sorted(zip(first.strides, first.shape, strict=True), reverse=True) if step[1] > 1]
    for one, other in itertools.combinations([one.address for one in _all(layers)], 2):
        if abs(one - other) < reach and may_meet(one - other - width, one - other + width, steps):
            raise FastIndexError(
                "two tensors of a cache share memory; give each once, without layers that reuse another's"
            )
    base = min(one.extent[0] for one in _all(layers))
    nbytes = max(one.extent[1] for one in _all(layers)) - base
    found = NamedAxes(f"{len(layers)} x {halves} tensors of {first.shape}", element_type, nbytes, tables)
    if halves == 2 and "kv" in tables:
        raise FastIndexError("keys and values are axis 2 of one tensor, or a pair of tensors, got both")
    stride, planes = stride_of(tables["num_blocks"], "blocks"), []
    for half in range(halves):
        begins = np.array([layer[half].address - base for layer in layers], np.int64)
        offsets = (begins[:, None] + found.offsets("layers")).reshape(-1)
        planes += planes_of(found, "kv"[half] if halves == 2 else "", 0, offsets, stride, {})
    return Pool(found.text, planes, len(tables["num_blocks"]), nbytes, list(_all(layers)))


def _all(layers: Sequence[Sequence[Array]]) -> Iterator[Array]:
    return itertools.chain.from_iterable(layers)


def _tables(tensor: Array, axes: str, sizes: Mapping[str, int]) -> dict[str, Numbers]:
    """Return the byte offset of each index of each axis."""
    if not isinstance(axes, str):
        raise ArgumentTypeError(f"axes must be a text such as 'num_blocks block_size head_dim', got {axes!r:.200}")
    items = [(found[1] or found[2]).split() for found in _ITEM.finditer(axes)]
    if len(items) != len(tensor.shape):
        raise FastIndexError(f"axes {axes!r} name {len(items)} dimensions, and a tensor has {tensor.shape}")
    tables: dict[str, Numbers] = {}
    for names, size, stride in zip(items, tensor.shape, tensor.strides, strict=True):
        for name, count, inner in _factors(names, size, sizes, axes):
            if name in tables:
                raise FastIndexError(f"axes {axes!r} name {name} twice")
            tables[name] = np.arange(count) * (stride * inner)
    missing = [name for name in ("num_blocks", "block_size", "head_dim") if name not in tables]
    if missing:
        raise FastIndexError(f"axes {axes!r} do not name {', '.join(missing)}")
    for name, size in sizes.items():
        if name in tables and len(tables[name]) != size:
            raise FastIndexError(f"{name} is {size}, and axes {axes!r} give it {len(tables[name])} of {tensor.shape}")
    return tables


def _factors(names: Sequence[str], size: int, sizes: Mapping[str, int], axes: str) -> Iterator[tuple[str, int, int]]:
    """Yield the axes combined in one dimension, each with its size and its stride in elements of the dimension."""
    known = [2 if name == "2" else sizes.get(name) if len(names) > 1 else size for name in names]
    product = math.prod(count for count in known if count is not None)
    if known.count(None) > 1 or product == 0 or size % product or (None not in known and product != size):
        raise FastIndexError(
            f"({' '.join(names)}) of axes {axes!r} is a dimension of {size}; give sizes that divide it"
        )
    counts = [size // product if count is None else count for count in known]
    for place, (name, count) in enumerate(zip(names, counts, strict=True)):
        axis = "kv" if name == "2" else name
        if axis not in AXES:
            raise FastIndexError(f"{name!r} of axes {axes!r} is not one of 2, {', '.join(AXES)}")
        yield axis, count, math.prod(counts[place + 1 :])


def _guessed(tensor: Array, halves: int, sizes: Mapping[str, int]) -> str:
    """Return the only axis order that matches the sizes.

    Raises
    ------
    FastIndexError
        No order matches, or several do.
    """
    wanted = {"num_blocks", "block_size", "head_dim"}
    if not wanted <= set(sizes):
        raise FastIndexError(
            "give axes, such as 'num_blocks 2 block_size kv_heads head_dim', or num_blocks, block_size, kv_heads and "
            "head_dim to find them by"
        )
    found: list[str] = []
    for kind in _KINDS:
        has_heads = "kv_heads" in " ".join(kind)
        if len(kind) != len(tensor.shape) or has_heads != ("kv_heads" in sizes):
            continue
        if halves == 1 or not any("2" in item for item in kind):
            orders = itertools.permutations(kind)
            fitting = (order for order in orders if [_size(item, sizes) for item in order] == [*tensor.shape])
            found += map(" ".join, fitting)
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{name}={size}" for name, size in sizes.items())
    if not found:
        raise FastIndexError(f"no order of {listed} gives a tensor of {tensor.shape}; give axes")
    raise FastIndexError(f"a tensor of {tensor.shape} may be {found[0]!r} or {found[1]!r}, by {listed}; give axes")


def _size(item: str, sizes: Mapping[str, int]) -> int:
    return math.prod(2 if name == "2" else sizes.get(name, 1) for name in item.strip("()").split())
