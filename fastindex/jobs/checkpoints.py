"""Arrays in OCDBT checkpoints, as written by Orbax; read with TensorStore, the only library that can read them."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastindex.algebra.segments import SEGMENT_COST_BYTES, Box
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.first_use import load
from fastindex.jobs.input_files import Bytes
from fastindex.jobs.reading import plain_shape

_MANIFEST = "manifest.ocdbt"
#: Chunks in memory in addition to a box: encoded, decoded, and the codec's working memory.
_CHUNKS_IN_MEMORY = 3

Sizes = tuple[int, ...]


def checkpoint_of(path: str) -> tuple[str, str] | None:
    """Split a path into the folder of a checkpoint and the name of an array in it; None if there is no checkpoint.

    A path to a regular file gives None, even inside the folder of a checkpoint.

    Examples
    --------
    >>> checkpoint_of("weights.npy") is None
    True
    """
    if os.path.isfile(path):
        return None
    for folder in Path(path).parents:
        if os.path.isfile(folder / _MANIFEST):
            return str(folder), str(Path(path).relative_to(folder))
    return None


@dataclass(frozen=True, slots=True)
class CheckpointArray:
    """A logical array in a checkpoint.

    Attributes
    ----------
    array
        TensorStore's array.
    shape : Shape
        Its plain shape: no tiles, last dimension most minor.
    """

    array: Any
    shape: Shape

    def costs(self, sizes: Sizes) -> tuple[int, int]:
        """Return the memory that a box of these sizes takes, and its cost."""
        chunks: Sizes = self.array.chunk_layout.read_chunk.shape
        width = self.shape.element_type.nbytes
        counts = [-(-size // max(step, 1)) for size, step in zip(sizes, chunks, strict=True)]
        chunk = math.prod(chunks) * width
        memory = 2 * math.prod(sizes) * width + _CHUNKS_IN_MEMORY * chunk
        return memory, math.prod(counts) * (chunk + 8 * SEGMENT_COST_BYTES)

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for reading boxes."""
        return contextlib.nullcontext()

    def read(self, box: Box, into: Bytes) -> None:
        """Read a box.

        Raises
        ------
        FastIndexError
            The box cannot be read.
        """
        place = tuple(slice(along.start, along.stop) for along in box)
        try:
            values = self.array[place].read().result()
        except Exception as error:  # TensorStore raises any type for damaged files
            raise FastIndexError(f"the checkpoint cannot be read: {error}") from None
        into[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def stored_checkpoint_array(path: str, shape: Shape) -> CheckpointArray:
    """Open an array of a checkpoint for reading.

    Parameters
    ----------
    path : str
        The folder of the checkpoint, followed by the name of the array in it.
    shape : Shape
        Only the element type and the dimensions are used.

    Raises
    ------
    UnsupportedError
        TensorStore is not installed.
    FastIndexError
        The array does not exist, or its dimensions differ.
    ArgumentTypeError
        The element type differs.
    """
    try:
        load("tensorstore")
        import tensorstore
    except ImportError:
        raise UnsupportedError("OCDBT checkpoints need TensorStore: pip install 'fastindex[tensorstore]'") from None
    found = checkpoint_of(path)
    folder, name = found if found is not None else (path, "")
    base = {"driver": "file", "path": os.path.abspath(folder) + "/"}
    kvstore = {"driver": "ocdbt", "base": base, "path": name + "/"}
    one_at_a_time = {"cache_pool": {"total_bytes_limit": 0}, "data_copy_concurrency": {"limit": 1}}
    reasons = []
    for driver in ("zarr3", "zarr"):
        spec = {"driver": driver, "kvstore": kvstore, "context": one_at_a_time}
        try:
            array = tensorstore.open(spec, open=True, read=True).result()
            break
        except ValueError as error:
            reasons.append(str(error))
    else:
        raise FastIndexError(f"{path}: the checkpoint in {folder} holds no array {name!r} ({reasons[-1]})")
    if tuple(array.shape) != shape.dimensions:
        raise FastIndexError(
            f"{path} has the dimensions {tuple(array.shape)}, {shape.cut_text()} has {shape.dimensions}"
        )
    if array.dtype.numpy_dtype != shape.element_type.numpy_dtype:
        wanted = shape.element_type.numpy_dtype
        raise ArgumentTypeError(f"{path} holds {array.dtype.name}, {shape.cut_text()} needs {wanted}; convert it first")
    return CheckpointArray(array, plain_shape(shape))
