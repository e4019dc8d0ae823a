"""How many writes of a plan cover a part of a cache line only, counted from the tables of its passes.

A line that is written whole costs one transfer. One that several pieces share is read before each of them, so a plan
is good where every piece begins and ends with a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from fastindex.moving.moves import column_gather as columns
from fastindex.moving.moves.block_permute import ASSEMBLY
from fastindex.moving.moves.column_gather import COLUMNS
from fastindex.moving.moves.streams import STREAM
from fastindex.moving.moves.transposes import TRANSPOSE
from fastindex.moving.numbers import CHUNKS, FILL, STRIDED
from fastindex.moving.passes import Pass
from fastindex.runtime.numbers import LINE_BYTES

Offsets = NDArray[np.int64]
#: Pieces: where each begins, in bytes, how long all of them are, and the sizes and strides of the loops around them.
Pieces = tuple[Offsets, int, list[tuple[int, int]]]


def partial_writes(found: Iterable[Pass]) -> int:
    """Return how many writes cover a part of a line, in a destination that begins with a line.

    Examples
    --------
    >>> from fastindex import plan_relayout
    >>> from fastindex.moving.movements import movement
    >>> from fastindex.runtime.machine import EPYC_1M
    >>> plan = plan_relayout("f32[512,3]{1,0}", "f32[512,3]{1,0:T(8,128)}")
    >>> partial_writes(movement(plan.source, plan.destination, machine=EPYC_1M).passes)
    0
    """
    return sum(_partial(*pieces) for one in found for pieces in _pieces_of(one))


def _partial(starts: Offsets, size: int, loops: list[tuple[int, int]]) -> int:
    """Count the ends within a line; both ends of a piece within one line count once."""
    if not size:
        return 0
    begins = np.bincount(starts % LINE_BYTES, minlength=LINE_BYTES)
    places = np.arange(LINE_BYTES)
    for count, stride in loops:
        # How often each place within a line is reached by the steps of a loop.
        whole, rest = divmod(count, LINE_BYTES)
        reached = np.zeros(LINE_BYTES, np.int64)
        for steps, weight in ((LINE_BYTES, whole), (rest, 1)):
            for step in range(steps if weight else 0):
                reached += weight * np.roll(begins, step * stride % LINE_BYTES)
        begins = reached
    head = places != 0
    tail = ((places + size) % LINE_BYTES != 0) & ~(head & (places + size < LINE_BYTES))
    return int((begins * (head.astype(np.int64) + tail)).sum())


def _pieces_of(one: Pass) -> Iterator[Pieces]:
    """Yield what a pass writes, piece by piece."""
    geometry = one.geometry.tolist()
    loops = [(size, stride) for size, _, stride in one.outer.tolist()]
    start = np.array([one.destination_start], np.int64)
    match one.kernel:
        case "strided" if not geometry[STRIDED.element_bytes]:
            places = (
                geometry[STRIDED.target_nibble]
                + np.arange(geometry[STRIDED.elements]) * geometry[STRIDED.target_stride]
            )
            # Steps of single nibbles count two and two, which is near enough.
            yield places // 2, 1, [(size, stride // 2) for size, stride in loops]
        case "strided":
            runs = geometry[STRIDED.runs], geometry[STRIDED.run_target_stride]
            yield (
                start,
                one.width,
                [*loops, (geometry[STRIDED.elements], geometry[STRIDED.target_stride]), runs],
            )
        case "fill":
            yield start, geometry[FILL.run_bytes], loops
        case "transpose":
            yield from _columns_of(one, geometry, loops)
        case "column gather":
            first = geometry[COLUMNS.groups] * len(columns.ColumnGroup._fields)
            count = geometry[COLUMNS.chunks] * LINE_BYTES // one.width * one.ways
            places = one.tables[0][first : first + count]
            places = places[places != columns.NOWHERE]
            block = geometry[COLUMNS.block_bytes]
            bands = one.tables[1][: geometry[COLUMNS.bands] * len(columns.ColumnBand._fields)]
            for first, lines, _, _ in bands.reshape(-1, len(columns.ColumnBand._fields)).tolist():
                piece = min(block - first * LINE_BYTES, lines * LINE_BYTES)
                for begins, size in _joined(places, piece):
                    yield start + first * LINE_BYTES + begins, size, loops
        case "boxes":
            for inner in (each for each, _, to_scratch in one.inner if not to_scratch):
                for starts, size, around in _pieces_of(inner):
                    yield one.destination_start + starts, size, [*loops, *around]
        case _:
            yield from _chunks_of(one, geometry, loops)


def _joined(places: Offsets, size: int) -> Iterator[tuple[Offsets, int]]:
    """Join pieces that continue each other, and yield them by their length."""
    if not len(places):
        return
    breaks = np.flatnonzero(np.diff(places) != size) + 1
    begins = np.concatenate([[0], breaks])
    lengths = np.diff(np.concatenate([begins, [len(places)]]))
    for length in np.unique(lengths).tolist():
        yield places[begins[lengths == length]], length * size


def _chunks_of(one: Pass, geometry: list[int], loops: list[tuple[int, int]]) -> Iterator[Pieces]:
    """Yield the runs of consecutive chunks of each task; the last task of a row may have fewer."""
    block, count, step = (geometry[place] for place in (CHUNKS.per_task, CHUNKS.total, CHUNKS.target_stride))
    per_byte = one.ways if one.kernel == "compress" else 1
    offsets = one.tables[0].reshape(-1, 2)[:, 1]
    chunk, columns = _chunk_bytes(one, geometry)
    followers = geometry[STREAM.follower_count] if one.kernel == "copy" else 1
    if followers > 1:
        # Runs that continue each other are joined wherever they are, and the lines between them written once.
        number = np.arange(count)
        places = offsets[number % block] + number // block * step
        firsts = number // geometry[STREAM.follower_every] % followers == 0
        yield one.destination_start + places[firsts], chunk * followers, loops
        return
    whole, rest = divmod(count, block)
    for tasks, taken, first in ((whole, block, 0), (1 if rest else 0, rest, whole * step)):
        if not tasks:
            continue
        for column in columns:
            begins = (one.destination_start + first + column + offsets[:taken]) // per_byte
            for starts, size in _joined(begins, chunk):
                yield starts, size, [*((n, stride // per_byte) for n, stride in loops), (tasks, step // per_byte)]


def _chunk_bytes(one: Pass, geometry: list[int]) -> tuple[int, list[int]]:
    """Return how long the pieces of a chunk are, and where they begin within it."""
    if one.kernel == "block permute":
        return geometry[ASSEMBLY.block_bytes], [0]
    run = geometry[STREAM.run]
    match one.kernel:
        case "copy":
            return run * len(one.tables[1]), [0]
        case "interleave":
            return run * one.ways * one.width, [0]
        case "deinterleave":
            return run * one.width, one.tables[1].tolist()
        case "compress":
            return run // one.ways, [0]
        case _:
            return run, [0]


def _columns_of(one: Pass, geometry: list[int], loops: list[tuple[int, int]]) -> Iterator[Pieces]:
    """Yield the columns of a transpose; those that continue each other are one."""
    rows = geometry[TRANSPOSE.row_count] * one.width
    block, count = geometry[TRANSPOSE.column_block], geometry[TRANSPOSE.column_count]
    whole, rest = divmod(count, block)
    step = geometry[TRANSPOSE.column_target_stride]
    for tasks, taken, first in ((whole, block, 0), (1 if rest else 0, rest, whole * step)):
        if not tasks:
            continue
        places = one.destination_start + first + one.tables[1][:taken]
        joined = _joined(places, rows) if geometry[TRANSPOSE.columns_joined] else [(places, rows)]
        for starts, size in joined:
            yield starts, size, [*loops, (tasks, step)]
