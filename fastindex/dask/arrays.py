"""`pack`, `unpack` and `relayout` of Dask arrays, one task per segment of the buffer; `rearrange`, by Dask itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.layers import ArrayBlockwiseDep
from dask.utils import parse_bytes

from fastindex.algebra.casts import Casting, check_cast, check_casting
from fastindex.arrays.arrays import Array, check_buffer, check_dimensions
from fastindex.arrays.fills import array_dimensions, element_type_of, fill_pattern, logical_result, one_value
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import buffer_form, check_movable
from fastindex.dask.chunks import (
    Chunks,
    Segments,
    cast_block,
    check_known,
    cut,
    cut_together,
    normal_chunks,
    pack_box,
    rechunked,
    relayout_segment,
    unpack_segment,
)
from fastindex.errors import ArgumentTypeError
from fastindex.moving.rearranged_arrays import rearranged
from fastindex.moving.relayout_plans import require_movable_pair
from fastindex.patterns.grammar import checked_sizes, parse_pattern
from fastindex.runtime.threads import check_threads

#: One thread per task: the scheduler already runs one task per processor.
_THREADS_OF_A_TASK = 1


def pack(
    array: da.Array,
    shape: Shape | str,
    fill: Any = None,
    *,
    casting: Casting = "same_kind",
    chunks: Any = None,
    threads: int | None = None,
) -> da.Array:
    """Pack a logical Dask array into a physical buffer.

    Parameters
    ----------
    array : dask.array.Array of ``shape.dimensions``
    shape : Shape or str
    fill, casting : optional
        As for `fastindex.pack`.
    chunks : chunks of one dimension, optional
        Chunks of the result, in any form that Dask accepts. Default: contiguous segments of whole tiles, as close to
        the chunks of `array` as the layout allows, and about as large.
    threads : int, optional
        Maximum number of threads per task; 1 by default.

    Returns
    -------
    dask.array.Array of one dimension
        A lazy array with the values of `fastindex.pack`.

    Raises
    ------
    FastIndexError, ArgumentTypeError, UnsupportedError
        As `fastindex.pack`; or the chunks of `array` are of unknown size.

    Examples
    --------
    >>> import dask.array as da, fastindex as fi
    >>> x = da.arange(20_000, chunks=5_000).reshape(200, 100)
    >>> packed = fi.pack(x, "s64[200,100]{1,0:T(8,128)}")
    >>> packed.shape, packed.chunks
    ((25600,), ((6144, 6144, 7168, 6144),))
    """
    shape = as_shape(shape)
    check_movable(shape)
    _check_values(array, shape, casting)
    pattern = fill_pattern(shape, fill)
    most = _segment_bytes(array)
    dtype = buffer_form(shape).dtype
    if chunks is not None:
        wanted = normal_chunks(chunks, (shape.nbytes // dtype.itemsize,), dtype)
        most = max(wanted[0], default=1) * dtype.itemsize
        segments = cut(shape, most, _most_bytes(), byte_edges=_edges(wanted[0], dtype.itemsize))
    else:
        segments = cut(shape, most, _most_bytes(), [_edges(sizes) for sizes in array.chunks])
    result = _packed(array, segments, pattern, casting, _checked(threads))
    return result if chunks is None else rechunked(result, wanted)


def unpack(
    buffer: da.Array,
    shape: Shape | str,
    *,
    dtype: Any = None,
    casting: Casting = "same_kind",
    chunks: Any = None,
    threads: int | None = None,
) -> da.Array:
    """Unpack a physical buffer in a Dask array to the logical array.

    Parameters
    ----------
    buffer : dask.array.Array of one dimension
        As for `fastindex.unpack`.
    shape : Shape or str
    dtype, casting : optional
        As for `fastindex.unpack`.
    chunks : chunks, optional
        Chunks of the result, in any form that Dask accepts. Default: the boxes of contiguous segments, as close to the
        chunks of `buffer` as the layout allows, and about as large.
    threads : int, optional
        Maximum number of threads per task; 1 by default.

    Returns
    -------
    dask.array.Array of ``shape.dimensions``
        A lazy array with the values of `fastindex.unpack`.

    Raises
    ------
    FastIndexError, ArgumentTypeError, UnsupportedError
        As `fastindex.unpack`; or the chunks of `buffer` are of unknown size.

    Examples
    --------
    >>> import dask.array as da, fastindex as fi
    >>> fi.unpack(da.arange(8, chunks=4), "s64[2,3]{1,0:T(2,2)}").compute()
    array([[0, 1, 4],
           [2, 3, 6]])
    """
    shape = as_shape(shape)
    check_movable(shape)
    threads = _checked(threads)
    wanted = logical_result(shape, None, dtype, casting).element_type
    logical = _in_memory_order(buffer, shape)
    if logical is None:
        logical = _unpacked(buffer, _segments_of(buffer, shape), wanted, casting, threads)
    elif wanted != shape.element_type:
        logical = _cast(logical, wanted, casting, threads)
    return logical if chunks is None else rechunked(logical, chunks)


def relayout(
    buffer: da.Array,
    source: Shape | str,
    destination: Shape | str,
    fill: Any = None,
    *,
    casting: Casting = "same_kind",
    chunks: Any = None,
    threads: int | None = None,
    as_array: bool = False,
) -> da.Array:
    """Move a physical buffer in a Dask array from one layout to another.

    If both layouts split the array along the same dimensions, each segment of the result depends on one region of the
    source, and workers exchange only overlapping parts. Otherwise boxes are unpacked, rechunked by Dask (by the method
    of ``array.rechunk.method``), and packed.

    Parameters
    ----------
    buffer : dask.array.Array
        As for `fastindex.relayout`.
    source, destination : Shape or str
    fill, casting : optional
    chunks : chunks of one dimension, optional
        Chunks of the result, as for `pack`.
    threads : int, optional
        Maximum number of threads per task; 1 by default.
    as_array : bool
        Return an array with the dimensions of `destination` in memory order, not one dimension; `chunks` then refers
        to these dimensions.

    Returns
    -------
    dask.array.Array
        A lazy array with the values of `fastindex.relayout`.

    Raises
    ------
    FastIndexError, ArgumentTypeError, UnsupportedError
        As `fastindex.relayout`; or the chunks of `buffer` are of unknown size.

    Examples
    --------
    >>> import dask.array as da, fastindex as fi
    >>> fi.relayout(da.arange(6, chunks=3), "s64[2,3]{1,0}", "s64[2,3]{0,1}").compute()
    array([0, 3, 1, 4, 2, 5])
    """
    source, destination = as_shape(source), as_shape(destination)
    require_movable_pair(source, destination, casting)
    pattern, threads = fill_pattern(destination, fill), _checked(threads)
    logical = _in_memory_order(buffer, source)
    if as_array:
        array_dimensions(destination)
        wanted = destination.element_type
        values = unpack(buffer, source, dtype=wanted, casting=casting, threads=threads)
        result = values.transpose(destination.layout.minor_to_major[::-1])
        return result if chunks is None else rechunked(result, chunks)
    if logical is not None:
        return pack(logical, destination, fill, casting=casting, chunks=chunks, threads=threads)
    segments = _segments_of(buffer, source)
    both = cut_together(segments, destination)
    if both is None:
        # Send the narrower of the two element types between workers.
        narrow = min(source.element_type, destination.element_type, key=lambda one: one.bits)
        values = _unpacked(buffer, segments, narrow, casting, threads)
        return pack(values, destination, fill, casting=casting, chunks=chunks, threads=threads)
    result = _moved(buffer, both, pattern, casting, threads)
    return result if chunks is None else rechunked(result, chunks)


def rearrange(array: da.Array, pattern: str, /, *, pad: bool = False, fill: Any = None, **sizes: Any) -> da.Array:
    """Split, merge and reorder the dimensions of a Dask array.

    Parameters
    ----------
    array : dask.array.Array
    pattern, pad, fill, **sizes
        As for `fastindex.rearrange`.

    Returns
    -------
    dask.array.Array
        A lazy array with the values of `fastindex.rearrange`.

    Raises
    ------
    FastIndexError
        As `fastindex.rearrange`, or chunks of unknown size.

    Examples
    --------
    >>> import dask.array as da, fastindex as fi
    >>> fi.rearrange(da.arange(6, chunks=2), "(a b) -> b a", b=2).compute()
    array([[0, 2, 4],
           [1, 3, 5]])
    """
    parsed = parse_pattern(pattern)
    given = checked_sizes(parsed, sizes.items())
    check_known(array)
    value = one_value(array.dtype, fill)
    # Dask's reshape fails on some arrays with empty chunks.
    array = rechunked(array, tuple(tuple(size for size in sizes if size) or (0,) for sizes in array.chunks))

    def padded(whole: da.Array, widths: list[tuple[int, int]]) -> da.Array:
        # Dask's pad loses a byte order.
        return da.pad(whole, widths, constant_values=value).astype(array.dtype)

    found: da.Array = rearranged(array, parsed, given, pad, padded, da.transpose, da.flip)
    return found


# Task graphs


class _OfBoxes(ArrayBlockwiseDep):  # type: ignore[misc]
    """Blockwise argument of each task: the shape of its box in each layout, and the start of the box."""

    def __init__(self, segments: Sequence[Segments], chunks: Chunks) -> None:
        super().__init__(chunks)
        self.segments = tuple(segments)

    def __getitem__(self, place: tuple[int, ...]) -> Any:
        at = self._place_of(place)
        return (*(one.box_shape(at) for one in self.segments), self.segments[0].box_start(at))

    def _place_of(self, place: tuple[int, ...]) -> tuple[int, ...]:
        counts = self.segments[0].counts
        if len(place) == len(counts):
            return place
        return tuple(int(i) for i in np.unravel_index(place[0], counts)) if counts else ()

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return tuple((str(one.shape), one.edges) for one in self.segments)


def _packed(array: da.Array, segments: Segments, pattern: bytes, casting: str, threads: int) -> da.Array:
    shape, cut_dimensions = segments.shape, segments.dimensions
    dtype = buffer_form(shape).dtype
    boxes = rechunked(array, segments.chunks)
    along = tuple(segments.chunks[d] for d in cut_dimensions)
    lengths = segments.lengths(dtype.itemsize)
    is_flat = len(cut_dimensions) == 1
    packed = da.blockwise(
        pack_box,
        cut_dimensions,
        boxes,
        tuple(range(shape.rank)),
        _OfBoxes([segments], along),
        cut_dimensions,
        fill=pattern,
        casting=casting,
        threads=threads,
        align_arrays=False,
        adjust_chunks={cut_dimensions[0]: lengths} if is_flat else None,
        dtype=dtype,
        meta=np.empty((0,) * len(cut_dimensions), dtype),
        token="fastindex-pack",
    )
    if is_flat:
        return packed
    name = f"fastindex-segments-{tokenize(packed.name)}"
    renamed = {(name, i): (packed.name, *place) for i, place in enumerate(segments.places())}
    return _renamed(packed, name, renamed, (lengths,), dtype)


def _unpacked(buffer: da.Array, segments: Segments, element_type: ElementType, casting: str, threads: int) -> da.Array:
    shape, cut_dimensions = segments.shape, segments.dimensions
    pieces = rechunked(buffer, (segments.lengths(buffer.dtype.itemsize),))
    along = tuple(segments.chunks[d] for d in cut_dimensions)
    if len(cut_dimensions) != 1:
        name = f"fastindex-boxes-{tokenize(pieces.name, str(shape), segments.edges)}"
        renamed = {(name, *place): (pieces.name, i) for i, place in enumerate(segments.places())}
        pieces = _renamed(pieces, name, renamed, along, buffer.dtype)
    dtype = element_type.numpy_dtype
    return da.blockwise(
        unpack_segment,
        tuple(range(shape.rank)),
        pieces,
        cut_dimensions,
        _OfBoxes([segments], along),
        cut_dimensions,
        element_type=element_type.name,
        casting=casting,
        threads=threads,
        align_arrays=False,
        new_axes={d: shape.dimensions[d] for d in range(shape.rank) if d not in cut_dimensions},
        adjust_chunks=dict(zip(cut_dimensions, along, strict=True)),
        dtype=dtype,
        meta=np.empty((0,) * shape.rank, dtype),
        token="fastindex-unpack",
    )


def _moved(buffer: da.Array, both: tuple[Segments, Segments], pattern: bytes, casting: str, threads: int) -> da.Array:
    source, destination = both
    dtype = buffer_form(destination.shape).dtype
    pieces = rechunked(buffer, (source.lengths(buffer.dtype.itemsize),))
    return da.blockwise(
        relayout_segment,
        (0,),
        pieces,
        (0,),
        _OfBoxes(both, pieces.chunks),
        (0,),
        fill=pattern,
        casting=casting,
        threads=threads,
        align_arrays=False,
        adjust_chunks={0: destination.lengths(dtype.itemsize)},
        dtype=dtype,
        meta=np.empty((0,), dtype),
        token="fastindex-relayout",
    )


def _cast(array: da.Array, element_type: ElementType, casting: str, threads: int) -> da.Array:
    """Cast an array block by block; chunks stay the same."""
    dtype = element_type.numpy_dtype
    return array.map_blocks(
        cast_block,
        element_type=element_type.name,
        casting=casting,
        threads=threads,
        dtype=dtype,
        meta=np.empty((0,) * array.ndim, dtype),
    )


def _renamed(array: da.Array, name: str, graph: dict[Any, Any], chunks: Chunks, dtype: np.dtype[Any]) -> da.Array:
    """Return an array with the same blocks under new keys, with another number of dimensions."""
    layers = HighLevelGraph.from_collections(name, graph, dependencies=[array])
    return da.Array(layers, name, chunks, dtype=dtype, meta=np.empty((0,) * len(chunks), dtype))


# Arguments


def _segments_of(buffer: da.Array, shape: Shape) -> Segments:
    """Check a buffer, and split it into segments near its chunk boundaries."""
    strides = tuple(buffer.dtype.itemsize * math.prod(buffer.shape[d + 1 :]) for d in range(buffer.ndim))
    record = Array(0, buffer.shape, strides, buffer.dtype, True, None)
    check_buffer(record, shape, "a buffer")
    edges = _edges(buffer.chunks[0], buffer.dtype.itemsize)
    return cut(shape, _segment_bytes(buffer), _most_bytes(), byte_edges=edges)


def _in_memory_order(buffer: da.Array, shape: Shape) -> da.Array | None:
    """Return the logical array if the buffer has its dimensions in memory order; else None."""
    check_known(buffer)
    dimensions = buffer_form(shape).dimensions if buffer.ndim > 1 else None
    if dimensions is None or buffer.shape != dimensions or buffer.dtype != buffer_form(shape).dtype:
        return None
    return buffer.transpose(tuple(int(d) for d in np.argsort(shape.layout.minor_to_major[::-1])))


def _check_values(array: da.Array, shape: Shape, casting: str) -> None:
    check_known(array)
    check_casting(casting)
    dtype = shape.element_type.numpy_dtype
    found = element_type_of(array.dtype)
    if found != shape.element_type:
        if found is None:
            raise ArgumentTypeError(f"{shape.cut_text()} needs an array of dtype {dtype}, got {array.dtype}")
        check_cast(found, shape.element_type, casting)
    check_dimensions(array, shape, "the array")


def _checked(threads: int | None) -> int:
    check_threads(threads)
    return _THREADS_OF_A_TASK if threads is None else threads


def _edges(sizes: Sequence[int], unit: int = 1) -> list[int]:
    return [unit * edge for edge in accumulate(sizes)]


def _segment_bytes(array: da.Array) -> int:
    """Return the size of the largest chunk in bytes, the approximate size of segments."""
    largest: int = math.prod(max(sizes, default=1) for sizes in array.chunks) * array.dtype.itemsize
    return largest


def _most_bytes() -> int:
    most: int = parse_bytes(dask.config.get("array.chunk-size"))
    return most
