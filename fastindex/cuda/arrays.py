"""CUDA arrays of any library: their dtype, shape and address, found without a copy.

Inputs are anything with ``__cuda_array_interface__`` (Numba, CuPy) or with DLPack (JAX), and torch tensors.
Sources: the CUDA Array Interface, version 3 (Numba documentation); ``dlpack.h``, version 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fastindex.arrays.arrays import Array, contiguous_strides
from fastindex.arrays.engines import BY_DLPACK, is_cuda_array, library_of
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError


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
        return DeviceArray(
            self.address + number * self.strides[0],
            self.shape[1:],
            self.strides[1:],
            self.dtype,
            self.read_only,
            self.device,
            self.stream,
            self.library,
            self.owner,
        )


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
    if cuda.SIMULATED:
        array = value._ary
        read_only = not array.flags.writeable
        address = array.ctypes.data
        return DeviceArray(address, array.shape, array.strides, array.dtype, read_only, 0, 0, "numba", value)
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
    # DLPack's number for the default stream is 1; the simulator has none.
    stream = None if cuda_module().SIMULATED else handle or 1
    try:
        capsule = value.__dlpack__(stream=stream)
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
