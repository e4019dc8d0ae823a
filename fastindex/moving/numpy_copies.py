"""`copyto`, `ascontiguousarray` and `asfortranarray` with NumPy's results and errors, faster for transposed arrays.

Large arrays of dtypes without Python objects are copied by fastindex's kernels. Everything else, errors included, is
passed on to NumPy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import RULES, Cast, Casting, cast_of
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced, strided_copy
from fastindex.arrays.arrays import address_of, broadcast_strides, strides_overlap
from fastindex.arrays.engines import on_gpu
from fastindex.arrays.fills import element_type_of
from fastindex.errors import UnsupportedError
from fastindex.lazy import hook
from fastindex.moving.moves.casts.plan import cast_passes
from fastindex.moving.moves.nests.plan import passes
from fastindex.moving.problem import PLANS_KEPT
from fastindex.runtime.first_answer import bytes_by_numpy, numpys_time
from fastindex.runtime.machine import this_machine
from fastindex.runtime.threads import thread_count

#: With fewer elements NumPy finishes before a kernel starts: a call of a kernel takes about 3 microseconds, NumPy about
#: 0.3 nanoseconds per element of 1 to 8 bytes while the array is in cache (AMD EPYC, 2026-11-22).
SMALLEST_COUNT = 12_000
#: Between contiguous arrays NumPy reaches the speed of one thread; only a second one or non-temporal stores are faster.
SMALLEST_CONTIGUOUS_BYTES = 8 << 20

_ndarray = np.ndarray
# `numpy.copyto` without its dispatch on ``__array_function__``, which takes a third of a small call.
_copyto_of_arrays = getattr(np.copyto, "_implementation", np.copyto)


def copyto(
    dst: Any, src: Any, *, casting: Casting = "same_kind", threads: int | None = None, stream: Any = None
) -> None:
    """Copy values from one array to another, broadcasting as necessary, as `numpy.copyto` does, but faster.

    Parameters
    ----------
    dst : ndarray or CUDA array
        The array to copy into, of any strides.
    src : array_like
        The values, of any strides, which broadcast to the shape of `dst`. Another dtype is cast during the move. Where
        both share memory, the result is as if `src` had been copied first. For a CUDA array, a CUDA array or a
        scalar.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for another dtype; ml_dtypes registers the rules of its types with NumPy. Kernels do not warn of
        overflow.
    threads : int, optional
        The most threads to use.
    stream : CUDA stream, optional
        Where to run if the arrays are on the GPU; see `fastindex.cuda`.

    Raises
    ------
    TypeError, ValueError
        As for `numpy.copyto`.
    ArgumentTypeError
        CUDA arrays whose dtypes `casting` does not allow, or one array on the host and one on the GPU.
    FastIndexError
        Elements of the CUDA array to copy into overlap each other.
    KeyboardInterrupt
        The call was interrupted. Some elements of `dst` hold new values, the others their old ones; no further writes
        happen. Copies that are left to NumPy, such as those of floats to integers, are completed first.

    Examples
    --------
    >>> import numpy as np
    >>> import fastindex as fi
    >>> images = np.arange(24).reshape(1, 2, 3, 4)
    >>> channels_last = np.empty((1, 3, 4, 2), images.dtype)
    >>> fi.numpy.copyto(channels_last, images.transpose(0, 2, 3, 1))
    >>> channels_last[0, 0].tolist()
    [[0, 12], [1, 13], [2, 14], [3, 15]]
    """
    if (
        threads is None
        and stream is None
        and type(dst) is _ndarray
        and type(src) is _ndarray
        and dst.size < SMALLEST_COUNT
    ):
        _copyto_of_arrays(dst, src, casting)
        return
    if threads is not None:
        thread_count(threads)
    if on_gpu((dst, src), stream):
        hook("cuda.copyto")(dst, src, casting, stream)
    elif type(dst) is not _ndarray or dst.size < SMALLEST_COUNT or not _copied(dst, src, threads, casting):
        np.copyto(dst, src, casting)


def ascontiguousarray(a: Any, *, threads: int | None = None, stream: Any = None) -> Any:
    """Return a contiguous array in memory, in C order, as `numpy.ascontiguousarray` does, but faster.

    Parameters
    ----------
    a : array_like or CUDA array
        An array that is already contiguous is returned unchanged.
    threads : int, optional
        The most threads to use.
    stream : CUDA stream, optional
        Where to run if the array is on the GPU; see `fastindex.cuda`.

    Returns
    -------
    ndarray, or a CUDA array of the library of `a`
        Of the dtype of `a`, with at least one dimension.

    Examples
    --------
    >>> import numpy as np
    >>> import fastindex as fi
    >>> fi.numpy.ascontiguousarray(np.arange(6).reshape(2, 3).T).strides
    (16, 8)
    """
    return _contiguous(a, "C", threads, stream)


def asfortranarray(a: Any, *, threads: int | None = None, stream: Any = None) -> Any:
    """Return an array laid out in Fortran order in memory, as `numpy.asfortranarray` does, but faster.

    Parameters, results and errors are those of `ascontiguousarray`; only the order differs: the first dimension is the
    most minor.

    Examples
    --------
    >>> import numpy as np
    >>> import fastindex as fi
    >>> fi.numpy.asfortranarray(np.arange(6).reshape(2, 3)).strides
    (8, 16)
    """
    return _contiguous(a, "F", threads, stream)


def _contiguous(a: Any, order: Literal["C", "F"], threads: int | None, stream: Any) -> Any:
    if threads is not None:
        thread_count(threads)
    if (type(a) is not _ndarray or stream is not None) and on_gpu(a, stream):
        return hook("cuda.contiguous")(a, order, stream)
    if type(a) is _ndarray and a.size >= SMALLEST_COUNT and not a.flags[order]:
        result = np.empty(a.shape, a.dtype, order)
        if _copied(result, a, threads):
            return result
    return np.ascontiguousarray(a) if order == "C" else np.asfortranarray(a)


def _copied(dst: NDArray[Any], src: Any, threads: int | None, casting: Casting = "no") -> bool:
    """Copy, or return False where NumPy has to copy, or to raise an error."""
    if type(src) is not _ndarray:
        return False
    dtype = dst.dtype
    if dtype.hasobject or not dst.flags.writeable or casting not in RULES:
        return False
    cast = None
    if src.dtype is not dtype and src.dtype != dtype:
        cast = _cast_of(src.dtype, dtype, casting)
        if cast is None:
            return False
    elif dst.nbytes < SMALLEST_CONTIGUOUS_BYTES and src.flags.forc and src.strides == dst.strides:
        return False
    source_strides = src.strides if src.shape == dst.shape else _broadcast_strides(src, dst.shape)
    if source_strides is None or np.may_share_memory(dst, src):
        return False
    if _left_to_numpy(dst.nbytes):
        with numpys_time():
            np.copyto(dst, src, casting)
        return True
    steps = _steps(dst.shape, cast or dst.itemsize, source_strides, dst.strides)
    if steps is None:
        return False
    steps.run(address_of(src), address_of(dst), b"\0", threads)
    return True


def _left_to_numpy(nbytes: int) -> bool:
    """Whether NumPy copies now: while no kernel is loaded, or, for any size, where there is no compiler."""
    try:
        return bytes_by_numpy(nbytes)
    except UnsupportedError:
        return True


def _broadcast_strides(src: NDArray[Any], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the strides of `src` broadcast to `shape`, or None where it does not broadcast."""
    missing = len(shape) - src.ndim
    if missing < 0 or any(size not in (1, wanted) for size, wanted in zip(src.shape, shape[missing:], strict=True)):
        return None
    return broadcast_strides(src.shape, src.strides, shape)


