"""Read a layout off the places of bits: the split of dimensions, and the order of their parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fastindex.weights.found_formats import UNIT_BITS

Places = NDArray[np.int64]


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
    """

    text: str
    split: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    stream: int | None = None
    unit_order: tuple[int, ...] = ()


def found_order(places: Places, sizes: Sequence[int], width: int) -> BitOrder | str:
    """Return the split and order of source bits; also try streams of bits, and units with reordered bits.

    Parameters are those of `bit_order`.

    Examples
    --------
    >>> found_order(np.array([4, 5, 6, 7, 0, 1, 2, 3]), (2,), 4)
    BitOrder(text='u4[2]{0:E(4)}', split=((2,),), order=(0,), stream=None, unit_order=(4, 5, 6, 7, 0, 1, 2, 3))
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
        if order is None:
            continue
        one = bit_order(places.reshape(-1, bits)[:, order].reshape(-1), sizes, width)
        if isinstance(one, BitOrder):
            return replace(one, unit_order=tuple(order.tolist()))
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


def bit_order(places: Places, sizes: Sequence[int], width: int) -> BitOrder | str:
    """Return the split and order that map source bits to their places, or the reason why there is none.

    Parameters
    ----------
    places : int64 array
        The source bit of each bit of the buffer, with the bits of a code as the most minor dimension; -1 for padding.
    sizes : sequence of int
        Of the array.
    width : int
        Bits of a code.

    Examples
    --------
    >>> bit_order(np.array([0, 2, 1, 3]), (4,), 1)
    BitOrder(text='u1[2,2]{0,1:E(1)}', split=((2, 2),), order=(0, 1), stream=None, unit_order=())
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
        return _spelled(parts, dimensions, 1, len(places), start, len(sizes))
    kept = [part for part in parts if part.dimension < len(sizes)]
    return _spelled(kept, list(sizes), width, len(places), start, len(sizes))


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


def _backwards(part: _Part, size: int, rank: int) -> str:
    """Return the message for a digit of negative stride; plainer if it is the outermost one of a dimension."""
    where = f"dimension {part.dimension}" if part.dimension < rank else "the bits of a code"
    what = f"a digit of {part.size} runs backwards, whose values are {part.unit} apart"
    if part.size * part.unit == size:
        what = "its halves are swapped" if part.size == 2 else f"its {part.size} parts are in reverse order"
    return f"it is a permutation of bits, but no order of digits: in {where}, {what}"


def _spelled(
    parts: Sequence[_Part], dimensions: Sequence[int], width: int, count: int, start: int, rank: int
) -> BitOrder | str:
    for part in parts:
        if part.stride < 1:
            return _backwards(part, dimensions[part.dimension], rank)
    split: list[tuple[int, ...]] = []
    numbered: list[tuple[int, int]] = []
    padded: list[int] = []
    tail = ""
    ordered = sorted(parts, key=lambda part: part.stride)
    for d in range(len(dimensions)):
        own = sorted((part for part in parts if part.dimension == d), key=lambda part: -part.unit) or [
            _Part(d, 1, 1, 0)
        ]
        split.append(tuple(part.size for part in own))
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
    whole = [padded_sizes.get(i, size) for i, size in enumerate(flat)]
    attributes = (f"PAD({','.join(map(str, whole))})" if whole != flat else "") + tail
    attributes += f"E({width})" if width < 8 else ""
    text = f"u{width}[{','.join(map(str, flat))}]{{{','.join(map(str, order))}{':' if attributes else ''}{attributes}}}"
    return BitOrder(text, tuple(split), order)
