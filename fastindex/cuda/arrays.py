"""CUDA arrays of any library: their dtype, shape and address, found without a copy; new arrays, streams, lifetimes.

Inputs are anything with ``__cuda_array_interface__`` (Numba, CuPy) or with DLPack (JAX), and torch tensors.
Sources: the CUDA Array Interface, version 3 (Numba documentation); ``dlpack.h``, version 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from fastindex.arrays.arrays import Array, contiguous_strides
from fastindex.arrays.engines import BY_DLPACK, is_cuda_array, library_of
from fastindex.errors import ArgumentTypeError, DeviceMemoryError, FastIndexError, UnsupportedError


@dataclass(slots=True)
class DeviceArray(Array):
    """An array in GPU memory.

    Attributes
    ----------
    stream : int
        The handle of the stream that its contents are ready on; 0 for the default stream.
    library : {"numba", "cupy", "torch", ...}
    owner : object
        The object that keeps the memory alive.
    """

    device: int
    stream: int
    library: str
    owner: Any

    def __getitem__(self, number: int) -> DeviceArray:
        """Return one entry along the first dimension."""
        address = self.address + number * self.strides[0]
        return replace(self, address=address, shape=self.shape[1:], strides=self.strides[1:])


@lru_cache(maxsize=1)
def cuda_module() -> Any:
    """Return the interface to CUDA, imported at the first call."""
    from fastindex.cuda.kernels import device

    return device


def as_device_array(value: Any, name: str) -> DeviceArray:
    """Describe an array in GPU memory.

    Raises
    ------
    ArgumentTypeError
        It is on the host, or its elements are of an unknown type.
    FastIndexError
        No kernel can run.
    """
    if not is_cuda_array(value):
        raise ArgumentTypeError(
            f"{name} is on the host ({type(value).__name__}) and other arrays of the call are on the GPU; "
            "nothing travels by itself: copy one of them to where the others are"
        )
    cuda = cuda_module()
    reason = cuda.why_unavailable()
    if reason is not None:
        raise FastIndexError(f"no kernel can run on the GPU: {reason}")
    library = library_of(type(value))
    if library == "torch":
        return _from_torch(value)
    if library in BY_DLPACK:
        return from_dlpack(value, name)
    if library == "numba":
        address = cuda.address_of(value)
        device = cuda.device_of(address) if address else cuda.current_device()
        stream = cuda.stream_handle(value.stream)
        return DeviceArray(address, value.shape, value.strides, value.dtype, False, device, stream, library, value)
    interface = None
    with contextlib.suppress(AttributeError, RuntimeError, TypeError, ValueError):
        interface = value.__cuda_array_interface__
    return from_dlpack(value, name) if interface is None else _from_interface(value, interface)


def _from_interface(value: Any, interface: dict[str, Any]) -> DeviceArray:
    library, cuda = library_of(type(value)), cuda_module()
    # The interface cannot name the types of ml_dtypes: "<f1" is float8_e5m2 and several others.
    own = getattr(value, "dtype", None)
    dtype = own if isinstance(own, np.dtype) else np.dtype(interface["typestr"])
    shape = tuple(int(size) for size in interface["shape"])
    address, read_only = interface["data"]
    strides = interface.get("strides")
    strides = contiguous_strides(shape, dtype.itemsize) if strides is None else tuple(int(s) for s in strides)
    device = cuda.device_of(int(address)) if address else cuda.current_device()
    stream = interface.get("stream")
    if library == "cupy":
        stream = sys.modules["cupy"].cuda.get_current_stream().ptr
    return DeviceArray(
        int(address or 0), shape, strides, dtype, bool(read_only), device, int(stream or 0), library, value
    )


def _from_torch(value: Any) -> DeviceArray:
    torch = sys.modules["torch"]
    dtype = _torch_dtype(value.dtype)
    # A lazy conjugate or negative: memory does not hold the values of the tensor, so it cannot be written.
    lazy = value.is_conj() or value.is_neg()
    if lazy:
        value = value.resolve_conj().resolve_neg()
    device = int(value.device.index)
    stream = int(torch.cuda.current_stream(device).cuda_stream)
    strides = tuple(stride * dtype.itemsize for stride in value.stride())
    return DeviceArray(value.data_ptr(), tuple(value.shape), strides, dtype, lazy, device, stream, "torch", value)


@lru_cache(maxsize=64)
def _torch_dtype(torch_dtype: Any) -> np.dtype[Any]:
    found = dtype_named(str(torch_dtype).removeprefix("torch."))
    if found is None:
        raise ArgumentTypeError(f"tensors of {torch_dtype} have no counterpart here; pass a view as another dtype")
    return found


def from_dlpack(value: Any, name: str, handle: int = 0) -> DeviceArray:
    """Describe an array by DLPack; its library makes its contents ready on the stream with this handle.

    Raises
    ------
    ArgumentTypeError, UnsupportedError
        Its elements are of an unknown type, or DLPack lacks it.
    """
    try:
        # DLPack's number for the default stream is 1.
        capsule = value.__dlpack__(stream=handle or 1)
    except (BufferError, RuntimeError) as error:
        raise UnsupportedError(
            f"{name} is a {type(value).__name__} of {value.dtype}, which does not give its memory: {error}"
        ) from error
    tensor = tensor_of(capsule)
    dtype = dtype_of(tensor.code, tensor.bits) if tensor.lanes == 1 else None
    if dtype is None:
        raise ArgumentTypeError(
            f"{name} has elements of an unknown kind: DLPack type {tensor.code}, {tensor.bits} bits"
        )
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim))
    else:
        strides = contiguous_strides(shape, dtype.itemsize)
    address = (tensor.data or 0) + tensor.byte_offset
    library = library_of(type(value))
    return DeviceArray(address, shape, strides, dtype, True, tensor.device_id, handle, library, (capsule, value))


# DLPack, read through ctypes: `StridedMemoryView` of cuda.core 1.2.2 rejects all eight 8-bit floating-point types
# ("Unsupported dtype. dtype code: 10"), which JAX arrays have.

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_FLOATS = {
    7: "float8_e3m4",
    8: "float8_e4m3",
    9: "float8_e4m3b11fnuz",
    10: "float8_e4m3fn",
    11: "float8_e4m3fnuz",
    12: "float8_e5m2",
    13: "float8_e5m2fnuz",
    14: "float8_e8m0fnu",
}


class Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def tensor_of(capsule: Any) -> Tensor:
    """Return the tensor that a capsule holds; the capsule keeps it alive."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return Tensor.from_address(pointer(capsule, b"dltensor"))


