"""Arrays as sources and targets of box jobs; pages of memory maps do not stay resident.

Touching a page of a map makes it resident, and the system adds the pages around it. So boxes are copied in fragments,
and after each fragment the pages that it touched are dropped.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from fastindex.algebra.segments import Box, box_segments, segment_costs
from fastindex.arrays.arrays import described
from fastindex.core.integers import as_integer
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.lazy import lazy_property
from fastindex.moving.box_jobs import LEAST_MEMORY_BYTES, plan_boxes
from fastindex.moving.memory_maps import (
    Watched,
    bytes_to_come,
    drop_pages,
    faults_raised,
    mappings_of,
    may_share_file,
    share_bytes,
)

Bytes = NDArray[np.uint8]
Sizes = tuple[int, ...]

#: Bytes that one access may make resident on either side of it: a huge page of the page cache.
_AROUND_BYTES = 2 << 20
#: Bytes that a fragment may make resident.
_PIECE_BYTES = 16 << 20


class _Boxes:
    """Base class of boxes of buffers and of logical arrays.

    Parameters
    ----------
    shape : Shape
        The layout in which boxes are read and written.
    array : array
    is_target : bool
    """

    def __init__(self, shape: Shape, array: NDArray[Any], is_target: bool) -> None:
        self.shape = shape
        self.array = array
        self._is_target = is_target
        self.mappings = mappings_of(described(array))

    @property
    def steps(self) -> Sizes:
        """1 for each dimension: boxes may have any edges that the layout allows."""
        return (1,) * self.shape.rank

    @lazy_property
    def _is_mapped(self) -> bool:
        return any(mapping.is_shared for mapping in self.mappings or ())

    @property
    def bytes_to_come(self) -> int:
        """Bytes that the array itself may add to the resident memory."""
        return bytes_to_come(described(self.array), self.mappings, self._is_target)

    def costs(self, sizes: Sizes) -> tuple[int, int]:
        """Return the memory in bytes and the cost of a box of the given sizes."""
        nbytes, cost = segment_costs(self.shape, sizes)
        return nbytes + (_PIECE_BYTES if self._is_mapped else 0), cost

    def watched(self) -> AbstractContextManager[Watched]:
        """Return the context for accesses to the array: it raises where the file is shorter than the map.

        Raises
        ------
        OSError
            At the end of the block.
        """
        name, done = ("out", "written") if self._is_target else ("the input", "read")
        reason = f"a part of {name} could not be {done}: the file of its memory map is shorter than the map"
        if self._is_target:
            reason += ", or the disk is full; map it again before you go on"
        return faults_raised(self.array, OSError(errno.EIO, reason))

    def drop(self) -> None:
        """Drop all pages of memory maps."""
        drop_pages(self.mappings, *described(self.array).extent)

    def read(self, box: Box, into: Bytes) -> None:
        """Read a box as `box_shape` packs it."""
        for view, part in self.parts(box, into):
            np.copyto(part, view)
            self._drop(view)

    def write(self, box: Box, data: Bytes) -> None:
        """Write a box as `box_shape` packs it."""
        for view, part in self.parts(box, data):
            np.copyto(view, part)
            self._drop(view)

    def _drop(self, view: NDArray[Any]) -> None:
        if self._is_mapped and view.size:
            begin, end = described(view).extent
            first, last = described(self.array).extent
            drop_pages(self.mappings, max(begin - _AROUND_BYTES, first), min(end + _AROUND_BYTES, last))

    def parts(self, box: Box, content: Bytes) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Yield matching fragments of the array and of the content of a box."""
        at = 0
        for view in self._views(box):
            part = content[at : at + view.nbytes].view(view.dtype.newbyteorder("=")).reshape(view.shape)
            at += view.nbytes
            if self._is_mapped:
                yield from _pieces(view, part)
            else:
                yield view, part

    def _views(self, box: Box) -> list[NDArray[Any]]:
        """Return the parts of the array that hold a box, in the order in which `box_shape` packs them."""
        raise NotImplementedError


