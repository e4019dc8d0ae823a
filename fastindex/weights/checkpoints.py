"""Checkpoints whose arrays have a device's layout: reading, verifying, and restoring tensors.

Each array is a file with its physical buffer and nothing else, or an array of bytes in a Zarr store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.arrays import buffer_dtype
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.jobs.layout_jobs import Progress
from fastindex.jobs.zarr_arrays import ZarrBuffer, read_place
from fastindex.lazy import untraced
from fastindex.moving.relayout_calls import unpack
from fastindex.weights.buffers import checksum_of, stored_buffer
from fastindex.weights.manifests import Manifest, read_manifest
from fastindex.weights.restoring import restore


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
        dtype = buffer_dtype(shape)
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
            if checksum_of(stored_buffer(self._manifest, one)) != one["sha256"]:
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
        restore(self._manifest, path, max_memory, progress)


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
    fastindex.errors.FastIndexError: . holds no complete checkpoint: manifest.json is not there
    """
    return Checkpoint(os.fspath(folder), read_manifest(folder))
