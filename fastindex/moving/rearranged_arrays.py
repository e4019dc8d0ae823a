"""`rearrange`: split, merge and reorder the dimensions of arrays of any library."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import Casting, check_cast, check_casting
from fastindex.algebra.sides import RegroupedShape, RegroupedStrides
from fastindex.arrays.arrays import check_no_overlap, check_target, described, element_strides
from fastindex.arrays.buffers import aligned_bytes
from fastindex.arrays.engines import engine_of, place_of
from fastindex.arrays.fills import element_type_of, one_value, value_bytes, wanted_type
from fastindex.core.element_types import ElementType
from fastindex.core.foreign_arrays import has_tangent, host_array, host_target, tracing_library
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError, check_flag
from fastindex.lazy import hook
from fastindex.moving.requests import Operand, Request, execute
from fastindex.patterns.grammar import (
    MOVED_AS,
    Pattern,
    Sides,
    check_not_padded,
    check_options,
    checked_sizes,
    parse_pattern,
    sides_of,
    solved,
)
from fastindex.runtime.threads import check_threads

Pad = Callable[[Any, list[tuple[int, int]]], Any]
Transpose = Callable[[Any, list[int]], Any]
Flip = Callable[[Any, tuple[int, ...]], Any]


def rearranged(
    array: Any, pattern: Pattern, sizes: Mapping[str, int], is_padded: bool, pad: Pad, transpose: Transpose, flip: Flip
) -> Any:
    """Pad, split, reverse, transpose and merge an array with a library's own functions.

    Parameters
    ----------
    array : array
        An array with a ``reshape`` method.
    pattern : Pattern
    sizes : mapping of str to int
    is_padded : bool
        As `pad` of `rearrange`.
    pad, transpose, flip : callable
        The library's functions. `pad` takes the elements to add before and after each dimension; `transpose` takes the
        order of dimensions; `flip` takes those to reverse.

    Examples
    --------
    >>> from fastindex.patterns.grammar import parse_pattern
    >>> rearranged(np.arange(6), parse_pattern("(a b) -> b a"), {"b": 2}, False, np.pad, np.transpose, np.flip)
    array([[0, 2, 4],
           [1, 3, 5]])
    """
    whole, known = solved(pattern, tuple(array.shape), sizes, None, is_padded)
    padding = [
        math.prod(known[name] for name in group) - size for group, size in zip(whole.source, array.shape, strict=True)
    ]
    if any(padding):
        for group, missing in zip(whole.source, padding, strict=True):
            check_not_padded(whole, group if missing else ())
        array = pad(array, [(0, size) for size in padding])
    before = [name for group in whole.source for name in group]
    after = [name for group in whole.destination for name in group]
    split = array.reshape([known[name] for name in before])
    backwards = tuple(d for d, name in enumerate(before) if name in whole.backwards)
    if backwards:
        split = flip(split, backwards)
    merged = [math.prod(known[name] for name in group) for group in whole.destination]
    return transpose(split, [before.index(name) for name in after]).reshape(merged)


def by_jax(array: Any, pattern: Pattern, sizes: Mapping[str, int], is_padded: bool, fill: Any) -> Any:
    """Rearrange an array by ``jax.numpy``, which traces the operations."""
    jnp = sys.modules["jax"].numpy
    value = one_value(np.dtype(array.dtype), fill)

    def pad(whole: Any, widths: Sequence[tuple[int, int]]) -> Any:
        return jnp.pad(whole, widths, constant_values=value)

    return rearranged(array, pattern, sizes, is_padded, pad, jnp.transpose, jnp.flip)


def by_torch(tensor: Any, pattern: Pattern, sizes: Mapping[str, int], is_padded: bool, fill: Any) -> Any:
    """Rearrange a tensor by PyTorch, which traces the operations."""
    torch = sys.modules["torch"]

    def pad(whole: Any, widths: Sequence[tuple[int, int]]) -> Any:
        name = str(whole.dtype).removeprefix("torch.")
        dtype = ElementType.from_dtype_name(name, "PyTorch").numpy_dtype
        value = one_value(dtype, fill).item()
        return torch.nn.functional.pad(whole, [size for pair in reversed(widths) for size in pair], value=value)

    # Copy, as for all other arrays: where nothing moves, PyTorch returns a view.
    return rearranged(tensor, pattern, sizes, is_padded, pad, torch.permute, torch.flip).clone(
        memory_format=torch.contiguous_format
    )


def rearrange(
    array: Any,
    pattern: str,
    /,
    *,
    out: Any = None,
    dtype: Any = None,
    casting: Casting = "same_kind",
    pad: bool = False,
    fill: Any = None,
    threads: int | None = None,
    **sizes: Any,
) -> Any:
    """Split, merge and reorder the dimensions of an array, as `einops.rearrange` does, but faster.

    Parameters
    ----------
    array : array of any strides and dtype, or a list of arrays of one shape
        Of NumPy, JAX, PyTorch, a CUDA library or Dask. A list is stacked along a first dimension.
    pattern : str
        einops' grammar: names, ``()`` around the axes of one dimension, ``1``, ``...``. Also ``-d`` on the right side:
        the axis d in reverse order, as ``"(two n) k -> (-two n) k"`` swaps the halves of the rows.
    out : array, optional
        Output, of the dimensions of the result; it must not overlap `array`.
    dtype : dtype, ElementType or str, optional
        Dtype of the result, by default that of `out` or of `array`; elements are cast during the move. Only for arrays
        without a gradient.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for this cast, as for `pack`.
    pad : bool
        Whether a dimension that is split is padded to a multiple, if the sizes do not divide it.
    fill : number, optional
        Value for padding, in range of the dtype of the result; zero by default.
    threads : int, optional
        The most threads to use.
    **sizes : int
        Sizes of axes that do not follow from the array. The size of an axis with the name of an option cannot be given.

    Returns
    -------
    array
        An array of the library of `array`, contiguous, never a view of `array`; or `out`. For a Dask array, a lazy
        array. PyTorch gradients propagate through the call. Inside a function that JAX or PyTorch traces (``jax.jit``,
        ``grad``, ``vmap``, ``torch.vmap``, ``torch.export``), the library's own reshapes and transposes are used.

    Raises
    ------
    FastIndexError
        The pattern is invalid, or the sizes do not fit it.
    ArgumentTypeError
        `casting` does not allow the dtype.
    UnsupportedError
        A cast of a Dask array, of a tensor with a gradient, or of complex numbers; `out` for a tensor with a gradient;
        `out` or a cast of a traced array; an axis in reverse order of an array on a GPU, or of a dimension that is
        padded.

    Notes
    -----
    The grammar is that of ``einops/parsing.py``. einops' ``repeat`` and ``reduce`` are not supported: every axis has to
    be on both sides.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> images = np.arange(24).reshape(2, 3, 4)
    >>> fi.rearrange(images, "b c (w two) -> (b w) (two c)", two=2).shape
    (4, 6)
    >>> fi.rearrange(np.arange(1, 6), "(block eight) -> block eight", eight=4, pad=True)
    array([[1, 2, 3, 4],
           [5, 0, 0, 0]])
    >>> fi.rearrange(np.array([[1.5, 2], [3, 4]], np.float32), "a b -> b a", dtype="bf16")
    array([[1.5, 3],
           [2, 4]], dtype=bfloat16)
    >>> fi.rearrange(np.array([[1, 2], [3, 4], [5, 6], [7, 8]]), "(two n) k -> (-two n) k", two=2)
    array([[5, 6],
           [7, 8],
           [1, 2],
           [3, 4]])
    """
    parsed = parse_pattern(pattern)
    options = {"out": out, "dtype": dtype, "fill": fill, "threads": threads}
    check_options(parsed, [(name, value is not None) for name, value in options.items()])
    check_options(
        parsed, [("casting", not isinstance(casting, str) or casting != "same_kind"), ("pad", pad is not False)]
    )
    check_threads(threads)
    check_casting(casting)
    check_flag("pad", pad)
    array = _stacked(array) if isinstance(array, list) else array
    if dtype is not None:
        _require_castable(array)
    given = tuple(sorted(checked_sizes(parsed, sizes.items()).items()))
    if fill is not None and not pad:
        raise FastIndexError("fill= needs pad=True: it is the value of the padding")
    library = _library_in_charge(array)
    if library is not None:
        if out is not None or dtype is not None:
            raise UnsupportedError(f"inside a function that {library} traces, rearrange takes neither out nor dtype")
        return (by_jax if library == "jax" else by_torch)(array, parsed, dict(given), bool(pad), fill)
    if out is not None:
        _require_no_gradient((array, out))
    place = place_of(array, None, out) or (None if out is None else place_of(out, None, out))
    if place == "dask":
        return hook("dask.rearrange")(array, pattern, pad=bool(pad), fill=fill, **dict(given))
    if place is not None:
        if parsed.backwards:
            raise UnsupportedError(
                f"axes run backwards in host memory only, and this array is on a GPU: reverse it there first; in "
                f"{pattern!r}"
            )
        found = _sides(pattern, tuple(int(size) for size in array.shape), bool(pad), given)
        if out is None and getattr(array, "requires_grad", False):
            return _with_gradient()(array, found, fill, None)
        return hook("cuda.rearrange")(array, found, fill, dtype, casting, out)
    if out is None and getattr(array, "requires_grad", False):
        found = _sides(pattern, tuple(array.shape), bool(pad), given)
        return _with_gradient()(array, found, fill, threads)
    values = host_array(array)
    found = _sides(pattern, values.shape, bool(pad), given)
    result = _result(values, found, out, _wanted_dtype(values, out, dtype, casting))
    _move(values, result, found, fill, threads, casting)
    return _like(array, result) if out is None else out


@lru_cache(maxsize=512)
def _sides(pattern: str, dimensions: tuple[int, ...], pad: bool, sizes: tuple[tuple[str, int], ...]) -> Sides:
    return sides_of(parse_pattern(pattern), dimensions, dict(sizes), None, pad)


# Moving


def _move(
    values: NDArray[Any], result: NDArray[Any], sides: Sides, fill: Any, threads: int | None, casting: str = "unsafe"
) -> None:
    is_cast = values.dtype != result.dtype
    if result.size == 0:
        return
    if not is_cast and (values.dtype.itemsize not in MOVED_AS or values.dtype.hasobject):
        _move_by_numpy(values, result, sides, fill)
        return
    if is_cast:
        if not values.dtype.isnative:
            values = values.astype(values.dtype.newbyteorder("="))
        names = ElementType.from_numpy_dtype(values.dtype).name, ElementType.from_numpy_dtype(result.dtype).name
    else:
        names = (MOVED_AS[values.dtype.itemsize],) * 2
    pattern = value_bytes(result.dtype.newbyteorder("=") if is_cast else result.dtype, fill)
    source, target = _regrouped_shapes(names, sides)
    strides = None if 0 in values.shape else element_strides(described(values))
    read = strides and RegroupedStrides(strides.dimensions, strides.strides, sides.coordinates[0], sides.variables)
    is_buffer = result.flags.c_contiguous and (result.dtype.isnative or not is_cast)
    both = Operand(values, source, read), Operand(result, target, target if is_buffer else None)
    execute(Request(*both, pattern, casting != "unsafe", threads, None))


@lru_cache(maxsize=512)
def _regrouped_shapes(names: tuple[str, str], sides: Sides) -> tuple[RegroupedShape, RegroupedShape]:
    return regrouped((Shape(names[0], sides.dimensions[0]), Shape(names[1], sides.dimensions[1])), sides)


def regrouped(shapes: tuple[Shape, Shape], sides: Sides) -> tuple[RegroupedShape, RegroupedShape]:
    """Return two shapes as sides of a move."""
    source, target = (
        RegroupedShape(shape, coordinates, sides.variables)
        for shape, coordinates in zip(shapes, sides.coordinates, strict=True)
    )
    return source, target


def _move_by_numpy(values: NDArray[Any], result: NDArray[Any], sides: Sides, fill: Any) -> None:
    """Move elements that kernels do not support, such as Python objects, by a gather with computed positions."""
    places = np.full(sides.dimensions[1], -1, np.int64)
    _move(np.arange(values.size).reshape(values.shape), places, sides, -1, None)
    if (places < 0).any():
        result[...] = one_value(values.dtype, fill)
    result[places >= 0] = values.reshape(-1)[places[places >= 0]]


# Arrays of other libraries


@cache
def _with_gradient() -> Any:
    """Return the differentiable rearrangement of PyTorch tensors; its gradient is the inverse rearrangement."""
    torch = sys.modules["torch"]

    def moved(tensor: Any, sides: Sides, fill: Any, threads: int | None) -> Any:
        if place_of(tensor) == "cuda":
            return hook("cuda.rearrange")(tensor, sides, fill, None, "no", None)
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
            return Rearranged.apply(gradient, context.sides.turned(), None, context.threads), None, None, None

    return Rearranged.apply


def _require_no_gradient(arrays: tuple[Any, ...]) -> None:
    """Raise UnsupportedError if a result in `out` would lose a gradient: PyTorch does not track it there either."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in arrays):
        raise UnsupportedError(
            "a result in out has no gradient: call without out, pass tensor.detach(), or call within torch.no_grad()"
        )


