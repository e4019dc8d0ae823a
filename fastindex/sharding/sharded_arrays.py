"""Split whole arrays into one buffer per device, and reassemble them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from fastindex.arrays.buffers import as_logical_array, check_movable, check_output_array, new_array
from fastindex.arrays.engines import on_gpu
from fastindex.arrays.fills import fill_pattern
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.moving.relayout_calls import pack
from fastindex.moving.requests import execute, unpacking
from fastindex.runtime.threads import check_threads
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
    """Split a logical array into one buffer per device.

    Parameters
    ----------
    array : array of ``shape.dimensions`` and the shape's element type
        As for `pack`.
    shape : Shape or str
        Shape of the whole array.
    sharding : Sharding or str
    device_count : int, optional
        Number of devices; required if the sharding does not determine it (replicated, maximal and so on).
    fill : number, optional
        Value of both kinds of padding; by default the layout's padding value, which is zero unless set.
    threads : int, optional
        Maximum number of threads.

    Returns
    -------
    list of arrays of one dimension
        The buffer of each device, as `pack` returns it for ``sharding.shard_shape(shape)``. Devices with the same part
        get separate buffers. Devices other than that of a maximal sharding get only padding.

    Raises
    ------
    LayoutError
        As `shards`.
    UnsupportedError
        The sharding is unreduced, so its buffers are partial sums; or as `pack`.
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
    packed: dict[tuple[object, ...], Any] = {}
    buffers = []
    for piece in shards_of(shape, sharding, count):
        key = piece.start, piece.stop, piece.logical_nbytes
        # GPU array libraries differ in how to copy; packing again costs no more than a copy.
        found = None if on_device else packed.get(key)
        if found is None:
            held = values.reshape(1)[:0] if _lacks_scalar(piece) else values[(*piece.slices, ...)]
            buffer = packed[key] = pack(held, _held(part, piece), fill, threads=threads)
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
    """Reassemble a logical array from the buffers of its devices; the contents of padding are ignored.

    Parameters
    ----------
    buffers : sequence of arrays of one dimension, bytes, or anything with the buffer protocol
        One per device, as for `unpack`. Of devices with the same part, only the first buffer is read; the others may be
        None.
    shape : Shape or str
        Shape of the whole array.
    sharding : Sharding or str
    out : array of ``shape.dimensions`` and the element type, optional
        Output array; its strides may be any that do not overlap.
    threads : int, optional
        Maximum number of threads.

    Returns
    -------
    array of ``shape.dimensions``

    Raises
    ------
    LayoutError
        The number of buffers differs from the number of devices, or as `shards`.
    UnsupportedError
        The sharding is unreduced, so its buffers are partial sums; or as `unpack`.
    FastIndexError, ArgumentTypeError
        A buffer has the wrong size, or as `unpack`.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> buffers = [np.array([0, 1, 2], np.uint8), np.array([3, 4, 0], np.uint8)]
    >>> fi.sharding.unshard(buffers, "u8[5]", "{devices=[2]<=[2]}")
    array([0, 1, 2, 3, 4], dtype=uint8)
    """
    shape, sharding = as_shape(shape), as_sharding(sharding)
    check_threads(threads)
    if not isinstance(buffers, Iterable):
        raise ArgumentTypeError(f"buffers are a sequence with one per device, got {type(buffers).__name__}")
    buffers = list(buffers)
    count = sharding.checked_device_count(len(buffers))
    part = _movable_part(shape, sharding)
    holders = [piece for piece in shards_of(shape, sharding, count) if piece.logical_nbytes]
    wanted = list({(piece.start, piece.stop): piece for piece in reversed(holders)}.values())
    for piece in wanted:
        if on_gpu(buffers[piece.device], None):
            raise UnsupportedError("unshard takes buffers in host memory; copy them from the GPU first")
        if buffers[piece.device] is None:
            raise FastIndexError(f"buffers[{piece.device}] is None, but it holds a part that none before it does")
    result: Any = new_array(shape) if out is None else check_output_array(out, shape)
    requests = []
    for piece in wanted:
        held, target = _held(part, piece), result[(*piece.slices, ...)]
        plain = Shape(held.element_type, held.dimensions)
        requests.append(unpacking(buffers[piece.device], held, plain, target, "no", threads, None))
    # All buffers have been checked before the first is read.
    for request in requests:
        execute(request)
    return result


def _movable_part(shape: Shape, sharding: Sharding) -> Shape:
    part = sharding.shard_shape(shape)
    check_movable(part)
    if sharding.kind == "unreduced" or "unreduced" in sharding.subgroup_types:
        raise UnsupportedError(
            f"the buffers of {sharding} are parts of a {sharding.reduction}; reduce them, then use another sharding"
        )
    return part


def _lacks_scalar(piece: Shard) -> bool:
    return not piece.start and not piece.logical_nbytes


def _held(part: Shape, piece: Shard) -> Shape:
    """Return the shape of the elements on a device, padded to the full shape of a part."""
    sizes = tuple(stop - start for start, stop in zip(piece.start, piece.stop, strict=True))
    if _lacks_scalar(piece):
        # An array of one element can be empty, and its buffer is that of a scalar.
        part = Shape(part.element_type, (1,), dataclasses.replace(part.layout, minor_to_major=(0,)))
        sizes = (0,)
    if sizes == part.dimensions:
        return part
    layout = dataclasses.replace(part.layout, padded_dimensions=part.layout.padded_dimensions or part.dimensions)
    return Shape(part.element_type, sizes, layout)
