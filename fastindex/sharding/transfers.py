"""The part of an array on each device, and the movement between two shardings: boxes, runs of bytes, XLA's collective.

The part boundaries of both shardings split each dimension into segments; a box is the product of one segment per
dimension. Boxes are numbered with the last dimension fastest, and stored as columns, not as objects.

Boxes of equal sizes that start at equal positions within the tiles of both layouts have the same loops, and differ only
in their offsets. So a few boxes are analysed in place of a hundred thousand.

Source of the collectives: ``PartitionedHlo::ReshardNoCache`` in ``xla/service/spmd/spmd_partitioner.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Loop, Nest
from fastindex.core.shape import Shape
from fastindex.errors import UnsupportedError
from fastindex.index.box_nests import box_nests, cuts_of, slots_along
from fastindex.index.programs import linear_program
from fastindex.sharding.sharding import Sharding


@dataclass(frozen=True, slots=True)
class Placement:
    """The parts of an array, by device.

    Attributes
    ----------
    shard : Shape
        The shape of each device's buffer.
    tile_index : int64 array of (devices, rank)
        Position of a device's part along each dimension; (devices, 0) if nothing is partitioned.
    start, stop : int64 arrays of (devices, rank)
        Range of the elements on each device; empty for a device that holds only padding.
    holds : bool array of (devices,)
        Whether a device holds elements: a scalar has no range that could be empty.
    """

    shard: Shape
    tile_index: Numbers
    start: Numbers
    stop: Numbers
    holds: NDArray[np.bool_]


def placement(shape: Shape, sharding: Sharding, device_count: int) -> Placement:
    """Return the part of the array on each device.

    Raises
    ------
    LayoutError, UnsupportedError
        As `Sharding.shard_shape`.
    """
    shard = sharding.shard_shape(shape)
    sizes = np.array(shape.dimensions, np.int64)
    if sharding.order is None:
        nothing = np.zeros((device_count, shape.rank), np.int64)
        whole = np.broadcast_to(sizes, nothing.shape).copy()
        holds = np.full(device_count, True) if sharding.device is None else np.arange(device_count) == sharding.device
        whole[~holds] = 0
        return Placement(shard, np.zeros((device_count, 0), np.int64), nothing, whole, holds)
    devices = sharding.order.array()
    place = np.empty(device_count, np.int64)
    place[devices] = np.arange(device_count)
    # np.unravel_index rejects a shape without dimensions.
    parts = np.unravel_index(place, sharding.dimensions)[: shape.rank] if shape.rank else ()
    index = np.stack(parts, axis=1).astype(np.int64) if parts else np.zeros((device_count, 0), np.int64)
    held = np.array(shard.dimensions, np.int64)
    start, stop = np.minimum(index * held, sizes), np.minimum((index + 1) * held, sizes)
    return Placement(shard, index, start, stop, (start < stop).all(axis=1))


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of an array on one device.

    Attributes
    ----------
    device : int
        Its position in the device assignment.
    tile_index : tuple of int
        Position of the part along each dimension; () if nothing is partitioned.
    start, stop : tuple of int
        Range of its elements, per dimension; empty in some dimension if the device holds only padding.
    nbytes : int
        Bytes of its buffer, including all padding.
    logical_nbytes : int
        Bytes of its elements.
    """

    device: int
    tile_index: tuple[int, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]
    nbytes: int
    logical_nbytes: int

    @property
    def slices(self) -> tuple[slice, ...]:
        """The elements on the device, as an index into the array.

        Examples
        --------
        >>> Shard(0, (0,), (2,), (4,), 8, 8).slices
        (slice(2, 4, None),)
        """
        return tuple(slice(start, stop) for start, stop in zip(self.start, self.stop, strict=True))


