"""Other chunks of a Dask array, so that what travels between workers travels in pieces of a sensible size."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import Any

import dask.array as da
import numpy as np

from fastindex.dask.travelling import ADDED

Chunks = tuple[tuple[int, ...], ...]

#: Where chunks become rows of another array's columns, each is cut for each of the new ones. Pieces below this many
#: bytes cost more as pieces than their bytes do: a copy, a message's part, and a read and a write on disk.
_LEAST_PIECE_BYTES = 16 << 10


def rechunked(array: da.Array, chunks: Any) -> da.Array:
    """Rechunk; types that NumPy does not have go as bits, since Dask's shuffle refuses them.

    Where pieces would be too small, chunks half-way come in between: the bytes travel twice, in far fewer pieces.
    """
    wanted: Chunks = da.core.normalize_chunks(chunks, array.shape, dtype=array.dtype, previous_chunks=array.chunks)
    if wanted == array.chunks:
        return array
    if array.dtype.isbuiltin == ADDED:
        bits = array.view(np.dtype(f"u{array.dtype.itemsize}"))
        return rechunked(bits, wanted).view(array.dtype)
    if is_in_small_pieces(array.chunks, wanted, array.dtype.itemsize):
        array = array.rechunk(between(array.chunks, wanted))
    return array.rechunk(wanted)


def is_in_small_pieces(old: Chunks, new: Chunks, itemsize: int) -> bool:
    """Whether chunks are cut into so many pieces that these are small; edges near each other do not count.

    Examples
    --------
    >>> rows, columns = ((1,) * 4096, (4096,)), ((4096,), (1,) * 4096)
    >>> is_in_small_pieces(rows, columns, 4), is_in_small_pieces(rows, ((2,) * 2048, (4096,)), 4)
    (True, False)
    """
    piece = math.prod(min(max(a), max(b)) for a, b in zip(old, new, strict=True)) * itemsize
    smallest = min(math.prod(map(max, old)), math.prod(map(max, new))) * itemsize
    return piece < _LEAST_PIECE_BYTES and 16 * piece < smallest


def between(old: Chunks, new: Chunks) -> Chunks:
    """Return chunks half-way: as long, along each dimension, as the geometric mean of both.

    Examples
    --------
    >>> between(((1,) * 16, (16,)), ((16,), (1,) * 16))
    ((4, 4, 4, 4), (4, 4, 4, 4))
    """
    found = []
    for before, after in zip(old, new, strict=True):
        size = math.sqrt(max(before) * max(after))
        finer = before if len(before) >= len(after) else after
        together = max(round(size / max(max(finer), 1)), 1)
        edges = [0, *accumulate(finer)]
        kept = sorted({*edges[::together], edges[-1]})
        found.append(tuple(b - a for a, b in pairwise(kept)) or (0,))
    return tuple(found)
