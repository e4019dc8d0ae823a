"""Chunks of Dask arrays: segments of a buffer, rechunking, and the functions that workers run on one block.

A physical buffer is split into contiguous segments, each of which is the packed buffer of a box of the array.
Rechunking is done in fragments large enough for transfer between workers.

Distributed sends the type of an array as ``dtype.str`` unless its kind is "V". Among the types of ml_dtypes,
float8_e5m2 has the kind "f" and the name "<f1", which NumPy cannot parse: the receiver fails. Where Distributed is
loaded, this module makes it send the dtype itself, as Distributed does for kind "V".
"""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise, product
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import Casting, MisfitError
from fastindex.algebra.forms import IndexProgram
from fastindex.algebra.segments import Box, box_shape, box_steps, common_steps, first_box, is_contiguous, slab_order
from fastindex.arrays.arrays import common_shape
from fastindex.arrays.fills import fill_pattern
from fastindex.arrays.index_arguments import as_integers_in_bulk
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.index.executors import BadElementError, ErrorOf, new_outputs, run
from fastindex.moving.relayout_calls import pack, relayout, unpack

#: The value of `numpy.dtype.isbuiltin` for user-defined types, added by another library.
ADDED = 2


def _send_added_types() -> None:
    """Make Distributed, in this process, send the dtype itself if NumPy cannot parse its name."""
    from distributed.protocol import dask_serialize
    from distributed.protocol.numpy import serialize_numpy_ndarray

    def serialize(array: np.ndarray[Any, Any], context: Any = None) -> Any:
        header, frames = serialize_numpy_ndarray(array, context)
        if array.dtype.isbuiltin == ADDED and header.get("dtype") == (0, array.dtype.str):
            header["dtype"] = (1, pickle.dumps(array.dtype))
        return header, frames

    dask_serialize.register(np.ndarray)(serialize)


# A worker imports this module to run a task, and later sends the result.
if "distributed" in sys.modules:
    _send_added_types()


Start = tuple[int, ...]


@contextmanager
def _beginning_at(start: Start) -> Iterator[None]:
    """Report misfit values by their position in the whole array; the block begins at `start`."""
    try:
        yield
    except MisfitError as found:
        raise found.moved(start) from None


def pack_box(box: Any, of_box: tuple[Shape, Start], fill: bytes, casting: Casting, threads: int) -> Any:
    """Pack a box into its segment of the buffer."""
    shape, start = of_box
    with _beginning_at(start):
        return pack(_alone(box), shape, _fill(shape, fill), casting=casting, threads=threads)


def unpack_segment(segment: Any, of_box: tuple[Shape, Start], element_type: str, casting: Casting, threads: int) -> Any:
    """Unpack a segment of the buffer to its box."""
    shape, start = of_box
    with _beginning_at(start):
        return unpack(_alone(segment), shape, dtype=element_type, casting=casting, threads=threads)


def relayout_segment(
    segment: Any, of_box: tuple[Shape, Shape, Start], fill: bytes, casting: Casting, threads: int
) -> Any:
    """Convert a segment to the segment of the same box in another layout."""
    source, destination, start = of_box
    with _beginning_at(start):
        fill_value = _fill(destination, fill)
        return relayout(segment, source, destination, fill_value, casting=casting, threads=threads)


def cast_block(block: Any, element_type: str, casting: Casting, threads: int, block_info: Any = None) -> Any:
    """Cast the elements of a block."""
    shape = Shape(element_type, block.shape)
    with _beginning_at(tuple(begin for begin, _ in block_info[0]["array-location"])):
        return pack(block, shape, casting=casting, threads=threads).reshape(block.shape)


def _alone(block: Any) -> Any:
    """Unwrap a block: Dask passes contracted axes as nested lists, here of one block each."""
    while isinstance(block, list):
        (block,) = block
    return block


def _fill(shape: Shape, pattern: bytes) -> Any:
    """Return a fill value as a scalar array; None for the layout's own value, so that segments share plans."""
    if pattern == fill_pattern(shape):
        return None
    return np.frombuffer(pattern, shape.element_type.numpy_dtype).reshape(())


# Indices


