"""The capsules and element types of DLPack, read through ctypes.

cuda.core has `StridedMemoryView` for this, but its version 1.2.2 rejects all eight 8-bit floating-point types of
DLPack ("Unsupported dtype. dtype code: 10"), which JAX arrays have. Source: ``dlpack.h``, version 1.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

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


def has(dtype: np.dtype[Any]) -> bool:
    """Whether DLPack has a number for a dtype.

    Examples
    --------
    >>> import ml_dtypes
    >>> has(np.dtype(ml_dtypes.bfloat16)), has(np.dtype(ml_dtypes.int4))
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
