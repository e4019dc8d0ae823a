"""Checkpoints whose arrays have a device's layout: reading, verifying, and restoring tensors.

Each array is a file with its physical buffer and nothing else, or an array of bytes in a Zarr store.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.segments import Box, segment_costs
from fastindex.arrays.fills import logical_result
from fastindex.core.shape import Shape
from fastindex.core.sizes import buffer_form
from fastindex.errors import FastIndexError
from fastindex.jobs.input_files import Bytes, FileIdentity, check_identity, open_raw, path_text, place_inside
from fastindex.jobs.layout_jobs import memory_limit, unpack_stored
from fastindex.jobs.reading import StoredArray
from fastindex.jobs.writing import OutputFile, WrittenArray
from fastindex.jobs.zarr_arrays import ZarrBuffer, read_place, stored_zarr_buffer
from fastindex.lazy import untraced
from fastindex.moving.box_jobs import plan_boxes
from fastindex.moving.relayout_calls import unpack
from fastindex.terminal import NoProgress, Progress
from fastindex.weights.manifests import ZARR, Manifest, moved_of, read_manifest
from fastindex.weights.repack_jobs import memory_within, move_parts, parts_of
from fastindex.weights.safetensors_files import header_of, packed_shape

_CHECKED_BYTES = 4 << 20


class Checkpoint(Mapping[str, NDArray[Any]]):
    """A folder that `pack_checkpoint` has written: its arrays by name, as physical buffers.

    Buffers in files are read-only memory maps; those in a Zarr store are read whole.

    Attributes
    ----------
    folder : str
    shapes : dict of str to Shape
    metadata : dict of str to str
        Of the source files.

    Examples
    --------
    >>> import fastindex as fi, tempfile
    >>> from pathlib import Path
    >>> header = b'{"w":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]}}'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(6)))
    ...     rules = [{"names": "w", "layout": "{0,1}"}]
    ...     packed = fi.weights.pack_checkpoint(Path(folder, "a.safetensors"), Path(folder, "packed"), rules)
    ...     list(packed), packed["w"].tolist(), packed.read("w").tolist()
    (['w'], [0, 3, 1, 4, 2, 5], [[0, 1, 2], [3, 4, 5]])
    """

    def __init__(self, folder: str, manifest: Manifest) -> None:
        self.folder = folder
        self.metadata = manifest.metadata
        self._manifest = manifest
        self._arrays = {one["name"]: one for one in manifest.arrays}
        self.shapes = {name: Shape.parse(one["shape"]) for name, one in self._arrays.items()}

    @untraced
    def __getitem__(self, name: str) -> NDArray[Any]:
        shape = self.shapes[name]
        dtype = buffer_form(shape).dtype
        if not shape.nbytes:
            return np.empty(0, dtype)
        stored = stored_buffer(self._manifest, self._arrays[name])
        if isinstance(stored, ZarrBuffer):
            found: NDArray[Any] = read_place(stored.array, ()).view(dtype)
            found.flags.writeable = False
            return found
        with stored.file.stream() as stream:
            return np.memmap(stream, dtype, "r", shape=(shape.nbytes // dtype.itemsize,))

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<Checkpoint {self.folder}: {len(self)} arrays, {sum(s.nbytes for s in self.shapes.values())} bytes>"

    @untraced
    def read(self, name: str) -> NDArray[Any]:
        """Return one logical array, unpacked: its elements in the order of its dimensions, without padding.

        For tensors that were copied as bytes or moved to a named format, return those bytes.

        Parameters
        ----------
        name : str
            Of the array, as in `shapes`.

        Raises
        ------
        KeyError
            There is no such array.
        FastIndexError
            Its file has changed since the checkpoint was opened.
        OSError
            It cannot be read.
        """
        found: NDArray[Any] = unpack(self[name], self.shapes[name])
        return found

    @untraced
    def verify(self) -> None:
        """Compare the checksums of all files with those of the manifest.

        Raises
        ------
        FastIndexError
            A file has other bytes.
        OSError
            A file cannot be read.
        """
        for name, one in self._arrays.items():
            if checksum_of(stored_buffer(self._manifest, one)) != one["crc32"]:
                raise FastIndexError(f"{self.folder}: {one['file']} is not as it was written; it holds {name[:80]!r}")

    @untraced
    def unpack(
        self,
        target: str | os.PathLike[str],
        *,
        max_memory: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Write the tensors to a safetensors file, by their own names, in their own order of dimensions.

        Tensors that were not cast are restored bit for bit, those moved to a named format and back included.

        Parameters
        ----------
        target : path
            Ends in ``.safetensors``; `read` gives one array.
        max_memory, progress
            As for `pack_checkpoint`.

        Raises
        ------
        UnsupportedError
            An element type that the format lacks.
        FastIndexError
            Another ending, or too little memory.
        OSError
            A file cannot be read or written.
        """
        path = os.fspath(target)
        if not path.endswith(".safetensors"):
            hint = f"; read({path!r}) gives that array" if path in self.shapes else "; read(name) gives one array"
            raise FastIndexError(f"tensors go to a file named .safetensors, got {path!r}{hint}")
        _restore(self._manifest, path, memory_limit(max_memory), NoProgress() if progress is None else progress)


