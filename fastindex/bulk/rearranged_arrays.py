"""`rearrange`: einops' patterns on arrays of NumPy, JAX, PyTorch, CUDA and Dask."""

from __future__ import annotations

import math
import sys
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arguments.addresses import address_of
from fastindex.arguments.arrays import check_apart, check_target, described, element_strides
from fastindex.arguments.buffers import aligned_bytes
from fastindex.arguments.engines import engine_of, require_lazy
from fastindex.cpu.movements import movement
from fastindex.cpu.threads import check_threads
from fastindex.cuda.arrays import on_gpu
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.interop.host_arrays import host_array
from fastindex.lowering.index.regrouped import RegroupedShape, RegroupedStrides, Strides
from fastindex.patterns.axes import MOVED_AS, Sides, sides_of
from fastindex.patterns.grammar import checked_sizes, parse_pattern
from fastindex.shapes.shape import Shape


def rearrange(
    array: Any,
    pattern: str,
    *,
    out: Any = None,
    pad: bool = False,
    fill: Any = None,
    threads: int | None = None,
    **sizes: Any,
) -> Any:
    """Split, merge and reorder the dimensions of an array, as `einops.rearrange` does; faster.

    Parameters
    ----------
    array : array of any strides and dtype, or a list of arrays of one shape
        Of NumPy, JAX, PyTorch, a CUDA library or Dask. A list is stacked along a first dimension.
    pattern : str
        einops' grammar: names, ``()`` for what is one dimension, ``1``, ``...``.
    out : array, optional
        Where to write: of the dimensions of the result and the dtype of `array`; it may not overlap `array`.
    pad : bool
        Whether a dimension that is split is padded up to a multiple, where it does not divide.
    fill : number, optional
        What padding gets, zero by default.
    threads : int, optional
        The most threads to use.
    **sizes : int
        The sizes of axes that do not follow from the array.

    Returns
    -------
    array
        Of the library of `array`, contiguous, never a view of it; or `out`. For a Dask array, a lazy one. The gradient
        of a PyTorch tensor goes back through it.

    Raises
    ------
    FastIndexError
        The pattern, or sizes that do not fit it.
    ArgumentTypeError
        `out` has another dtype.
    Notes
    -----
    The grammar is that of ``einops/parsing.py``.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> images = np.arange(24).reshape(2, 3, 4)
    >>> fi.rearrange(images, "b c (w two) -> (b w) (two c)", two=2).shape
    (4, 6)
    >>> fi.rearrange(np.arange(1, 6), "(block eight) -> block eight", eight=4, pad=True)
    array([[1, 2, 3, 4],
           [5, 0, 0, 0]])
    """
    check_threads(threads)
    parsed = parse_pattern(pattern)
    given = tuple(sorted(checked_sizes(parsed, sizes.items()).items()))
    if fill is not None and not pad:
        raise FastIndexError("fill= is what pad=True pads with")
    if on_gpu((array, out) if out is not None else array, None):
        from fastindex.cuda.relayouts import rearrange as rearrange_on_gpu

        found = _sides(pattern, tuple(int(size) for size in array.shape), bool(pad), given)
        return rearrange_on_gpu(array, found, fill, out)
    engine = engine_of(array)
    if engine is not None:
        require_lazy(out=out)
        return engine.rearrange(array, pattern, pad=bool(pad), fill=fill, **dict(given))
    if isinstance(array, list):
        array = _stacked(array)
    if out is None and getattr(array, "requires_grad", False):
        found = _sides(pattern, tuple(array.shape), bool(pad), given)
        return _with_gradient()(array, found, fill, threads)
    values = host_array(array)
    found = _sides(pattern, values.shape, bool(pad), given)
    result = _new_array(found.dimensions[1], values.dtype) if out is None else _checked_out(out, values, found)
    _move(values, result, found, fill, threads)
    return _like(array, result) if out is None else out


@lru_cache(maxsize=512)
def _sides(pattern: str, dimensions: tuple[int, ...], pad: bool, sizes: tuple[tuple[str, int], ...]) -> Sides:
    return sides_of(parse_pattern(pattern), dimensions, dict(sizes), None, pad)


# Moving