def shards_of(shape: Shape, sharding: Sharding, device_count: int) -> list[Shard]:
    """Return one record per device."""
    placed = placement(shape, sharding, device_count)
    bits, nbytes = placed.shard.element_bits, placed.shard.nbytes
    columns = placed.tile_index, placed.start, placed.stop, placed.holds
    records = []
    for device, (index, start, stop, holds) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        count = math.prod(end - begin for begin, end in zip(start, stop, strict=True)) * holds
        records.append(Shard(device, tuple(index), tuple(start), tuple(stop), nbytes, -(-count * bits // 8)))
    return records


Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Side:
    """One sharding of the array, before or after.

    Attributes
    ----------
    shape, part : Shape
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


#: Axes of a run: (count, source stride, target stride) in bytes, the largest target stride first.
_Axes = list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class BoxRuns:
    """The runs of each box, by kind: boxes of one kind have the same runs, relative to their first elements.

    Attributes
    ----------
    kind : int64 array
        The kind of each box.
    runs : list of lists of (source offset, target offset, length, axes)
        The runs of each kind: offsets in bits, lengths in bytes.
    first_slots : two int64 arrays
        Slot of the first element of each box on both sides.
    """

    kind: Numbers
    runs: list[list[tuple[int, int, int, _Axes]]]
    first_slots: tuple[Numbers, Numbers]

    def lengths(self, boxes: Numbers) -> list[int]:
        """Return the lengths of contiguous pieces in some boxes, shortest first."""
        found = np.flatnonzero(np.bincount(self.kind[boxes], minlength=len(self.runs)))
        return sorted({length for kind in found.tolist() for _, _, length, _ in self.runs[kind]})


def runs_of_boxes(boxes: Boxes, source: Side, target: Side) -> BoxRuns:
    """Return the runs of all boxes.

    Raises
    ------
    UnsupportedError
        Packed elements would be split within a byte.
    """
    bits = source.part.element_bits
    _, first, kind = np.unique(_kinds(boxes.segments, source.part, target.part), return_index=True, return_inverse=True)
    first_slots = (
        _first_slots([s.source_start for s in boxes.segments], source.part),
        _first_slots([s.target_start for s in boxes.segments], target.part),
    )
    runs = [[_run(nest, bits) for nest in _nests(boxes, box, source.part, target.part)] for box in first.tolist()]
    for number, found in enumerate(runs if bits % 8 else []):
        for *offsets, _, _ in found:
            for slots, offset in zip(first_slots, offsets, strict=True):
                if ((slots[kind == number] * bits + offset) % 8).any():
                    raise _not_whole_bytes(source.shape, target.shape)
    return BoxRuns(kind, runs, first_slots)


def transfer_table(boxes: Boxes, known: BoxRuns, bits: int) -> NDArray[np.void]:
    """Return all runs, including local ones, as the structured array of `fastindex.sharding.plan_reshard`."""
    depth = max((len(axes) for found in known.runs for _, _, _, axes in found), default=0)
    entry_kind = known.kind[boxes.box]
    parts = []
    for number, found in enumerate(known.runs):
        entries = np.flatnonzero(entry_kind == number)
        for source_bits, target_bits, length, axes in found:
            rows = np.zeros(len(entries), row_type(depth))
            rows["source_device"] = boxes.source_device[entries]
            rows["target_device"] = boxes.target_device[entries]
            rows["source_byte"] = (known.first_slots[0][boxes.box[entries]] * bits + source_bits) // 8
            rows["target_byte"] = (known.first_slots[1][boxes.box[entries]] * bits + target_bits) // 8
            rows["length"] = length
            padded = axes + [(1, 0, 0)] * (depth - len(axes))
            for i, name in enumerate(("counts", "source_strides", "target_strides")):
                rows[name] = [axis[i] for axis in padded]
            parts.append(rows)
    table = np.concatenate(parts) if parts else np.zeros(0, row_type(depth))
    return table[np.lexsort((table["target_byte"], table["source_device"], table["target_device"]))]


def row_type(depth: int) -> np.dtype[Any]:
    """Return the dtype of a row with `depth` loops around each contiguous piece."""
    scalars = ("source_device", "target_device", "source_byte", "target_byte", "length")
    axes = ("counts", "source_strides", "target_strides")
    return np.dtype([(name, np.int64) for name in scalars] + [(name, np.int64, (depth,)) for name in axes])


def _not_whole_bytes(source: Shape, target: Shape) -> UnsupportedError:
    return UnsupportedError(
        f"elements packed below a byte can only move between devices in whole bytes, and {source} and {target} split"
        " bytes; use a layout without E()"
    )


def _run(nest: Nest, bits: int) -> tuple[int, int, int, _Axes]:
    """Return a nest as a run: its offsets on both sides in bits, the bytes per piece, and the loops around it."""
    loops = list(nest.loops)
    inner = next((loop for loop in loops if (loop.source_stride, loop.destination_stride) == (1, 1)), Loop(1, 1, 1))
    outer = sorted((loop for loop in loops if loop is not inner), key=lambda loop: -loop.destination_stride)
    numbers = [inner.size, *(stride for loop in outer for stride in (loop.source_stride, loop.destination_stride))]
    if any(number * bits % 8 for number in numbers):
        raise UnsupportedError(
            "elements packed below a byte can only move between devices in whole bytes, and the two layouts or"
            " shardings split bytes; use a layout without E()"
        )
    axes = [(loop.size, loop.source_stride * bits // 8, loop.destination_stride * bits // 8) for loop in outer]
    return nest.source_start * bits, nest.destination_start * bits, inner.size * bits // 8, axes


def _kinds(segments: Sequence[Segments], source: Shape, target: Shape) -> Numbers:
    """Return a class number for each box; boxes of the same class have the same loops."""
    cuts = cuts_of(source), cuts_of(target)
    columns = []
    for d, found in enumerate(segments):
        key = [found.size, found.source_start, found.target_start]
        if cuts[0] is not None and cuts[1] is not None:
            key[1:] = [found.source_start % cuts[0][d].period, found.target_start % cuts[1][d].period]
        _, number = np.unique(np.stack(key), axis=1, return_inverse=True)
        columns.append(number.reshape(-1).astype(np.int64))
    total = np.zeros(1, np.int64)
    for column in columns:
        total = (total[:, None] * (int(column.max(initial=0)) + 1) + column[None]).reshape(-1)
    return total


def _first_slots(starts: Sequence[Numbers], part: Shape) -> Numbers:
    """Return the slot of the first element of each box."""
    if cuts_of(part) is not None:
        return combined([slots_along(part, d, along) for d, along in enumerate(starts)], np.add, 0)
    (slots,), _ = linear_program(part).evaluate(np.ix_(*starts))
    shape = tuple(len(along) for along in starts)
    return np.broadcast_to(np.asarray(slots, np.int64), shape).reshape(-1)


def _nests(boxes: Boxes, box: int, source: Shape, target: Shape) -> tuple[Nest, ...]:
    place = [int(i) for i in np.unravel_index(box, boxes.counts)] if boxes.counts else []
    chosen = [(s, i) for s, i in zip(boxes.segments, place, strict=True)]
    return box_nests(
        source,
        target,
        [int(s.source_start[i]) for s, i in chosen],
        [int(s.target_start[i]) for s, i in chosen],
        [int(s.size[i]) for s, i in chosen],
    )


def collective_of(source: Side, target: Side, boxes: Boxes) -> str | None:
    """Return the name of the collective, "nothing" if no device needs any data, or None if the pattern is unknown.

    All-to-all, all-gather and collective-permute need even parts; for uneven parts, XLA gathers the whole array on
    every device and slices it.
    """
    before, after = source.part_counts, target.part_counts
    types = {*source.sharding.subgroup_types, *target.sharding.subgroup_types}
    if source.device_count != target.device_count or "maximal" in (source.sharding.kind, target.sharding.kind):
        return None
    messages = boxes.source_device != boxes.target_device
    if not messages.any():
        return "nothing" if before == after else "dynamic-slice"
    if types - {"replicated"}:
        return None
    if set(after) <= {1}:
        return "all-gather"
    if not (_even(source) and _even(target)):
        return "all-gather and dynamic-slice"
    if before == after:
        return "collective-permute"
    if all(a % b == 0 for a, b in zip(before, after, strict=True)):
        return "all-gather" if _closed_groups(boxes, source.device_count) else None
    changed = [d for d, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if len(changed) != 2 or source.holders.shape[1] > 1 or target.holders.shape[1] > 1:
        return None
    first, second = changed
    if before[first] * before[second] != after[first] * after[second]:
        return None
    if source.sharding.order is None or source.sharding.order.counter() is None:
        return "all-gather and dynamic-slice"
    return "all-to-all" if _closed_groups(boxes, source.device_count) else "collective-permute and all-to-all"


def _even(side: Side) -> bool:
    sizes = zip(side.part.dimensions, side.part_counts, side.shape.dimensions, strict=True)
    return all(part * count == size for part, count, size in sizes)


def _closed_groups(boxes: Boxes, count: int) -> bool:
    """Whether the devices that exchange data form groups within which every device sends to all others."""
    sends = np.zeros((count, count), np.bool_)
    sends[boxes.source_device, boxes.target_device] = True
    sends |= np.eye(count, dtype=np.bool_)
    if not np.array_equal(sends, sends.T):
        return False
    first = sends.argmax(axis=1)
    return bool((sends == sends[first]).all())