def convert_block(
    place: tuple[slice, ...],
    *blocks: Any,
    program: IndexProgram,
    names: Sequence[str],
    error_of: ErrorOf,
    modes: Sequence[str],
    mark: bool,
    threads: int,
) -> NDArray[np.int64]:
    """Return the outputs of a program for a block; errors give positions in the whole array."""
    inputs = [as_integers_in_bulk(values, name) for values, name in zip(blocks, names, strict=True)]
    size, count = common_shape(inputs), len(program.outputs)
    (result,) = new_outputs(1, size if count == 1 else (count, *size))
    outputs = [result] if count == 1 else [result[d, ...] for d in range(count)]
    try:
        run(_same(program), inputs, outputs, size, modes=modes, mark=mark, threads=threads)
    except BadElementError as found:
        position = tuple(i + along.start for i, along in zip(found.position, place, strict=True))
        raise error_of(BadElementError(position, found.number, found.values)) from None
    return result


@lru_cache(maxsize=1024)
def _same(program: IndexProgram) -> IndexProgram:
    """Return the first of all equal programs, whose tables are already built."""
    return program


Chunks = tuple[tuple[int, ...], ...]

#: A segment may exceed the requested size by this factor before it is split, because of tile padding.
_TOLERANCE = 1.5
#: From row chunks to column chunks, every new chunk intersects every old one. Below this size of an intersection (a
#: piece), the fixed cost dominates: a copy, a part of a message, and a read and a write on disk.
_LEAST_PIECE_BYTES = 16 << 10


