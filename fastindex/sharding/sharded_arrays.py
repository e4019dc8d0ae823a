"""Whole arrays divided over devices: into one buffer for each device, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from fastindex.arrays.buffers import as_logical_array, check_movable, check_output_array, new_array
from fastindex.arrays.engines import on_gpu
from fastindex.arrays.fills import fill_pattern
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.moving.relayout_calls import pack, unpack
from fastindex.sharding.placement import Shard, shards_of
from fastindex.sharding.sharding import Sharding, as_sharding


def shard(
    array: Any,
    shape: Shape | str,
    sharding: Sharding | str,
    device_count: int | None = None,
    fill: Any = None,
    *,
    threads: int | None = None,
) -> list[Any]:
    """Divide a logical array into the buffers that devices hold.

    Parameters
    ----------
    array : array of ``shape.dimensions`` and the shape's element type
        As for `pack`.
    shape : Shape or str
        Of the whole array.
    sharding : Sharding or str
    device_count : int, optional
        How many devices there are; needed where the sharding does not say it (replicated, maximal and so on).
    fill : number, optional
        What both kinds of padding get; without it, the layout's padding value, zero by default.
    threads : int, optional
        The most threads to use.

    Returns
    -------
    list of arrays of one dimension
        The buffer of each device, as `pack` gives it for ``sharding.shard_shape(shape)``. Devices with the same part
        have buffers of their own. Devices that a maximal sharding does not name have padding alone.

    Raises
    ------
    LayoutError
        As `shards`.
    UnsupportedError
        An unreduced sharding, whose buffers are parts of a sum; or as `pack`.
    FastIndexError, ArgumentTypeError
        As `pack`.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> fi.sharding.shard(np.arange(5, dtype=np.uint8), "u8[5]", "{devices=[2]<=[2]}")
    [array([0, 1, 2], dtype=uint8), array([3, 4, 0], dtype=uint8)]
    """
    shape, sharding = as_shape(shape), as_sharding(sharding)
    count = sharding.checked_device_count(device_count)
    part = _movable_part(shape, sharding)
    on_device = on_gpu(array, None)
    values: Any = array if on_device else as_logical_array(array, shape)
    fill_pattern(shape, fill)
    packed: dict[tuple[tuple[int, ...], ...], Any] = {}
    buffers = []
    for piece in shards_of(shape, sharding, count):
        key = piece.start, piece.stop
        # Libraries differ in how they copy an array on the GPU; packing again costs no more.
        found = None if on_device else packed.get(key)
        if found is None:
            buffer = packed[key] = pack(values[(*piece.slices, ...)], _held(part, piece), fill, threads=threads)
        else:
            buffer = found.copy()
        buffers.append(buffer)
    return buffers


def unshard(
    buffers: Sequence[Any],
    shape: Shape | str,
    sharding: Sharding | str,
    *,
    out: Any = None,
    threads: int | None = None,
) -> Any:
    """Put a logical array together from the buffers that devices hold; what padding holds does not matter.

    Parameters
    ----------
    buffers : sequence of arrays of one dimension, bytes, or anything with the buffer protocol
        One for each device, as for `unpack`. Of devices with the same part, the first one is read; None will do for
        those that are not.
    shape : Shape or str
        Of the whole array.
    sharding : Sharding or str
    out : array of ``shape.dimensions`` and the element type, optional
        Where to write; of any strides that do not overlap.
    threads : int, optional
        The most threads to use.

    Returns
    -------
    array of ``shape.dimensions``

    Raises
    ------
    LayoutError
        Another number of buffers than the sharding has devices, or as `shards`.
    UnsupportedError
        An unreduced sharding, whose buffers are parts of a sum; or as `unpack`.
    FastIndexError, ArgumentTypeError
        A buffer of another size, as `unpack`.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> buffers = [np.array([0, 1, 2], np.uint8), np.array([3, 4, 0], np.uint8)]
    >>> fi.sharding.unshard(buffers, "u8[5]", "{devices=[2]<=[2]}")
    array([0, 1, 2, 3, 4], dtype=uint8)
    """
    shape, sharding = as_shape(shape), as_sharding(sharding)
    buffers = list(buffers)
    count = sharding.checked_device_count(len(buffers))
    part = _movable_part(shape, sharding)
    pieces = {(piece.start, piece.stop): piece for piece in reversed(shards_of(shape, sharding, count))}
    wanted = [piece for piece in pieces.values() if piece.logical_nbytes]
    for piece in wanted:
        if on_gpu(buffers[piece.device], None):
            raise UnsupportedError("unshard takes buffers in host memory; copy them from the GPU first")
        if buffers[piece.device] is None:
            raise FastIndexError(f"buffers[{piece.device}] is None, but it holds a part that none before it does")
    result: Any = new_array(shape) if out is None else check_output_array(out, shape)
    for piece in wanted:
        unpack(buffers[piece.device], _held(part, piece), out=result[(*piece.slices, ...)], threads=threads)
    return result


def _movable_part(shape: Shape, sharding: Sharding) -> Shape:
    part = sharding.shard_shape(shape)
    check_movable(part)
    if sharding.kind == "unreduced" or "unreduced" in sharding.subgroup_types:
        raise UnsupportedError(
            f"the buffers of {sharding} are parts of a {sharding.reduction}; reduce them, then use another sharding"
        )
    return part


def _held(part: Shape, piece: Shard) -> Shape:
    """Return the shape of the elements that a device holds, padded to the shape that it has room for."""
    sizes = tuple(stop - start for start, stop in zip(piece.start, piece.stop, strict=True))
    if sizes == part.dimensions:
        return part
    layout = dataclasses.replace(part.layout, padded_dimensions=part.layout.padded_dimensions or part.dimensions)
    return Shape(part.element_type, sizes, layout)
