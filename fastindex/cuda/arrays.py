"""CUDA arrays of any library: what they hold and where, found without a copy; new arrays of the same library.

Inputs are anything with ``__cuda_array_interface__`` (Numba, CuPy, JAX) or with DLPack (JAX), and torch tensors.
Sources: the CUDA Array Interface, version 3 (Numba documentation); DLPack's ``dlpack.h``, version 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastindex.errors import ArgumentTypeError, DeviceMemoryError, FastIndexError

#: Types that are on the host whatever they hold: most calls need to look no further.
_HOST_TYPES = {np.ndarray, int, range, list, tuple, bytes, bytearray, memoryview, np.int64, np.int32, float, bool}


def is_cuda_array(value: Any) -> bool:
    """Whether `value` is an array in GPU memory; costs next to nothing for what is plainly on the host."""
    if type(value) in _HOST_TYPES:
        return False
    return _is_cuda_array(value)


def on_gpu(values: Any, stream: Any = None) -> bool:
    """Whether `values`, or one of them where they are a sequence, is an array in GPU memory.

    Raises
    ------
    FastIndexError
        A stream is given, and no array is there.
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
    library = _library(value)
    if library == "torch":
        return bool(getattr(value, "is_cuda", False))
    if library == "numba":
        return hasattr(value, "__cuda_ndarray__")
    try:
        if library not in _BY_DLPACK and getattr(value, "__cuda_array_interface__", None) is not None:
            return True
    except (AttributeError, RuntimeError, TypeError, ValueError):
        pass
    if hasattr(value, "__dlpack_device__") and not isinstance(value, np.generic):
        return int(value.__dlpack_device__()[0]) in _CUDA_DEVICES
    return False


#: Libraries that order their work with that of others by DLPack only, and name bfloat16 there only.
_BY_DLPACK = ("jax", "jaxlib")


def _library(value: Any) -> str:
    root = type(value).__module__.partition(".")[0]
    return "numba" if root == "numba_cuda" else root


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array in GPU memory.

    Attributes
    ----------
    address : int
        Of the first element.
    shape : tuple of int
    strides : tuple of int
        In bytes.
    dtype : numpy.dtype
        Types that NumPy does not have are those of ml_dtypes.
    device : int
    stream : int
        The handle of the stream that its contents are ready on; 0 for the default stream.
    library : {"numba", "cupy", "torch", ...}
    read_only : bool
    owner : object
        What keeps the memory.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int
    stream: int
    library: str
    read_only: bool
    owner: Any

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether elements follow each other without gaps, the last dimension fastest."""
        return self.size == 0 or all(
            size == 1 or stride == expected
            for size, stride, expected in zip(
                self.shape, self.strides, contiguous_strides(self.shape, self.dtype.itemsize), strict=True
            )
        )

    @property
    def extent(self) -> tuple[int, int]:
        """The addresses between which all elements lie."""
        if self.size == 0:
            return self.address, self.address
        reach = [(size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)]
        first, last = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
        return self.address + first, self.address + last + self.dtype.itemsize

    def __getitem__(self, number: int) -> DeviceArray:
        """Give one entry along the first dimension."""
        return DeviceArray(
            self.address + number * self.strides[0],
            self.shape[1:],
            self.strides[1:],
            self.dtype,
            self.device,
            self.stream,
            self.library,
            self.read_only,
            self.owner,
        )


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Give the strides of an array without gaps, in bytes."""
    strides = [itemsize]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides)) if shape else ()


def as_device_array(value: Any, name: str) -> DeviceArray:
    """Describe an array in GPU memory.

    Raises
    ------
    ArgumentTypeError
        It is on the host, or its elements are of an unknown type.
    """
    if not is_cuda_array(value):
        raise ArgumentTypeError(
            f"{name} is on the host ({type(value).__name__}) and other arrays of the call are on the GPU; "
            "nothing travels by itself: copy one of them to where the others are"
        )
    from fastindex.kernels.cuda import device as cuda

    reason = cuda.why_unavailable()
    if reason is not None:
        raise FastIndexError(f"no kernel can run on the GPU: {reason}")
    if _library(value) == "torch":
        return _from_torch(value)
    if cuda.SIMULATED:
        array = value._ary
        strides, read_only = array.strides, not array.flags.writeable
        return DeviceArray(array.ctypes.data, array.shape, strides, array.dtype, 0, 0, "numba", read_only, value)
    interface = None
    if _library(value) not in _BY_DLPACK:
        with contextlib.suppress(AttributeError, RuntimeError, TypeError, ValueError):
            interface = value.__cuda_array_interface__
    return _from_dlpack(value, name) if interface is None else _from_interface(value, interface)


