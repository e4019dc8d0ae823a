"""Whole arrays in bounded memory: the functions of `fastindex.bulk.relayouts` with ``max_memory=``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.buffers import (
    buffer_bytes_in_place,
    check_disjoint,
    check_output_array,
    check_output_buffer,
    flat_buffer,
    logical_array,
    new_array,
    new_buffer,
    require_movable_pair,
)
from fastindex.arrays.fills import fill_pattern
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.moving.box_arrays import ArrayBoxes, BufferBoxes
from fastindex.moving.box_jobs import LEAST_MEMORY_BYTES, plan_boxes
from fastindex.moving.memory_maps import may_share_file, share_bytes
from fastindex.runtime.threads import check_threads

Boxes = ArrayBoxes | BufferBoxes


def pack(
    array: Any, shape: Shape, fill: Any, out: Any, casting: str, threads: int | None, max_memory: int
) -> NDArray[Any]:
    """Lay a logical array out as a physical buffer, as `fastindex.pack` does."""
    values = logical_array(array, shape, casting)
    result = new_buffer(shape) if out is None else check_output_buffer(out, shape)
    check_disjoint(result, values)
    own = Shape(ElementType.from_numpy_dtype(values.dtype), shape.dimensions)
    source, target = ArrayBoxes(own, values, False), _target_buffer(result, shape)
    _move(source, target, fill_pattern(shape, fill), casting, threads, max_memory)
    return result


def unpack(
    buffer: Any, shape: Shape, logical: Shape, out: Any, casting: str, threads: int | None, max_memory: int
) -> NDArray[Any]:
    """Read an array of `logical`'s element type from a physical buffer, as `fastindex.unpack` does."""
    slots = buffer_bytes_in_place(buffer, shape)
    result = new_array(logical) if out is None else check_output_array(out, logical)
    check_disjoint(result, slots)
    source, target = BufferBoxes(shape, slots, False), ArrayBoxes(logical, result, True)
    _move(source, target, bytes(logical.element_type.nbytes), casting, threads, max_memory)
    return result


def relayout(
    buffer: Any,
    source: Shape,
    destination: Shape,
    fill: Any,
    out: Any,
    casting: str,
    threads: int | None,
    max_memory: int,
) -> NDArray[Any]:
    """Move a physical buffer from one layout to another, as `fastindex.relayout` does."""
    require_movable_pair(source, destination, casting)
    check_threads(threads)
    slots = buffer_bytes_in_place(buffer, source)
    result = new_buffer(destination) if out is None else check_output_buffer(out, destination)
    check_disjoint(result, slots)
    target = _target_buffer(result, destination)
    _move(BufferBoxes(source, slots, False), target, fill_pattern(destination, fill), casting, threads, max_memory)
    return result


def _target_buffer(result: NDArray[Any], shape: Shape) -> BufferBoxes:
    return BufferBoxes(shape, flat_buffer(result, shape).view(np.uint8), True)


def _move(source: Boxes, target: Boxes, pattern: bytes, casting: str, threads: int | None, max_memory: int) -> None:
    _check_limit(max_memory)
    if source.mappings is None or target.mappings is None:
        is_shared = may_share_file(source.array, target.array)
    else:
        is_shared = share_bytes(source.mappings, target.mappings)
    if is_shared:
        raise FastIndexError("out is a map of the bytes of the file that the input is a map of; give it another file")
    for side in (source, target):
        side.drop()
    held = source.bytes_to_come + target.bytes_to_come
    with ExitStack() as stack:
        watched = [stack.enter_context(side.watched()) for side in (source, target)]

        def check(written: int) -> None:
            for map_ in watched:
                map_.check()

        plan_boxes(source, target, max_memory, threads, held, casting).run(pattern, check, threads)


def require_unbounded(max_memory: int | None) -> None:
    """Refuse a limit where the data is on the GPU.

    Raises
    ------
    UnsupportedError
    """
    if max_memory is not None:
        raise UnsupportedError(
            "max_memory is for arrays in the memory of the host; fastindex.cuda.relayout_through_device bounds what is "
            "on the GPU"
        )


def _check_limit(max_memory: int) -> None:
    """Raise unless a limit is a number of bytes that holds the program itself.

    Raises
    ------
    ArgumentTypeError, FastIndexError
    """
    if isinstance(max_memory, bool) or not hasattr(max_memory, "__index__"):
        raise ArgumentTypeError(f"max_memory is a number of bytes, got {max_memory!r}")
    if max_memory.__index__() < LEAST_MEMORY_BYTES:
        raise FastIndexError(
            f"max_memory: {max_memory} bytes do not hold the program itself; give at least {LEAST_MEMORY_BYTES}, "
            f"which is {LEAST_MEMORY_BYTES >> 20} MiB"
        )
