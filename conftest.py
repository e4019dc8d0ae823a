"""What doctests of the package need that may not be installed."""

from __future__ import annotations

from importlib.util import find_spec

#: Part of the extra `dask`.
has_dask = find_spec("dask") and find_spec("distributed")
collect_ignore = [] if has_dask else ["fastindex/dask", "fastindex/jobs/cluster_jobs.py", "docs/how-to/dask.md"]
if not find_spec("uvicorn"):
    # Part of the extra `explore`.
    collect_ignore.append("fastindex/show/connections.py")
if not find_spec("numba_cuda_mlir"):
    # Part of the extra `cuda-mlir`.
    collect_ignore.append("fastindex/cuda/kernels/mlir.py")
