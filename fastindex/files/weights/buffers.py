"""The buffers of arrays as a checkpoint stores them: read, and compared by checksums."""

from __future__ import annotations

import hashlib

import numpy as np

from fastindex.files.input_files import Bytes, open_raw
from fastindex.files.reading import StoredArray
from fastindex.files.weights.manifests import ZARR
from fastindex.files.zarr_arrays import ZarrBuffer, read_place, stored_zarr_buffer
from fastindex.shapes.shape import Shape

_AT_ONCE = 4 << 20


def stored_buffer(path: str, shape: Shape, store: str) -> StoredArray | ZarrBuffer:
    """Open the buffer of an array.

    Raises
    ------
    FastIndexError, OSError
        It is not there, or not of that shape.
    """
    return stored_zarr_buffer(path, shape) if store == ZARR else StoredArray(open_raw(path, 0, shape.nbytes), shape)


def read_bytes(buffer: StoredArray | ZarrBuffer, start: int, into: Bytes) -> None:
    """Fill an array with the bytes of a buffer from `start` on."""
    if isinstance(buffer, ZarrBuffer):
        into[...] = read_place(buffer.array, (slice(start, start + len(into)),))
    else:
        buffer.file.read(start, into)


def checksum_of(path: str, shape: Shape, store: str) -> str:
    """Return the SHA-256 of the buffer of an array, in hexadecimal."""
    buffer, digest, nbytes = stored_buffer(path, shape, store), hashlib.sha256(), shape.nbytes
    content = np.empty(min(nbytes, _AT_ONCE), np.uint8)
    for begin in range(0, nbytes, _AT_ONCE):
        part = content[: nbytes - begin]
        read_bytes(buffer, begin, part)
        digest.update(part.data)
    return digest.hexdigest()
