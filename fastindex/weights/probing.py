"""Probe a packer with code words, and read the layout off the places of bits.

The probe gives the source bit of each result bit, or inputs that disprove a permutation of bits; the layout is a split
of dimensions, and the order of their parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.core.foreign_arrays import host_array
from fastindex.errors import ArgumentTypeError
from fastindex.weights.found_formats import UNIT_BITS

Bits = NDArray[np.uint8]
Places = NDArray[np.int64]
Packer = Callable[[Any], Any]


@dataclass(frozen=True)
class Probe:
    """The source bit of each bit of the result.

    Attributes
    ----------
    places : int64 array
        -1 for padding.
    inverted : bool array
    has_ones : bool
        Whether padding holds ones.
    """

    places: Places
    inverted: NDArray[np.bool_]
    has_ones: bool = False


@dataclass(frozen=True)
class Disproof:
    """The reason why a packer is no permutation of bits, and the input arrays that show it.

    Attributes
    ----------
    reason : str
    inputs : tuple of arrays
    """

    reason: str
    inputs: tuple[NDArray[Any], ...]


class _Calls:
    """A packer wrapped to take and return vectors of bits."""

    def __init__(self, packer: Packer, sizes: Sequence[int], kind: np.dtype[Any], width: int) -> None:
        self.packer, self.sizes, self.kind, self.width = packer, tuple(sizes), kind, width
        self.total = math.prod(sizes) * width

    def array(self, word: NDArray[Any]) -> NDArray[Any]:
        """Return the array whose codes consist of these bits, in order."""
        weights = np.uint64(1) << np.arange(self.width, dtype=np.uint64)
        codes = (word.reshape(-1, self.width).astype(np.uint64) * weights).sum(axis=1, dtype=np.uint64)
        native = codes.astype(f"u{self.kind.itemsize}").view(self.kind.newbyteorder("="))
        values: NDArray[Any] = native.astype(self.kind, copy=False)
        return values.reshape(self.sizes)

    def result(self, word: NDArray[Any]) -> Bits:
        returned = self.packer(self.array(word))
        packed = np.ascontiguousarray(host_array(returned))
        if packed.dtype.hasobject:
            raise ArgumentTypeError(
                f"a packer returns an array of numbers, this one returned {type(returned).__name__}"
            )
        return np.unpackbits(packed.reshape(-1).view(np.uint8), bitorder="little")

    def disproof(self, reason: str, *words: NDArray[Any]) -> Disproof:
        return Disproof(reason, tuple(map(self.array, words)))

    def name(self, bit: int) -> str:
        index = tuple(int(i) for i in np.unravel_index(bit // self.width, self.sizes))
        return f"bit {bit % self.width} of the element at {index}"


def probed(packer: Packer, sizes: Sequence[int], kind: np.dtype[Any], width: int) -> Probe | Disproof:
    """Return the source bit of each bit of the result, or a proof that the packer is no permutation of bits.

    Parameters
    ----------
    packer : callable
    sizes : sequence of int
        Of the array, which must not be empty.
    kind : dtype
        An integer type, or bool.
    width : int
        The bits of a code: the low `width` bits of each element are used.

    Raises
    ------
    ArgumentTypeError
        The packer returns no array of numbers.

    Examples
    --------
    >>> probed(lambda codes: codes[::-1], (2,), np.dtype(np.uint8), 1).places[:9].tolist()
    [1, -1, -1, -1, -1, -1, -1, -1, 0]
    >>> print(probed(lambda codes: codes[:1], (2,), np.dtype(np.uint8), 1).reason)
    bit 0 of the element at (1,) is lost
    """
    calls = _Calls(packer, sizes, kind, width)
    numbers = np.arange(1, calls.total + 1)
    words = [(numbers >> step & 1).astype(np.uint8) for step in range(calls.total.bit_length())]
    nothing = np.zeros(calls.total, np.uint8)
    zeros, ones = calls.result(nothing), calls.result(1 - nothing)
    pairs = [(calls.result(word), calls.result(1 - word)) for word in words]
    for word, pair in zip([1 - nothing, *words], [(ones, ones), *pairs], strict=True):
        for given, one in zip((word, 1 - word), pair, strict=True):
            if one.shape != zeros.shape:
                return calls.disproof("the size of the result depends on what the array holds", nothing, given)
    inverted, constant = (zeros == 1) & (ones == 0), zeros == ones
    found = np.zeros(len(zeros), np.int64)
    for step, (one, other) in enumerate(pairs):
        found |= (one ^ inverted).astype(np.int64) << step
        wrong = np.flatnonzero(np.where(constant, (one != zeros) | (other != zeros), one == other))
        if len(wrong):
            reason = _no_bit(int(wrong[0]), (zeros, ones, one, other))
            return calls.disproof(reason, nothing, 1 - nothing, words[step], 1 - words[step])
    beyond = np.flatnonzero(~constant & ((found < 1) | (found > calls.total)))
    if len(beyond):
        reason = f"{_bit(int(beyond[0]))} is not a bit of the input: it is as if the input had more bits"
        return calls.disproof(reason, nothing, 1 - nothing, *words)
    places = np.where(constant, -1, found - 1)
    has_ones = bool((zeros & constant).any())
    disproof = _miscounted(calls, places) or _with_all_codes(calls, places, inverted, zeros)
    return disproof or Probe(places, inverted, has_ones)


def _bit(at: int) -> str:
    return f"bit {at % 8} of byte {at // 8} of the result"


def _no_bit(at: int, results: Sequence[Bits]) -> str:
    zeros, ones, one, other = (int(result[at]) for result in results)
    return (
        f"{_bit(at)} is not a bit of the input: with all bits 0 it is {zeros}, with all bits 1 it is {ones}, and no "
        f"single bit does that and is {one} and {other} for a word and its complement"
    )


def _miscounted(calls: _Calls, places: Places) -> Disproof | None:
    """Return the proof that a source bit is lost or duplicated; None if each occurs once."""
    counts = np.bincount(places[places >= 0], minlength=calls.total)
    if (counts == 1).all():
        return None
    at = int(np.flatnonzero(counts != 1)[0])
    word = np.zeros(calls.total, np.uint8)
    alone = word.copy()
    alone[at] = 1
    how = "is lost" if counts[at] == 0 else f"is in the result {counts[at]} times"
    return calls.disproof(f"{calls.name(at)} {how}", word, alone)


def _with_all_codes(calls: _Calls, places: Places, inverted: NDArray[np.bool_], zeros: Bits) -> Disproof | None:
    """Return a counterexample among arrays of all codes, as code words contain few of them; None if there is none."""
    for word in _words_of_all_codes(calls):
        expected = np.where(places < 0, zeros, word[places] ^ inverted)
        got = calls.result(word)
        if got.shape != expected.shape:
            return calls.disproof("the size of the result depends on what the array holds", word)
        wrong = np.flatnonzero(got != expected)
        if len(wrong):
            at = int(wrong[0])
            of = calls.name(int(places[at])) if places[at] >= 0 else "padding"
            return calls.disproof(f"{_bit(at)} is {of} for all code words, and is not for other codes", word)
    return None


def _words_of_all_codes(calls: _Calls) -> Iterator[NDArray[np.uint8]]:
    """Yield two arrays of random codes; then arrays with every code, if codes have at most a byte."""
    rng = np.random.default_rng(0)
    for _ in range(2):
        yield rng.integers(0, 2, calls.total, dtype=np.uint8)
    if calls.width <= 8:
        bits = np.arange(calls.width)
        for first in range(0, 1 << calls.width, calls.total // calls.width):
            codes = first + np.arange(calls.total // calls.width)
            yield (codes[:, None] >> bits & 1).reshape(-1).astype(np.uint8)


# The layout


@dataclass(frozen=True)
class BitOrder:
    """A layout as a split of dimensions and the order of their parts.

    Attributes
    ----------
    text : str
        XLA's text of the split array. If the bits of a code are not adjacent, an array of bits, whose last dimension
        is the bits of a code.
    split : tuple of tuples of int
    order : tuple of int
        Parts of all dimensions, numbered in order, the most minor first.
    stream : int or None
        The dimension whose codes are split as one stream of bits, because codes cross words.
    unit_order : tuple of int
        Position of bit i in a unit of ``len(unit_order)`` bits, the most minor ones; empty if bits are in order.
    backwards : tuple of int
        The parts that count down: value v of a part of size n is at the place of ``n - 1 - v``.
    """

    text: str
    split: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    stream: int | None = None
    unit_order: tuple[int, ...] = ()
    backwards: tuple[int, ...] = ()


def found_order(places: Places, sizes: Sequence[int], width: int) -> BitOrder | str:
    """Return the split and order of source bits; also try streams of bits, reordered units, and digits that count down.

    Parameters are those of `bit_order`.

    Examples
    --------
    >>> found_order(np.array([4, 5, 6, 7, 0, 1, 2, 3]), (2,), 4)
    BitOrder(text='u4[2]{0:E(4)}', split=((2,),), order=(0,), stream=None, unit_order=(4, 5, 6, 7, 0, 1, 2, 3), \
backwards=())
    """
    found = bit_order(places, sizes, width)
    if isinstance(found, BitOrder):
        return found
    for d in range(len(sizes)) if width > 1 else ():
        joined = _as_stream(places, sizes, width, d)
        one = bit_order(joined, [size * (width if d == e else 1) for e, size in enumerate(sizes)], 1)
        if isinstance(one, BitOrder):
            return replace(one, stream=d)
    for bits in UNIT_BITS:
        order = _order_of_units(places, bits)
        one = found if order is None else bit_order(places.reshape(-1, bits)[:, order].reshape(-1), sizes, width)
        if order is not None and isinstance(one, BitOrder):
            return replace(one, unit_order=tuple(order.tolist()))
        # Digits that count down grow with the array, as units of more than a byte do not.
        found = bit_order(places, sizes, width, counts_down=True)
        if isinstance(found, BitOrder):
            return found
    return found


def _as_stream(places: Places, sizes: Sequence[int], width: int, dimension: int) -> Places:
    """Renumber source bits: the bits of a code follow one dimension, instead of the last one."""
    stride = math.prod(sizes[dimension + 1 :])
    codes, bit = np.divmod(places, width)
    before, inner = np.divmod(codes, stride)
    return np.where(places < 0, -1, (before * width + bit) * stride + inner)


def _order_of_units(places: Places, bits: int) -> NDArray[np.int64] | None:
    """Return the positions of the bits of a unit without padding, sorted by source bit; None if they are in order."""
    if len(places) % bits:
        return None
    units = places.reshape(-1, bits)
    whole = np.flatnonzero((units >= 0).all(axis=1))
    if not len(whole):
        return None
    order = np.argsort(units[whole[0]])
    return None if (np.diff(order) == 1).all() else order


@dataclass(frozen=True)
class _Part:
    """A digit of a dimension: its size, and its step in the dimension (`unit`) and in the buffer (`stride`)."""

    dimension: int
    size: int
    unit: int
    stride: int


def bit_order(places: Places, sizes: Sequence[int], width: int, counts_down: bool = False) -> BitOrder | str:
    """Return the split and order that map source bits to their places, or the reason why there is none.

    Parameters
    ----------
    places : int64 array
        The source bit of each bit of the buffer, with the bits of a code as the most minor dimension; -1 for padding.
    sizes : sequence of int
        Of the array.
    width : int
        Bits of a code.
    counts_down : bool
        Whether digits of whole dimensions may count down.

    Examples
    --------
    >>> bit_order(np.array([0, 2, 1, 3]), (4,), 1)
    BitOrder(text='u1[2,2]{0,1:E(1)}', split=((2, 2),), order=(0, 1), stream=None, unit_order=(), backwards=())
    >>> bit_order(np.array([2, 3, 0, 1]), (4,), 1, counts_down=True)
    BitOrder(text='u1[2,2]{1,0:E(1)}', split=((2, 2),), order=(1, 0), stream=None, unit_order=(), backwards=(0,))
    """
    dimensions = [*sizes, width]
    where = np.empty(math.prod(dimensions), np.int64)
    where[places[places >= 0]] = np.flatnonzero(places >= 0)
    at = where.reshape(dimensions)
    start = int(at.reshape(-1)[0])
    lines = [
        at[tuple(slice(None) if d == e else 0 for e in range(len(dimensions)))] - start for d in range(len(sizes) + 1)
    ]
    total = np.full((1,) * len(dimensions), start, np.int64)
    for d, line in enumerate(lines):
        total = total + line.reshape([-1 if d == e else 1 for e in range(len(dimensions))])
    if not np.array_equal(np.broadcast_to(total, at.shape), at):
        return _no_sum(at, lines, start)
    cut = [_parts_of(line, d) for d, line in enumerate(lines)]
    if None in cut:
        return (
            f"it is a permutation of bits, but along dimension {cut.index(None)} the places are not a sum of digits: "
            "an XOR swizzle, or an order that is data"
        )
    parts = [part for of_one in cut if of_one is not None for part in of_one]
    whole = [part for part in parts if part.dimension == len(sizes)]
    # No element type has 3, 5, 6 or 7 bits: such codes become a dimension of bits.
    is_type = width & width - 1 == 0
    codes_are_whole = is_type and len(whole) == (width > 1) and all(part.stride == 1 for part in whole)
    if not codes_are_whole:
        return _spelled(parts, dimensions, 1, len(places), start, len(sizes) if counts_down else 0)
    kept = [part for part in parts if part.dimension < len(sizes)]
    return _spelled(kept, list(sizes), width, len(places), start, len(sizes) if counts_down else 0)


def _no_sum(at: Places, lines: Sequence[Places], start: int) -> str:
    """Return the message that places are not a sum over the coordinates, with the first counterexample."""
    for index in np.ndindex(at.shape):
        if at[index] != start + sum(int(line[i]) for line, i in zip(lines, index, strict=True)):
            return (
                f"it is a permutation of bits, but no order of digits: where bit {index[-1]} of the element at "
                f"{index[:-1]} lies, bit {int(at[index])}, is not the sum of what its coordinates add"
            )
    return "it is a permutation of bits, but no order of digits"


def _parts_of(line: Places, dimension: int) -> list[_Part] | None:
    """Split a dimension into digits where its places stop being linear; None if they are not a sum of digits."""
    found: list[_Part] = []
    size, unit = len(line), 1
    while unit < size:
        stride, whole = int(line[unit]), -(-size // unit)
        steps = line[::unit]
        linear = steps == stride * np.arange(len(steps))
        most = len(steps) if linear.all() else int(np.argmin(linear))
        # Candidate sizes of this digit; the last digit may be incomplete.
        counts = [most, *(c for c in range(most - 1, 1, -1) if most % c == 0 or whole % c == 0)]
        count = next((c for c in counts if _repeats(line, unit * c)), None)
        if count is None or count < 2:
            return None
        found.append(_Part(dimension, count, unit, stride))
        unit *= count
    return found


def _repeats(line: Places, period: int) -> bool:
    """Whether the offsets after each multiple of a period are those after the start."""
    numbers = np.arange(len(line))
    return np.array_equal(line, line[numbers % period] + line[numbers - numbers % period])


def _spelled(
    parts: Sequence[_Part], dimensions: Sequence[int], width: int, count: int, start: int, whole: int
) -> BitOrder | str:
    """Return the text of parts; those of the first `whole` dimensions may count down, if they fill their dimension."""
    down = [part for part in parts if part.stride < 1]
    for part in down:
        d = part.dimension
        if d >= whole or math.prod(one.size for one in parts if one.dimension == d) != dimensions[d]:
            where = f"dimension {d}" if d < whole else "the bits of a code"
            return f"it is a permutation of bits, but a digit of {part.size} in {where} runs backwards"
    start += sum((part.size - 1) * part.stride for part in down)
    backwards = {(part.dimension, part.unit) for part in down}
    parts = [replace(part, stride=abs(part.stride)) for part in parts]
    split: list[tuple[int, ...]] = []
    numbered: list[tuple[int, int]] = []
    counted_down: list[int] = []
    padded: list[int] = []
    tail = ""
    ordered = sorted(parts, key=lambda part: part.stride)
    for d in range(len(dimensions)):
        own = sorted((part for part in parts if part.dimension == d), key=lambda part: -part.unit) or [
            _Part(d, 1, 1, 0)
        ]
        split.append(tuple(part.size for part in own))
        counted_down += [len(numbered) + i for i, part in enumerate(own) if (d, part.unit) in backwards]
        numbered += [(part.stride, len(numbered) + i) for i, part in enumerate(own)]
    if not parts and count > width:
        # One element, with padding after it.
        tail = f"L({count // width})"
    for part, above in zip(ordered, [p.stride for p in [*ordered, _Part(0, 1, 1, count)][1:]], strict=True):
        capacity, remainder = divmod(above, part.stride)
        if remainder and part is ordered[-1] and capacity >= part.size and count % width == 0:
            # Padding at the end of the buffer that is not a whole row.
            capacity, tail = part.size, f"L({count // width})"
        elif remainder or capacity < part.size:
            return f"it is a permutation of bits, but its digits overlap: {part.size} values {part.stride} bits apart"
        padded.append(capacity)
    flat = [size for one in split for size in one]
    order = tuple(number for _, number in sorted(numbered))
    if start:
        return f"it is a permutation of bits after {start} bits of padding, which no layout has"
    padded_sizes = dict(zip([number for _, number in sorted(numbered) if flat[number] > 1], padded, strict=False))
    filled = [padded_sizes.get(i, size) for i, size in enumerate(flat)]
    attributes = (f"PAD({','.join(map(str, filled))})" if filled != flat else "") + tail
    attributes += f"E({width})" if width < 8 else ""
    text = f"u{width}[{','.join(map(str, flat))}]{{{','.join(map(str, order))}{':' if attributes else ''}{attributes}}}"
    return BitOrder(text, tuple(split), order, backwards=tuple(counted_down))
