"""Operations that depend on an array's library: new arrays, streams, memory that must stay allocated."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from fastindex.arrays.engines import BY_DLPACK, library_of
from fastindex.cuda.arrays import DeviceArray, as_device_array, cuda_module, dlpack_has, from_dlpack
from fastindex.errors import ArgumentTypeError, DeviceMemoryError, FastIndexError

#: The memory order of new arrays, as NumPy names it: the last dimension fastest, or the first.
Order = Literal["C", "F"]


def new_device_array(
    like: DeviceArray, shape: tuple[int, ...], dtype: Any, stream: int, order: Order = "C"
) -> tuple[Any, DeviceArray]:
    """Return an uninitialised array of the library of `like`, on its device, and its description.

    If the library lacks the dtype, the array holds integers of its width. For JAX, whose arrays cannot be written, and
    for libraries that offer no way to create arrays, it is a Numba array.

    Raises
    ------
    DeviceMemoryError
        Not enough free memory.
    """
    dtype = np.dtype(dtype)
    with _errors_of_memory(math.prod(shape) * dtype.itemsize):
        if like.library == "torch":
            array = _new_torch(like.device, shape, dtype, stream, order)
        elif like.library == "cupy":
            array = _new_cupy(like.device, shape, dtype, stream, order)
        else:
            array = _new_numba(shape, dtype, stream, order)
    return array, as_device_array(array, "the result")


def new_result(
    like: DeviceArray, shape: tuple[int, ...], dtype: Any, stream: int, order: Order = "C"
) -> tuple[Any, DeviceArray]:
    """Do the same for a result of a call: `JaxResult` for JAX, whose arrays have no order of memory to choose."""
    if like.library not in BY_DLPACK or order == "F":
        return new_device_array(like, shape, dtype, stream, order)
    with _errors_of_memory(math.prod(shape) * np.dtype(dtype).itemsize):
        made = JaxResult(like, shape, np.dtype(dtype), stream)
    return made, made.memory


@contextmanager
def _errors_of_memory(size: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        names = type(error).__name__, str(error).partition(":")[0]
        if isinstance(error, MemoryError) or "OutOfMemory" in names[0] or names[1] == "RESOURCE_EXHAUSTED":
            raise DeviceMemoryError(
                f"the GPU has no memory for {size} bytes more; free arrays, or go through the host in pieces "
                "with fastindex.cuda.relayout_through_device"
            ) from error
        raise


class JaxResult:
    """Memory of JAX that kernels write: an array of JAX once they are queued, since these never change.

    Attributes
    ----------
    memory : DeviceArray
        To be written on the stream of the call, and kept until that is done.
    """

    def __init__(self, like: DeviceArray, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int) -> None:
        jax = sys.modules["jax"]
        (device,) = like.owner[1].devices()
        # Else JAX would make 32 bits of 64.
        with jax.enable_x64(True), jax.default_device(device):
            self._array = jax.lax.empty(shape, dtype if dlpack_has(dtype) else f"u{dtype.itemsize}")
        self._stream = stream
        self.memory = replace(from_dlpack(self._array, "the result", stream), read_only=False)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        if stream is not None:
            cuda_module().order(self._stream, stream)
        return self._array.__dlpack__(stream=stream)

    def finished(self) -> Any:
        """Return the array of JAX, which reads this memory after the kernels queued so far."""
        jax = sys.modules["jax"]
        with jax.enable_x64(True):
            return jax.dlpack.from_dlpack(self)


def _new_numba(shape: tuple[int, ...], dtype: np.dtype[Any], stream: int, order: Order) -> Any:
    return cuda_module().new_array(shape, dtype, stream, order)


def _new_cupy(device: int, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int, order: Order) -> Any:
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(device):
        current = cupy.cuda.get_current_stream()
        with current if current.ptr == stream else _cupy_stream(cupy, stream):
            try:
                return cupy.empty(shape, dtype, order=order)
            except (TypeError, ValueError):
                return cupy.empty(shape, f"u{dtype.itemsize}", order=order)


class _Stream:
    """A stream by its handle, with the protocol through which libraries exchange streams."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def _cupy_stream(cupy: Any, handle: int) -> Any:
    if handle == 0:
        return cupy.cuda.Stream.null
    # CuPy 14 warns of ExternalStream; older versions have nothing else.
    make = getattr(cupy.cuda.Stream, "from_external", None)
    return cupy.cuda.ExternalStream(handle) if make is None else make(_Stream(handle))


def _torch_stream(torch: Any, handle: int, device: int) -> Any:
    # `ExternalStream(0)` would be a new stream of torch's pool, not the default stream (pytorch #182960).
    return torch.cuda.get_stream_from_external(handle, device) if handle else torch.cuda.default_stream(device)


def _new_torch(device: int, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int, order: Order) -> Any:
    torch = sys.modules["torch"]
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype) or found.itemsize != dtype.itemsize or _is_shell(dtype):
        found = bits[dtype.itemsize]
    current = torch.cuda.current_stream(device)
    on = current if current.cuda_stream == stream else _torch_stream(torch, stream, device)
    with torch.cuda.device(device), torch.cuda.stream(on):
        if order == "F":
            backwards = torch.empty(shape[::-1], dtype=found, device=f"cuda:{device}")
            return backwards.permute(tuple(reversed(range(len(shape)))))
        return torch.empty(shape, dtype=found, device=f"cuda:{device}")


def _is_shell(dtype: np.dtype[Any]) -> bool:
    """Whether torch defines a packed type only by name, without support for values."""
    return dtype.name in ("int1", "int2", "int4", "uint1", "uint2", "uint4")


def kept_by_library(array: DeviceArray, handle: int) -> bool:
    """Let an array's library keep its memory until the work so far on a stream is done; return whether it does.

    Libraries reuse freed memory in the order of the stream that it was allocated on. JAX has its own streams.
    """
    if array.library in BY_DLPACK:
        return False
    if array.stream == handle:
        return True
    if array.library == "torch":
        array.owner.record_stream(_torch_stream(sys.modules["torch"], handle, array.device))
        return True
    return False


def stream_handle(stream: Any, arrays: Sequence[DeviceArray]) -> int:
    """Return the handle of the stream to use: `stream`, of any library, or the one the first array is ready on.

    Raises
    ------
    ArgumentTypeError
        Not a stream.
    """
    if stream is None:
        return arrays[0].stream if arrays else 0
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        found = stream.__cuda_stream__
        return int((found() if callable(found) else found)[1])
    for attribute in ("cuda_stream", "ptr"):
        if isinstance(getattr(stream, attribute, None), int):
            return int(getattr(stream, attribute))
    if library_of(type(stream)) == "numba":
        return int(cuda_module().stream_handle(stream))
    raise ArgumentTypeError(f"stream must be a CUDA stream or its handle, got {type(stream).__name__}")


def require_one_device(arrays: Sequence[DeviceArray]) -> int:
    """Return the device all arrays are on.

    Raises
    ------
    FastIndexError
        They are on several.
    """
    first = arrays[0].device
    for array in arrays:
        if array.device != first:
            devices = sorted({array.device for array in arrays})
            raise FastIndexError(f"the arrays of a call must be on one GPU, these are on the devices {devices}")
    return first
