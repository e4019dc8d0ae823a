"""The buffers of arrays in a checkpoint: reading, and checksums."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

from fastindex.core.shape import Shape
from fastindex.jobs.input_files import Bytes, FileIdentity, check_identity, open_raw, place_inside
from fastindex.jobs.reading import StoredArray
from fastindex.jobs.zarr_arrays import ZarrBuffer, read_place, stored_zarr_buffer
from fastindex.weights.manifests import ZARR, Manifest

_AT_ONCE = 4 << 20


def stored_buffer(manifest: Manifest, one: dict[str, Any]) -> StoredArray | ZarrBuffer:
    """Open the buffer of an array of a checkpoint; `one` is its record in the manifest.

    Raises
    ------
    FastIndexError, OSError
        It is missing, has another shape, is outside the folder, or has changed since the manifest was read.
    """
    path = place_inside(manifest.folder, one["file"])
    return _opened(path, Shape.parse(one["shape"]), manifest.store, manifest.identities[one["name"]])


def _opened(path: str, shape: Shape, store: str, identity: FileIdentity | None) -> StoredArray | ZarrBuffer:
    if store != ZARR:
        return StoredArray(open_raw(path, 0, shape.nbytes, identity), shape)
    found = stored_zarr_buffer(path, shape)
    check_identity(path, FileIdentity.of(os.stat(path)), identity)
    return found


def read_bytes(buffer: StoredArray | ZarrBuffer, start: int, into: Bytes) -> None:
    """Fill an array with the bytes of a buffer from `start` on."""
    if isinstance(buffer, ZarrBuffer):
        into[...] = read_place(buffer.array, (slice(start, start + len(into)),))
    else:
        buffer.file.read(start, into)


def checksum_of_new(path: str, shape: Shape, store: str) -> str:
    """Return the SHA-256 of a buffer that has just been written, in hexadecimal."""
    return checksum_of(_opened(path, shape, store, None))


def checksum_of(buffer: StoredArray | ZarrBuffer) -> str:
    """Return the SHA-256 of the buffer of an array, in hexadecimal."""
    digest, nbytes = hashlib.sha256(), buffer.shape.nbytes
    content = np.empty(min(nbytes, _AT_ONCE), np.uint8)
    for begin in range(0, nbytes, _AT_ONCE):
        part = content[: nbytes - begin]
        read_bytes(buffer, begin, part)
        digest.update(part.data)
    return digest.hexdigest()