@dataclass(frozen=True)
class Segments:
    """A buffer split into contiguous segments.

    Attributes
    ----------
    shape : Shape
    edges : tuple of tuple of int
        The boundaries of the boxes along each dimension, from 0 to its size.
    dimensions : tuple of int
        The dimensions that are split, most major first. All but the last are split into the smallest possible boxes.
    """

    shape: Shape
    edges: Chunks
    dimensions: tuple[int, ...]
    _known: dict[tuple[tuple[int, bool], ...], Shape] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> tuple[object, ...]:
        return Segments, (self.shape, self.edges, self.dimensions)

    @property
    def chunks(self) -> Chunks:
        """The sizes of the boxes along each dimension of the array."""
        return tuple(tuple(b - a for a, b in pairwise(edges)) for edges in self.edges)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of boxes along each of `dimensions`."""
        return tuple(len(self.edges[d]) - 1 for d in self.dimensions)

    def places(self) -> Iterator[tuple[int, ...]]:
        """Yield the position of each segment in `counts`, in the order of the buffer."""
        return product(*map(range, self.counts))

    def box_shape(self, place: Sequence[int]) -> Shape:
        """Return the shape of a box, whose packed buffer is its segment.

        Examples
        --------
        >>> segments = cut(Shape.parse("f32[36,5]{1,0:T(8,128)}"), 8192)
        >>> [str(segments.box_shape(place)) for place in segments.places()]
        ['f32[8,5]{1,0:T(8,128)}', 'f32[16,5]{1,0:T(8,128)}', 'f32[12,5]{1,0:T(8,128)}']
        """
        at = dict(zip(self.dimensions, place, strict=True))
        ends = [(edges[at.get(d, 0)], edges[at.get(d, 0) + 1]) for d, edges in enumerate(self.edges)]
        # Boxes of equal size differ only at the end of a dimension, because of padding.
        key = tuple((b - a, b == size) for (a, b), size in zip(ends, self.shape.dimensions, strict=True))
        found = self._known.get(key)
        if found is None:
            box: Box = tuple(range(a, b) for a, b in ends)
            found = self._known[key] = box_shape(self.shape, box)
        return found

    def box_start(self, place: Sequence[int]) -> tuple[int, ...]:
        """Return the coordinates of the start of a box.

        Examples
        --------
        >>> segments = cut(Shape.parse("f32[36,5]{1,0:T(8,128)}"), 8192)
        >>> [segments.box_start(place) for place in segments.places()]
        [(0, 0), (8, 0), (24, 0)]
        """
        at = dict(zip(self.dimensions, place, strict=True))
        return tuple(edges[at.get(d, 0)] for d, edges in enumerate(self.edges))

    def lengths(self, itemsize: int) -> tuple[int, ...]:
        """Return the sizes of the segments in items of `itemsize` bytes, in the order of the buffer."""
        return tuple(self.box_shape(place).nbytes // itemsize for place in self.places())


def cut(
    shape: Shape,
    segment_bytes: float,
    most_bytes: float = 0,
    edges: Sequence[Iterable[int]] = (),
    byte_edges: Iterable[int] = (),
) -> Segments:
    """Split a buffer into segments.

    Parameters
    ----------
    shape : Shape
    segment_bytes : float
        The approximate size of a segment.
    most_bytes : float
        If the smallest segments along one dimension exceed this, a more minor dimension is split as well.
    edges : sequence of iterables of int
        Preferred boundaries along each dimension.
    byte_edges : iterable of int
        Preferred boundaries in the buffer, in bytes.

    Examples
    --------
    >>> shape = Shape.parse("f32[32,4096]{1,0:T(8,128)}")
    >>> cut(shape, 1 << 18).counts, cut(shape, 1 << 16).dimensions, cut(shape, 1 << 16).counts
    ((2,), (0, 1), (4, 2))
    """
    whole = tuple(max(size, 1) for size in shape.dimensions)
    steps, sizes, chosen = box_steps(shape), whole, []
    nbytes = shape.nbytes
    for d in slab_order(shape):
        if whole[d] <= steps[d] or shape.element_count == 0:
            continue
        smaller = (*sizes[:d], steps[d], *sizes[d + 1 :])
        if not is_contiguous(shape, smaller):
            break
        sizes = smaller
        chosen.append(d)
        nbytes = box_shape(shape, first_box(shape, sizes)).nbytes
        if nbytes <= max(segment_bytes, most_bytes):
            break
    found: list[tuple[int, ...]] = [(0, size) for size in shape.dimensions]
    for d in chosen[:-1]:
        found[d] = (*range(0, shape.dimensions[d], steps[d]), shape.dimensions[d])
    if chosen:
        d = chosen[-1]
        wanted = [edge / steps[d] for edge in edges[d]] if edges else []
        if len(chosen) == 1:
            wanted += [edge / nbytes for edge in byte_edges]
        found[d] = _edges_along(shape.dimensions[d], steps[d], wanted, max(segment_bytes / nbytes, 1))
    return Segments(shape, tuple(found), tuple(chosen))


def _edges_along(size: int, step: int, wanted: Iterable[float], most: float) -> tuple[int, ...]:
    """Split `size` elements at multiples of `step` near `wanted`; split parts of more than `most` steps evenly."""
    count = -(-size // step)
    marks = sorted({0, count, *(round(at) for at in wanted if 0 < round(at) < count)})
    cuts = [0]
    for begin, end in pairwise(marks):
        steps = end - begin
        pieces = min(math.ceil(steps / most), steps) if steps > most * _TOLERANCE else 1
        cuts += [begin + steps * i // pieces for i in range(1, pieces + 1)]
    return tuple(min(at * step, size) for at in cuts)


def cut_together(source: Segments, destination: Shape) -> tuple[Segments, Segments] | None:
    """Split two layouts of an array into segments of the same boxes in the same order.

    Parameters
    ----------
    source : Segments
        The boundaries along its last split dimension may change.
    destination : Shape

    Returns
    -------
    Segments of both, or None if there are none of about the size of those of `source`

    Examples
    --------
    >>> plain = cut(Shape.parse("f32[64,128]"), 8192)
    >>> [one.edges[0] for one in cut_together(plain, Shape.parse("f32[64,128]{1,0:T(8,128)}"))]
    [(0, 16, 32, 48, 64), (0, 16, 32, 48, 64)]
    >>> cut_together(plain, Shape.parse("f32[64,128]{0,1}")) is None
    True
    """
    shapes = source.shape, destination
    cut_dimensions = source.dimensions
    if not cut_dimensions:
        return Segments(source.shape, source.edges, ()), Segments(destination, source.edges, ())
    steps, d = common_steps(*shapes), cut_dimensions[-1]
    widest = max(b - a for a, b in pairwise(source.edges[d]))
    if steps[d] > 2 * widest:
        return None
    sizes = tuple(steps[k] if k in cut_dimensions else max(size, 1) for k, size in enumerate(destination.dimensions))
    for shape in shapes:
        in_order = tuple(k for k in slab_order(shape) if k in cut_dimensions)
        if in_order != cut_dimensions or not is_contiguous(shape, sizes):
            return None
    edges = list(source.edges)
    for k in cut_dimensions[:-1]:
        edges[k] = (*range(0, destination.dimensions[k], steps[k]), destination.dimensions[k])
    edges[d] = _edges_along(destination.dimensions[d], steps[d], [edge / steps[d] for edge in edges[d]], math.inf)
    first, second = (Segments(shape, tuple(edges), cut_dimensions) for shape in shapes)
    return first, second


# Rechunking


def check_known(array: da.Array, what: str = "the Dask array") -> None:
    """Require a Dask array with chunks of known sizes.

    Raises
    ------
    ArgumentTypeError
        Another array.
    FastIndexError
        A chunk of unknown size.
    """
    if not isinstance(array, da.Array):
        raise ArgumentTypeError(
            f"fastindex.dask takes Dask arrays, got {type(array).__name__}: call dask.array.from_array, or the "
            "function of this name in fastindex"
        )
    if any(math.isnan(size) for size in array.shape):
        raise FastIndexError(f"{what} has chunks of unknown size; call its compute_chunk_sizes() first")


def normal_chunks(chunks: Any, sizes: tuple[int, ...], dtype: Any, previous: Chunks | None = None) -> Chunks:
    """Return chunks, given in any form that Dask accepts, as the sizes along each dimension.

    Raises
    ------
    FastIndexError
        The chunks are invalid for an array of these sizes.

    Examples
    --------
    >>> normal_chunks(4, (10,), np.dtype("f4"))
    ((4, 4, 2),)
    """
    try:
        found: Chunks = da.core.normalize_chunks(chunks, sizes, dtype=dtype, previous_chunks=previous)
    except ZeroDivisionError:
        raise FastIndexError(f"chunks={chunks!r} have no elements; give each at least one") from None
    except (ValueError, TypeError) as error:
        raise FastIndexError(f"chunks={chunks!r} do not fit an array of {sizes}: {error}") from None
    if tuple(map(sum, found)) != sizes or any(size < 0 for along in found for size in along):
        raise FastIndexError(f"chunks={chunks!r} do not add up to an array of {sizes}")
    return found


def rechunked(array: da.Array, chunks: Any) -> da.Array:
    """Rechunk; user-defined types (ml_dtypes) are sent as integers, since Dask's shuffle rejects them.

    If the pieces would be too small, this rechunks in two steps, through intermediate chunks: the bytes are sent twice,
    in far fewer pieces.
    """
    wanted = normal_chunks(chunks, array.shape, array.dtype, array.chunks)
    if wanted == array.chunks:
        return array
    if array.dtype.isbuiltin == ADDED:
        bits = array.view(np.dtype(f"u{array.dtype.itemsize}"))
        return rechunked(bits, wanted).view(array.dtype)
    if is_in_small_pieces(array.chunks, wanted, array.dtype.itemsize):
        array = array.rechunk(between(array.chunks, wanted))
    return array.rechunk(wanted)


def is_in_small_pieces(old: Chunks, new: Chunks, itemsize: int) -> bool:
    """Whether rechunking splits chunks into many small pieces; small shifts of chunk boundaries do not count.

    Examples
    --------
    >>> rows, columns = ((1,) * 4096, (4096,)), ((4096,), (1,) * 4096)
    >>> is_in_small_pieces(rows, columns, 4), is_in_small_pieces(rows, ((2,) * 2048, (4096,)), 4)
    (True, False)
    """
    piece = math.prod(min(max(a), max(b)) for a, b in zip(old, new, strict=True)) * itemsize
    smallest = min(math.prod(map(max, old)), math.prod(map(max, new))) * itemsize
    return piece < _LEAST_PIECE_BYTES and 16 * piece < smallest


def between(old: Chunks, new: Chunks) -> Chunks:
    """Return intermediate chunks: along each dimension, about the geometric mean of the old and the new size.

    Examples
    --------
    >>> between(((1,) * 16, (16,)), ((16,), (1,) * 16))
    ((4, 4, 4, 4), (4, 4, 4, 4))
    """
    found = []
    for before, after in zip(old, new, strict=True):
        size = math.sqrt(max(before) * max(after))
        finer = before if len(before) >= len(after) else after
        together = max(round(size / max(max(finer), 1)), 1)
        edges = [0, *accumulate(finer)]
        kept = sorted({*edges[::together], edges[-1]})
        found.append(tuple(b - a for a, b in pairwise(kept)) or (0,))
    return tuple(found)
