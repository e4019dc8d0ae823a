"""Rechunking of Dask arrays with fragments large enough for efficient transfer between workers."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import Any

import dask.array as da
import numpy as np

from fastindex.dask.travelling import ADDED
from fastindex.errors import FastIndexError

Chunks = tuple[tuple[int, ...], ...]

#: From row chunks to column chunks, every new chunk intersects every old one. Below this size of an intersection (a
#: piece), the fixed cost dominates: a copy, a part of a message, and a read and a write on disk.
_LEAST_PIECE_BYTES = 16 << 10


def normal_chunks(chunks: Any, sizes: tuple[int, ...], dtype: Any, previous: Chunks | None = None) -> Chunks:
    """Return chunks, given in any form that Dask accepts, as the sizes along each dimension.

    Raises
    ------
    FastIndexError
        The chunks are invalid for an array of these sizes.

    Examples
    --------
    >>> normal_chunks(4, (10,), np.dtype("f4"))
    ((4, 4, 2),)
    """
    try:
        found: Chunks = da.core.normalize_chunks(chunks, sizes, dtype=dtype, previous_chunks=previous)
    except ZeroDivisionError:
        raise FastIndexError(f"chunks={chunks!r} have no elements; give each at least one") from None
    except (ValueError, TypeError) as error:
        raise FastIndexError(f"chunks={chunks!r} are none of an array of {sizes}: {error}") from None
    if tuple(map(sum, found)) != sizes or any(size < 0 for along in found for size in along):
        raise FastIndexError(f"chunks={chunks!r} do not add up to an array of {sizes}")
    return found


def rechunked(array: da.Array, chunks: Any) -> da.Array:
    """Rechunk; user-defined types (ml_dtypes) are sent as integers, since Dask's shuffle rejects them.

    If the pieces would be too small, this rechunks in two steps, through intermediate chunks: the bytes are sent twice,
    in far fewer pieces.
    """
    wanted = normal_chunks(chunks, array.shape, array.dtype, array.chunks)
    if wanted == array.chunks:
        return array
    if array.dtype.isbuiltin == ADDED:
        bits = array.view(np.dtype(f"u{array.dtype.itemsize}"))
        return rechunked(bits, wanted).view(array.dtype)
    if is_in_small_pieces(array.chunks, wanted, array.dtype.itemsize):
        array = array.rechunk(between(array.chunks, wanted))
    return array.rechunk(wanted)


def is_in_small_pieces(old: Chunks, new: Chunks, itemsize: int) -> bool:
    """Whether rechunking splits chunks into many small pieces; small shifts of chunk boundaries do not count.

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
    """Return intermediate chunks: along each dimension, about the geometric mean of the old and the new size.

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