def open_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint:
    """Open a folder that `pack_checkpoint` has written.

    Parameters
    ----------
    folder : path

    Returns
    -------
    Checkpoint
        ``checkpoint["name"]`` maps the physical buffer of one array, read-only; ``checkpoint.shapes["name"]`` is its
        shape with the layout, and ``checkpoint.read("name")`` the logical array.

    Raises
    ------
    FastIndexError
        The folder is not complete, or its manifest is malformed.
    OSError
        The folder or the manifest cannot be read.

    Examples
    --------
    >>> import fastindex as fi
    >>> fi.weights.open_checkpoint(".")
    Traceback (most recent call last):
        ...
    fastindex.errors.FastIndexError: . holds no complete checkpoint: manifest.json is missing
    """
    folder = path_text(folder, "folder")
    return Checkpoint(folder, read_manifest(folder))


def stored_buffer(manifest: Manifest, one: dict[str, Any]) -> StoredArray | ZarrBuffer:
    """Open the buffer of an array of a checkpoint; `one` is its record in the manifest.

    Raises
    ------
    FastIndexError, OSError
        It is missing, has another shape, is outside the folder, or has changed since the manifest was read.
    """
    path = place_inside(manifest.folder, one["file"])
    return opened_buffer(path, Shape.parse(one["shape"]), manifest.store, manifest.identities[one["name"]])


def opened_buffer(
    path: str, shape: Shape, store: str, identity: FileIdentity | None = None
) -> StoredArray | ZarrBuffer:
    """Open the buffer of an array, which must have the given identity if there is one."""
    if store != ZARR:
        return StoredArray(open_raw(path, shape.nbytes, identity), shape)
    found = stored_zarr_buffer(path, shape)
    check_identity(path, FileIdentity.of(os.stat(path)), identity)
    return found


def checksum_of(buffer: StoredArray | ZarrBuffer) -> str:
    """Return the CRC-32 of the buffer of an array, in hexadecimal: it detects damage, not forgery."""
    crc32, nbytes = 0, buffer.shape.nbytes
    content = np.empty(min(nbytes, _CHECKED_BYTES), np.uint8)
    for begin in range(0, nbytes, _CHECKED_BYTES):
        part = content[: nbytes - begin]
        buffer.read_bytes(begin, part)
        crc32 = zlib.crc32(part.data, crc32)
    return f"{crc32:08x}"


def _restore(manifest: Manifest, target: str, limit: int, progress: Progress) -> None:
    """Write the tensors of a checkpoint to a safetensors file."""
    shapes: dict[str, Shape] = {}
    stored: dict[str, tuple[str, tuple[int, ...]]] = {}
    for one in manifest.arrays:
        shapes |= dict.fromkeys(one["tensors"], _tensor_shape(one))
        if "stored" in one:
            own = one["stored"]["dtype"], tuple(one["stored"]["sizes"])
            stored |= dict.fromkeys(one["tensors"], own)
    starts, at = {}, 0
    for name in manifest.tensors:
        starts[name] = at
        at += shapes[name].nbytes
    header = header_of({name: shapes[name] for name in manifest.tensors}, manifest.metadata, stored)
    progress.start(at)
    with OutputFile(target, at, header) as output:
        for one in manifest.arrays:
            parts = [WrittenArray(output, shapes[name], starts[name]) for name in one["tensors"]]
            _restore_array(manifest, one, parts, limit, progress)


