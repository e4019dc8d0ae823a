"""`rearrange` for Dask arrays: Dask pads, splits, transposes and merges, block by block."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np

from fastindex.arrays.fills import value_bytes
from fastindex.errors import FastIndexError
from fastindex.moving.rearranged_arrays import rearranged
from fastindex.patterns.grammar import checked_sizes, parse_pattern


def rearrange(array: da.Array, pattern: str, /, *, pad: bool = False, fill: Any = None, **sizes: Any) -> da.Array:
    """Split, merge and reorder the dimensions of a Dask array.

    Parameters
    ----------
    array : dask.array.Array
    pattern, pad, fill, **sizes
        As for `fastindex.rearrange`.

    Returns
    -------
    dask.array.Array
        A lazy array with the values of `fastindex.rearrange`.

    Raises
    ------
    FastIndexError
        As `fastindex.rearrange`, or chunks of unknown size.

    Examples
    --------
    >>> import dask.array as da, fastindex as fi
    >>> fi.rearrange(da.arange(6, chunks=2), "(a b) -> b a", b=2).compute()
    array([[0, 2, 4],
           [1, 3, 5]])
    """
    parsed = parse_pattern(pattern)
    given = checked_sizes(parsed, sizes.items())
    if any(math.isnan(size) for size in array.shape):
        raise FastIndexError("the Dask array has chunks of unknown size; call its compute_chunk_sizes() first")
    value = np.frombuffer(value_bytes(array.dtype, fill), array.dtype)[0]

    def padded(whole: da.Array, widths: list[tuple[int, int]]) -> da.Array:
        return da.pad(whole, widths, constant_values=value)

    found: da.Array = rearranged(array, parsed, given, pad, padded, da.transpose)
    return found
