"""The tasks that a worker runs: the functions for arrays in memory, on one block."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import MisfitError
from fastindex.arrays.fills import Casting, fill_pattern
from fastindex.arrays.index_arguments import OffenderFoundError, as_integers_in_bulk, common_shape
from fastindex.bulk.indices import bad_place, out_of_bounds
from fastindex.core.shape import Shape
from fastindex.dask.travelling import let_added_types_travel
from fastindex.index.executors import new_outputs, run
from fastindex.index.programs import conversion_program, linear_program, multi_program
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


# Indices; errors name an element by its place in the whole array.


def linear_block(
    place: tuple[slice, ...], *coordinates: Any, shape: Shape, modes: Sequence[str], unit: str, threads: int
) -> NDArray[np.int64]:
    """Return where the elements of a block of coordinates live."""
    inputs = [as_integers_in_bulk(values, f"multi_index[{d}]") for d, values in enumerate(coordinates)]
    size = common_shape(inputs)
    outputs = new_outputs(1, size)
    try:
        run(linear_program(shape, unit=unit), inputs, outputs, size, modes=tuple(modes), threads=threads)
    except OffenderFoundError as found:
        raise out_of_bounds(_moved(found, place), shape) from None
    return outputs[0]


def multi_block(
    place: tuple[slice, ...], places: Any, shape: Shape, mark: bool, unit: str, threads: int
) -> NDArray[np.int64]:
    """Return the coordinates of the elements in a block of places: an array of (rank, ...)."""
    inputs = (as_integers_in_bulk(places, "linear_index"),)
    size = common_shape(inputs)
    result = np.empty((shape.rank, *size), np.int64)
    outputs = [result[d, ...] for d in range(shape.rank)]
    try:
        run(multi_program(shape, unit=unit), inputs, outputs, size, mark=mark, threads=threads)
    except OffenderFoundError as found:
        raise bad_place(_moved(found, place), shape, unit) from None
    return result


def convert_block(
    place: tuple[slice, ...], places: Any, shapes: tuple[Shape, Shape], unit: str, threads: int
) -> NDArray[np.int64]:
    """Return where the elements at a block of places live in another layout."""
    inputs = (as_integers_in_bulk(places, "linear_index"),)
    size = common_shape(inputs)
    outputs = new_outputs(1, size)
    try:
        run(conversion_program(*shapes, unit=unit), inputs, outputs, size, threads=threads)
    except OffenderFoundError as found:
        raise bad_place(_moved(found, place), shapes[0], unit) from None
    return outputs[0]


def _moved(found: OffenderFoundError, place: tuple[slice, ...]) -> Any:
    offender = found.offender
    position = tuple(i + along.start for i, along in zip(offender.position, place, strict=True))
    return dataclasses.replace(offender, position=position)
