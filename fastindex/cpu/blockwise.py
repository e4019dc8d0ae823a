"""Relayout of arrays larger than memory: block by block, so that little of either side is in use at a time.

The two sides are memory-mapped files. A block is a box of the loops of a relayout, chosen so that the pages it touches
on both sides fit the memory it may take, and so that what it touches is as contiguous as possible on both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastindex.arguments.addresses import address_of
from fastindex.arguments.buffers import require_movable_pair
from fastindex.arguments.fills import fill_pattern
from fastindex.cpu.movements import kernel_of, move_slots, run_pass
from fastindex.cpu.threads import run_chunks, thread_count
from fastindex.lowering.passes import Pass, passes
from fastindex.lowering.relayout_loops import Loop, Nest, RelayoutLoops, coalesced, grouped, relayout_loops
from fastindex.lowering.slot_format import SlotFormat, slot_format
from fastindex.shapes.shape import Shape

Bytes = NDArray[np.uint8]

#: Pages that the system maps at once around one that is read, and one that is written.
_READ_BYTES = 64 << 10
_WRITTEN_BYTES = 4 << 10

_SLOTS_AT_ONCE = 1 << 22
_BITS_AT_ONCE = 1 << 20
_WIDTHS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a relayout in bounded memory works with.

    Attributes
    ----------
    block_bytes : int
        How much of both sides a block may touch.
    scratch : callable
        Gives memory for so many bytes, where values have to be unpacked on the way.
    after_block : callable
        Called with the bytes a block has written; it may let go of the memory that holds the files' pages.
    threads : int, optional
    """

    block_bytes: int
    scratch: Callable[[int], Bytes]
    after_block: Callable[[int], None]
    threads: int | None = None


def written_bytes(source: Shape, destination: Shape) -> int:
    """Give how many bytes `relayout_in_blocks` writes in all, those on the way included.

    Examples
    --------
    >>> written_bytes(Shape.parse("f32[3,5]"), Shape.parse("f32[3,5]{1,0:T(2,2)}"))
    96
    """
    return sum(step.written for step in _steps(source, destination))


def relayout_in_blocks(
    source: Shape, destination: Shape, read: Bytes, written: Bytes, surroundings: Surroundings
) -> None:
    """Move a buffer from one layout to another, block by block; padding gets the padding value of the destination.

    Parameters
    ----------
    source, destination : Shape
        Two layouts of one array.
    read, written : uint8 arrays
        ``source.nbytes`` and ``destination.nbytes`` bytes that do not overlap, contiguous.
    surroundings : Surroundings

    Raises
    ------
    FastIndexError
        Shapes of different arrays.
    UnsupportedError
        A shape without slots, or whose elements cannot move.

    Examples
    --------
    >>> source, destination = Shape.parse("u8[2,3]{1,0}"), Shape.parse("u8[2,3]{0,1}")
    >>> written = np.empty(6, np.uint8)
    >>> around = Surroundings(1 << 20, lambda size: np.empty(size, np.uint8), lambda size: None)
    >>> relayout_in_blocks(source, destination, np.arange(6, dtype=np.uint8), written, around)
    >>> written
    array([0, 3, 1, 4, 2, 5], dtype=uint8)
    """
    steps = _steps(source, destination)
    for step in steps[:-1]:
        target = surroundings.scratch(step.written)
        step.run(read, target, surroundings)
        read = target
    steps[-1].run(read, written, surroundings)


@dataclass(frozen=True, slots=True)
class _Step:
    """Part of a relayout: it writes `written` bytes from what the step before has written."""

    written: int
    run: Callable[[Bytes, Bytes, Surroundings], None]


