"""`rearrange` for Dask arrays: padded, split, transposed and merged by Dask, which keeps blocks apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import dask.array as da

from fastindex.errors import FastIndexError
from fastindex.patterns.axes import solved
from fastindex.patterns.grammar import Pattern


def rearrange(array: da.Array, pattern: Pattern, sizes: Mapping[str, int], pad: bool, fill: Any = None) -> da.Array:
    """Return a lazy array with the values of `fastindex.rearrange`, which calls this.

    Parameters
    ----------
    array : dask.array.Array
    pattern : Pattern
    sizes : mapping
        Of the axes that are given.
    pad : bool
    fill : number, optional

    Raises
    ------
    FastIndexError
        As `fastindex.rearrange`, or chunks of unknown size.
    """
    if any(math.isnan(size) for size in array.shape):
        raise FastIndexError("the Dask array has chunks of unknown size; call its compute_chunk_sizes() first")
    whole, known = solved(pattern, array.shape, sizes, None, pad)
    room = [
        math.prod(known[name] for name in group) - size for group, size in zip(whole.source, array.shape, strict=True)
    ]
    if any(room):
        array = da.pad(array, [(0, size) for size in room], constant_values=0 if fill is None else fill)
    before = [name for group in whole.source for name in group]
    after = [name for group in whole.destination for name in group]
    split = array.reshape([known[name] for name in before])
    merged = [math.prod(known[name] for name in group) for group in whole.destination]
    return split.transpose([before.index(name) for name in after]).reshape(merged)
