"""Records of contiguous memory. A *piece* is a contiguous range; a record has pieces of one length on a grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StridedRun:
    """Contiguous pieces of one length, at the points of a grid.

    Attributes
    ----------
    start : int
        Start of the first piece.
    length : int
        Length of each piece.
    counts : tuple of int
        Number of pieces along each axis of the grid, the largest stride first; () for one piece.
    strides : tuple of int
        Distance between the starts of neighbours along each axis.

    Examples
    --------
    >>> StridedRun(4, 2, (3,), (10,)).starts().tolist()
    [4, 14, 24]
    """

    start: int
    length: int
    counts: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @property
    def piece_count(self) -> int:
        """Number of pieces.

        Examples
        --------
        >>> StridedRun(0, 1, (2, 3), (8, 2)).piece_count
        6
        """
        return math.prod(self.counts)

    def starts(self) -> Numbers:
        """Return the start of each piece, the last axis of the grid varying fastest.

        Examples
        --------
        >>> StridedRun(1, 1, (2, 3), (8, 2)).starts().tolist()
        [1, 3, 5, 9, 11, 13]
        """
        starts = np.array([self.start], np.int64)
        for count, stride in zip(self.counts, self.strides, strict=True):
            starts = (starts[:, None] + stride * np.arange(count)).reshape(-1)
        return starts

    def moved(self, distance: int) -> StridedRun:
        """Return the same pieces, shifted by `distance`.

        Examples
        --------
        >>> StridedRun(1, 2).moved(10)
        StridedRun(start=11, length=2, counts=(), strides=())
        """
        return StridedRun(self.start + distance, self.length, self.counts, self.strides)

    def repeated(self, count: int, stride: int) -> StridedRun:
        """Return these pieces `count` times, each time shifted by `stride`.

        Examples
        --------
        >>> StridedRun(0, 1, (4,), (2,)).repeated(3, 8)
        StridedRun(start=0, length=1, counts=(12,), strides=(2,))
        """
        axes = sorted([*zip(self.strides, self.counts, strict=True), (stride, count)], reverse=True)
        kept: list[tuple[int, int]] = []
        for step, size in axes:
            if size == 1:
                continue
            if kept and kept[-1][0] == step * size:
                kept[-1] = step, size * kept[-1][1]
            else:
                kept.append((step, size))
        return StridedRun(self.start, self.length, tuple(c for _, c in kept), tuple(s for s, _ in kept))


def expanded(records: Iterable[StridedRun]) -> tuple[Numbers, Numbers]:
    """Return the pieces of all records one by one, in memory order.

    Examples
    --------
    >>> start, length = expanded([StridedRun(4, 2, (2,), (10,)), StridedRun(8, 3)])
    >>> start.tolist(), length.tolist()
    ([4, 8, 14], [2, 3, 2])
    """
    records = list(records)
    if not records:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    start = np.concatenate([record.starts() for record in records])
    length = np.repeat([record.length for record in records], [record.piece_count for record in records])
    if len(records) == 1:
        return start, length.astype(np.int64)
    order = np.argsort(start, kind="stable")
    return start[order], length[order].astype(np.int64)


def joined_pieces(start: Numbers, length: Numbers) -> tuple[Numbers, Numbers]:
    """Merge pieces, given in memory order, that touch or overlap."""
    if not len(start):
        return start, length
    end = np.maximum.accumulate(start + length)
    breaks = start[1:] > end[:-1]
    first = start[np.concatenate([[True], breaks])]
    return first, end[np.concatenate([breaks, [True]])] - first


def joined_runs(start: Numbers, length: Numbers) -> tuple[StridedRun, ...]:
    """Return pieces, given in memory order, as few records.

    Examples
    --------
    >>> joined_runs(np.array([0, 4, 8, 20, 24, 28]), np.array([2, 2, 2, 2, 2, 2]))
    (StridedRun(start=0, length=2, counts=(2, 3), strides=(20, 4)),)
    """
    if not len(start):
        return ()
    records = []
    for at, count, (longer, stride) in progressions(length, start):
        if longer:
            records += [StridedRun(int(start[i]), int(length[i])) for i in range(at, at + count)]
        else:
            records.append(StridedRun(int(start[at]), int(length[at])).repeated(count, stride))
    return joined_records(records)


def progressions(*columns: Numbers) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Split parallel sequences into stretches in which all advance in equal steps: (first, count, step of each).

    An entry stands alone if it is further from the next, in the last sequence, than that is from the one after it.

    Examples
    --------
    >>> list(progressions(np.array([0, 10, 11, 20, 21])))
    [(0, 1, (0,)), (1, 2, (1,)), (3, 2, (1,))]
    """
    count = len(columns[0])
    steps = [np.diff(column) for column in columns]
    uneven = np.zeros(max(count - 2, 0), np.bool_)
    for column in steps:
        uneven |= np.diff(column) != 0
    bounds = [*(np.flatnonzero(uneven) + 1).tolist(), count - 1]
    at, segment = 0, 0
    while at < count - 1:
        while bounds[segment] <= at:
            segment += 1
        last = bounds[segment]
        nearer = last < count - 1 and abs(steps[-1][last]) < abs(steps[-1][at])
        if last == at + 1 and nearer:
            yield at, 1, (0,) * len(columns)
        else:
            yield at, last - at + 1, tuple(int(column[at]) for column in steps)
            at = last
        at += 1
    if at < count:
        yield at, 1, (0,) * len(columns)


def joined_records(records: Iterable[StridedRun]) -> tuple[StridedRun, ...]:
    """Merge equal records at equal distances, and records that extend an axis of another."""
    found = sorted(records, key=lambda record: record.start)
    while True:
        kinds: dict[tuple[object, ...], list[StridedRun]] = {}
        for record in found:
            kinds.setdefault((record.length, record.counts, record.strides), []).append(record)
        joined = _lengthened([record for alike in kinds.values() for record in _joined_alike(alike)])
        joined.sort(key=lambda record: record.start)
        if len(joined) == len(found):
            return tuple(joined)
        found = joined


def _joined_alike(records: Sequence[StridedRun]) -> Iterator[StridedRun]:
    at = 0
    while at < len(records):
        count = 1
        stride = records[at + 1].start - records[at].start if at + 1 < len(records) else 0
        while at + count < len(records) and records[at + count].start == records[at].start + count * stride:
            count += 1
        yield records[at].repeated(count, stride)
        at += count


def _lengthened(records: Sequence[StridedRun]) -> list[StridedRun]:
    """Merge each record with one directly before or after it along an axis, if that has the same other axes."""
    left = dict.fromkeys(records)
    for record in records:
        for axis, (count, stride) in enumerate(zip(record.counts, record.strides, strict=True)):
            if record not in left:
                break
            others = StridedRun(
                record.start, record.length, _without(record.counts, axis), _without(record.strides, axis)
            )
            for distance, start in ((-stride, -stride), (count * stride, 0)):
                if left.pop(others.moved(distance), left) is None:
                    del left[record]
                    left[others.moved(start).repeated(count + 1, stride)] = None
                    break
    return list(left)


def _without(numbers: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*numbers[:place], *numbers[place + 1 :])
