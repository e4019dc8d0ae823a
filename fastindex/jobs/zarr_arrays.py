"""Arrays in Zarr stores as sources and targets of jobs; needs the extra ``zarr``.

A logical array is stored as a Zarr array. A packed buffer is stored as bytes, in chunks that are boxes of the array,
with the shape's text as an attribute. Boxes consist of whole chunks, so that no chunk is written twice.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastindex.algebra.casts import check_cast
from fastindex.algebra.segments import (
    SEGMENT_COST_BYTES,
    Box,
    Grid,
    box_segments,
    box_shape,
    byte_segments,
    first_box,
    slab_grid,
)
from fastindex.core.shape import Shape, plain_shape
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.jobs.input_files import Bytes
from fastindex.jobs.reading import CHUNKS_IN_MEMORY
from fastindex.jobs.writing import name_beside, removed_unless_finished
from fastindex.jobs.zarr_stores import (
    bits_dtype,
    chunk_bytes,
    inner_chunks,
    open_stored,
    reason_of,
    rename_type,
    stored_type,
    target_store,
    zarr_module,
)

#: The attribute of a packed buffer: its shape in XLA's text.
ATTRIBUTE = "fastindex_shape"

#: The approximate size of new chunks.
_CHUNK_BYTES = 4 << 20
#: Memory of zarr-python for each chunk that a box touches, independent of the chunk's size.
_RECORD_BYTES = 4 << 10
#: Memory of zarr-python for each entry of a shard's index.
_INDEX_BYTES = 64

Sizes = tuple[int, ...]


def is_zarr(path: str) -> bool:
    """Whether a path is in a Zarr store: one of its parts ends in ``.zarr``.

    Examples
    --------
    >>> is_zarr("weights.zarr"), is_zarr("weights.zarr/layer0/w"), is_zarr("weights.npy")
    (True, True, False)
    """
    return any(part.endswith(".zarr") for part in Path(path).parts)


@contextlib.contextmanager
def one_chunk_at_a_time() -> Iterator[None]:
    """Make zarr-python decode one chunk at a time: several would take more memory than planned."""
    with zarr_module().config.set({"async.concurrency": 1, "threading.max_workers": 1}):
        yield


@dataclass(frozen=True, slots=True)
class ZarrArray:
    """A logical array in a store, as source or target.

    Attributes
    ----------
    array
        zarr-python's array.
    shape : Shape
        Its plain shape: no tiles, last dimension most minor.
    """

    array: Any
    shape: Shape

    @property
    def steps(self) -> Sizes:
        """The granularity of boxes: whole chunks, or whole shards."""
        return tuple(self.array.shards or self.array.chunks)

    def costs(self, sizes: Sizes) -> tuple[int, int]:
        """Return the memory and the cost of a box of some sizes."""
        width = self.shape.element_type.nbytes
        touched = math.prod(-(-size // step) * step for size, step in zip(sizes, self.steps, strict=True)) * width
        chunks = touched // max(chunk_bytes(self.array), 1)
        records = math.prod(size // step + 2 for size, step in zip(sizes, self.array.chunks, strict=True))
        memory = 2 * math.prod(sizes) * width + _memory_of_chunks(self.array, records)
        return memory, touched + SEGMENT_COST_BYTES * 8 * chunks

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Return the surroundings in which boxes are read."""
        return one_chunk_at_a_time()

    def read(self, box: Box, into: Bytes) -> None:
        """Read a box."""
        into[:] = np.ascontiguousarray(read_place(self.array, _slices(box))).reshape(-1).view(np.uint8)

    def write(self, box: Box, data: Bytes) -> None:
        """Write a box that consists of whole chunks."""
        if data.size:
            values = data.view(self.array.dtype).reshape([len(along) for along in box])
            self.array[_slices(box) or ...] = values