def _library_in_charge(array: Any) -> str | None:
    """Return the library that has to rearrange: it traces the array, or keeps its tangent."""
    if type(array) is np.ndarray:
        return None
    return tracing_library(array) or ("torch" if has_tangent(array) else None)


def _stacked(arrays: list[Any]) -> Any:
    """Stack arrays of one shape, as einops does with lists."""
    if not arrays:
        raise FastIndexError("a list of arrays must not be empty")
    if engine_of(arrays) is not None:
        return sys.modules["dask.array"].stack(arrays)
    for name, kind in (("torch", "Tensor"), ("cupy", "ndarray"), ("jax", "Array")):
        library = sys.modules.get(name)
        if library is not None and isinstance(arrays[0], getattr(library, kind)):
            return (library.numpy if name == "jax" else library).stack(arrays)
    parts = [host_array(one) for one in arrays]
    if any(part.shape != parts[0].shape for part in parts):
        raise FastIndexError(
            f"the arrays of a list must have the same shape, got {', '.join(str(p.shape) for p in parts)}"
        )
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


def _wanted_dtype(values: NDArray[Any], out: Any, dtype: Any, casting: str) -> np.dtype[Any]:
    """Return the dtype of the result."""
    own = values.dtype
    if dtype is None and out is not None:
        dtype = out.dtype if isinstance(out, np.ndarray) else host_array(out).dtype
    if dtype is None or (isinstance(dtype, np.dtype) and dtype == own):
        return own
    wanted, kind = wanted_type(dtype), element_type_of(own)
    if kind is None:
        raise ArgumentTypeError(f"XLA has no element type for the dtype {own}, so it cannot be cast to {wanted}")
    check_cast(kind, wanted, casting)
    if kind == wanted:
        return own
    return dtype if isinstance(dtype, np.dtype) else wanted.numpy_dtype


def _require_castable(array: Any) -> None:
    """Reject casts of lazy arrays and of arrays with a gradient.

    Raises
    ------
    UnsupportedError
    """
    where = None
    if engine_of(array) is not None:
        where = "for Dask arrays"
    elif getattr(array, "requires_grad", False):
        where = "for tensors that require gradients"
    if where is not None:
        raise UnsupportedError(f"dtype= is not supported {where}: convert the array before or after")


def _result(values: NDArray[Any], sides: Sides, out: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the array to write to: `out` as an array, or a new one."""
    if out is None:
        return _new_array(sides.dimensions[1], dtype)
    target = host_target(out)
    found = described(target)
    if found.dtype != dtype:
        raise ArgumentTypeError(f"out must be of dtype {dtype}, got {found.dtype}")
    if found.shape != sides.dimensions[1]:
        raise FastIndexError(f"out must have the shape of the result, {sides.dimensions[1]}, got {found.shape}")
    check_target(found)
    check_no_overlap(found, (described(values),))
    return target
