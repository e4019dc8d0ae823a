"""Distributed jobs on Zarr stores: pack, unpack and relayout on the workers of a Dask cluster.

The store format is that of single-process jobs (`fastindex.jobs.zarr_arrays`). No two tasks write to the same chunk of
a target. The target appears under its name when it is complete.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.layers import ArraySliceDep
from distributed import Client, as_completed, futures_of

from fastindex.algebra.casts import Casting
from fastindex.algebra.segments import box_shape, slab_grid, slab_order
from fastindex.arrays.fills import logical_result
from fastindex.core.shape import Shape
from fastindex.core.sizes import buffer_form, check_movable
from fastindex.dask.arrays import pack, relayout, unpack
from fastindex.errors import ArgumentTypeError
from fastindex.jobs.zarr_arrays import ATTRIBUTE, new_folder, read_place, stored_zarr_array, stored_zarr_buffer
from fastindex.jobs.zarr_stores import METADATA, bits_dtype, open_stored, rename_type, target_store, zarr_module
from fastindex.moving.relayout_plans import require_movable_pair
from fastindex.terminal import Progress

#: A task holds its input, its output, and data in transit to other workers, each more than once.
_TASKS_IN_MEMORY = 32
_MOST_TASK_BYTES = 128 << 20
_LEAST_TASK_BYTES = 1 << 20
#: Timeout for running write tasks when a job is aborted.
_LONGEST_TASK_SECONDS = 30.0
_BETWEEN_QUESTIONS_SECONDS = 0.05

Sizes = tuple[int, ...]


def pack_store(
    source_path: str,
    target_path: str,
    shape: Shape,
    progress: Progress,
    client: Client,
    casting: Casting = "same_kind",
) -> None:
    """Read a logical array from a Zarr store and write its physical buffer to another.

    Parameters
    ----------
    source_path, target_path : str
        Folders that all workers can access.
    shape : Shape
    progress : Progress
    client : distributed.Client
    casting : str
        NumPy's casting rule if the array has another element type.

    Raises
    ------
    FastIndexError
        The store does not hold such an array.
    ArgumentTypeError
        The stored element type differs, and `casting` does not allow the cast to that of the shape.
    UnsupportedError
        Zarr has no name for the element type.
    OSError
        A store cannot be read or written.
    """
    check_movable(shape)
    limit = task_bytes(client)
    stored = stored_zarr_array(source_path, shape, casting)
    array = _lazy(StoredValues(source_path, stored.shape.element_type.numpy_dtype), stored.array, limit)
    paths = source_path, target_path
    _write_buffer(
        lambda chunks: pack(array, shape, casting=casting, chunks=chunks), paths, shape, limit, progress, client
    )


def unpack_store(
    source_path: str,
    target_path: str,
    shape: Shape,
    progress: Progress,
    client: Client,
    casting: Casting = "same_kind",
    dtype: str | None = None,
) -> None:
    """Read a physical buffer from a Zarr store and write the logical array to another.

    Parameters and errors as for `pack_store`; `dtype` is the element type of the array, by default that of the shape.
    """
    check_movable(shape)
    logical = logical_result(shape, None, dtype, casting)
    name, bits = bits_dtype(logical.element_type)
    limit = task_bytes(client)
    buffer = _lazy_buffer(source_path, shape, limit)
    sizes = slab_grid(logical, limit).sizes
    with dask.config.set({"array.chunk-size": limit}):
        array = unpack(buffer, shape, dtype=logical.element_type, casting=casting, chunks=sizes)
    with _new_array((target_path, source_path), array.shape, sizes, bits, {}) as folder:
        _write(array, folder, progress, client)
        if name is not None:
            rename_type(folder, name)


def relayout_store(
    source_path: str,
    target_path: str,
    source: Shape,
    destination: Shape,
    progress: Progress,
    client: Client,
    casting: Casting = "same_kind",
) -> None:
    """Read a physical buffer from a Zarr store and write it to another store in another layout.

    Parameters and errors as for `pack_store`.
    """
    require_movable_pair(source, destination, casting)
    limit = task_bytes(client)
    buffer = _lazy_buffer(source_path, source, limit)
    paths = source_path, target_path
    moved = partial(relayout, buffer, source, destination, casting=casting)
    _write_buffer(lambda chunks: moved(chunks=chunks), paths, destination, limit, progress, client)


def task_bytes(client: Client) -> int:
    """Return the block size of a task that fits the memory per worker thread."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    memory = min((w["memory_limit"] // w["nthreads"] for w in workers if w["memory_limit"]), default=1 << 62)
    return max(min(memory // _TASKS_IN_MEMORY, _MOST_TASK_BYTES), _LEAST_TASK_BYTES)


# Reading


class StoredValues:
    """Adapter of a stored array for `dask.array.from_array`; each process opens the store itself, once.

    Parameters
    ----------
    path : str
    dtype : dtype
        The dtype to view the stored bits as.
    """

    def __init__(self, path: str, dtype: np.dtype[Any]) -> None:
        self.path, self.dtype = os.path.abspath(path), dtype
        array = _opened(self.path, os.stat(os.path.join(self.path, METADATA)).st_mtime_ns)
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.ndim = len(self.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredValues, (self.path, self.dtype)

    def __getitem__(self, place: tuple[slice, ...]) -> Any:
        array = _opened(self.path, os.stat(os.path.join(self.path, METADATA)).st_mtime_ns)
        return np.ascontiguousarray(read_place(array, place)).view(self.dtype)


@lru_cache(maxsize=8)
def _opened(path: str, changed: int) -> Any:
    return open_stored(path)[0]


def _lazy(values: StoredValues, stored: Any, limit: int) -> da.Array:
    """Return a lazy array whose chunks consist of whole chunks of the store, or of whole shards if it has them."""
    # Dask rejects chunks of size 0, which an empty dimension has.
    grid = tuple(max(size, 1) for size in stored.shards or stored.chunks)
    chunks = da.core.normalize_chunks("auto", values.shape, limit=limit, dtype=stored.dtype, previous_chunks=grid)
    # If `limit` is below a chunk of the store, Dask splits it, and several tasks would decompress the same chunk.
    whole = tuple(_at_multiples(sizes, step) for sizes, step in zip(chunks, grid, strict=True))
    changed = os.stat(values.path).st_mtime_ns
    name = f"fastindex-read-{dask.base.tokenize(values.path, str(values.dtype), values.shape, whole, changed)}"
    return da.from_array(values, chunks=whole, name=name, inline_array=True)


def _at_multiples(sizes: Sequence[int], step: int) -> tuple[int, ...]:
    size = sum(sizes)
    edges = sorted({0, size, *(round(edge / step) * step for edge in np.cumsum(sizes)[:-1] if edge < size)})
    return tuple(b - a for a, b in pairwise(edges)) or (size,)


def _lazy_buffer(path: str, shape: Shape, limit: int) -> da.Array:
    stored = stored_zarr_buffer(path, shape).array
    dtype = buffer_form(shape).dtype
    if stored.dtype.itemsize not in (1, dtype.itemsize):
        raise ArgumentTypeError(f"{path} holds {stored.dtype}, a buffer of {shape.cut_text()} {dtype} or bytes")
    raw = np.dtype(np.uint8) if stored.dtype.itemsize == 1 else dtype
    return _lazy(StoredValues(path, raw), stored, limit)


# Writing


def _write_buffer(
    lazy: Any, paths: tuple[str, str], shape: Shape, limit: int, progress: Progress, client: Client
) -> None:
    grid = slab_grid(shape, limit)
    first = next(grid.boxes(slab_order(shape)))
    step = max(min(box_shape(shape, first).nbytes, shape.nbytes), 1)
    # Dask merges chunks up to its configured limit before it shuffles them.
    with dask.config.set({"array.chunk-size": limit}):
        buffer = lazy(max(step // buffer_form(shape).dtype.itemsize, 1))
    if buffer.dtype != np.uint8:
        buffer = buffer.view(np.uint8)
    with _new_array(paths[::-1], buffer.shape, (step,), np.dtype(np.uint8), {ATTRIBUTE: str(shape)}) as folder:
        _write(buffer, folder, progress, client)


@contextmanager
def _new_array(
    paths: tuple[str, str], dimensions: Sizes, chunks: Sizes, dtype: np.dtype[Any], attributes: dict[str, str]
) -> Iterator[str]:
    """Create an array that appears at the first path, with the compressors of the array at the second path."""
    path, like = paths
    with new_folder(path) as folder:
        zarr_module().create_array(
            folder,
            shape=dimensions,
            chunks=chunks,
            dtype=dtype,
            zarr_format=3,
            compressors=open_stored(like)[0].compressors or None,
            attributes=attributes,
            fill_value=0,
        )
        yield folder


def _write(array: da.Array, path: str, progress: Progress, client: Client) -> None:
    """Write all blocks of an array to the store, and wait for them."""
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
    futures = futures_of(client.persist(written))
    try:
        for future in as_completed(futures):
            if future.status != "finished":
                future.result()
            sizes = (array.chunks[d][i] for d, i in enumerate(future.key[1:]))
            progress.advance(math.prod(sizes) * array.dtype.itemsize)
            future.release()
    except BaseException:
        _stop(client, futures)
        raise


def _stop(client: Client, futures: Sequence[Any]) -> None:
    """Cancel tasks and wait for running writes, which would recreate the removed folder."""
    deadline = time.monotonic() + _LONGEST_TASK_SECONDS
    # If the scheduler is gone, its workers end with it.
    with suppress(Exception):
        client.cancel(futures, force=True)
        while time.monotonic() < deadline and any(client.run(_is_writing, on_error="ignore").values()):
            time.sleep(_BETWEEN_QUESTIONS_SECONDS)


def _is_writing(dask_worker: Any) -> bool:
    return any("fastindex-write" in str(task.key) for task in dask_worker.state.executing)


def write_block(block: Any, place: tuple[slice, ...], path: str) -> Any:
    """Write a block to the stored array, viewed as its stored dtype."""
    array = zarr_module().open_array(target_store(path), mode="r+")
    array[place] = np.ascontiguousarray(block).view(array.dtype)
    if not os.path.exists(os.path.join(path, METADATA)):
        # The job has failed elsewhere and removed the array; zarr-python has recreated the folder.
        shutil.rmtree(path, ignore_errors=True)
    return np.full((1,) * block.ndim, block.nbytes)
