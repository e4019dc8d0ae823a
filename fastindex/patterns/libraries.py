"""Arrays of other libraries: which of them rearranges an array itself, how it does that, and arrays of its own."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.fills import value_bytes
from fastindex.core.element_types import ElementType
from fastindex.core.foreign_arrays import has_tangent, host_array, tracing_library
from fastindex.errors import FastIndexError
from fastindex.patterns.axes import solved
from fastindex.patterns.grammar import Pattern

Pad = Callable[[Any, list[tuple[int, int]]], Any]
Transpose = Callable[[Any, list[int]], Any]


def rearranged(
    array: Any, pattern: Pattern, sizes: Mapping[str, int], is_padded: bool, pad: Pad, transpose: Transpose
) -> Any:
    """Return an array that is padded, split, transposed and merged.

    Parameters
    ----------
    array : array
        With ``reshape``.
    pattern : Pattern
    sizes : mapping of str to int
    is_padded : bool
        As `pad` of `rearrange`.
    pad, transpose : callable
        The library's functions: of the elements to add before and after each dimension, and of the order.

    Examples
    --------
    >>> from fastindex.patterns.grammar import parse_pattern
    >>> rearranged(np.arange(6), parse_pattern("(a b) -> b a"), {"b": 2}, False, np.pad, np.transpose)
    array([[0, 2, 4],
           [1, 3, 5]])
    """
    whole, known = solved(pattern, tuple(array.shape), sizes, None, is_padded)
    behind = [
        math.prod(known[name] for name in group) - size for group, size in zip(whole.source, array.shape, strict=True)
    ]
    if any(behind):
        array = pad(array, [(0, size) for size in behind])
    before = [name for group in whole.source for name in group]
    after = [name for group in whole.destination for name in group]
    split = array.reshape([known[name] for name in before])
    merged = [math.prod(known[name] for name in group) for group in whole.destination]
    return transpose(split, [before.index(name) for name in after]).reshape(merged)


def by_jax(array: Any, pattern: Pattern, sizes: Mapping[str, int], is_padded: bool, fill: Any) -> Any:
    """Rearrange an array by ``jax.numpy``, which traces what is done."""
    jnp = sys.modules["jax"].numpy
    value = np.frombuffer(value_bytes(np.dtype(array.dtype), fill), array.dtype)[0]

    def pad(whole: Any, widths: Sequence[tuple[int, int]]) -> Any:
        return jnp.pad(whole, widths, constant_values=value)

    return rearranged(array, pattern, sizes, is_padded, pad, jnp.transpose)


def by_torch(tensor: Any, pattern: Pattern, sizes: Mapping[str, int], is_padded: bool, fill: Any) -> Any:
    """Rearrange a tensor by PyTorch, which traces what is done."""
    torch = sys.modules["torch"]

    def pad(whole: Any, widths: Sequence[tuple[int, int]]) -> Any:
        name = str(whole.dtype).removeprefix("torch.")
        dtype = ElementType.from_dtype_name(name, "PyTorch").numpy_dtype
        value = np.frombuffer(value_bytes(dtype, fill), dtype)[0].item()
        return torch.nn.functional.pad(whole, [size for pair in reversed(widths) for size in pair], value=value)

    # A copy, as for all other arrays: where nothing moves, PyTorch's is a view.
    return rearranged(tensor, pattern, sizes, is_padded, pad, torch.permute).clone(
        memory_format=torch.contiguous_format
    )


def library_in_charge(array: Any) -> str | None:
    """Return the library that has to do it itself: it traces the array, or one of a list, or keeps its tangent."""
    for one in array if isinstance(array, list) else (array,):
        if type(one) is not np.ndarray:
            library = tracing_library(one) or ("torch" if has_tangent(one) else None)
            if library is not None:
                return library
    return None


def stacked(arrays: list[Any]) -> Any:
    """Stack arrays of one shape, as einops does with lists."""
    if not arrays:
        raise FastIndexError("a list of arrays has one at least")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(arrays[0], torch.Tensor):
        return torch.stack(arrays)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(arrays[0], jax.Array):
        return jax.numpy.stack(arrays)
    parts = [host_array(one) for one in arrays]
    if any(part.shape != parts[0].shape for part in parts):
        raise FastIndexError(f"the arrays of a list have one shape, got {', '.join(str(p.shape) for p in parts)}")
    return np.stack(parts)


def as_library_of(array: Any, result: NDArray[Any]) -> Any:
    """Return a result as an array of the library of the input."""
    if isinstance(array, np.ndarray):
        return result
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if result.dtype.isbuiltin == 1:
            return torch.from_numpy(result)
        integers = torch.from_numpy(result.view(np.int16 if result.itemsize == 2 else np.uint8))
        return integers.view(array.dtype)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return jax.device_put(result, array.sharding) if len(array.devices()) == 1 else jax.numpy.asarray(result)
    return result