def _from_interface(value: Any, interface: dict[str, Any]) -> DeviceArray:
    from fastindex.kernels.cuda import device as cuda

    library = _library(value)
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
        int(address or 0), shape, strides, dtype, device, int(stream or 0), library, bool(read_only), value
    )


def _from_torch(value: Any) -> DeviceArray:
    torch = sys.modules["torch"]
    dtype = _dtype_named(str(value.dtype).removeprefix("torch."))
    if dtype is None:
        raise ArgumentTypeError(f"tensors of {value.dtype} have no counterpart here; give a view as another dtype")
    device = int(value.device.index)
    stream = int(torch.cuda.current_stream(device).cuda_stream)
    strides = tuple(int(stride) * dtype.itemsize for stride in value.stride())
    shape = tuple(int(size) for size in value.shape)
    # A lazy conjugate or negative: what is in memory is not what the tensor says.
    lazy = value.is_conj() or value.is_neg()
    if lazy:
        value = value.resolve_conj().resolve_neg()
        strides = tuple(int(stride) * dtype.itemsize for stride in value.stride())
    return DeviceArray(int(value.data_ptr()), shape, strides, dtype, device, stream, "torch", lazy, value)


def _dtype_named(name: str) -> np.dtype[Any] | None:
    import ml_dtypes

    found = getattr(ml_dtypes, name, None)
    if found is None:
        try:
            found = np.dtype(name)
        except TypeError:
            return None
    return np.dtype(found)


# DLPack

_CUDA_DEVICES = (2, 13)
_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_DLPACK_FLOATS = {
    7: "float8_e3m4",
    8: "float8_e4m3",
    9: "float8_e4m3b11fnuz",
    10: "float8_e4m3fn",
    11: "float8_e4m3fnuz",
    12: "float8_e5m2",
    13: "float8_e5m2fnuz",
    14: "float8_e8m0fnu",
}


class _DLTensor(ctypes.Structure):
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


def dlpack_tensor(capsule: Any) -> _DLTensor:
    """Give the tensor that a DLPack capsule holds; the capsule keeps it alive."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return _DLTensor.from_address(pointer(capsule, b"dltensor"))


def dlpack_dtype(code: int, bits: int) -> np.dtype[Any] | None:
    """Give the dtype for DLPack's type code and bits, or None.

    Examples
    --------
    >>> dlpack_dtype(4, 16), dlpack_dtype(1, 32)
    (dtype(bfloat16), dtype('uint32'))
    """
    if code in _DLPACK_FLOATS and bits == 8:
        return _dtype_named(_DLPACK_FLOATS[code])
    kind = _DLPACK_KINDS.get(code)
    return _dtype_named("bool" if kind == "bool" and bits == 8 else f"{kind}{bits}")


def _from_dlpack(value: Any, name: str) -> DeviceArray:
    # Stream 1 is the legacy default stream: the producer makes its contents ready there.
    capsule = value.__dlpack__(stream=1)
    tensor = dlpack_tensor(capsule)
    dtype = dlpack_dtype(tensor.code, tensor.bits) if tensor.lanes == 1 else None
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
    library = _library(value)
    return DeviceArray(address, shape, strides, dtype, tensor.device_id, 0, library, True, (capsule, value))


# New arrays


def new_device_array(like: DeviceArray, shape: tuple[int, ...], dtype: Any, stream: int) -> tuple[Any, DeviceArray]:
    """Give an uninitialised array of the library of `like`, on its device, and what describes it.

    Libraries that lack the dtype get unsigned integers of its width. Libraries that cannot be asked for an array get
    Numba's.

    Raises
    ------
    DeviceMemoryError
        It does not fit.
    """
    dtype = np.dtype(dtype)
    try:
        if like.library == "torch":
            array = _new_torch(like.device, shape, dtype, stream)
        elif like.library == "cupy":
            array = _new_cupy(like.device, shape, dtype, stream)
        else:
            array = _new_numba(shape, dtype, stream)
    except Exception as error:
        if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
            size = math.prod(shape) * dtype.itemsize
            raise DeviceMemoryError(
                f"the GPU has no room for {size} bytes more; free arrays, or go through the host in pieces "
                "with fastindex.cuda.relayout_through_device"
            ) from error
        raise
    described = as_device_array(array, "the result")
    return array, described


def _new_numba(shape: tuple[int, ...], dtype: np.dtype[Any], stream: int) -> Any:
    from fastindex.kernels.cuda import device as cuda

    return cuda.new_array(shape, dtype, stream)


def _new_cupy(device: int, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int) -> Any:
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(device):
        current = cupy.cuda.get_current_stream()
        with current if current.ptr == stream else _cupy_stream(cupy, stream):
            try:
                return cupy.empty(shape, dtype)
            except (TypeError, ValueError):
                return cupy.empty(shape, f"u{dtype.itemsize}")


class _Stream:
    """A stream by its handle, as libraries take it from each other."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def _cupy_stream(cupy: Any, handle: int) -> Any:
    if handle == 0:
        return cupy.cuda.Stream.null
    # CuPy 14 warns of ExternalStream; before, there is nothing else.
    make = getattr(cupy.cuda.Stream, "from_external", None)
    return cupy.cuda.ExternalStream(handle) if make is None else make(_Stream(handle))


