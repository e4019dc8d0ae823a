"""Jobs on Zarr stores that the workers of a cluster do together: pack, unpack and relayout.

A buffer is stored as bytes, an array of one dimension, with the text of its shape as an attribute. No chunk of a target
is written by two tasks; the target appears when all of it is there.
"""

from __future__ import annotations

import math
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import dask
import dask.array as da
import numpy as np
import zarr
from dask.layers import ArraySliceDep
from distributed import Client, as_completed, futures_of

from fastindex.arguments.arrays import buffer_dtype
from fastindex.arguments.buffers import check_movable, require_movable_pair
from fastindex.dask.arrays import pack, relayout, unpack
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.lowering.box_segments import box_shape, slab_grid, slab_order
from fastindex.shapes.shape import Shape

#: The attribute of a buffer that says what is in it.
SHAPE_ATTRIBUTE = "fastindex_shape"

#: A task has what it reads, what it writes, and what is on its way to others, each more than once.
_TASKS_IN_MEMORY = 32
_MOST_TASK_BYTES = 128 << 20
_LEAST_TASK_BYTES = 1 << 20


class Progress(Protocol):
    """Receives the progress of a job."""

    def start(self, total: int) -> None:
        """Receive the total number of bytes to write."""

    def advance(self, count: int) -> None:
        """Receive the number of bytes written since the last call."""


def pack_store(source_path: str, target_path: str, shape: Shape, progress: Progress, client: Client) -> None:
    """Read a logical array from a Zarr store and write its physical buffer to another.

    Parameters
    ----------
    source_path, target_path : str
        Folders that all workers see.
    shape : Shape
    progress : Progress
    client : distributed.Client

    Raises
    ------
    FastIndexError
        The store does not hold such an array.
    UnsupportedError
        Zarr has no such element type.
    OSError
        A store cannot be read or written.
    """
    check_movable(shape)
    dtype = _stored_dtype(shape)
    room = task_bytes(client)
    array = _read(source_path, room)
    if array.dtype != dtype:
        raise FastIndexError(f"{source_path} holds {array.dtype}; {shape.cut_text()} needs {dtype}")
    paths = source_path, target_path
    _write_buffer(lambda chunks: pack(array, shape, chunks=chunks), paths, shape, room, progress, client)


def unpack_store(source_path: str, target_path: str, shape: Shape, progress: Progress, client: Client) -> None:
    """Read a physical buffer from a Zarr store and write the logical array to another.

    Parameters and errors as for `pack_store`.
    """
    check_movable(shape)
    dtype = _stored_dtype(shape)
    room = task_bytes(client)
    buffer = _read_buffer(source_path, shape, room)
    sizes = slab_grid(Shape(shape.element_type, shape.dimensions), room).sizes
    with dask.config.set({"array.chunk-size": room}):
        array = unpack(buffer, shape, chunks=sizes)
    with _new_array(target_path, source_path, array.shape, sizes, dtype, {}) as path:
        _write(array, path, progress, client)


def relayout_store(
    source_path: str, target_path: str, source: Shape, destination: Shape, progress: Progress, client: Client
) -> None:
    """Read a physical buffer from a Zarr store and write it in another layout to another.

    Parameters and errors as for `pack_store`.
    """
    require_movable_pair(source, destination)
    room = task_bytes(client)
    buffer = _read_buffer(source_path, source, room)
    paths = source_path, target_path
    moved = partial(relayout, buffer, source, destination)
    _write_buffer(lambda chunks: moved(chunks=chunks), paths, destination, room, progress, client)


