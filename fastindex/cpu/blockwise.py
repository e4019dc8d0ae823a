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
from fastindex.cpu.movements import look_up_slots, pack_slots, run_loops, unpack_slots
from fastindex.lowering.relayout_loops import Loop, Nest, RelayoutLoops, coalesced
from fastindex.lowering.slot_format import SlotFormat
from fastindex.lowering.slot_moves import SlotMove, slot_move
from fastindex.shapes.shape import Shape

Bytes = NDArray[np.uint8]

#: What the system maps at once around a page that is read, and around one that is written.
_READ_BYTES = 64 << 10
_WRITTEN_BYTES = 4 << 10

_SLOTS_AT_ONCE = 1 << 22

_Conversion = Callable[[SlotFormat, int, int, int, int | None], None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The means of a relayout in bounded memory.

    Attributes
    ----------
    block_bytes : int
        The most bytes, of both sides together, that a block may touch.
    scratch : callable
        Allocates memory of a given size for values that have to be unpacked first.
    after_block : callable
        Called with the number of bytes that a block has written; it may release the memory of the files' pages.
    threads : int, optional
    """

    block_bytes: int
    scratch: Callable[[int], Bytes]
    after_block: Callable[[int], None]
    threads: int | None = None


def written_bytes(source: Shape, destination: Shape) -> int:
    """Return how many bytes `relayout_in_blocks` writes in all, intermediate values included.

    Examples
    --------
    >>> written_bytes(Shape.parse("f32[3,5]"), Shape.parse("f32[3,5]{1,0:T(2,2)}"))
    96
    """
    return sum(stage.written for stage in _stages(source, destination))


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
    stages = _stages(source, destination)
    for stage in stages[:-1]:
        target = surroundings.scratch(stage.written)
        stage.run(read, target, surroundings)
        read = target
    stages[-1].run(read, written, surroundings)


@dataclass(frozen=True, slots=True)
class _Stage:
    """Part of a relayout: it writes `written` bytes from what the stage before it has written."""

    written: int
    run: Callable[[Bytes, Bytes, Surroundings], None]


def _stages(source: Shape, destination: Shape) -> list[_Stage]:
    require_movable_pair(source, destination)
    move = slot_move(source, destination)
    padding = move.padding(fill_pattern(destination))
    if move.unit != "value":
        return [_moving_stage(source, destination, move, padding, destination.nbytes)]
    stages = [] if move.source.is_plain else [_conversion_stage(unpack_slots, move.source, source.slot_count, True)]
    stages.append(_moving_stage(source, destination, move, padding, destination.slot_count * move.width))
    if not move.destination.is_plain:
        stages.append(_conversion_stage(pack_slots, move.destination, destination.slot_count, False))
    return stages


def _moving_stage(source: Shape, destination: Shape, slots: SlotMove, padding: bytes, written: int) -> _Stage:
    loops, width = slots.loops, slots.width

    def move(read: Bytes, target: Bytes, surroundings: Surroundings) -> None:
        addresses = address_of(read), address_of(target)
        if loops is None:
            for begin in range(0, destination.slot_count, _SLOTS_AT_ONCE):
                wanted = range(begin, min(begin + _SLOTS_AT_ONCE, destination.slot_count))
                look_up_slots((source, destination), addresses, width, padding, surroundings.threads, wanted)
                surroundings.after_block(len(wanted) * width)
            return
        for nest in loops.copies:
            _run_blocks(nest, True, width, addresses, padding, surroundings)
        for nest in loops.fills:
            _run_blocks(nest, False, width, addresses, padding, surroundings)

    return _Stage(written, move)


def _run_blocks(
    nest: Nest, is_copy: bool, width: int, addresses: tuple[int, int], pattern: bytes, surroundings: Surroundings
) -> None:
    sizes = block_sizes(nest, is_copy, width, surroundings.block_bytes)
    known: dict[tuple[int, ...], RelayoutLoops] = {}
    for box, source_start, destination_start in _boxes(nest, sizes):
        found = known.get(box)
        if found is None:
            sized = zip(box, nest.loops, strict=True)
            part = coalesced(Nest(tuple(Loop(n, k.source_stride, k.destination_stride) for n, k in sized)))
            found = known[box] = RelayoutLoops((part,), ()) if is_copy else RelayoutLoops((), (part,))
        read, written = addresses[0] + source_start * width, addresses[1] + destination_start * width
        run_loops(found, width, read, written, pattern, surroundings.threads)
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
    taken = list(zip(loops, sizes, strict=True))
    touched = _pages([(k.destination_stride * width, n) for k, n in taken], width, _WRITTEN_BYTES)
    if is_copy:
        touched += _pages([(k.source_stride * width, n) for k, n in taken], width, _READ_BYTES)
    return touched


def _pages(strides: Sequence[tuple[int, int]], width: int, page: int) -> int:
    run, runs = width, 1
    for stride, size in sorted(one for one in strides if one[1] > 1):
        if stride <= max(run, page):
            run += stride * (size - 1)
        else:
            runs *= size
    return runs * (run // page + 2) * page


def _boxes(nest: Nest, sizes: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Cut a nest into boxes, those adjacent in the destination first; yields sizes and starts."""
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


def _conversion_stage(convert: _Conversion, slots: SlotFormat, count: int, unpacks: bool) -> _Stage:
    """Unpack slots into values, or pack values into slots."""
    written = count * slots.value_bytes if unpacks else slots.nbytes(count)

    def run(read: Bytes, target: Bytes, surroundings: Surroundings) -> None:
        for begin in range(0, count, _SLOTS_AT_ONCE):
            part = min(_SLOTS_AT_ONCE, count - begin)
            starts = slots.nbytes(begin), begin * slots.value_bytes
            source, destination = starts if unpacks else starts[::-1]
            addresses = address_of(read) + source, address_of(target) + destination
            convert(slots, part, *addresses, surroundings.threads)
            surroundings.after_block(part * written // count)

    return _Stage(written, run)