def _move(values: NDArray[Any], result: NDArray[Any], sides: Sides, fill: Any, threads: int | None) -> None:
    width = values.dtype.itemsize
    if result.size == 0:
        return
    if width not in MOVED_AS or values.dtype.hasobject:
        _move_by_numpy(values, result, sides, fill)
        return
    pattern = _pattern(values.dtype, fill)
    target = result if result.flags.c_contiguous else _new_array(result.shape, result.dtype)
    destination = _regrouped_shape(width, sides, 1)
    strides = element_strides(described(values))
    moved = None
    if strides is not None and 0 not in values.shape:
        moved = movement(_regrouped_strides(strides, sides), destination)
    if moved is None:
        values = np.ascontiguousarray(values)
        moved = movement(_regrouped_shape(width, sides, 0), destination)
    assert moved is not None
    moved.run(address_of(values), address_of(target), pattern, threads)
    if target is not result:
        from fastindex.bulk.strided_copies import copyto

        copyto(result, target, threads=threads)


@lru_cache(maxsize=512)
def _regrouped_shape(width: int, sides: Sides, side: int) -> RegroupedShape:
    shape = Shape(MOVED_AS[width], sides.dimensions[side])
    return RegroupedShape(shape, sides.coordinates[side], sides.variables)


def _regrouped_strides(strides: Strides, sides: Sides) -> RegroupedStrides:
    return RegroupedStrides(strides.dimensions, strides.strides, sides.coordinates[0], sides.variables)


def _move_by_numpy(values: NDArray[Any], result: NDArray[Any], sides: Sides, fill: Any) -> None:
    """Move elements that no kernel moves, such as Python objects, by looking their places up."""
    places = np.full(sides.dimensions[1], -1, np.int64)
    _move(np.arange(values.size).reshape(values.shape), places, sides, -1, None)
    if (places < 0).any():
        result[...] = fill if fill is not None else np.zeros((), values.dtype)[()]
    result[places >= 0] = values.reshape(-1)[places[places >= 0]]


def _pattern(dtype: np.dtype[Any], fill: Any) -> bytes:
    if fill is None:
        return bytes(dtype.itemsize)
    value = np.asarray(fill)
    if value.ndim:
        raise ArgumentTypeError(f"fill must be one value, got {fill!r}")
    with np.errstate(all="ignore"):
        made = value.astype(dtype)
    if dtype.kind in "iu" and value.dtype.kind in "iufb" and made.item() != value.item():
        raise FastIndexError(f"fill must be a value of {dtype}, got {fill!r}")
    return made.tobytes()


# Arrays of other libraries


@cache
def _with_gradient() -> Any:
    """Return the rearrangement of a PyTorch tensor whose gradient is the rearrangement back."""
    torch = sys.modules["torch"]

    def moved(tensor: Any, sides: Sides, fill: Any, threads: int | None) -> Any:
        values = host_array(tensor)
        result = _new_array(sides.dimensions[1], values.dtype)
        _move(values, result, sides, fill, threads)
        return _like(tensor, result)

    class Rearranged(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(context: Any, tensor: Any, sides: Sides, fill: Any, threads: int | None) -> Any:
            context.sides, context.threads = sides, threads
            return moved(tensor, sides, fill, threads)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return moved(gradient, context.sides.turned(), None, context.threads), None, None, None

    return Rearranged.apply


def _stacked(arrays: list[Any]) -> Any:
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


def _like(array: Any, result: NDArray[Any]) -> Any:
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


def _new_array(dimensions: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.hasobject or not dtype.itemsize:
        return np.empty(dimensions, dtype)
    nbytes = math.prod(dimensions) * dtype.itemsize
    return aligned_bytes(nbytes).view(dtype).reshape(dimensions)


def _checked_out(out: Any, values: NDArray[Any], sides: Sides) -> NDArray[Any]:
    target = out if isinstance(out, np.ndarray) else host_array(out)
    if not isinstance(out, np.ndarray) and not np.may_share_memory(target, host_array(out)):
        raise ArgumentTypeError(f"out must be an array that can be written in place, got {type(out).__name__}")
    found = described(target)
    if found.dtype != values.dtype:
        raise ArgumentTypeError(f"out must be of dtype {values.dtype}, got {found.dtype}")
    if found.shape != sides.dimensions[1]:
        raise FastIndexError(f"the result has the dimensions {sides.dimensions[1]}, out has {found.shape}")
    check_target(found)
    check_apart(found, (described(values),))
    return target
