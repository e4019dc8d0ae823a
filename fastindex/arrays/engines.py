"""Dispatch on arrays: NumPy's, arrays on a GPU, or lazy arrays of an engine, without importing that engine.

The module for an engine is in a higher layer than eager computation, so it is only named here, and imported when an
array of the engine is passed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fastindex.core.foreign_arrays import require_values
from fastindex.errors import FastIndexError, UnsupportedError

#: For each module whose `Array` is the class of an engine, the module of this package that handles such arrays.
_ENGINES = {"dask.array": "fastindex.dask"}

_NEVER_LAZY = {np.ndarray, range, int, np.int64, bytes}


def engine_of(values: Any) -> ModuleType | None:
    """Return the module with the functions for a lazy array, or for a sequence with one; None for other values.

    Examples
    --------
    >>> engine_of([1, 2]) is None
    True
    """
    if type(values) in _NEVER_LAZY:
        return None
    for engine, home in _ENGINES.items():
        kind = getattr(sys.modules.get(engine), "Array", None)
        if kind is None:
            continue
        if isinstance(values, kind) or (type(values) in (tuple, list) and any(isinstance(v, kind) for v in values)):
            return import_module(home)
    return None


def require_lazy(**arguments: Any) -> None:
    """Raise an error for arguments that require an eager result, such as `out`: a lazy one is computed later.

    Raises
    ------
    FastIndexError
    """
    for name, value in arguments.items():
        if value is not None:
            raise FastIndexError(f"{name} is for arrays in memory; a lazy array gives a new lazy array")


# Arrays in GPU memory

#: Types whose values are always in host memory: the fast path.
_HOST_TYPES = {np.ndarray, int, range, list, tuple, bytes, bytearray, memoryview, np.int64, np.int32, float, bool}

#: DLPack's device types for GPU memory: CUDA, and CUDA managed.
_ON_GPU = (2, 13)

#: Libraries that synchronise with others through DLPack only, and name bfloat16 there only.
BY_DLPACK = ("jax", "jaxlib")


def is_cuda_array(value: Any) -> bool:
    """Whether `value` is an array in GPU memory; almost free for the common types of host values."""
    if type(value) in _HOST_TYPES:
        return False
    return _is_cuda_array(value)


def on_gpu(values: Any, stream: Any = None) -> bool:
    """Whether `values`, or an item of it if it is a sequence, is an array in GPU memory.

    Raises
    ------
    FastIndexError
        A stream is given, and no array is in GPU memory.
    UnsupportedError
        A value is an array without values, inside a function that JAX or PyTorch traces, or an array of JAX on several
        devices or on a TPU.
    """
    kind = type(values)
    found = False
    if kind is tuple or kind is list:
        for value in values:
            if type(value) not in _HOST_TYPES and _is_cuda_array(value):
                found = True
                break
    elif kind not in _HOST_TYPES:
        found = _is_cuda_array(values)
    if stream is not None and not found:
        raise FastIndexError("stream is for CUDA arrays, and no array of this call is one")
    return found


def _is_cuda_array(value: Any) -> bool:
    library = library_of(type(value))
    if library in ("jax", "jaxlib", "torch"):
        require_values(value)
    if library == "torch":
        return bool(getattr(value, "is_cuda", False))
    if library == "numba":
        return hasattr(value, "__cuda_ndarray__")
    try:
        if library not in BY_DLPACK and getattr(value, "__cuda_array_interface__", None) is not None:
            return True
    except (AttributeError, RuntimeError, TypeError, ValueError):
        pass
    if not hasattr(value, "__dlpack_device__") or isinstance(value, np.generic):
        return False
    try:
        return int(value.__dlpack_device__()[0]) in _ON_GPU
    except BufferError:
        # JAX, of arrays on several devices or on TPUs.
        devices = value.devices() if library in BY_DLPACK else ()
        places = ", ".join(sorted({device.platform for device in devices} - {"cpu"}))
        if places:
            raise UnsupportedError(
                f"the array is on {len(devices)} of JAX's devices ({places}); nothing travels by itself: pass a shard "
                "on one GPU, array.addressable_shards[0].data, or numpy.asarray(array)"
            ) from None
        return False


def library_of(kind: type) -> str:
    """Return the top-level module that defines a type; those of numba-cuda and numba-cuda-mlir are "numba"."""
    found = _LIBRARIES.get(kind)
    if found is None:
        root = kind.__module__.partition(".")[0]
        found = _LIBRARIES[kind] = "numba" if root in ("numba_cuda", "numba_cuda_mlir") else root
    return found


_LIBRARIES: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def place_of(values: Any, stream: Any = None, out: Any = None, max_memory: int | None = None) -> str | None:
    """Return the prefix in `fastindex.lazy.HOOKS` for an array: "cuda" or "dask"; None for the host.

    Parameters
    ----------
    values : object
        The input; an array, or a tuple or list of arrays.
    stream, out, max_memory : optional
        The caller's arguments.

    Raises
    ------
    FastIndexError
        `stream` without an array on the GPU; `out` or `max_memory` with a lazy array.
    UnsupportedError
        `max_memory` with an array on the GPU; or as `on_gpu`.

    Examples
    --------
    >>> place_of(np.zeros(3)) is None
    True
    """
    if type(values) is np.ndarray and stream is None:
        return None
    if on_gpu(values, stream):
        if max_memory is not None:
            raise UnsupportedError(
                "max_memory is for arrays in the memory of the host; fastindex.cuda.relayout_through_device bounds "
                "what is on the GPU"
            )
        return "cuda"
    if engine_of(values) is None:
        return None
    require_lazy(out=out, max_memory=max_memory)
    return "dask"