def _steps(source: Shape, destination: Shape) -> list[_Step]:
    require_movable_pair(source, destination)
    formats = slot_format(source), slot_format(destination)
    pattern = fill_pattern(destination)
    if formats[0] == formats[1]:
        found = _direct_step(source, destination, formats[0], pattern)
        if found is not None:
            return [found]
    width = formats[0].value_bytes
    steps = [] if formats[0].is_plain else [_unpacking_step(formats[0], source.slot_count)]
    steps.append(_moving_step(source, destination, width, 1, destination.slot_count * width, pattern))
    if not formats[1].is_plain:
        steps.append(_packing_step(formats[1], destination.slot_count))
    return steps


def _direct_step(source: Shape, destination: Shape, layout: SlotFormat, pattern: bytes) -> _Step | None:
    """Move slots as they are, packed values as whole bytes; None where that does not do."""
    if layout.is_packed:
        loops = relayout_loops(source, destination)
        if loops is None or grouped(loops, 8 // layout.bits) is None:
            return None
        per_byte = 8 // layout.bits
        byte = sum(pattern[0] << k * layout.bits for k in range(per_byte))
        return _moving_step(source, destination, 1, per_byte, destination.nbytes, bytes([byte]))
    width = layout.bits // 8
    if width not in _WIDTHS:
        return None
    return _moving_step(source, destination, width, 1, destination.nbytes, pattern.ljust(width, b"\0"))


def _moving_step(source: Shape, destination: Shape, width: int, per_byte: int, written: int, pattern: bytes) -> _Step:
    loops = relayout_loops(source, destination)
    if loops is not None and per_byte > 1:
        loops = grouped(loops, per_byte)

    def move(read: Bytes, target: Bytes, surroundings: Surroundings) -> None:
        addresses = address_of(read), address_of(target)
        if loops is None:
            for begin in range(0, destination.slot_count, _SLOTS_AT_ONCE):
                slots = range(begin, min(begin + _SLOTS_AT_ONCE, destination.slot_count))
                move_slots(source, destination, width, *addresses, pattern, surroundings.threads, slots)
                surroundings.after_block(len(slots) * width)
            return
        for nest in loops.copies:
            _run_blocks(nest, True, width, addresses, pattern, surroundings)
        for nest in loops.fills:
            _run_blocks(nest, False, width, addresses, pattern, surroundings)

    return _Step(written, move)


def _run_blocks(
    nest: Nest, is_copy: bool, width: int, addresses: tuple[int, int], pattern: bytes, surroundings: Surroundings
) -> None:
    sizes = block_sizes(nest, is_copy, width, surroundings.block_bytes)
    known: dict[tuple[int, ...], tuple[Pass, ...]] = {}
    for box, source_start, destination_start in _boxes(nest, sizes):
        steps = known.get(box)
        if steps is None:
            part = coalesced(
                Nest(
                    tuple(Loop(n, k.source_stride, k.destination_stride) for n, k in zip(box, nest.loops, strict=True))
                )
            )
            steps = known[box] = passes(RelayoutLoops((part,), ()) if is_copy else RelayoutLoops((), (part,)), width)
        read, written = addresses[0] + source_start * width, addresses[1] + destination_start * width
        for step in steps:
            run_pass(step, read, written, pattern, surroundings.threads)
        surroundings.after_block(math.prod(box) * width)


def block_sizes(nest: Nest, is_copy: bool, width: int, block_bytes: int) -> tuple[int, ...]:
    """Choose how much of each loop of a nest a block takes.

    Parameters
    ----------
    nest : Nest
        Strides in elements.
    is_copy : bool
        Whether there is a source.
    width : int
        Bytes of an element.
    block_bytes : int
        The most that the pages a block touches may take, unless one element takes more.

    Examples
    --------
    >>> transpose = Nest((Loop(1 << 20, 1, 1 << 20), Loop(1 << 20, 1 << 20, 1)))
    >>> block_sizes(transpose, True, 4, 1 << 30)
    (32768, 2048)
    """
    loops = nest.loops
    whole = [loop.size for loop in loops]
    if _touched_bytes(loops, whole, is_copy, width) <= block_bytes:
        return tuple(whole)
    sizes = [1] * len(loops)
    growing = {i for i, loop in enumerate(loops) if loop.size > 1}
    while growing:
        options = []
        for i in growing:
            grown = [*sizes]
            grown[i] = min(2 * sizes[i], whole[i])
            touched = _touched_bytes(loops, grown, is_copy, width)
            options.append((touched * sizes[i] / grown[i], touched, i, grown))
        # The loop whose growth leaves the fewest pages for each element.
        _, touched, i, grown = min(options)
        if touched <= block_bytes:
            sizes = grown
        if touched > block_bytes or grown[i] == whole[i]:
            growing.remove(i)
    return tuple(sizes)


def _touched_bytes(loops: Sequence[Loop], sizes: Sequence[int], is_copy: bool, width: int) -> int:
    steps = list(zip(loops, sizes, strict=True))
    touched = _pages([(k.destination_stride * width, n) for k, n in steps], width, _WRITTEN_BYTES)
    if is_copy:
        touched += _pages([(k.source_stride * width, n) for k, n in steps], width, _READ_BYTES)
    return touched


def _pages(steps: Sequence[tuple[int, int]], width: int, page: int) -> int:
    run, runs = width, 1
    for stride, size in sorted(step for step in steps if step[1] > 1):
        if stride <= max(run, page):
            run += stride * (size - 1)
        else:
            runs *= size
    return runs * (run // page + 2) * page


def _boxes(nest: Nest, sizes: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Cut a nest into boxes, those next to each other in the destination first; gives sizes and starts."""
    outermost_first = sorted(range(len(sizes)), key=lambda i: -nest.loops[i].destination_stride)
    for begins in itertools.product(*[range(0, nest.loops[i].size, sizes[i]) for i in outermost_first]):
        box = [0] * len(sizes)
        source, destination = nest.source_start, nest.destination_start
        for i, begin in zip(outermost_first, begins, strict=True):
            loop = nest.loops[i]
            box[i] = min(sizes[i], loop.size - begin)
            source += begin * loop.source_stride
            destination += begin * loop.destination_stride
        yield tuple(box), source, destination


def _unpacking_step(layout: SlotFormat, slots: int) -> _Step:
    """Give every value bytes of its own."""
    return _conversion_step("expand all", layout, slots, slots * layout.value_bytes)


def _packing_step(layout: SlotFormat, slots: int) -> _Step:
    """Store values as narrow, or as wide, as slots are."""
    return _conversion_step("compress all", layout, slots, layout.nbytes(slots))


def _conversion_step(name: str, layout: SlotFormat, slots: int, written: int) -> _Step:
    def convert(read: Bytes, target: Bytes, surroundings: Surroundings) -> None:
        for begin in range(0, slots, _SLOTS_AT_ONCE):
            end = min(begin + _SLOTS_AT_ONCE, slots)
            if layout.is_packed:
                _convert_bits(name, layout.bits, read, target, begin, end, surroundings.threads)
            else:
                _convert_bytes(name, layout, read, target, begin, end)
            surroundings.after_block((end - begin) * written // slots)

    return _Step(written, convert)


def _convert_bits(name: str, bits: int, read: Bytes, target: Bytes, begin: int, end: int, threads: int | None) -> None:
    kernel = kernel_of(name, bits)
    addresses = address_of(target), address_of(read)

    def task(first: int, last: int) -> None:
        kernel(bits, *addresses, begin + first, begin + last)

    run_chunks(task, end - begin, thread_count(threads), _BITS_AT_ONCE)


def _convert_bytes(name: str, layout: SlotFormat, read: Bytes, target: Bytes, begin: int, end: int) -> None:
    value, slot = layout.value_bytes, layout.bits // 8
    if name == "expand all":
        wide = read.reshape(-1, slot)[begin:end]
        target.reshape(-1, value)[begin:end] = wide[:, :value]
    else:
        wide = target.reshape(-1, slot)[begin:end]
        wide[:, :value] = read.reshape(-1, value)[begin:end]
        wide[:, value:] = 0
