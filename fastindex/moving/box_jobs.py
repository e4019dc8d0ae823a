"""Jobs on arrays larger than memory: boxes are read, moved and written, a few at a time.

A box owns whole segments of the buffer on both sides (`fastindex.algebra.segments`), so moving it is a relayout of a
small array. Where no box of a permitted size suits the tiles of both sides, boxes follow the tiles of the target, and
the enclosing box of the source is read for each.
"""

from __future__ import annotations

import math
import mmap
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import MisfitError
from fastindex.algebra.segments import (
    Box,
    Grid,
    box_shape,
    box_sizes,
    box_steps,
    covering,
    first_box,
    joint_steps,
    slab_order,
)
from fastindex.arrays.arrays import address_of
from fastindex.core.shape import Shape
from fastindex.core.sizes import slot_format
from fastindex.errors import FastIndexError
from fastindex.first_use import load
from fastindex.moving.movements import movement_between
from fastindex.moving.numpy_moves import SCRATCH_BYTES, scratch
from fastindex.runtime.first_answer import is_disabled, without_kernels
from fastindex.runtime.threads import run_chunks, thread_count

Bytes = NDArray[np.uint8]
Sizes = tuple[int, ...]

#: The lowest permitted limit: the interpreter and NumPy take about 50 MiB, and boxes must be large enough to be fast.
LEAST_MEMORY_BYTES = 160 << 20
#: The largest box: larger ones are not faster.
_MOST_BOX_BYTES = 256 << 20
#: The fewest boxes per worker: with fewer, workers would end at different times.
_BOXES_OF_A_WORKER = 4

#: Memory growth of the program during a job: stacks, plans, memory that the allocator retains.
_MARGIN_BYTES = 16 << 20
#: Memory for loading the compiler and compiling a job's kernels.
_KERNEL_BYTES = 352 << 20
#: With a lower memory limit, NumPy moves the boxes.
_LEAST_FOR_KERNELS = 512 << 20


class _Side(Protocol):
    """A source or a target of boxes."""

    @property
    def shape(self) -> Shape:
        """The layout."""

    def costs(self, sizes: Sizes) -> tuple[int, int]:
        """Return the memory in bytes to move a box of the given sizes, the box included, and the cost of moving it."""


class BoxSource(_Side, Protocol):
    """A source of boxes."""

    def read(self, box: Box, into: Bytes) -> None:
        """Read a box in the layout of `box_shape`; called from several threads concurrently."""


class BoxTarget(_Side, Protocol):
    """A target of boxes."""

    @property
    def steps(self) -> Sizes:
        """Required divisors of the edges of boxes, in addition to `box_steps` of the layout."""

    def write(self, box: Box, data: Bytes) -> None:
        """Write a box in the layout of `box_shape`; called from several threads concurrently."""


@dataclass(frozen=True, slots=True)
class BoxJob:
    """A job cut into boxes.

    Attributes
    ----------
    source : BoxSource
    target : BoxTarget
    grid : Grid
        Boxes of the target.
    workers : int
        Number of boxes that are moved concurrently.
    by_numpy : bool
        Whether NumPy moves the boxes, so that the compiler takes no memory.
    is_checked : bool
        Whether an integer out of range of a target type of fewer than 8 bits is an error.
    """

    source: BoxSource
    target: BoxTarget
    grid: Grid
    workers: int
    by_numpy: bool
    is_checked: bool

    @property
    def order(self) -> Sizes:
        """The dimensions from most major to most minor: boxes are taken in the order of the target."""
        return slab_order(self.target.shape)

    def run(self, pattern: bytes, after_box: Callable[[int], None], threads: int | None = None) -> None:
        """Move all boxes.

        Parameters
        ----------
        pattern : bytes
            One unpacked value, written to padding.
        after_box : callable
            Called with the size of each box in bytes after it is written; never concurrently.
        threads : int, optional
        """
        lock = threading.Lock()
        idle: list[_Worker] = []

        def move(begin: int, end: int) -> None:
            with lock:
                worker = idle.pop() if idle else _Worker(self, pattern, 1 if self.workers > 1 else threads)
            for number in range(begin, end):
                written = worker.move(self.grid.numbered(number, self.order))
                with lock:
                    after_box(written)
            with lock:
                idle.append(worker)

        run_chunks(move, math.prod(self.grid.counts), self.workers, 1)


