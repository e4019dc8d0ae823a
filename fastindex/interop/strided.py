"""Arrays with strides: NumPy's, CuPy's and PyTorch's, and what describes itself like them.

Strides say where the elements of an array lie but not always in which order its dimensions are: where a dimension has
size 1, or an array no elements, the order that is nearest to the default is taken. No data is copied or read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fastindex.errors import ArgumentTypeError, UnsupportedError
from fastindex.interop.host_arrays import host_array


class StridedArray(NamedTuple):
    """What an array with strides says of itself; `dtype_name` is NumPy's, or ml_dtypes's, name of its dtype."""

    dtype_name: str
    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    element_bytes: int


def read_strided(array: Any) -> StridedArray:
    """Read a NumPy or CuPy array, or anything with an array interface, ``__dlpack__`` on the CPU or ``__array__``.

    Raises
    ------
    UnsupportedError
        The bytes are in foreign order.
    ArgumentTypeError
        Not an array.

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
            f"{dtype!r} has its bytes in foreign order; convert with astype(dtype.newbyteorder('='))"
        )
    width = dtype.itemsize
    strides = strides_bytes or [width * math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    return StridedArray(dtype.name, sizes, tuple(strides), width)


def read_torch(tensor: Any) -> StridedArray:
    """Read a PyTorch tensor, whatever its memory format and device.

    Raises
    ------
    UnsupportedError
        Not a strided tensor, or a lazy conjugate or negative.

    Examples
    --------
    A process with PyTorch says::

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
    """Return the order of the dimensions of an array without gaps, most minor first; None where it has no elements.

    Parameters
    ----------
    array : StridedArray
    element_type : str
        XLA's name of the type, for error messages.

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
    # Equal strides overlap and are found below.
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
    """Put dimensions of size 1 into a minor-to-major order, each just major of the dimension that follows it."""
    complete = list(order)
    for d in range(len(sizes) - 1, -1, -1):
        if sizes[d] == 1:
            complete.insert(complete.index(d + 1) + 1 if d + 1 < len(sizes) else 0, d)
    return tuple(complete)
