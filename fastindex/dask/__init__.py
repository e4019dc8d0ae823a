"""Dask arrays in, lazy Dask arrays out. No layer below this folder depends on Dask.

The `fastindex` functions of the same names dispatch to these for Dask arrays; only these take ``chunks=``.
"""

from __future__ import annotations

from fastindex.lazy import lazy_names

# The public names; `__init__.pyi` tells type checkers the same.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.dask.arrays": ("pack", "rearrange", "relayout", "unpack"),
        "fastindex.dask.indices": ("convert_index", "linear_index", "multi_index"),
        "fastindex.dask.warming": ("WarmUp",),
    },
)
