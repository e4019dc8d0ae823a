"""Task functions that workers run: the in-memory functions, applied to one block.

Distributed sends the type of an array as ``dtype.str`` unless its kind is "V". Among the types of ml_dtypes,
float8_e5m2 has the kind "f" and the name "<f1", which NumPy cannot parse: the receiver fails. Where Distributed is
loaded, this module makes it send the dtype itself, as Distributed does for kind "V".
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import MisfitError
from fastindex.algebra.forms import IndexProgram
from fastindex.arrays.fills import Casting, fill_pattern
from fastindex.arrays.index_arguments import as_integers_in_bulk, common_shape
from fastindex.core.shape import Shape
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
