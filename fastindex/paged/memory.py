"""NumPy views of arrays from other libraries, without copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.arrays import Array, described
from fastindex.arrays.engines import is_cuda_array
from fastindex.core.foreign_arrays import host_array
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError


def shared_array(value: Any, name: str, writes: bool) -> NDArray[Any]:
    """Return a NumPy array that shares the memory of an object.

    Raises
    ------
    FastIndexError
        `writes` is set, and the object is read-only.
    ArgumentTypeError
        The object does not expose its memory.
    UnsupportedError
        The memory is on a GPU.
    """
    if is_cuda_array(value):
        raise UnsupportedError(f"{name} is on a GPU, where pages are not copied yet; runs gives descriptors")
    if isinstance(value, bytes | bytearray | memoryview):
        array: NDArray[Any] = np.frombuffer(value, np.uint8)
    elif isinstance(value, np.ndarray) or hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__"):
        array = host_array(value)
    else:
        raise ArgumentTypeError(f"{name} must be an array or bytes, to share its memory; got {type(value).__name__}")
    if writes and not array.flags.writeable:
        raise FastIndexError(f"{name} is read-only; give memory that can be written")
    return array


def described_tensors(tensors: Any, name: str, writes: bool) -> list[Array]:
    """Return the records of a tensor, or of a flat or nested sequence of tensors."""
    if isinstance(tensors, Sequence) and not isinstance(tensors, str | bytes | bytearray | memoryview):
        return [record for tensor in tensors for record in described_tensors(tensor, name, writes)]
    return [described(shared_array(tensors, name, writes))]
