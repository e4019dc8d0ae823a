"""Availability of a GPU, and relayouts of host arrays through the GPU in boxes."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from fastindex.algebra.casts import Casting
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import FastIndexError
from fastindex.first_use import load
from fastindex.lazy import untraced


def why_unavailable() -> str | None:
    """Return the reason why no kernel can run on a GPU here, or None where one can.

    Examples
    --------
    >>> import fastindex.cuda
    >>> (fastindex.cuda.why_unavailable() is None) == fastindex.cuda.is_available()
    True
    """
    try:
        load("fastindex.cuda.kernels.device")
        from fastindex.cuda.kernels import device as cuda
    except Exception as error:
        # An incomplete installation may raise anything, and this query must not fail.
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
        There is no GPU.
    """
    _require_available()
    from fastindex.cuda.kernels import device as cuda

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
    """Move a buffer in host memory from one layout to another on the GPU, box by box, as `relayout` does on the CPU.

    The buffers may be larger than the GPU's memory, and may be memory maps. Boxes go through pinned memory; copies,
    kernels and the host's own work overlap.

    Parameters
    ----------
    buffer : array of one dimension, bytes, or anything with the buffer protocol
    source, destination : Shape or str
    out : array of one dimension, optional
    fill : number, optional
        As for `relayout`.
    max_memory : int, optional
        Limit of pinned memory, and of GPU memory, in bytes; by default, 256 MiB. Boxes consist of whole tiles of both
        layouts; two of the smallest boxes are always allowed.
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
        The data that must be on the GPU at once does not fit.
    ArgumentTypeError, UnsupportedError
        As `relayout`.
    """
    _require_available()
    from fastindex.cuda.streaming import relayout_in_boxes

    return relayout_in_boxes(buffer, as_shape(source), as_shape(destination), out, fill, max_memory, casting)
