"""What doctests of the package need that may not be installed."""

from __future__ import annotations

from importlib.util import find_spec

#: Part of the extra `dask`.
collect_ignore = [] if find_spec("dask") and find_spec("distributed") else ["fastindex/dask", "docs/how-to/dask.md"]
if not find_spec("zarr"):
    collect_ignore.append("fastindex/dask/stores.py")
