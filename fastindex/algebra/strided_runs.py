"""Records of contiguous memory. A *piece* is a contiguous range; a record has pieces of one length on a grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import by_variable, digit_places
from fastindex.algebra.shared_digits import coordinate_systems
from fastindex.core.digits import Digits, Variable, canonical, slot_digits
from fastindex.core.shape import Shape
from fastindex.core.sizes import axes_of, slots_before_tail

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
    unmerged = dict.fromkeys(records)
    for record in records:
        for axis, (count, stride) in enumerate(zip(record.counts, record.strides, strict=True)):
            if record not in unmerged:
                break
            others = StridedRun(
                record.start, record.length, _without(record.counts, axis), _without(record.strides, axis)
            )
            for distance, start in ((-stride, -stride), (count * stride, 0)):
                if unmerged.pop(others.moved(distance), unmerged) is None:
                    del unmerged[record]
                    unmerged[others.moved(start).repeated(count + 1, stride)] = None
                    break
    return list(unmerged)


def _without(numbers: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*numbers[:place], *numbers[place + 1 :])


# Runs of a window, for layouts whose slots are sums of digits of the coordinates.
#
# The buffer is a tree: its most major digit cuts it into equal blocks, the next digit cuts each of these, and so on.
# The runs of a window in a block depend only on the coordinates that remain, so most blocks are equal; each distinct
# block is computed once, and runs that touch the edge of a block are joined with their neighbours.


@dataclass(slots=True)
class _Block:
    """The runs in a block of `size` slots: one from its beginning, some inside, and one up to its end."""

    size: int
    prefix: int
    inside: list[StridedRun]
    suffix: int

    @property
    def is_full(self) -> bool:
        return self.prefix == self.size


@dataclass(slots=True)
class _Joining:
    """Concatenates blocks; a run that reaches the end of one may continue in the next."""

    records: list[StridedRun] = field(default_factory=list)
    open_start: int = 0
    open_end: int = 0
    prefix: int = 0

    def append(self, block: _Block, at: int) -> None:
        if block.prefix:
            self._extend(at, block.prefix)
            if block.is_full:
                return
        self._close()
        self.records += [record.moved(at) for record in block.inside]
        if block.suffix:
            self._extend(at + block.size - block.suffix, block.suffix)

    def _extend(self, at: int, length: int) -> None:
        if self.open_end != at or self.open_start == self.open_end:
            self._close()
            self.open_start = at
        self.open_end = at + length

    def _close(self) -> None:
        if self.open_end > self.open_start:
            if self.open_start == 0:
                self.prefix = self.open_end
            else:
                self.records.append(StridedRun(self.open_start, self.open_end - self.open_start))
        self.open_start = self.open_end = 0

    def repeat(self, blocks: Sequence[tuple[int, _Block]], at: int, count: int, stride: int) -> None:
        """Append a group of blocks, at their offsets from `at`, `count` times with a stride."""
        if count <= 3:
            for k in range(count):
                self._append_all(blocks, at + k * stride)
            return
        # The first may join the run before it and leave another one open; from the third on, all repetitions are equal.
        first, second = (self._append_all(blocks, at + k * stride) for k in range(2))
        opened = self.open_start
        third = self._append_all(blocks, at + 2 * stride)
        del self.records[len(self.records) - len(first) - len(second) - len(third) :]
        for record in third:
            before, twice_before = record.moved(-stride), record.moved(-2 * stride)
            times = count - 2
            if before in second:
                second.remove(before)
                record, times = before, times + 1
                if twice_before in first:
                    first.remove(twice_before)
                    record, times = twice_before, times + 1
            self.records.append(record.repeated(times, stride))
        self.records += first + second
        if self.open_end > self.open_start:
            distance = (count - 3) * stride
            self.open_end += distance
            if self.open_start != opened:
                self.open_start += distance

    def _append_all(self, blocks: Sequence[tuple[int, _Block]], at: int) -> list[StridedRun]:
        before = len(self.records)
        for distance, block in blocks:
            self.append(block, at + distance)
        return self.records[before:]

    def block(self, size: int) -> _Block:
        """Return everything appended as one block."""
        suffix = 0
        if self.open_end == size and self.open_start > 0:
            suffix = self.open_end - self.open_start
            self.open_start = self.open_end = 0
        self._close()
        return _Block(size, self.prefix, self.records, suffix)


# The tree of digits


@dataclass(frozen=True, slots=True)
class _Place:
    """A digit of a slot: `capacity` values with a stride; `variable`, `low` and `high` as in `Digit`."""

    stride: int
    capacity: int
    variable: int
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class _Remaining:
    """The remaining values of a variable in units of `low`, after its digits from `high` up have been read."""

    numbers: range
    low: int
    high: int | None


#: Values of a digit with something remaining, in ascending order: the first one, the distance and the number of the
#: repetitions, and one repetition as pairs of an offset and the remaining values.
_Values = tuple[int, int, int, list[tuple[int, _Remaining]]]


def window_runs(shape: Shape, window: Sequence[range]) -> list[StridedRun] | None:
    """Return the maximal runs of a window by the digits of slots; None where slots are not sums of digits."""
    for coordinates in coordinate_systems(shape, shape):
        variables = list({d.variable: None for d in itertools.chain(*coordinates)})
        digits = canonical(slot_digits(axes_of(shape), coordinates, {}))
        values = [_numbers_of(variable, shape, window) for variable in variables]
        places = _places(shape, variables, digits)
        if places is not None and None not in values:
            root = tuple(_Remaining(numbers, 1, None) for numbers in values if numbers is not None)
            return _runs_of_tree(places, slots_before_tail(shape), root)
    return None


def _runs_of_tree(places: Sequence[_Place], size: int, root: tuple[_Remaining, ...]) -> list[StridedRun]:
    @cache
    def block(level: int, remaining: tuple[_Remaining, ...]) -> _Block:
        if level == len(places):
            return _Block(places[-1].stride if places else size, 1, [], 0)
        place = places[level]
        joining = _Joining()
        for value, step, count, pattern in _values_of(place, remaining[place.variable]):
            blocks = []
            for distance, after in pattern:
                inner = (*remaining[: place.variable], after, *remaining[place.variable + 1 :])
                blocks.append((distance * place.stride, block(level + 1, inner)))
            joining.repeat(blocks, value * place.stride, count, step * place.stride)
        return joining.block(place.stride * place.capacity)

    whole = block(0, root)
    records = [StridedRun(0, whole.prefix)] if whole.prefix else []
    records += whole.inside
    if whole.suffix:
        records.append(StridedRun(whole.size - whole.suffix, whole.suffix))
    return records


def _values_of(place: _Place, remaining: _Remaining) -> list[_Values]:
    if place.high is None or place.high == remaining.high:
        return _highest_digit(remaining, place.low)
    return _lowest_digit(remaining, place.high)


def _highest_digit(remaining: _Remaining, low: int) -> list[_Values]:
    """Return the values of the digit from `low` up."""
    numbers, unit = remaining.numbers, low // remaining.low
    first, last, step = numbers[0], numbers[-1], numbers.step
    if unit == 1:
        return [(first, step, len(numbers), [(0, _Remaining(range(1), remaining.low, low))])]

    def after(value: int) -> _Remaining | None:
        inside = _part(numbers, value * unit, (value + 1) * unit)
        return _Remaining(inside, remaining.low, low) if inside else None

    # Away from both ends, the remaining values depend only on the distance from a multiple of the step.
    spacing = step // math.gcd(step, unit) if len(numbers) > 1 else 1
    begin, end = first // unit, last // unit + 1
    start = begin + (after(begin) != after(begin + spacing))
    count = (end - 1 - start) // spacing
    if end > start and count * spacing == end - 1 - start and after(end - 1) == after(end - 1 - spacing):
        count = (end - start) // spacing
    if count < 4:
        start, count = begin, 0
    pattern = [(value - start, after(value)) for value in range(start, start + spacing)] if count else []
    groups: list[_Values] = [(value, 1, 1, [(0, inner)]) for value in range(begin, start) if (inner := after(value))]
    if count:
        groups.append((start, spacing, count, [(distance, inner) for distance, inner in pattern if inner]))
    done = start + count * spacing
    groups += [(value, 1, 1, [(0, inner)]) for value in range(done, end) if (inner := after(value))]
    return groups


def _part(numbers: range, begin: int, end: int) -> range:
    """Return the numbers from `begin` to below `end`, relative to `begin`."""
    first = max(-(-(begin - numbers.start) // numbers.step), 0)
    stop = min(-(-(end - numbers.start) // numbers.step), len(numbers))
    if first >= stop:
        return range(0)
    start = numbers.start + first * numbers.step - begin
    return range(start, end - begin, numbers.step)[: stop - first]


def _lowest_digit(remaining: _Remaining, high: int) -> list[_Values]:
    """Return the values of the digit below `high`."""
    numbers, capacity = remaining.numbers, high // remaining.low
    common = math.gcd(numbers.step, capacity)
    groups: list[_Values] = []
    for value in range(numbers.start % common, capacity, common):
        # The first of the numbers with this digit; the next ones follow every capacity // common numbers.
        period = capacity // common
        first = (value - numbers.start) // common * pow(numbers.step // common, -1, period) % period
        if first >= len(numbers):
            continue
        found = numbers[first::period]
        start = found[0] // capacity
        outer = _Remaining(
            range(start, found[-1] // capacity + 1, max(found.step // capacity, 1)), high, remaining.high
        )
        if groups and groups[-1][3][0][1] == outer and groups[-1][0] + groups[-1][1] * groups[-1][2] == value:
            groups[-1] = (groups[-1][0], common, groups[-1][2] + 1, groups[-1][3])
        else:
            groups.append((value, common, 1, [(0, outer)]))
    return groups


def _numbers_of(variable: Variable, shape: Shape, window: Sequence[range]) -> range | None:
    """Return the values of a coordinate, or of several that `*` merges, in a window; None if they are not a range."""
    merged = variable.key if isinstance(variable.key, tuple) else (variable.key,)
    numbers, size = range(1), 1
    for dimension in reversed(merged):
        along = window[dimension]
        if len(numbers) == size:
            # The more minor dimensions are whole: neighbours along this one continue each other.
            if along.step != 1 and size > 1 and len(along) > 1:
                return None
            first = along[0] * size
            numbers = range(first, first + (len(along) - 1) * along.step * size + len(numbers), along.step)
        elif len(along) == 1:
            numbers = range(numbers.start + along[0] * size, numbers.stop + along[0] * size, numbers.step)
        else:
            return None
        size *= shape.dimensions[dimension]
    return numbers if len(numbers) > 1 else range(numbers[0], numbers[0] + 1)


def _places(shape: Shape, variables: Sequence[Variable], digits: Digits) -> tuple[_Place, ...] | None:
    """Return the digits of a slot, most major first; None where one is an inner digit of its variable when read."""
    found = digit_places(digits, slots_before_tail(shape))
    if found is None or any(variable not in variables for variable, _ in found):
        return None
    unread = {variable: [place.low for place in places] for variable, places in by_variable(found).items()}
    places = []
    for variable, place in found:
        lows = unread[variable]
        if place.low not in (lows[0], lows[-1]):
            return None
        lows.remove(place.low)
        above = place.low * place.used
        high = above if above < variable.extent else None
        places.append(_Place(place.stride, place.capacity, variables.index(variable), place.low, high))
    return tuple(places)
