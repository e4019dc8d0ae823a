"""Data movement between two shardings of an array, as boxes of elements from one device to another.

The part boundaries of both shardings split each dimension into segments; a box is the product of one segment per
dimension. Boxes are numbered with the last dimension fastest, and stored as columns, not as objects.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastindex.core.shape import Shape
from fastindex.sharding.sharding import Sharding

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Side:
    """One sharding of the array, before or after.

    Attributes
    ----------
    Shapes of the array, and of each device's buffer.
        The array, and each device's buffer.
    sharding : Sharding
    device_count : int
    holders : int64 array of (parts, replicas)
        The devices that hold each part.
    """

    shape: Shape
    part: Shape
    sharding: Sharding
    device_count: int
    holders: Numbers

    @property
    def part_counts(self) -> tuple[int, ...]:
        return self.sharding.parts or (1,) * self.shape.rank


def side_of(shape: Shape, sharding: Sharding, device_count: int) -> Side:
    """Return one side of a reshard.

    Raises
    ------
    LayoutError, UnsupportedError
        As `Sharding.shard_shape`.
    """
    part = sharding.shard_shape(shape)
    if sharding.order is not None:
        holders = sharding.order.array().reshape(math.prod(sharding.parts), -1)
    elif sharding.device is not None:
        holders = np.array([[sharding.device]], np.int64)
    else:
        holders = np.arange(device_count, dtype=np.int64)[None]
    return Side(shape, part, sharding, device_count, holders)


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of one dimension.

    Attributes
    ----------
    size : int64 array
    source_part, target_part : int64 arrays
        Number of the part along the dimension that contains the segment.
    source_start, target_start : int64 arrays
        Start of the segment within that part.
    """

    size: Numbers
    source_part: Numbers
    target_part: Numbers
    source_start: Numbers
    target_start: Numbers


def segments_of(size: int, source: int, target: int) -> Segments:
    """Split a dimension at the boundaries of parts of `source` and of `target` elements.

    Examples
    --------
    >>> segments_of(6, 4, 3).size, segments_of(6, 4, 3).target_start
    (array([3, 1, 2]), array([0, 0, 1]))
    """
    edges = {*range(0, size, max(source, 1)), *range(0, size, max(target, 1))}
    begin = np.array(sorted(edges), np.int64)
    length = np.diff(begin, append=size)
    source, target = max(source, 1), max(target, 1)
    return Segments(length, begin // source, begin // target, begin % source, begin % target)


@dataclass(frozen=True, slots=True)
class Boxes:
    """The boxes, with one entry per box and receiving device.

    Attributes
    ----------
    segments : list of Segments
    box : int64 array
        Number of the box.
    source_device, target_device : int64 arrays
    """

    segments: list[Segments]
    box: Numbers
    source_device: Numbers
    target_device: Numbers

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of segments in each dimension."""
        return tuple(len(segments.size) for segments in self.segments)

    def elements(self) -> Numbers:
        """Return the number of elements that each entry moves."""
        return combined([segments.size for segments in self.segments], np.multiply, 1)[self.box]


def combined(columns: Sequence[Numbers], operation: np.ufunc, start: int) -> Numbers:
    """Combine per-segment numbers into one per box, by a sum or product over the dimensions."""
    total = np.full(1, start, np.int64)
    for column in columns:
        total = operation(total[:, None], column[None]).reshape(-1)
    return total


def boxes_between(source: Side, target: Side) -> Boxes:
    """Return the sender and the receiver of each box.

    A device that already holds a box keeps it. Others receive it from its holders, which take turns.
    """
    segments = [
        segments_of(size, a, b)
        for size, a, b in zip(source.shape.dimensions, source.part.dimensions, target.part.dimensions, strict=True)
    ]
    source_part = _part_numbers([s.source_part for s in segments], source.part_counts)
    target_part = _part_numbers([s.target_part for s in segments], target.part_counts)
    receivers = target.holders[target_part]
    box = np.repeat(np.arange(len(source_part), dtype=np.int64), receivers.shape[1])
    to = receivers.reshape(-1)
    part = source_part[box]
    held = np.full(max(source.device_count, target.device_count), -1, np.int64)
    held[source.holders.reshape(-1)] = np.repeat(np.arange(len(source.holders)), source.holders.shape[1])
    keeps = held[to] == part
    replicas = source.holders.shape[1]
    sender = to.copy()
    asks = np.flatnonzero(~keeps)
    turn = _turns(part[asks]) % replicas if replicas > 1 else 0
    sender[asks] = source.holders[part[asks], turn]
    return Boxes(segments, box, sender, to)


def _part_numbers(columns: Sequence[Numbers], counts: Sequence[int]) -> Numbers:
    strides = [math.prod(counts[d + 1 :]) for d in range(len(counts))]
    return combined([column * stride for column, stride in zip(columns, strides, strict=True)], np.add, 0)


def _turns(parts: Numbers) -> Numbers:
    """Return, for each entry, the number of earlier entries with the same part."""
    order = np.argsort(parts, kind="stable")
    sorted_parts = parts[order]
    first = np.concatenate([[True], sorted_parts[1:] != sorted_parts[:-1]]) if len(parts) else np.zeros(0, np.bool_)
    begins = np.flatnonzero(first)
    within = np.arange(len(parts)) - np.repeat(begins, np.diff(begins, append=len(parts)))
    turns = np.empty(len(parts), np.int64)
    turns[order] = within
    return turns