@dataclass(frozen=True, slots=True)
class ZarrBuffer:
    """A packed buffer in a store: bytes, in chunks of one dimension.

    Attributes
    ----------
    array
        zarr-python's array.
    shape : Shape
    steps : tuple of int
        The granularity of boxes of a target: whole chunks.
    """

    array: Any
    shape: Shape
    steps: Sizes

    def costs(self, sizes: Sizes) -> tuple[int, int]:
        """Return the memory and the cost of a box of some sizes."""
        box = first_box(self.shape, sizes)
        nbytes, chunk = box_shape(self.shape, box).nbytes, chunk_bytes(self.array)
        pieces = sum(run.piece_count for run in box_segments(self.shape, box))
        touched = sum((-(-size // chunk) + (size % chunk > 0)) * chunk for size in [nbytes // pieces]) * pieces
        touched = min(touched, -(-self.shape.nbytes // chunk) * chunk)
        records = -(-touched // max(math.prod(self.array.chunks) * self.array.dtype.itemsize, 1))
        memory = 2 * nbytes + _memory_of_chunks(self.array, records)
        return memory, touched + SEGMENT_COST_BYTES * 8 * pieces

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Return the surroundings in which boxes are read."""
        return one_chunk_at_a_time()

    def read_bytes(self, start: int, into: Bytes) -> None:
        """Fill `into` with the bytes from offset `start` on, if the store holds bytes."""
        into[...] = read_place(self.array, (slice(start, start + len(into)),))

    def write_bytes(self, start: int, content: Bytes) -> None:
        """Write bytes at an offset."""
        self.array[start : start + len(content)] = content

    def read(self, box: Box, into: Bytes) -> None:
        """Read a box, packed as by `box_shape`."""
        at, reader = 0, _SpanReader(self.array)
        for start, nbytes in byte_segments(self.shape, box):
            for piece in reader.pieces(start, start + nbytes):
                into[at : at + piece.size] = piece
                at += piece.size

    def write(self, box: Box, data: Bytes) -> None:
        """Write a box that consists of whole chunks, packed as by `box_shape`."""
        at = 0
        for start, nbytes in byte_segments(self.shape, box):
            if nbytes:
                self.write_bytes(start, data[at : at + nbytes])
            at += nbytes


class _SpanReader:
    """Reads spans of a stored buffer; a chunk shared by consecutive spans is decoded once."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self._unit = array.chunks[0] * int(array.dtype.itemsize)
        self._held = -1
        self._content: Bytes = np.empty(0, np.uint8)

    def pieces(self, start: int, stop: int) -> Iterator[Bytes]:
        """Yield the bytes of a span: all whole chunks in one read, partial chunks separately."""
        for begin, end in _at_edges(start, stop, self._unit):
            is_whole = begin % self._unit == 0 and end > begin + self._unit
            yield self._stored(begin, end) if is_whole else self._part(begin, end)

    def _part(self, begin: int, end: int) -> Bytes:
        chunk = begin // self._unit
        first = chunk * self._unit
        if chunk != self._held:
            # Release the held chunk first: only one chunk fits the memory plan.
            self._held, self._content = -1, self._content[:0].copy()
            self._content, self._held = self._stored(first, first + self._unit), chunk
        return self._content[begin - first : end - first]

    def _stored(self, begin: int, stop: int) -> Bytes:
        width = int(self._array.dtype.itemsize)
        place = slice(begin // width, min(-(-stop // width), self._array.shape[0]))
        return np.ascontiguousarray(read_place(self._array, (place,))).view(np.uint8)[: stop - begin]


def _at_edges(start: int, stop: int, unit: int) -> Iterator[tuple[int, int]]:
    """Split a span into a head before its whole units, the whole units, and a tail after them."""
    first, last = min(-(-start // unit) * unit, stop), max(stop // unit * unit, start)
    edges = (start, stop) if last < first else (start, first, last, stop)
    yield from ((begin, end) for begin, end in itertools.pairwise(edges) if begin < end)


def _memory_of_chunks(array: Any, records: int) -> int:
    """Return the memory in addition to a box that touches `records` chunks, inner chunks of shards included."""
    return CHUNKS_IN_MEMORY * chunk_bytes(array) + _RECORD_BYTES * records + _INDEX_BYTES * inner_chunks(array)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(along.start, along.stop) for along in box)


def read_place(array: Any, place: tuple[slice, ...]) -> Any:
    """Return a part of a stored array.

    Raises
    ------
    FastIndexError
        A chunk is damaged.
    """
    try:
        return np.asarray(array[place or ...])
    except (FastIndexError, OSError):
        raise
    except Exception as error:  # codecs raise any type for damaged chunks
        raise FastIndexError(f"{_damaged_chunk(array, place)} cannot be read: {reason_of(error)}") from None


def _damaged_chunk(array: Any, place: tuple[slice, ...]) -> str:
    """Name the unreadable chunk, found by reading the chunks one at a time."""
    steps = array.shards or array.chunks
    grid = [
        range(along.start // step, -(-along.stop // step)) if along.stop > along.start else range(0)
        for along, step in zip(place, steps, strict=True)
    ]
    for chunk in itertools.product(*grid):
        here = tuple(
            slice(max(i * step, along.start), min((i + 1) * step, along.stop))
            for i, step, along in zip(chunk, steps, place, strict=True)
        )
        try:
            np.asarray(array[here or ...])
        except Exception:  # as above
            return f"the chunk {array.metadata.encode_chunk_key(chunk)} of {_folder_of(array)}"
    return f"a chunk of {_folder_of(array)}"


def _folder_of(array: Any) -> str:
    """Return the folder of an array, for messages."""
    return str(getattr(array.store, "folder", array.store_path))


def stored_zarr_array(path: str, shape: Shape, casting: str = "no") -> ZarrArray:
    """Open a logical array for reading; it keeps its stored element type if `casting` allows the cast to the shape's.

    Raises
    ------
    FastIndexError
        Not a store of Zarr 3, or the dimensions differ.
    ArgumentTypeError
        The element type differs, and `casting` does not allow it.
    """
    array, real_type = open_stored(path)
    if tuple(array.shape) != shape.dimensions:
        raise FastIndexError(
            f"{path} has the dimensions {tuple(array.shape)}, {shape.cut_text()} has {shape.dimensions}"
        )
    name, dtype = bits_dtype(shape.element_type)
    # Plain bytes may be the bits of a signed type, but for an unsigned sub-byte type they are integer values.
    is_narrowed = shape.element_type.kind == "unsigned" and shape.element_type.is_sub_byte and real_type is None
    if array.dtype != dtype or real_type not in (None, name) or (is_narrowed and casting != "no"):
        found = stored_type(array, real_type)
        if casting != "no" and found is not None and not found.is_complex and not shape.element_type.is_complex:
            check_cast(found, shape.element_type, casting)
            return ZarrArray(array, Shape(found, shape.dimensions))
        wanted = f"{name}, or its bits as {dtype}" if name else str(dtype)
        raise ArgumentTypeError(
            f"{path} holds {real_type or array.dtype}, {shape.cut_text()} needs {wanted}; convert it first"
        )
    return ZarrArray(array, plain_shape(shape))


def stored_zarr_buffer(path: str, shape: Shape) -> ZarrBuffer:
    """Open a packed buffer for reading.

    Raises
    ------
    FastIndexError
        Not a store of Zarr 3, the size differs, or the buffer belongs to another shape.
    """
    array, _ = open_stored(path)
    written = array.attrs.get(ATTRIBUTE)
    if written is not None and not _is_text_of(written, shape):
        raise FastIndexError(f"{path} is a buffer of {str(written)[:200]}, not of {shape.cut_text()}")
    nbytes = math.prod(array.shape) * int(array.dtype.itemsize)
    if array.ndim != 1 or nbytes != shape.nbytes:
        raise FastIndexError(
            f"a buffer of {shape.cut_text()} has one dimension and {shape.nbytes} bytes, {path} has the "
            f"dimensions {tuple(array.shape)} and {nbytes} bytes; pack takes the array itself"
        )
    return ZarrBuffer(array, shape, (1,) * shape.rank)


def _is_text_of(text: Any, shape: Shape) -> bool:
    try:
        return isinstance(text, str) and Shape.parse(text) == shape
    except FastIndexError:
        return False


@contextlib.contextmanager
def new_zarr_array(path: str, shape: Shape) -> Iterator[ZarrArray]:
    """Create a logical array that appears under its name when the block ends without an error.

    Each chunk is one segment of the buffer.

    Parameters
    ----------
    path : str
        Must not exist yet.
    shape : Shape
        Its layout decides the chunks.
    """
    name, dtype = bits_dtype(shape.element_type)
    chunks = slab_grid(shape, _CHUNK_BYTES).sizes
    with one_chunk_at_a_time(), new_folder(path) as folder:
        store = target_store(folder)
        array = zarr_module().create_array(store, shape=shape.dimensions, chunks=chunks, dtype=dtype, zarr_format=3)
        yield ZarrArray(array, plain_shape(shape))
        if name is not None:
            rename_type(folder, name)


@contextlib.contextmanager
def new_zarr_buffer(path: str, shape: Shape) -> Iterator[ZarrBuffer]:
    """Create a packed buffer that appears under its name when the block ends without an error.

    Its chunks are boxes of the array.
    """
    grid, nbytes = _even_slabs(shape)
    with one_chunk_at_a_time(), new_folder(path) as folder:
        array = zarr_module().create_array(
            target_store(folder),
            shape=(shape.nbytes,),
            chunks=(max(nbytes, 1),),
            dtype=np.uint8,
            zarr_format=3,
            attributes={ATTRIBUTE: str(shape)},
        )
        yield ZarrBuffer(array, shape, grid.sizes)


def _even_slabs(shape: Shape) -> tuple[Grid, int]:
    """Return slabs of equal size, except for the last one, and the slab size in bytes."""
    most = _CHUNK_BYTES
    tried = [most >> k for k in range(7)]
    while True:
        for nbytes in tried:
            grid = slab_grid(shape, nbytes)
            first, last = grid.box((0,) * shape.rank), grid.box([n - 1 for n in grid.counts])
            size = next(byte_segments(shape, first))[1]
            if next(byte_segments(shape, last))[0] == size * (math.prod(grid.counts) - 1):
                return grid, size
        most *= 2
        tried = [most]


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
    """Create a temporary folder beside a path; rename it to the path when the block ends, remove it after an error."""
    target = Path(os.path.realpath(path))
    if os.path.lexists(path) or target.exists():
        raise FastIndexError(f"{path} exists; a store is not replaced, remove it first")
    folder = name_beside(target)
    gone = folder.with_name(f"{folder.name}.removed.partial")
    with removed_unless_finished(folder), removed_unless_finished(gone):
        try:
            os.mkdir(folder)
            yield str(folder)
            os.rename(folder, target)
        except BaseException as error:
            # Rename first: cluster workers may still write, and would find the folder while it is being emptied.
            with contextlib.suppress(OSError):
                os.rename(folder, gone)
            for left in (gone, folder):
                shutil.rmtree(left, ignore_errors=True)
            if isinstance(error, OSError) and _is_of_target(error, folder):
                raise OSError(error.errno, error.strerror, path) from None
            raise


def _is_of_target(error: OSError, folder: Path) -> bool:
    """Whether an error comes from writing into the unfinished folder."""
    named = error.filename is not None and str(error.filename).startswith(str(folder))
    return named or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