def task_bytes(client: Client) -> int:
    """Return how large the blocks of a task should be for the memory that a thread of a worker has."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    memory = min((w["memory_limit"] // w["nthreads"] for w in workers if w["memory_limit"]), default=1 << 62)
    return max(min(memory // _TASKS_IN_MEMORY, _MOST_TASK_BYTES), _LEAST_TASK_BYTES)


# Reading


def _open(path: str) -> Any:
    return zarr.open_array(os.path.abspath(path), mode="r")


def _read(path: str, room: int) -> da.Array:
    """Return an array whose chunks are whole chunks of the store, or shards where it has them."""
    stored = _open(path)
    # Dask refuses chunks of size 0, which an empty dimension has.
    grid = tuple(max(size, 1) for size in stored.shards or stored.chunks)
    chunks = da.core.normalize_chunks("auto", stored.shape, limit=room, dtype=stored.dtype, previous_chunks=grid)
    # Where `limit` is below a chunk of the store, Dask cuts it: several tasks would decompress the same one.
    whole = tuple(_at_multiples(sizes, step) for sizes, step in zip(chunks, grid, strict=True))
    name = f"fastindex-read-{dask.base.tokenize(path, stored.shape, whole, os.stat(path).st_mtime_ns)}"
    return da.from_array(stored, chunks=whole, name=name, inline_array=True)


def _at_multiples(sizes: Sequence[int], step: int) -> tuple[int, ...]:
    size = sum(sizes)
    edges = sorted({0, size, *(round(edge / step) * step for edge in np.cumsum(sizes)[:-1] if edge < size)})
    return tuple(b - a for a, b in pairwise(edges)) or (size,)


def _read_buffer(path: str, shape: Shape, room: int) -> da.Array:
    buffer = _read(path, room)
    text = _open(path).attrs.get(SHAPE_ATTRIBUTE)
    if text is not None and Shape.parse(str(text)) != shape:
        raise FastIndexError(f"{path} holds a buffer of {text}, not of {shape}")
    return buffer


def _stored_dtype(shape: Shape) -> np.dtype[Any]:
    dtype = shape.element_type.numpy_dtype
    if dtype.isbuiltin != 1:
        raise UnsupportedError(
            f"Zarr has no element type {shape.element_type}; only buffers, which are stored as bytes, may have it"
        )
    return dtype


# Writing


def _write_buffer(
    lazy: Any, paths: tuple[str, str], shape: Shape, room: int, progress: Progress, client: Client
) -> None:
    grid = slab_grid(shape, room)
    first = next(grid.boxes(slab_order(shape)))
    step = max(min(box_shape(shape, first).nbytes, shape.nbytes), 1)
    # Dask puts chunks together up to its own limit before it shuffles them.
    with dask.config.set({"array.chunk-size": room}):
        buffer = lazy(max(step // buffer_dtype(shape).itemsize, 1))
    if buffer.dtype != np.uint8:
        buffer = buffer.view(np.uint8)
    with _new_array(
        paths[1], paths[0], buffer.shape, (step,), np.dtype(np.uint8), {SHAPE_ATTRIBUTE: str(shape)}
    ) as path:
        _write(buffer, path, progress, client)


@contextmanager
def _new_array(
    path: str, like: str, dimensions: tuple[int, ...], chunks: tuple[int, ...], dtype: Any, attributes: dict[str, str]
) -> Iterator[str]:
    """Create an array beside its path, to be put there when it is complete. Nothing may be there yet.

    It is compressed as the array at the path `like`.
    """
    final = os.path.realpath(path)
    if os.path.lexists(path) or os.path.lexists(final):
        raise FastIndexError(f"{path} exists; a store is not replaced, remove it first")
    unfinished = f"{final}.{uuid.uuid4().hex[:8]}.partial"
    try:
        zarr.create_array(
            unfinished,
            shape=dimensions,
            chunks=chunks,
            dtype=dtype,
            compressors=_open(like).compressors or None,
            attributes=attributes,
            fill_value=0,
        )
        yield unfinished
        os.rename(unfinished, final)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write(array: da.Array, path: str, progress: Progress, client: Client) -> None:
    """Have every block written to its place, and wait for all of them."""
    along = tuple(range(array.ndim))
    written = da.blockwise(
        write_block,
        along,
        array,
        along,
        ArraySliceDep(array.chunks),
        along,
        path=path,
        align_arrays=False,
        adjust_chunks=dict.fromkeys(along, 1),
        dtype=np.int64,
        meta=np.empty((0,) * array.ndim, np.int64),
        token="fastindex-write",
    )
    progress.start(array.nbytes)
    for future in as_completed(futures_of(client.persist(written))):
        if future.status != "finished":
            future.result()
        sizes = (array.chunks[d][i] for d, i in enumerate(future.key[1:]))
        progress.advance(math.prod(sizes) * array.dtype.itemsize)
        future.release()


def write_block(block: Any, place: tuple[slice, ...], path: str) -> Any:
    """Write a block to its place in the array at a path."""
    zarr.open_array(path, mode="r+")[place] = block
    return np.full((1,) * block.ndim, block.nbytes)
