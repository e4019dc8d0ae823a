"""The runs of a window, for layouts whose slots are sums of digits of the coordinates.

The buffer is a tree: its most major digit cuts it into equal blocks, the next digit cuts each of these, and so on.
The runs of a window in a block depend only on the coordinates that remain, so most blocks are equal; each distinct
block is computed once, and runs that touch the edge of a block are joined with their neighbours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fastindex.algebra.shared_digits import by_variable, coordinate_systems, digit_places
from fastindex.algebra.strided_runs import StridedRun
from fastindex.core.digits import Digits, Variable, canonical, slot_digits
from fastindex.core.shape import Shape
from fastindex.core.sizes import axes_of
from fastindex.core.tiles import slot_count


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
    """A digit of a slot: a capacity of `room` values with a stride; `variable`, `low` and `high` as in `Digit`."""

    stride: int
    room: int
    variable: int
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class _Left:
    """The remaining values of a variable in units of `low`, after its digits from `high` up have been read."""

    numbers: range
    low: int
    high: int | None


#: Values of a digit with something remaining, in ascending order: the first one, the distance and the number of the
#: repetitions, and one repetition as pairs of an offset and the remaining values.
_Values = tuple[int, int, int, list[tuple[int, _Left]]]


@dataclass(frozen=True, slots=True)
class RunTree:
    places: tuple[_Place, ...]
    size: int
    root: tuple[_Left, ...]

    def runs(self) -> list[StridedRun]:
        whole = self._block(0, self.root, {})
        records = [StridedRun(0, whole.prefix)] if whole.prefix else []
        records += whole.inside
        if whole.suffix:
            records.append(StridedRun(whole.size - whole.suffix, whole.suffix))
        return records

    def _block(self, level: int, left: tuple[_Left, ...], known: dict[tuple[int, tuple[_Left, ...]], _Block]) -> _Block:
        found = known.get((level, left))
        if found is not None:
            return found
        if level == len(self.places):
            made = _Block(self.places[-1].stride if self.places else self.size, 1, [], 0)
        else:
            place = self.places[level]
            joining = _Joining()
            for value, apart, count, pattern in _values_of(place, left[place.variable]):
                blocks = []
                for distance, after in pattern:
                    remaining = (*left[: place.variable], after, *left[place.variable + 1 :])
                    blocks.append((distance * place.stride, self._block(level + 1, remaining, known)))
                joining.repeat(blocks, value * place.stride, count, apart * place.stride)
            made = joining.block(place.stride * place.room)
        known[level, left] = made
        return made


def _values_of(place: _Place, left: _Left) -> list[_Values]:
    if place.high is None or place.high == left.high:
        return _highest_digit(left, place.low)
    return _lowest_digit(left, place.high)


def _highest_digit(left: _Left, low: int) -> list[_Values]:
    """Return the values of the digit from `low` up."""
    numbers, unit = left.numbers, low // left.low
    first, last, step = numbers[0], numbers[-1], numbers.step
    if unit == 1:
        return [(first, step, len(numbers), [(0, _Left(range(1), left.low, low))])]

    def after(value: int) -> _Left | None:
        inside = _part(numbers, value * unit, (value + 1) * unit)
        return _Left(inside, left.low, low) if inside else None

    # Away from both ends, the remaining values depend only on the distance from a multiple of the step.
    apart = step // math.gcd(step, unit) if len(numbers) > 1 else 1
    begin, end = first // unit, last // unit + 1
    inner = begin + (after(begin) != after(begin + apart))
    count = (end - 1 - inner) // apart
    if end > inner and count * apart == end - 1 - inner and after(end - 1) == after(end - 1 - apart):
        count = (end - inner) // apart
    if count < 4:
        inner, count = begin, 0
    pattern = [(value - inner, after(value)) for value in range(inner, inner + apart)] if count else []
    groups: list[_Values] = [(value, 1, 1, [(0, rest)]) for value in range(begin, inner) if (rest := after(value))]
    if count:
        groups.append((inner, apart, count, [(distance, rest) for distance, rest in pattern if rest]))
    done = inner + count * apart
    groups += [(value, 1, 1, [(0, rest)]) for value in range(done, end) if (rest := after(value))]
    return groups


def _part(numbers: range, begin: int, end: int) -> range:
    """Return the numbers from `begin` to below `end`, relative to `begin`."""
    first = max(-(-(begin - numbers.start) // numbers.step), 0)
    stop = min(-(-(end - numbers.start) // numbers.step), len(numbers))
    if first >= stop:
        return range(0)
    start = numbers.start + first * numbers.step - begin
    return range(start, end - begin, numbers.step)[: stop - first]


def _lowest_digit(left: _Left, high: int) -> list[_Values]:
    """Return the values of the digit below `high`."""
    numbers, room = left.numbers, high // left.low
    common = math.gcd(numbers.step, room)
    groups: list[_Values] = []
    for value in range(numbers.start % common, room, common):
        # The first of the numbers with this digit; the next ones follow every room // common numbers.
        turns = room // common
        first = (value - numbers.start) // common * pow(numbers.step // common, -1, turns) % turns
        if first >= len(numbers):
            continue
        found = numbers[first::turns]
        start = found[0] // room
        rest = _Left(range(start, found[-1] // room + 1, max(found.step // room, 1)), high, left.high)
        if groups and groups[-1][3][0][1] == rest and groups[-1][0] + groups[-1][1] * groups[-1][2] == value:
            groups[-1] = (groups[-1][0], common, groups[-1][2] + 1, groups[-1][3])
        else:
            groups.append((value, common, 1, [(0, rest)]))
    return groups


def run_tree(shape: Shape, window: Sequence[range]) -> RunTree | None:
    """Return the digit tree of a layout with a window at its root; None where slots are not sums of digits."""
    for coordinates in coordinate_systems(shape, shape):
        variables = list({d.variable: None for d in itertools.chain(*coordinates)})
        digits = canonical(slot_digits(axes_of(shape), coordinates, {}))
        root = [_numbers_of(variable, shape, window) for variable in variables]
        places = _places(shape, variables, digits)
        if places is not None and None not in root:
            left = tuple(_Left(numbers, 1, None) for numbers in root if numbers is not None)
            return RunTree(places, _before_tail(shape), left)
    return None


def _before_tail(shape: Shape) -> int:
    return slot_count(axes_of(shape), 1)


def _numbers_of(variable: Variable, shape: Shape, window: Sequence[range]) -> range | None:
    """Return the values of a coordinate, or of several that `*` merges, in a window; None where they are no range."""
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
    found = digit_places(digits, _before_tail(shape))
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
        places.append(_Place(place.stride, place.room, variables.index(variable), place.low, high))
    return tuple(places)
