"""Calls on arrays in host memory: arguments are checked once into a `Request`, which is planned and executed.

No code after the check raises an error about arguments or inspects them again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.shared_digits import Strides
from fastindex.arrays.arrays import (
    address_of,
    check_no_overlap,
    check_output_array,
    check_output_buffer,
    described,
    element_strides,
    flat_buffer,
)
from fastindex.arrays.buffers import (
    as_buffer_bytes,
    as_logical_array,
    buffer_bytes_in_place,
    logical_array,
    new_array,
    new_buffer,
)
from fastindex.arrays.fills import fill_pattern
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape
from fastindex.moving.box_arrays import ArrayBoxes, BufferBoxes, move_boxes
from fastindex.moving.movements import cast_between, movement
from fastindex.moving.numpy_copies import copyto
from fastindex.runtime.tuning import TUNING

# Thresholds that calls plan with; tests use others.
_TUNING = TUNING


class Operand(NamedTuple):
    """The source or the target of a call.

    Attributes
    ----------
    array : ndarray, or the description of an array on a GPU
        A physical buffer, or a logical array of any strides.
    plain : Shape
        The layout of the buffer; for an array, its element type and dimensions.
    side : Shape or Strides or None
        The layout or strides to plan with; None where strides are not whole numbers of elements: the elements then
        move through a temporary array of `plain`.
    """

    array: Any
    plain: Shape
    side: Shape | Strides | None


class Request(NamedTuple):
    """A checked call.

    Attributes
    ----------
    source, target : Operand
    pattern : bytes
        One unpacked value, written to padding.
    is_checked : bool
        Whether an integer out of range of a target type of fewer than 8 bits is an error.
    threads : int or None
    max_memory : int or None
        Limit for the resident memory of the process, in bytes.
    """

    source: Operand
    target: Operand
    pattern: bytes
    is_checked: bool
    threads: int | None
    max_memory: int | None


# Check


def packing(
    array: Any, shape: Shape, fill: Any, out: Any, casting: str, threads: int | None, max_memory: int | None
) -> Request:
    """Check the arguments of `fastindex.pack`."""
    values = (as_logical_array if max_memory is None else logical_array)(array, shape, casting)
    result = _output_buffer(out, shape, values)
    own = ElementType.from_numpy_dtype(values.dtype)
    source, target = _of_array(values, _plain(own, shape.dimensions)), Operand(result, shape, shape)
    return Request(source, target, fill_pattern(shape, fill), casting != "unsafe", threads, max_memory)


def unpacking(
    buffer: Any, shape: Shape, logical: Shape, out: Any, casting: str, threads: int | None, max_memory: int | None
) -> Request:
    """Check the arguments of `fastindex.unpack`; the result has the element type of `logical`."""
    slots = (as_buffer_bytes if max_memory is None else buffer_bytes_in_place)(buffer, shape)
    result = new_array(logical) if out is None else check_output_array(out, logical)
    if out is not None:
        check_no_overlap(described(result), (described(slots),))
    source, target = Operand(slots, shape, shape), _of_array(result, logical)
    return Request(source, target, bytes(logical.element_type.nbytes), casting != "unsafe", threads, max_memory)


def relaying(
    buffer: Any,
    sides: tuple[Shape, Shape],
    pattern: bytes,
    out: Any,
    is_checked: bool,
    threads: int | None,
    max_memory: int | None = None,
) -> Request:
    """Check the buffers of a relayout between two shapes that have been checked."""
    source, destination = sides
    slots = (as_buffer_bytes if max_memory is None else buffer_bytes_in_place)(buffer, source)
    result = _output_buffer(out, destination, slots)
    both = Operand(slots, source, source), Operand(result, destination, destination)
    return Request(*both, pattern, is_checked, threads, max_memory)


def _output_buffer(out: Any, shape: Shape, source: NDArray[Any]) -> NDArray[Any]:
    """Return the buffer to write to: `out`, checked, or a new one."""
    if out is not None:
        result = check_output_buffer(out, shape)
        check_no_overlap(described(result), (described(source),))
        return result
    return new_buffer(shape)


@lru_cache(maxsize=512)
def _plain(element_type: ElementType, dimensions: tuple[int, ...]) -> Shape:
    return Shape(element_type, dimensions)


def _of_array(array: NDArray[Any], plain: Shape) -> Operand:
    return Operand(array, plain, element_strides(described(array)))


# Plan and execute


def execute(one: Request) -> NDArray[Any]:
    """Execute a request, and return the target array."""
    if one.max_memory is not None:
        return execute_in_boxes(one, one.max_memory)
    read, written, side = one.source, one.target, one.target.side
    cast = cast_between(read.plain.element_type, written.plain.element_type, one.is_checked)
    if side is None:
        written, side = _staged(written, cast is not None), written.plain
    moved = None if read.side is None else movement(read.side, side, _TUNING, None, cast)
    if moved is None or not moved.exists:
        # Strides that share no loops with a layout: elements move through a contiguous array.
        if isinstance(read.side, Shape):
            written = _staged(written, cast is not None)
        else:
            read = read._replace(array=np.ascontiguousarray(read.array))
        moved = movement(read.plain, written.plain, _TUNING, None, cast)
    moved.run(address_of(read.array), address_of(written.array), one.pattern, one.threads)
    if written is not one.target:
        copyto(one.target.array, written.array, threads=one.threads)
    return one.target.array  # type: ignore[no-any-return]


def execute_in_boxes(one: Request, max_memory: int) -> NDArray[Any]:
    """Execute a request in bounded memory, box by box, and return the target array."""
    source, target = _boxes(one.source, False), _boxes(one.target, True)
    move_boxes(source, target, one.pattern, one.is_checked, one.threads, max_memory)
    return one.target.array  # type: ignore[no-any-return]


def _boxes(one: Operand, is_target: bool) -> BufferBoxes | ArrayBoxes:
    if one.side is one.plain:
        return BufferBoxes(one.plain, flat_buffer(one.array, one.plain).view(np.uint8), is_target)
    return ArrayBoxes(one.plain, one.array, is_target)


def _staged(target: Operand, is_cast: bool) -> Operand:
    """Return a contiguous operand, whose elements are copied to the target afterwards."""
    made = new_array(target.plain)
    return Operand(made if is_cast else made.view(target.array.dtype), target.plain, target.plain)