def restore_array(
    manifest: Manifest,
    name: str,
    target: str,
    progress: Progress,
    memory_bytes: int,
    force: bool = False,
    casting: str = "same_kind",
    dtype: str | None = None,
) -> None:
    """Write one logical array of a checkpoint to a file: a NumPy file, a Zarr array, or raw bytes, by its name.

    Parameters and errors as for `fastindex.jobs.layout_jobs.unpack_file`; an unknown name is a FastIndexError.
    """
    one = next((one for one in manifest.arrays if one["name"] == name), None)
    if one is None:
        names = [one["name"] for one in manifest.arrays]
        close = get_close_matches(name, names, 3) or names[:3]
        raise FastIndexError(
            f"{manifest.folder} holds no array {name[:80]!r}; it has {len(names)}, such as "
            f"{', '.join(repr(one[:80]) for one in close)}"
        )
    logical = logical_result(Shape.parse(one["shape"]), None, dtype, casting)
    unpack_stored(stored_buffer(manifest, one), target, logical, progress, memory_bytes, force, casting)


def _tensor_shape(one: dict[str, Any]) -> Shape:
    """Return the shape of each tensor of an array, as stored in a safetensors file."""
    shape = Shape.parse(one["shape"])
    if one.get("format") is not None:
        return Shape("u8", (one["stored"]["nbytes"],))
    dimensions = shape.dimensions[1 if one["is_stacked"] else 0 :]
    return packed_shape(shape.element_type, tuple(dimensions[one["order"].index(d)] for d in range(len(dimensions))))


def _restore_array(
    manifest: Manifest, one: dict[str, Any], parts: list[WrittenArray], limit: int, progress: Progress
) -> None:
    source = stored_buffer(manifest, one)
    moved = moved_of(one)
    with source.reading():
        if moved is None:
            ordered = [replace(part, shape=ordered_shape(part.shape, tuple(one["order"]))) for part in parts]
            target: Any = Stack(ordered) if one["is_stacked"] else ordered[0]
            plan_boxes(source, target, limit).run(bytes(16), progress.advance)
            return
        ends = moved.back.plan().ends
        signed = 0, max(ends[1].bits, 8) if moved.is_signed else 0
        with memory_within(limit) as memory:
            for number, part in enumerate(parts):
                slices, starts = parts_of(moved.back, memory), (number * ends[0].side.nbytes, 0)
                move_parts(slices, source.read_bytes, part.write_bytes, signed, progress.advance, starts)


def ordered_shape(shape: Shape, order: tuple[int, ...]) -> Shape:
    """Return a shape with its dimensions permuted and its order in memory unchanged.

    Examples
    --------
    >>> print(ordered_shape(Shape.parse("f32[2,3]"), (1, 0)))
    f32[3,2]{0,1}
    """
    layout = replace(shape.layout, minor_to_major=tuple(order.index(d) for d in shape.layout.minor_to_major))
    return Shape(shape.element_type, tuple(shape.dimensions[d] for d in order), layout)


class Stack:
    """Arrays of one shape, stacked along a new first dimension: a source or a target of boxes."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts
        inner: Shape = parts[0].shape
        layout = replace(inner.layout, minor_to_major=(*(d + 1 for d in inner.layout.minor_to_major), 0))
        self.shape = Shape(inner.element_type, (len(parts), *inner.dimensions), layout)
        self.steps = (1,) * self.shape.rank

    def costs(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        """Return the memory and the cost of a box."""
        return segment_costs(self.shape, sizes)

    def read(self, box: Box, into: Bytes) -> None:
        """Read a box, packed as by `box_shape`."""
        for part, content in self._of_parts(box, into):
            part.read(box[1:], content)

    def write(self, box: Box, data: Bytes) -> None:
        """Write a box, packed as by `box_shape`."""
        for part, content in self._of_parts(box, data):
            part.write(box[1:], content)

    def _of_parts(self, box: Box, content: Bytes) -> Iterator[tuple[Any, Bytes]]:
        nbytes = len(content) // max(len(box[0]), 1)
        for i, number in enumerate(box[0]):
            yield self._parts[number], content[i * nbytes : (i + 1) * nbytes]
