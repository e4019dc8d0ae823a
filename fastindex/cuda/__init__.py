"""CUDA: what is there, and what is special about it. The public functions themselves take CUDA arrays.

`linear_index`, `multi_index`, `tile_index`, `convert_index`, `ravel_multi_index`, `unravel_index`, `shard_index`,
`unshard_index`, `pack`, `unpack`, `relayout`, plans, `copyto`, `ascontiguousarray` and `asfortranarray` take arrays in
GPU memory: Numba's, CuPy's, torch's, JAX's, and any other with ``__cuda_array_interface__`` or DLPack. Results are
arrays of the library of the first one, or Numba's where that library cannot be asked for one (JAX). Everything stays
on the GPU, and on one GPU: an array on the host next to one on the GPU is an error. A window (``numpy.s_[100:108, :]``)
holds no array: it is computed on the GPU where ``out=`` is an array there.

``stream=`` takes a stream of any of these libraries, or its handle. Without it, a call runs on the stream that the
library of the first array works on at that moment. Calls do not wait for the GPU, with two exceptions. The first call
with a new layout uploads a small table; after that, a call of a plan can be captured in a CUDA graph. And where an
index can be out of bounds, the host has to know: `linear_index` with ``mode="raise"``, `tile_index`, `multi_index` and
`convert_index` wait for the stream and copy 8 bytes back; ``mode="wrap"`` and ``mode="clip"`` do not.

Casts of integers to a type of fewer than 8 bits keep the low bits of what it does not hold, whatever ``casting`` is: to
find an error, a call would have to wait.

Kernels are compiled at their first use, in about half a second each, and kept on disk: in ``NUMBA_CACHE_DIR``, or in
cuda.core's cache folder.

It needs numba-cuda: ``pip install 'fastindex[cuda]'``, or ``'fastindex[cuda12]'`` for CUDA 12.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from fastindex.arguments.castings import Casting
from fastindex.errors import FastIndexError
from fastindex.lazy import untraced
from fastindex.shapes.shape import Shape, as_shape


def why_unavailable() -> str | None:
    """Return the reason why no kernel can run on a GPU here, or None where one can.

    Examples
    --------
    >>> import fastindex.cuda
    >>> (fastindex.cuda.why_unavailable() is None) == fastindex.cuda.is_available()
    True
    """
    try:
        from fastindex.kernels.cuda import device as cuda
    except Exception as error:
        # Whatever an incomplete installation raises: asking must not fail.
        return f"numba's CUDA support cannot be imported: {error}"
    return cuda.why_unavailable()


def is_available() -> bool:
    """Whether kernels can run on a GPU here; `why_unavailable` says why not.

    Examples
    --------
    >>> import fastindex.cuda
    >>> fastindex.cuda.is_available() in (True, False)
    True
    """
    return why_unavailable() is None


def _require_available() -> None:
    reason = why_unavailable()
    if reason is not None:
        raise FastIndexError(f"no kernel can run on the GPU: {reason}")


def device_name() -> str:
    """Return the name of the current GPU.

    Raises
    ------
    FastIndexError
        There is none.
    """
    _require_available()
    from fastindex.kernels.cuda import device as cuda

    return cuda.device_name()


@untraced
def relayout_through_device(
    buffer: Any,
    source: Shape | str,
    destination: Shape | str,
    out: Any = None,
    fill: Any = None,
    max_memory: int | None = None,
    casting: Casting = "same_kind",
) -> NDArray[Any]:
    """Move a buffer in host memory from one layout to another on the GPU, in chunks, as `relayout` does on the CPU.

    The buffers may be larger than the GPU's memory, and may be memory maps. Chunks go through pinned memory; copies,
    kernels and the host's own work overlap.

    Parameters
    ----------
    buffer : array of one dimension, bytes, or anything with the buffer protocol
    source, destination : Shape or str
    out : array of one dimension, optional
    fill : number, optional
        As for `relayout`.
    max_memory : int, optional
        The most bytes of pinned memory, and of GPU memory, at a time; 256 MiB without it. Layouts whose tiles do
        not divide each other cannot be cut: these take both buffers at once.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule where `destination` has another element type, as for `relayout`.

    Returns
    -------
    array of one dimension, on the host

    Raises
    ------
    FastIndexError
        No GPU, or as `relayout`.
    DeviceMemoryError
        What has to be on the GPU at once does not fit.
    ArgumentTypeError, UnsupportedError
        As `relayout`.
    """
    _require_available()
    from fastindex.cuda.streaming import relayout_in_chunks

    return relayout_in_chunks(buffer, as_shape(source), as_shape(destination), out, fill, max_memory, casting)