@lru_cache(maxsize=512)
def _cast_of(source: np.dtype[Any], target: np.dtype[Any], casting: Casting) -> Cast | None:
    """Return the cast from one dtype to another; None where NumPy has to do it, or to reject it.

    The result of casting floats to integers depends on the processor where they overflow; it is left to NumPy.
    """
    kinds = element_type_of(source), element_type_of(target)
    if kinds[0] is None or kinds[1] is None or not (source.isnative and target.isnative):
        return None
    if any(one.is_complex or one.bits < 8 for one in kinds if one is not None and one != "pred"):
        return None
    if (kinds[0].is_floating and kinds[1].is_integral) or not np.can_cast(source, target, casting):
        return None
    return cast_of(kinds[0], kinds[1])


@lru_cache(maxsize=PLANS_KEPT)
def _steps(
    dimensions: tuple[int, ...], what: Cast | int, source_strides: tuple[int, ...], strides: tuple[int, ...]
) -> Any:
    """Plan a copy of elements of some size, or a cast; plans are cached.

    None where elements of the destination overlap, or where strides of a cast are not multiples of the element size.
    """
    from fastindex.moving.compiled_passes import CompiledPasses

    if not isinstance(what, Cast):
        if strides_overlap(dimensions, what, strides):
            return None
        nest, width = strided_copy(dimensions, what, source_strides, strides)
        return CompiledPasses(passes(RelayoutLoops((nest,), ()), width, this_machine()))
    read, width = what.source.nbytes, what.target.nbytes
    steps = [one for one in zip(dimensions, source_strides, strides, strict=True) if one[0] > 1]
    if strides_overlap(dimensions, width, strides) or any(there % read or here % width for _, there, here in steps):
        return None
    nest = coalesced(Nest(tuple(Loop(size, there // read, here // width) for size, there, here in steps)))
    return CompiledPasses(cast_passes(RelayoutLoops((nest,), ()), what, this_machine()))