class BufferBoxes(_Boxes):
    """A physical buffer.

    Parameters
    ----------
    shape : Shape
    buffer : array of uint8 of one dimension, contiguous
    is_target : bool
    """

    def _views(self, box: Box) -> list[NDArray[Any]]:
        bits = self.shape.element_bits
        views = []
        for run in box_segments(self.shape, box):
            start, length = run.start * bits // 8, -(-run.length * bits // 8)
            strides = [stride * bits // 8 for stride in run.strides]
            writable = self._is_target
            views.append(as_strided(self.array[start:], (*run.counts, length), (*strides, 1), writeable=writable))
        return views


class ArrayBoxes(_Boxes):
    """A logical array of any strides and byte order; its boxes have the order of its memory.

    Parameters
    ----------
    shape : Shape
        The element type and dimensions of the array.
    array : array
    is_target : bool
    """

    def __init__(self, shape: Shape, array: NDArray[Any], is_target: bool) -> None:
        order = sorted(range(array.ndim), key=lambda d: -abs(array.strides[d]))
        super().__init__(shape.with_layout(Layout(tuple(reversed(order)))), array, is_target)
        # NumPy copies elements of user-defined types one by one, so copy their bits.
        bits = array.view(f"u{array.itemsize}") if array.dtype.isbuiltin == 2 else array
        self._ordered = bits.transpose(order)

    def _views(self, box: Box) -> list[NDArray[Any]]:
        order = reversed(self.shape.layout.minor_to_major)
        # The ellipsis keeps the result for zero dimensions an array, not a scalar.
        place: tuple[Any, ...] = (*(slice(box[d].start, box[d].stop) for d in order), ...)
        return [self._ordered[place]]


def _pieces(view: NDArray[Any], part: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Cut a view of a memory map, and the matching content, so that no fragment makes much memory resident."""
    touched = _touched_bytes(view)
    cut = next((d for d, size in enumerate(view.shape) if size > 1), None)
    if touched <= _PIECE_BYTES or cut is None:
        yield view, part
        return
    size = view.shape[cut]
    step = min(max(size * _PIECE_BYTES // touched, 1), size - 1)
    for begin in range(0, size, step):
        place = (slice(None),) * cut + (slice(begin, begin + step),)
        yield from _pieces(view[place], part[place])


def _touched_bytes(view: NDArray[Any]) -> int:
    """Return an upper bound of the resident bytes of a map after all elements of a view have been accessed."""
    run = view.itemsize
    rows = 1
    for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if rows == 1 and (size == 1 or abs(stride) == run):
            run *= size
        else:
            rows *= size
    span = view.itemsize + sum(abs(stride) * (size - 1) for size, stride in zip(view.shape, view.strides, strict=True))
    return min(math.prod((rows, run + 2 * _AROUND_BYTES)), span + 2 * _AROUND_BYTES) if view.size else 0


# Whole arrays in bounded memory

Boxes = BufferBoxes | ArrayBoxes


def move_boxes(
    source: Boxes, target: Boxes, pattern: bytes, is_checked: bool, threads: int | None, max_memory: int
) -> None:
    """Move an array box by box, so that the process never has more than `max_memory` bytes in memory.

    Parameters
    ----------
    source, target : BufferBoxes or ArrayBoxes
    pattern, is_checked, threads
        As for `plan_boxes` and `BoxJob.run`.
    max_memory : int

    Raises
    ------
    ArgumentTypeError, FastIndexError
        The limit is no integer or does not hold the program, or both sides are maps of the same bytes of a file.
    """
    _check_limit(max_memory)
    if source.mappings is None or target.mappings is None:
        is_shared = may_share_file(source.array, target.array)
    else:
        is_shared = share_bytes(source.mappings, target.mappings)
    if is_shared:
        raise FastIndexError("out and the input are maps of the same bytes of a file; map another file for out")
    for side in (source, target):
        side.drop()
    held = source.bytes_to_come + target.bytes_to_come
    with ExitStack() as stack:
        watched = [stack.enter_context(side.watched()) for side in (source, target)]

        def check(written: int) -> None:
            for map_ in watched:
                map_.check()

        job = plan_boxes(source, target, max_memory, threads, held, is_checked)
        job.run(pattern, check, threads)


def _check_limit(max_memory: int) -> None:
    if as_integer(max_memory, "max_memory, a number of bytes,") < LEAST_MEMORY_BYTES:
        raise FastIndexError(
            f"max_memory: {max_memory} bytes are too few for the program itself; give at least {LEAST_MEMORY_BYTES}, "
            f"which is {LEAST_MEMORY_BYTES >> 20} MiB"
        )