def dtype_of(code: int, bits: int) -> np.dtype[Any] | None:
    """Return the dtype for a type code and bits, or None.

    Examples
    --------
    >>> dtype_of(4, 16), dtype_of(1, 32)
    (dtype(bfloat16), dtype('uint32'))
    """
    if code in _FLOATS and bits == 8:
        return dtype_named(_FLOATS[code])
    kind = _KINDS.get(code)
    return dtype_named("bool" if kind == "bool" and bits == 8 else f"{kind}{bits}")


def dlpack_has(dtype: np.dtype[Any]) -> bool:
    """Whether DLPack has a number for a dtype.

    Examples
    --------
    >>> import ml_dtypes
    >>> dlpack_has(np.dtype(ml_dtypes.bfloat16)), dlpack_has(np.dtype(ml_dtypes.int4))
    (True, False)
    """
    return dtype.isbuiltin == 1 or dtype.name == "bfloat16" or dtype.name in _FLOATS.values()


def dtype_named(name: str) -> np.dtype[Any] | None:
    """Return the dtype of NumPy or of ml_dtypes with this name, or None."""
    import ml_dtypes

    found = getattr(ml_dtypes, name, None)
    if found is None:
        try:
            found = np.dtype(name)
        except TypeError:
            return None
    return np.dtype(found)


# Operations that depend on the library: new arrays, streams, memory that must stay allocated

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
    with memory_errors(_no_room(math.prod(shape) * dtype.itemsize)):
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
    with memory_errors(_no_room(math.prod(shape) * np.dtype(dtype).itemsize)):
        made = JaxResult(like, shape, np.dtype(dtype), stream)
    return made, made.memory


@contextmanager
def memory_errors(hint: str) -> Iterator[None]:
    """Convert the errors of libraries for allocations that do not fit; let others pass.

    Raises
    ------
    DeviceMemoryError
        With `hint`: what needs memory, and what to do.
    """
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__} {error}".upper().replace("_", "").replace(" ", "")
        if isinstance(error, MemoryError) or "OUTOFMEMORY" in text or "RESOURCEEXHAUSTED" in text:
            raise DeviceMemoryError(hint) from error
        raise


def _no_room(size: int) -> str:
    return (
        f"the GPU has no memory for {size} bytes more; free arrays, or go through the host in pieces "
        "with fastindex.cuda.relayout_through_device"
    )


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
