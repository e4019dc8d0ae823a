"""`rearrange` for Dask arrays: padded, split, transposed and merged by Dask, which keeps blocks apart."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np

from fastindex.arguments.fills import value_bytes
from fastindex.errors import FastIndexError
from fastindex.patterns.axes import solved
from fastindex.patterns.grammar import checked_sizes, parse_pattern


def rearrange(array: da.Array, pattern: str, *, pad: bool = False, fill: Any = None, **sizes: Any) -> da.Array:
    """Split, merge and reorder the dimensions of a Dask array.

    Parameters
    ----------
    array : dask.array.Array
    pattern, pad, fill, **sizes
        As for `fastindex.rearrange`.

    Returns
    -------
    dask.array.Array
        Nothing has been computed. Its values are those of `fastindex.rearrange`.

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
    whole, known = solved(parsed, array.shape, given, None, pad)
    room = [
        math.prod(known[name] for name in group) - size for group, size in zip(whole.source, array.shape, strict=True)
    ]
    if any(room):
        value = 0 if fill is None else np.frombuffer(value_bytes(array.dtype, fill), array.dtype)[0]
        array = da.pad(array, [(0, size) for size in room], constant_values=value)
    before = [name for group in whole.source for name in group]
    after = [name for group in whole.destination for name in group]
    split = array.reshape([known[name] for name in before])
    merged = [math.prod(known[name] for name in group) for group in whole.destination]
    return split.transpose([before.index(name) for name in after]).reshape(merged)
