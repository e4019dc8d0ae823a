"""The package with every array on the GPU: copied there for a call, and its results copied back.

It stands in for `fastindex` in the functions of `comparison`, so the GPU answers the same questions as the CPU, on a
device or in Numba's simulator. Import it only where CUDA may be loaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
from fastindex.cuda.kernels.device import cuda

Shape = fi.Shape


def to_gpu(array: Any) -> Any:
    """A Numba device array; of the bits where CUDA has no such type."""
    array = np.frombuffer(array, np.uint8) if isinstance(array, bytes) else np.asarray(array)
    if array.dtype.isbuiltin != 1:
        array = array.view(f"u{array.dtype.itemsize}")
    return cuda.to_device(np.ascontiguousarray(array).reshape(array.shape))


def to_host(array: Any, dtype: Any = None) -> NDArray[Any]:
    found = array.copy_to_host()
    return found if dtype is None else found.view(dtype)


def error_of(call: Any, *arguments: Any, **options: Any) -> tuple[type, str]:
    with pytest.raises(fi.FastIndexError) as caught:
        call(*arguments, **options)
    return type(caught.value), str(caught.value)


def linear_index(shape: str, indices: Any, threads: int = 1, **options: Any) -> Any:
    if not len(indices):
        return fi.linear_index(shape, indices)
    return to_host(fi.linear_index(shape, tuple(map(to_gpu, indices)), **options))


def multi_index(shape: str, slots: Any, threads: int = 1, **options: Any) -> tuple[Any, ...]:
    return tuple(map(to_host, fi.multi_index(shape, to_gpu(slots), **options)))


def tile_index(shape: str, indices: Any, level: int) -> tuple[tuple[Any, ...], ...]:
    parts = fi.tile_index(shape, tuple(map(to_gpu, indices)), level)
    return tuple(tuple(map(to_host, part)) for part in parts)


def convert_index(source: str, destination: str, slots: Any) -> Any:
    return to_host(fi.convert_index(source, destination, to_gpu(slots)))


def pack(array: Any, shape: str, fill: Any = None, threads: int = 1) -> NDArray[Any]:
    return to_host(fi.pack(to_gpu(array), shape, fill))


def unpack(buffer: Any, shape: str, threads: int = 1) -> NDArray[Any]:
    dtype = Shape.parse(shape).element_type.numpy_dtype
    return to_host(fi.unpack(to_gpu(buffer), shape), dtype)


def relayout(buffer: Any, source: str, destination: str, fill: Any = None, threads: int = 1) -> NDArray[Any]:
    return to_host(fi.relayout(to_gpu(buffer), source, destination, fill))
