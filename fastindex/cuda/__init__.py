"""CUDA: whether it is available, and how the public functions treat CUDA arrays.

`linear_index`, `multi_index`, `tile_index`, `convert_index`, `pack`, `unpack`, `relayout`, plans, all functions of
`fastindex.numpy`, and `shard_index` and `unshard_index` of `fastindex.sharding` take arrays in GPU memory: Numba's,
CuPy's, torch's, JAX's, and any other with ``__cuda_array_interface__`` or DLPack. Results are arrays of the library of
the first one, in memory of its allocator: CuPy's pool, torch's caching allocator, JAX's. Other libraries, and JAX for
`asfortranarray` and pages of caches, get Numba arrays. All data stays on the GPU, and on one GPU: an array on the host
next to one on the GPU is an error. A window (``numpy.s_[100:108, :]``) holds no array: it is computed on the GPU if
``out=`` is an array there.

Arrays of JAX never change, so they are no outputs: a call returns a new one. Indices are int64 there too; where
``jax_enable_x64`` is off, JAX's own functions make 32 bits of them, with a warning. An array on several devices is an
error: pass its shards.

``stream=`` takes a stream of any of these libraries, or its handle. Without it, a call runs on the current stream of
the first array's library: of torch and CuPy the current one; for JAX the default stream, which waits for JAX's work on
the inputs, and which JAX waits for before it reads results. Calls do not wait for the GPU, with two exceptions. The
first call with a new layout uploads a small table; after that, a call of a plan can be captured in a CUDA graph. And if
an index may be out of bounds, the host has to know: `linear_index` with ``mode="raise"``, `tile_index`, `multi_index`
and `convert_index` wait for the stream and copy 8 bytes back; ``mode="wrap"`` and ``mode="clip"`` do not.

Casts of integers to a type of fewer than 8 bits keep the low bits of values that are out of range, whatever ``casting``
is: to report an error, a call would have to wait.

Kernels are compiled at their first use, in about half a second each, and cached on disk: in ``NUMBA_CACHE_DIR``, or in
cuda.core's cache folder.

CUDA arrays need numba-cuda: ``pip install 'fastindex[cuda]'``, or ``'fastindex[cuda12]'`` for CUDA 12. Where it is not
installed, its successor numba-cuda-mlir compiles the same kernels, some of them in ten times the time:
``'fastindex[cuda-mlir]'``.
"""

from __future__ import annotations

from fastindex.lazy import lazy_names

# The public names; `__init__.pyi` declares them for type checkers.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.errors": ("DeviceMemoryError",),
        "fastindex.cuda.devices": ("device_name", "is_available", "relayout_through_device", "why_unavailable"),
    },
)
