"""Caches from tensors with arbitrary strides; axis names are given, or inferred from the sizes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fastindex.arrays.arrays import Array, strides_overlap
from fastindex.arrays.fills import element_type_of
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.paged.memory import described_tensors
from fastindex.paged.planes import AXES, Numbers, Plane, Pool, stride_of

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
    layers = [described_tensors(layer, "tensors", False) for layer in nested]
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
        raise ArgumentTypeError(f"a tensor of {first.dtype} holds no element type that there is")
    tables = _tables(first, axes if axes is not None else _guessed(first, halves, sizes), sizes)
    zero = np.zeros(1, np.int64)
    heads, tokens, dims = (tables.get(name, zero) for name in ("kv_heads", "block_size", "head_dim"))
    base = min(one.extent[0] for one in _all(layers))
    planes = []
    for half in range(halves):
        begins = np.array([layer[half].address - base for layer in layers], np.int64)
        offsets = (begins[:, None] + tables.get("layers", zero)).reshape(-1)
        inner = tables.get("kv", zero)
        if len(inner) > 2 or (len(inner) == 2 and halves == 2):
            raise FastIndexError("kv has two values, keys and values, in one tensor or in a pair of tensors")
        names = ("k", "v") if len(inner) == 2 else (("k", "v")[half],) if halves == 2 else ("kv",)
        stride = stride_of(tables["num_blocks"], "blocks")
        for name, offset in zip(names, inner.tolist(), strict=True):
            place = offsets + offset
            planes.append(Plane(name, element_type, first.dtype.itemsize, 1, place, stride, heads, tokens, dims))
    nbytes = max(one.extent[1] for one in _all(layers)) - base
    text = f"{len(layers)} x {halves} tensors of {first.shape}"
    return Pool(text, planes, len(tables["num_blocks"]), nbytes, list(_all(layers)))


def _all(layers: Sequence[Sequence[Array]]) -> Iterator[Array]:
    return itertools.chain.from_iterable(layers)


def _tables(tensor: Array, axes: str, sizes: Mapping[str, int]) -> dict[str, Numbers]:
    """Return the byte offset of each index of each axis."""
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
    rest = math.prod(count for count in known if count is not None)
    if known.count(None) > 1 or rest == 0 or size % rest or (None not in known and rest != size):
        raise FastIndexError(
            f"({' '.join(names)}) of axes {axes!r} is a dimension of {size}; give sizes that divide it"
        )
    counts = [size // rest if count is None else count for count in known]
    for place, (name, count) in enumerate(zip(names, counts, strict=True)):
        axis = "kv" if name == "2" else name
        if axis not in AXES:
            raise FastIndexError(f"{name!r} of axes {axes!r} is none of 2, {', '.join(AXES)}")
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
    given = ", ".join(f"{name}={size}" for name, size in sizes.items())
    if not found:
        raise FastIndexError(f"no order of {given} gives a tensor of {tensor.shape}; give axes")
    raise FastIndexError(f"a tensor of {tensor.shape} may be {found[0]!r} or {found[1]!r}, by {given}; give axes")


def _size(item: str, sizes: Mapping[str, int]) -> int:
    return math.prod(2 if name == "2" else sizes.get(name, 1) for name in item.strip("()").split())
