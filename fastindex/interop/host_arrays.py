"""Other libraries' arrays in host memory as NumPy arrays, without a copy if possible."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.errors import UnsupportedError
from fastindex.interop.tracers import require_values

#: DLPack's device type for host memory.
_CPU = 1


def host_array(value: Any) -> NDArray[Any]:
    """Return an array, a nested sequence or another library's array as a NumPy array.

    PyTorch tensors and objects with ``__array__``, ``__array_interface__`` or only DLPack are supported.

    Raises
    ------
    UnsupportedError
        The array is on a device, has masked elements, has no values because a function is traced, or cannot be
        converted to a NumPy array.

    Examples
    --------
    >>> class OnlyDlpack:
    ...     __dlpack__ = np.zeros(3).__dlpack__
    ...     __dlpack_device__ = np.zeros(3).__dlpack_device__
    >>> host_array(OnlyDlpack()).shape
    (3,)
    """
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(value, masked.MaskedArray) and masked.is_masked(value):
        raise UnsupportedError("the array has masked elements, which have no values; fill them with array.filled(...)")
    require_values(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_array(torch, value)
    if hasattr(value, "__cuda_array_interface__"):
        raise UnsupportedError(f"the {type(value).__name__} is on a CUDA device; move it to the host")
    known = any(hasattr(value, name) for name in ("__array__", "__array_interface__", "__buffer__"))
    if known or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    device = value.__dlpack_device__()[0]
    if int(device) != _CPU:
        raise UnsupportedError(
            f"the {type(value).__name__} is on a device (DLPack type {int(device)}); move it to the host"
        )
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as error:
        raise UnsupportedError(f"NumPy cannot convert this {type(value).__name__} through DLPack: {error}") from error


def _torch_array(torch: Any, tensor: Any) -> NDArray[Any]:
    if tensor.device.type != "cpu":
        raise UnsupportedError(f"the tensor is on {tensor.device}; move it to the host with .cpu()")
    plain = tensor.detach().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if not name.startswith(("bfloat16", "float8_")):
        try:
            return np.asarray(plain.numpy())
        except (RuntimeError, TypeError) as error:
            if tensor.layout is not torch.strided:
                instead = "a tensor that is not strided has no place for each element: call its to_dense()"
            elif tensor.is_quantized:
                instead = "pass the codes, tensor.int_repr()"
            else:
                instead = "pass its bytes, tensor.view(torch.uint8)"
            raise UnsupportedError(f"NumPy has no array for this tensor of {tensor.dtype}; {instead}") from error
    # PyTorch cannot pass these types to NumPy, but integers of the same width.
    import ml_dtypes

    integers = plain.view(torch.int16 if tensor.element_size() == 2 else torch.uint8).numpy()
    return np.asarray(integers).view(getattr(ml_dtypes, name))
