"""The tasks that a worker runs: the functions for arrays in memory, on one block."""

from __future__ import annotations

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
from fastindex.dask.travelling import let_added_types_travel
from fastindex.index.bad_elements import BadElementError, ErrorOf
from fastindex.index.executors import new_outputs, run
from fastindex.moving.relayout_calls import pack, relayout, unpack

# A worker that imports this module to run a task also sends the results.
if "distributed" in sys.modules:
    let_added_types_travel()


Start = tuple[int, ...]


@contextmanager
def _beginning_at(start: Start) -> Iterator[None]:
    """Name what does not fit by its place in the whole array, of which a block begins at `start`."""
    try:
        yield
    except MisfitError as found:
        raise found.moved(start) from None


def pack_box(box: Any, of_box: tuple[Shape, Start], fill: bytes, casting: Casting, threads: int) -> Any:
    """Return the segment of a box."""
    shape, start = of_box
    with _beginning_at(start):
        return pack(_alone(box), shape, _fill(shape, fill), casting=casting, threads=threads)


def unpack_segment(segment: Any, of_box: tuple[Shape, Start], element_type: str, casting: Casting, threads: int) -> Any:
    """Return the box of a segment."""
    shape, start = of_box
    with _beginning_at(start):
        return unpack(_alone(segment), shape, dtype=element_type, casting=casting, threads=threads)


def relayout_segment(
    segment: Any, of_box: tuple[Shape, Shape, Start], fill: bytes, casting: Casting, threads: int
) -> Any:
    """Return the segment of a box in another layout."""
    source, destination, start = of_box
    with _beginning_at(start):
        fill_value = _fill(destination, fill)
        return relayout(segment, source, destination, fill_value, casting=casting, threads=threads)


def cast_block(block: Any, element_type: str, casting: Casting, threads: int, block_info: Any = None) -> Any:
    """Return a block with its elements cast."""
    shape = Shape(element_type, block.shape)
    with _beginning_at(tuple(begin for begin, _ in block_info[0]["array-location"])):
        return pack(block, shape, casting=casting, threads=threads).reshape(block.shape)


def _alone(block: Any) -> Any:
    """Unwrap a block: for axes that the result lacks, Dask passes lists, here of one block each."""
    while isinstance(block, list):
        (block,) = block
    return block


def _fill(shape: Shape, pattern: bytes) -> Any:
    """Return a fill as a scalar array; None for the layout's own, so that segments share their plans."""
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
    """Return the output of a program for a block, or all its outputs; errors name places in the whole array."""
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
    """Return the program that came first among equals, which has its tables already."""
    return program
