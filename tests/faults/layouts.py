"""Random layouts through every kernel, between pages that kill whoever touches them.

The source, the destination and all arrays of indices begin right after, or end right before, such a page; the rest of
their page is filled with a pattern that must stay. What comes out is compared with the definition in NumPy.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from random import Random
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import fastindex as fi
import fastindex.runtime.machine_code
from fastindex import RelayoutPlan
from fastindex.runtime.tuning import TUNING
from tests.cases import strategies
from tests.cases.guard_pages import PAGE, guarded_pages
from tests.faults.tally import Tally
from tests.oracles import reference
from tests.oracles.reference import STAR, ReferenceShape
from tests.oracles.slot_owners import buffer_of, elements_of_slots, slots_of_elements

Bytes = NDArray[np.uint8]

_PATTERN = 0xC3
#: Slots of one buffer, and of the few that are large enough for what only large ones reach.
_MOST_SLOTS, _MOST_SLOTS_OF_FEW = 60_000, 3_000_000
_FEW = 150
_TYPES = ("u8", "bf16", "f32", "f64", "c128", "s4", "u2", "pred", "u1")
_SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 33, 64, 100, 128, 130)
_LONG = (256, 777, 1000, 2049, 4096, 5000, 9999, 20011)
_CHAINS: tuple[tuple[tuple[int | str, ...], ...], ...] = (
    ((8, 128),), ((8, 128), (2, 1)), ((8, 128), (4, 1)), ((8, 128), (8, 1)), ((2, 128),), ((4, 128), (2, 1)),
    ((1, 128),), ((256,),), ((1024,),), ((16, 128), (2, 1)), ((2, STAR, 128),), ((8, 16),), ((3,), (2,)), ((7, 5),),
    ((4, 6), (3, 1)), ((2, 2), (2, 2)), ((16, 7, 5),), ((512, 1024),), ((16, 1, 1),), ((STAR, 100), (8, 1)), ((4,),),
    ((12,), (4,)), ((32,), (8,), (2,)),
)  # fmt: skip
_TUNINGS = (TUNING, dataclasses.replace(TUNING, streamed_bytes=0), dataclasses.replace(TUNING, small_call_bytes=0))


class Memory(Protocol):
    """Allocates arrays of bytes, and knows whether something beside them was written."""

    def __call__(self, size: int) -> Bytes:
        """Return an array of `size` bytes."""

    def is_intact(self) -> bool:
        """Whether nothing beside the arrays since the last call was written; they are free again."""


class FencedMemory:
    """Arrays that touch a page without access, before or after them at random. Pages serve again and again."""

    def __init__(self, source: Random) -> None:
        self._random = source
        self._free: dict[int, list[Bytes]] = {}
        self._used: list[tuple[int, Bytes, int, int]] = []

    def __call__(self, size: int) -> Bytes:
        pages = 1 << max(-(-max(size, 1) // PAGE) - 1, 0).bit_length()
        free = self._free.setdefault(pages, [])
        inside = free.pop() if free else self._fenced(pages * PAGE)
        begin = len(inside) - size if self._random.random() < 0.5 else 0
        self._used.append((pages, inside, begin, begin + size))
        return inside[begin : begin + size]

    def _fenced(self, inside: int) -> Bytes:
        found: Bytes = guarded_pages(inside)
        found[:] = _PATTERN
        return found

    def is_intact(self) -> bool:
        """Whether the pattern beside all arrays is still there."""
        intact = True
        for pages, inside, begin, end in self._used:
            beside = inside[max(begin - PAGE, 0) : begin], inside[end : end + PAGE]
            intact &= all(bool((part == _PATTERN).all()) for part in beside)
            inside[max(begin - PAGE, 0) : end + PAGE] = _PATTERN
            self._free[pages].append(inside)
        self._used.clear()
        return intact


class PlainMemory:
    """Arrays from malloc, for tools that watch what lies beside them."""

    def __call__(self, size: int) -> Bytes:
        return np.empty(size, np.uint8)

    def is_intact(self) -> bool:
        return True


def run(tally: Tally) -> None:
    """Draw layouts until the time is over, between fences."""
    run_in(tally, FencedMemory(tally.random), "between fenced pages")


def run_plain(tally: Tally) -> None:
    """Draw layouts in memory from malloc, for tools that watch what lies beside it: no large ones, they are slow."""
    run_in(tally, PlainMemory(), "of layouts", 1 << 60)


def run_in(tally: Tally, memory: Memory, where: str, few: int = _FEW) -> None:
    """Draw layouts until the time is over, in some memory."""
    number = 0
    while tally.going():
        number += 1
        seed = tally.seed * 1_000_000 + number
        source = Random(seed)
        shapes = _layouts(source, _MOST_SLOTS_OF_FEW if number % few == 0 else _MOST_SLOTS)
        if len(shapes) < 2:
            continue
        values = _values(source, shapes[0])
        noise = source.getrandbits(reference.VALUE_BITS[shapes[0].element_type])
        laid = [LaidOut.of(shape, values, noise) for shape in shapes]
        # Drawing and laying out cost more than moving: every pair.
        for left, right in itertools.permutations(laid, 2):
            case = f"{left.shape} -> {right.shape}, seed {seed}"
            tally.begin(case)
            wrong = _relayout(source, memory, left, right)
            _note(tally, f"relayouts {where}", wrong, memory, case)
        case = f"{shapes[0]}, {shapes[1]}, seed {seed}"
        tally.begin(f"indices of {case}")
        wrong = _indices(source, memory, laid[0], laid[1]) or _arrays(source, memory, laid[0], values)
        _note(tally, f"indices, pack and unpack {where}", wrong, memory, case)
        if number % 20 == 0:
            tally.save()


def _note(tally: Tally, row: str, wrong: str, memory: Memory, case: str) -> None:
    tally.count(row)
    if not memory.is_intact():
        wrong += " bytes beside an array were written"
    if wrong:
        tally.find(row, f"{wrong}; {case}")


def _layouts(source: Random, most_slots: int) -> list[ReferenceShape]:
    """Up to four layouts of one array, of at most `most_slots` slots."""
    element_type = source.choice(_TYPES)
    rank = source.randint(1, 5)
    sizes = [source.choice(_SIZES) for _ in range(rank)]
    if source.random() < 0.5:
        sizes[source.randrange(rank)] = source.choice(_LONG)
    while math.prod(sizes) > most_slots // 2:
        sizes[sizes.index(max(sizes))] = source.choice(_SIZES)
    if source.random() < 0.02:
        sizes[source.randrange(rank)] = 0
    shapes = []
    for _ in range(4):
        shape = _layout(source, element_type, tuple(sizes))
        if reference.slot_count(shape) <= most_slots:
            shapes.append(shape)
    return shapes


def _layout(source: Random, element_type: str, dimensions: tuple[int, ...]) -> ReferenceShape:
    rank = len(dimensions)
    if source.random() < 0.3:
        found = strategies.draw_layout(_Drawn(source), element_type, dimensions, True)
        return dataclasses.replace(found, bounded=())
    order = tuple(source.sample(range(rank), rank)) if source.random() < 0.7 else tuple(range(rank))[::-1]
    tiles: tuple[tuple[int | str, ...], ...] = source.choice(_CHAINS) if source.random() < 0.8 else ()
    bits = reference.VALUE_BITS[element_type]
    packed = bits if bits < 8 and source.random() < 0.6 else 0
    tail = source.choice((1, 1, 1, 1, 64, 96, 1000))
    return ReferenceShape(element_type, dimensions, order, tiles, element_size_in_bits=packed, tail_alignment=tail)


class _Drawn:
    """Decisions for `strategies` from a random generator that is there already."""

    def __init__(self, source: Random) -> None:
        self._random = source

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def pick(self, options: Any) -> Any:
        return self._random.choice(options)


def _width(shape: ReferenceShape) -> int:
    """Bytes of a value, in NumPy."""
    return -(-reference.VALUE_BITS[shape.element_type] // 8)


def _values(source: Random, shape: ReferenceShape) -> Bytes:
    """Random bit patterns of all elements, (elements, bytes)."""
    count, width = math.prod(shape.dimensions), _width(shape)
    found = np.frombuffer(source.randbytes(min(count * width, 1 << 16)) or b"\0", np.uint8)
    whole: Bytes = np.resize(found, (count, width)) if count else np.empty((0, width), np.uint8)
    bits = reference.VALUE_BITS[shape.element_type]
    return whole & ((1 << bits) - 1) if bits < 8 else whole


@dataclasses.dataclass(frozen=True)
class LaidOut:
    """An array in a layout.

    Attributes
    ----------
    shape : ReferenceShape
    parsed : Shape
    places : array of int64
        The element in each slot, -1 for padding.
    noisy, expected : array of uint8
        Its buffer with anything in the padding, and with what the layout pads with.
    """

    shape: ReferenceShape
    parsed: fi.Shape
    places: NDArray[np.int64]
    noisy: Bytes
    expected: Bytes

    @classmethod
    def of(cls, shape: ReferenceShape, values: Bytes, noise: int) -> LaidOut:
        """Lay values out by the definition."""
        places = elements_of_slots(shape)
        padding = reference.padding_pattern(shape.element_type, shape.padding_value)
        fills = (fill.to_bytes(_width(shape), "little") for fill in (noise, padding))
        buffers = (buffer_of(shape, places, values, fill) for fill in fills)
        return cls(shape, fi.Shape.parse(str(shape)), places, *buffers)


def _relayout(source: Random, memory: Memory, left: LaidOut, right: LaidOut) -> str:
    """Move a buffer; return what is wrong."""
    read, written = memory(len(left.noisy)), memory(len(right.expected))
    read[:], written[:] = left.noisy, 0xA5
    try:
        plan = RelayoutPlan(left.parsed, right.parsed, source.choice(_TUNINGS))
        plan(read, out=_typed(written, right.parsed), threads=source.choice((1, 2)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if not np.array_equal(read, left.noisy):
        return "the source was written"
    return _difference(written, right.expected)


def _typed(buffer: Bytes, shape: fi.Shape) -> NDArray[Any]:
    """A buffer as callers hand it in."""
    packed = shape.element_bits < 8
    return buffer if packed or shape.element_bits != 8 * shape.element_type.nbytes else _viewed(buffer, shape)


def _viewed(buffer: Bytes, shape: fi.Shape) -> NDArray[Any]:
    return buffer.view(shape.element_type.numpy_dtype)


def _difference(found: NDArray[Any], expected: NDArray[Any]) -> str:
    if np.array_equal(found, expected):
        return ""
    at = int((found != expected).argmax())
    return f"byte or slot {at} is {found[at]}, expected {expected[at]}, {int((found != expected).sum())} are wrong"


def _indices(source: Random, memory: Memory, left: LaidOut, right: LaidOut) -> str:
    """Convert all indices of the first layout, there, back, and to the second; return what is wrong."""
    dimensions, threads = left.shape.dimensions, source.choice((1, 2))
    expected = slots_of_elements(left.places)
    coordinates = []
    for column in np.indices(dimensions, np.int64).reshape(len(dimensions), len(expected)):
        coordinates.append(memory(column.nbytes).view(np.int64))
        coordinates[-1][:] = column
    slots = memory(expected.nbytes).view(np.int64)
    fi.linear_index(left.parsed, coordinates, out=slots, threads=threads)
    wrong = _difference(slots, expected)
    every = memory(8 * len(left.places)).view(np.int64)
    every[:] = np.arange(len(left.places))
    back = [memory(every.nbytes).view(np.int64) for _ in dimensions]
    if dimensions and len(every):
        fi.multi_index(left.parsed, every, padding="mark", out=back, threads=threads)
        for column, found in zip(coordinates, back, strict=True):
            wanted = np.where(left.places >= 0, column[np.maximum(left.places, 0)] if len(column) else -1, -1)
            wrong = wrong or _difference(found, wanted)
    if len(expected):
        there = memory(expected.nbytes).view(np.int64)
        fi.convert_index(left.parsed, right.parsed, slots, out=there, threads=threads)
        wrong = wrong or _difference(there, slots_of_elements(right.places))
    return f"indices: {wrong}" if wrong else ""


def _arrays(source: Random, memory: Memory, laid: LaidOut, values: Bytes) -> str:
    """Pack an array and unpack it; return what is wrong."""
    threads = source.choice((1, 2))
    plain = memory(values.size)
    plain[:] = values.reshape(-1)
    array = _viewed(plain, laid.parsed).reshape(laid.shape.dimensions)
    written = memory(len(laid.expected))
    written[:] = 0xA5
    fi.pack(array, laid.parsed, out=_typed(written, laid.parsed), threads=threads)
    wrong = _difference(written, laid.expected)
    again = memory(values.size)
    again[:] = 0xA5
    fi.unpack(written, laid.parsed, out=_viewed(again, laid.parsed).reshape(laid.shape.dimensions), threads=threads)
    wrong = wrong or _difference(again, plain)
    return f"pack or unpack: {wrong}" if wrong else ""