def _torch_stream(torch: Any, handle: int, device: int) -> Any:
    # `ExternalStream(0)` would be a new stream of torch's pool, not the default stream (pytorch #182960).
    return torch.cuda.get_stream_from_external(handle, device) if handle else torch.cuda.default_stream(device)


def _new_torch(device: int, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int) -> Any:
    torch = sys.modules["torch"]
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype) or found.itemsize != dtype.itemsize or _is_shell(dtype):
        found = bits[dtype.itemsize]
    current = torch.cuda.current_stream(device)
    on = current if current.cuda_stream == stream else _torch_stream(torch, stream, device)
    with torch.cuda.device(device), torch.cuda.stream(on):
        return torch.empty(shape, dtype=found, device=f"cuda:{device}")


def _is_shell(dtype: np.dtype[Any]) -> bool:
    """Whether torch has the name of a packed type but no values of it."""
    return dtype.name in ("int1", "int2", "int4", "uint1", "uint2", "uint4")


# Streams


def kept_by_library(array: DeviceArray, handle: int) -> bool:
    """Have the library of an array keep its memory until the work so far on a stream is done; whether it does.

    Libraries reuse freed memory in the order of the stream that it was allocated on. JAX has streams of its own.
    """
    if array.library in _BY_DLPACK:
        return False
    if array.stream == handle:
        return True
    if array.library == "torch":
        array.owner.record_stream(_torch_stream(sys.modules["torch"], handle, array.device))
        return True
    return False


def stream_handle(stream: Any, arrays: tuple[DeviceArray, ...]) -> int:
    """Give the handle of the stream to use: `stream`, of any library, or the one the first array is ready on.

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
    if _library(stream) == "numba":
        from fastindex.kernels.cuda import device as cuda

        return cuda.stream_handle(stream)
    raise ArgumentTypeError(f"stream must be a CUDA stream or its handle, got {type(stream).__name__}")


def require_one_device(arrays: tuple[DeviceArray, ...]) -> int:
    """Give the device all arrays are on.

    Raises
    ------
    FastIndexError
        They are on several.
    """
    devices = sorted({array.device for array in arrays})
    if len(devices) > 1:
        raise FastIndexError(f"the arrays of a call must be on one GPU, these are on the devices {devices}")
    return devices[0]


def require_writable(out: DeviceArray, others: tuple[DeviceArray, ...], name: str = "out") -> None:
    """Check an output.

    Raises
    ------
    FastIndexError
        It is read-only, or shares memory with another array of the call.
    """
    if out.read_only:
        raise FastIndexError(f"{name} is read-only; give a writable array")
    begin, end = out.extent
    for other in others:
        first, last = other.extent
        if first < end and begin < last:
            raise FastIndexError(f"{name} overlaps the input or another output; give it memory of its own")
