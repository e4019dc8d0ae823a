"""Base address of a pool in the buffer that a caller passes; never copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastindex.arrays.arrays import Array, described, require_contiguous
from fastindex.errors import FastIndexError
from fastindex.paged.caches import Cache
from fastindex.paged.memory import described_tensors, shared_array


def address_of_pool(cache: Cache, buffer: Any, name: str, writes: bool) -> tuple[int, Any]:
    """Return the address of byte 0 of a pool, and the object that keeps its memory alive.

    Parameters
    ----------
    cache : Cache
    buffer : array, or sequence of tensors
        The bytes of the pool, contiguous, of any element type and dimensions; for a cache made from tensors, these
        tensors.
    name : str
        Argument name for messages.
    writes : bool

    Raises
    ------
    FastIndexError
        A buffer of the wrong size, not contiguous or read-only, or other tensors.
    ArgumentTypeError
        A buffer that does not expose its memory.
    UnsupportedError
        The memory is on a GPU.
    """
    tensors = cache.tensors
    if tensors is not None:
        return _base_of(cache, tensors, buffer, name, writes)
    array = shared_array(buffer, name, writes)
    if array.nbytes != cache.nbytes:
        raise FastIndexError(f"{name} of {cache} takes {cache.nbytes} bytes, got {array.nbytes}")
    found = described(array)
    require_contiguous(found, name)
    return found.address, array


def _base_of(cache: Cache, known: Sequence[Array], buffer: Any, name: str, writes: bool) -> tuple[int, Any]:
    found = described_tensors(buffer, name, writes)
    places = [[(one.address, one.shape, one.strides) for one in side] for side in (found, known)]
    if places[0] != places[1]:
        raise FastIndexError(
            f"{name} must be the tensors that {cache} was made from, with the same memory and strides; make a cache "
            "from these with Cache.from_tensors"
        )
    return min(one.extent[0] for one in known), buffer
