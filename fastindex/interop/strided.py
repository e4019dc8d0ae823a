"""Strided arrays: NumPy's, CuPy's, PyTorch's and similar ones. Only their descriptions are read, not their data.

Strides do not always determine the order of the dimensions: for dimensions of size 1 and for empty arrays, the order
closest to the default is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fastindex.errors import ArgumentTypeError, UnsupportedError
from fastindex.interop.host_arrays import host_array


class StridedArray(NamedTuple):
    """The description of a strided array; `dtype_name` is the name of its dtype in its own library."""

    dtype_name: str
    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    element_bytes: int


def read_strided(array: Any) -> StridedArray:
    """Describe a NumPy or CuPy array, or an object with an array interface, ``__dlpack__`` on the CPU or ``__array__``.

    Raises
    ------
    UnsupportedError
        The byte order is not native.
    ArgumentTypeError
        `array` is not an array.

    Examples
    --------
    >>> import numpy as np
    >>> read_strided(np.zeros((3, 5), np.float32))
    StridedArray(dtype_name='float32', sizes=(3, 5), strides_bytes=(20, 4), element_bytes=4)
    """
    if isinstance(array, np.ndarray | np.generic):
        view = np.asarray(array)
        return _checked(view.dtype, view.shape, view.strides)
    for name in ("__cuda_array_interface__", "__array_interface__"):
        described = getattr(array, name, None)
        if isinstance(described, dict):
            dtype = np.dtype(getattr(array, "dtype", described["typestr"]))
            return _checked(dtype, tuple(described["shape"]), described.get("strides"))
    if hasattr(array, "__dlpack__") or hasattr(array, "__array__"):
        return read_strided(host_array(array))
    raise ArgumentTypeError(f"from_numpy takes an array, got {type(array).__name__}")


def _checked(dtype: np.dtype[Any], sizes: tuple[int, ...], strides_bytes: Sequence[int] | None) -> StridedArray:
    if not dtype.isnative:
        raise UnsupportedError(
            f"the byte order of {dtype!r} is not native; convert with astype(dtype.newbyteorder('='))"
        )
    width = dtype.itemsize
    strides = strides_bytes or [width * math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    return StridedArray(dtype.name, sizes, tuple(strides), width)


def read_torch(tensor: Any) -> StridedArray:
    """Describe a PyTorch tensor, in any memory format and on any device.

    Raises
    ------
    UnsupportedError
        The tensor is not strided, or is a lazy conjugate or negative.

    Examples
    --------
    With PyTorch installed::

        read_torch(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)).strides_bytes
        (240, 4, 60, 12)
    """
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized or tensor.is_nested:
        raise UnsupportedError(f"only strided tensors have an XLA layout, not {tensor.layout} {tensor.dtype}")
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedError("the tensor is a lazy conjugate or negative; call resolve_conj() or resolve_neg()")
    width = tensor.element_size()
    strides = tuple([stride * width for stride in tensor.stride()])
    return StridedArray(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), strides, width)


def minor_to_major_of(array: StridedArray, element_type: str) -> tuple[int, ...] | None:
    """Return the order of the dimensions of an array, most minor first; None if it has no elements.

    Parameters
    ----------
    array : StridedArray
    element_type : str
        XLA's name of the element type, for error messages.

    Raises
    ------
    UnsupportedError
        No layout has these strides.

    Examples
    --------
    >>> minor_to_major_of(StridedArray("float32", (2, 3, 4), (48, 4, 12), 4), "f32")
    (1, 2, 0)
    """
    sizes, strides = array.sizes, array.strides_bytes
    what = f"{element_type}[{','.join(map(str, sizes))}] with byte strides {strides}"
    if 0 in sizes:
        return None
    longer = [d for d in range(len(sizes)) if sizes[d] > 1]
    for d in longer:
        if strides[d] < 0:
            raise UnsupportedError(f"dimension {d} of {what} runs backwards, which no layout does; copy the array")
        if strides[d] == 0:
            raise UnsupportedError(f"dimension {d} of {what} is broadcast, which no layout does; copy the array")
    # Equal strides overlap, which is detected below.
    order = sorted(longer, key=lambda d: (strides[d], -d))
    expected = array.element_bytes
    for d in order:
        if strides[d] != expected:
            words = "overlaps its neighbours" if strides[d] < expected else "has gaps"
            raise UnsupportedError(
                f"dimension {d} of {what} {words}: its stride would have to be {expected}; copy the array, "
                "or give padded_dimensions yourself if the buffer is padded"
            )
        expected *= sizes[d]
    return _with_size_1(order, sizes)


def _with_size_1(order: list[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Insert the dimensions of size 1 into a minor-to-major order, each next to the dimension that follows it."""
    complete = list(order)
    for d in range(len(sizes) - 1, -1, -1):
        if sizes[d] == 1:
            complete.insert(complete.index(d + 1) + 1 if d + 1 < len(sizes) else 0, d)
    return tuple(complete)