def plan_boxes(
    source: BoxSource,
    target: BoxTarget,
    max_memory: int,
    threads: int | None = None,
    held: int = 0,
    is_checked: bool = True,
) -> BoxJob:
    """Cut a job so that the process never has more than `max_memory` bytes in memory.

    Parameters
    ----------
    source : BoxSource
    target : BoxTarget
    max_memory : int
    threads : int, optional
        The most boxes to move concurrently.
    held : int
        Bytes that the arrays themselves will add to the resident memory of the process.
    is_checked : bool
        As in a `BoxJob`.

    Raises
    ------
    FastIndexError
        The limit is too low for the program and one box; the message names a sufficient one.
    """
    by_numpy = is_for_numpy(max_memory)
    taken = taken_bytes(by_numpy) + held
    dimensions, own_steps, costs = target.shape.dimensions, target.steps, _costs_of(source, target)
    # Boxes that suit both sides are read once; boxes of the target alone may be smaller, but read surrounding data too.
    steps = joint_steps(dimensions, box_steps(target.shape), own_steps)
    choices = list(dict.fromkeys([joint_steps(dimensions, steps, box_steps(source.shape)), steps]))
    for cut in choices:
        for workers in dict.fromkeys((thread_count(threads), 1)):
            # The smallest possible box may exceed `_MOST_BOX_BYTES`.
            most = min((max_memory - taken) // workers - SCRATCH_BYTES, max(_MOST_BOX_BYTES, costs(cut)[0]))
            sizes = box_sizes(dimensions, cut, costs, most, _BOXES_OF_A_WORKER * workers)
            if sizes is not None:
                return BoxJob(source, target, Grid(dimensions, sizes), workers, by_numpy, is_checked)
    least = taken + SCRATCH_BYTES + min(costs(cut)[0] for cut in choices)
    arrays = f", {_mebibytes(held)} of arrays that are not shared memory maps," if held else ""
    raise FastIndexError(
        f"{_mebibytes(max_memory)} are too few for this program{arrays} and a box of {target.shape.cut_text()}; allow "
        f"at least {_mebibytes(least)}"
    )


def taken_bytes(by_numpy: bool = False) -> int:
    """Return the memory that the program itself takes and will take, independent of the arrays.

    Parameters
    ----------
    by_numpy : bool
        Whether the compiler is not needed.

    Examples
    --------
    >>> taken_bytes() > 16 << 20
    True
    """
    return (resident_bytes() or 0) + _MARGIN_BYTES + (0 if by_numpy or _has_kernels() else _KERNEL_BYTES)


def is_for_numpy(max_memory: int) -> bool:
    """Whether a memory limit is too low to load the compiler, so that NumPy moves the boxes.

    Examples
    --------
    >>> is_for_numpy(1 << 40)
    False
    """
    return is_disabled() or (max_memory < _LEAST_FOR_KERNELS and not _has_kernels())


def _has_kernels() -> bool:
    return "fastindex.runtime.machine_code" in sys.modules


def _mebibytes(nbytes: int) -> str:
    return f"{-(-nbytes // (1 << 20))} MiB"


def _costs_of(source: BoxSource, target: BoxTarget) -> Callable[[Sizes], tuple[int, int]]:
    steps = box_steps(source.shape)
    formats = slot_format(source.shape), slot_format(target.shape)
    is_cast = source.shape.element_type != target.shape.element_type
    converts = is_cast or formats[0] != formats[1] or formats[0].is_packed or not formats[0].is_plain

    def slots(shape: Shape, sizes: Sizes) -> int:
        return box_shape(shape, first_box(shape, sizes)).slot_count

    def costs(sizes: Sizes) -> tuple[int, int]:
        read = tuple(
            size if size % step == 0 or size == whole else min((size // step + 2) * step, whole)
            for size, step, whole in zip(sizes, steps, source.shape.dimensions, strict=True)
        )
        sides = source.costs(read), target.costs(sizes)
        memory = sides[0][0] + sides[1][0]
        if converts:
            # The values of both sides, unpacked.
            memory += slots(source.shape, read) * formats[0].value_bytes
            memory += slots(target.shape, sizes) * formats[1].value_bytes
        if is_cast:
            # The elements of the source, cast to the type of the target.
            memory += slots(source.shape, read) * formats[1].value_bytes
        if read != sizes:
            memory += 2 * math.prod(read) * formats[0].value_bytes
        return memory, sides[0][1] + sides[1][1]

    return costs


class _Worker:
    """Moves one box at a time, in buffers that are reused for the next box."""

    def __init__(self, job: BoxJob, pattern: bytes, threads: int | None) -> None:
        self._job = job
        self._pattern = pattern
        self._threads = threads
        self._steps = box_steps(job.source.shape)
        self._read, self._written = _Memory(), _Memory()

    def move(self, box: Box) -> int:
        """Move a box, and return how many bytes it has in the target.

        Raises
        ------
        MisfitError
            An element does not fit the type that it is cast to; its position is that in the whole array.
        """
        source, target = self._job.source, self._job.target
        around = covering(box, self._steps, source.shape.dimensions)
        there, here = box_shape(source.shape, around), box_shape(target.shape, box)
        read, written = self._read.of(there.nbytes), self._written.of(here.nbytes)
        source.read(around, read)
        try:
            if around == box:
                self._relayout(there, here, read, written)
            else:
                self._relayout_part(there, here, read, written, box, around)
        except MisfitError as found:
            raise found.moved([along.start for along in box]) from None
        target.write(box, written)
        return here.nbytes

    def _relayout(self, source: Shape, target: Shape, read: Bytes, written: Bytes) -> None:
        addresses = address_of(read), address_of(written)
        moved = movement_between(source, target, is_checked=self._job.is_checked)
        with without_kernels() if self._job.by_numpy else nullcontext():
            moved.run(*addresses, self._pattern, self._threads)

    def _relayout_part(self, source: Shape, target: Shape, read: Bytes, written: Bytes, box: Box, around: Box) -> None:
        """Move a box of the target out of a larger box of the source."""
        dtype = source.element_type.numpy_dtype
        plain = Shape(source.element_type, source.dimensions)
        whole = scratch(plain.nbytes).view(dtype).reshape(source.dimensions)
        self._relayout(source, plain, read, whole.reshape(-1).view(np.uint8))
        part = whole[tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(box, around, strict=True))]
        here = Shape(source.element_type, target.dimensions)
        values = scratch(here.nbytes)
        np.copyto(values.view(dtype).reshape(target.dimensions), part)
        self._relayout(here, target, values, written)


class _Memory:
    """A reusable buffer that is returned to the system when no longer used."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def of(self, nbytes: int) -> Bytes:
        if len(self._bytes) < nbytes:
            self._bytes = np.empty(0, np.uint8)
            self._bytes = scratch(nbytes)
        return self._bytes[:nbytes]


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes, or None if it is unknown.

    Systems without Linux's ``/proc`` give the peak instead of the current value.

    Examples
    --------
    >>> resident_bytes() is None or resident_bytes() > 1 << 20
    True
    """
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return _most_resident_bytes()


def _most_resident_bytes() -> int | None:
    try:
        load("resource")
        import resource
    except ImportError:
        return None
    # getrusage(2): bytes on macOS, kibibytes elsewhere.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
