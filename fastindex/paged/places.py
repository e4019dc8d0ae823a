"""Byte offsets of elements of a cache, and the inverse: the element at a byte; both vectorized."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fastindex.algebra.loops import Loop, Nest
from fastindex.arrays.index_arguments import as_integers_in_bulk, common_shape
from fastindex.errors import FastIndexError, OutOfBoundsError
from fastindex.moving.box_copies import gathered, nests_of
from fastindex.paged.caches import Cache
from fastindex.paged.planes import Numbers, Plane


class Element(NamedTuple):
    """Coordinates of an element of a cache, or arrays of them: the arguments of `byte_offset`."""

    layer: Any
    kv: Any
    head: Any
    slot: Any
    dim: Any


def byte_offset(
    cache: Cache, *, layer: Any = 0, kv: Any = 0, head: Any = 0, slot: Any, dim: Any = 0, mode: str = "raise"
) -> Any:
    """Return the byte offset of each element in the pool.

    Parameters
    ----------
    cache : Cache
    layer, head, slot, dim : int or integer arrays
        Broadcast together. A slot is ``block * block_size + token``; heads are numbered within this rank.
    kv : int, integer array or str
        0 for keys, 1 for values; or the name of a plane.
    mode : {"raise", "mark"}
        Raise for a negative slot (padding), or return -1.

    Returns
    -------
    int64, or int64 array of the common shape
        For elements of 4 bits, the byte that holds the element.

    Raises
    ------
    OutOfBoundsError
        An index outside the cache.
    FastIndexError, ArgumentTypeError
        Arrays that do not broadcast; values that are not integers; an unknown plane.

    Examples
    --------
    >>> import fastindex.paged as fp
    >>> cache = fp.Cache("bf16[layers=2,num_blocks=8,2,kv_heads=4,block_size=16,head_dim=64]")
    >>> fp.byte_offset(cache, layer=1, kv=1, head=2, slot=[17, 18], dim=3)
    array([159878, 160006])
    """
    planes = list(cache.planes.values())
    if isinstance(kv, str):
        kv = list(cache.planes).index(_plane(cache, kv).name)
    check_mode(mode)
    values = {"layer": layer, "kv": kv, "head": head, "slot": slot, "dim": dim}
    arrays = {name: np.asarray(as_integers_in_bulk(value, name)) for name, value in values.items()}
    shape = common_shape(list(arrays.values()))
    is_padding = arrays["slot"] < 0 if mode == "mark" else np.False_
    bounds = (cache.num_layers, len(planes), cache.kv_heads, cache.num_blocks * cache.block_size)
    for name, bound in zip(values, bounds, strict=False):
        arrays[name] = _bounded(arrays[name], bound, name, cache, allow_negative=name == "slot" and mode == "mark")
    block, token = np.divmod(arrays["slot"], cache.block_size)
    found = np.full(shape, -1, np.int64)
    for number, plane in enumerate(planes):
        is_here = np.broadcast_to(arrays["kv"] == number, shape)
        if not is_here.any():
            continue
        place = [np.broadcast_to(a, shape)[is_here] for a in (arrays["layer"], block, arrays["head"], token)]
        unit = _bounded(np.broadcast_to(arrays["dim"], shape)[is_here], plane.head_dim, "dim", cache) // plane.per_unit
        found[is_here] = (
            plane.layer_offsets[place[0]]
            + place[1] * plane.block_stride
            + plane.head_offsets[place[2]]
            + plane.token_offsets[place[3]]
            + plane.dim_offsets[unit]
        )
    return np.where(is_padding, -1, found)[()]


def element_at(cache: Cache, byte: Any, *, padding: str = "raise") -> Element:
    """Return the element that each byte of the pool belongs to: the inverse of `byte_offset`.

    `BlockTable.owners` maps a slot to its request and position.

    Parameters
    ----------
    cache : Cache
    byte : int or integer array
    padding : {"raise", "mark"}
        Raise for bytes that belong to no element, or set all fields of `Element` to -1.

    Returns
    -------
    Element
        ``layer``, ``kv`` (the number of the plane), ``head``, ``slot``, ``dim``: int64, or arrays of the shape of
        `byte`. Where a byte holds several elements, the first.

    Raises
    ------
    OutOfBoundsError
        A byte outside the pool, or in padding with ``padding="raise"``.
    ArgumentTypeError
        Values that are not integers.

    Examples
    --------
    >>> import fastindex.paged as fp
    >>> cache = fp.Cache("bf16[layers=2,num_blocks=8,2,kv_heads=4,block_size=16,head_dim=64]")
    >>> fp.element_at(cache, 159879)
    Element(layer=1, kv=1, head=2, slot=17, dim=3)
    """
    check_mode(padding)
    given = np.asarray(as_integers_in_bulk(byte, "byte"))
    flat = np.atleast_1d(_bounded(given, cache.nbytes, "byte", cache)).reshape(-1)
    found = np.full((5, len(flat)), -1, np.int64)
    for number, plane in enumerate(cache.planes.values()):
        for box in _boxes(plane, cache.num_blocks):
            left = np.flatnonzero(found[0] < 0)
            if not len(left):
                break
            coordinates, rest = _in_box(box, flat[left])
            fits = (rest >= 0) & (rest < plane.unit_bytes)
            layer, block, head, token, unit = coordinates[:, fits]
            slot = block * cache.block_size + token
            found[:, left[fits]] = layer, np.full_like(layer, number), head, slot, unit * plane.per_unit
    missing = np.flatnonzero(found[0] < 0)
    if len(missing) and padding == "raise":
        raise OutOfBoundsError(f"byte {flat[missing[0]]}{_at(given, int(missing[0]))} of {cache} holds no element")
    shaped = found.reshape(5, *given.shape)
    return Element(*(values if given.shape else int(values) for values in shaped))


#: A loop over an axis: stride in bytes, size, axis, and the increment of the axis' coordinate.
_Step = tuple[int, int, int, int]


def _boxes(plane: Plane, num_blocks: int) -> Iterator[tuple[int, list[int], list[_Step]]]:
    """Yield boxes of elements: byte offset and coordinates of the first element, and the loops by descending stride."""
    tables = plane.layer_offsets, None, plane.head_offsets, plane.token_offsets, plane.dim_offsets
    of_axes = []
    for table in tables:
        if table is None:
            of_axes.append([Nest((Loop(num_blocks, plane.block_stride, 1),))])
        else:
            of_axes.append(nests_of(gathered({(): (table, np.arange(len(table)))})))
    for chosen in itertools.product(*of_axes):
        steps = [
            (loop.source_stride, loop.size, axis, loop.destination_stride)
            for axis, nest in enumerate(chosen)
            for loop in nest.loops
            if loop.size > 1
        ]
        starts = sum(nest.source_start for nest in chosen), [nest.destination_start for nest in chosen]
        yield *starts, sorted(steps, reverse=True)


def _in_box(box: tuple[int, list[int], list[_Step]], byte: Numbers) -> tuple[Numbers, Numbers]:
    """Return, per byte, the coordinates of the last element of a box that begins at or before it, and the remainder."""
    start, first, steps = box
    rest = byte - start
    coordinates = np.repeat(np.array(first, np.int64)[:, None], len(byte), axis=1)
    for stride, size, axis, step in steps:
        count = np.clip(rest // stride, 0, size - 1)
        rest -= count * stride
        coordinates[axis] += count * step
    return coordinates, rest


def check_mode(mode: str) -> None:
    """Raise FastIndexError unless `mode` is "raise" or "mark"."""
    if mode not in ("raise", "mark"):
        raise FastIndexError(f"expected 'raise' or 'mark', got {mode!r}")


def _plane(cache: Cache, name: str) -> Plane:
    if name not in cache.planes:
        raise FastIndexError(f"{cache} has the planes {', '.join(cache.planes)}, got {name!r}")
    return cache.planes[name]


def _bounded(values: Any, bound: int, name: str, cache: Cache, allow_negative: bool = False) -> Any:
    bad = values >= bound
    if not allow_negative:
        bad = bad | (values < 0)
    if np.any(bad):
        first = int(np.flatnonzero(bad)[0])
        raise OutOfBoundsError(
            f"{name} {values.reshape(-1)[first]}{_at(values, first)} is out of bounds for the {bound} of {cache}"
        )
    return np.maximum(values, 0).astype(np.int64)


def _at(values: Any, flat: int) -> str:
    return f" at position {flat}" if np.ndim(values) else ""
