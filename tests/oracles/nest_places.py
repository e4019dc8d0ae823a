"""What a nest, or a pass over it, moves: every pair of places, one by one, by definition and by the kernels' tables."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Loop, Nest
from fastindex.moving.moves.streams import STREAM
from fastindex.moving.moves.transposes import TRANSPOSE
from fastindex.moving.numbers import CHUNKS, FILL
from fastindex.moving.passes import Pass

Places = NDArray[np.int64]


def places(nest: Nest) -> tuple[Places, Places]:
    """The place in the source and in the destination of each element, the last loop fastest."""
    source, destination = np.array([nest.source_start]), np.array([nest.destination_start])
    for loop in nest.loops:
        steps = np.arange(loop.size)
        source = (source[:, None] + steps * loop.source_stride).reshape(-1)
        destination = (destination[:, None] + steps * loop.destination_stride).reshape(-1)
    return source, destination


def bytes_of_units(units: Places, width: int) -> Places:
    """The places of all bytes of units that begin at `units`."""
    return (units[..., None] + np.arange(width)).reshape(-1)


def byte_places(nests: Iterable[Nest], width: int) -> tuple[Places, Places]:
    """The same for several nests of elements of `width` bytes, byte by byte."""
    found = [[bytes_of_units(side * width, width) for side in places(nest)] for nest in nests]
    empty = [np.empty(0, np.int64)]
    source, destination = (np.concatenate(empty + [pair[side] for pair in found]) for side in (0, 1))
    return source, destination


def loops(*sizes_and_strides: tuple[int, int, int]) -> tuple[Loop, ...]:
    return tuple(Loop(*numbers) for numbers in sizes_and_strides)


# Passes, by the meaning their kernels give to tables and geometry


def _blocks_of(step: Pass, blocks: int) -> list[tuple[int, int, int]]:
    """The index of the block, and where the outer loops are, of every task: the blocks go fastest."""
    starts = [(0, 0)]
    for size, source_stride, destination_stride in step.outer.tolist():
        starts = [(s + k * source_stride, d + k * destination_stride) for k in range(size) for s, d in starts]
    assert step.tasks == blocks * len(starts)
    return [(block, source, destination) for source, destination in starts for block in range(blocks)]


def _chunks(step: Pass) -> tuple[Places, Places]:
    """Where every chunk begins on each side."""
    geometry = step.geometry
    block, count = geometry[CHUNKS.per_task], geometry[CHUNKS.total]
    found = []
    for index, source, destination in _blocks_of(step, -(-count // block)):
        offsets = step.tables[0][: min(block, count - index * block)]
        steps = geometry[[CHUNKS.source_stride, CHUNKS.target_stride]] * index
        found.append(offsets + steps + (source, destination))
    begins = np.concatenate(found)
    return begins[:, 0] + step.source_start, begins[:, 1] + step.destination_start


def units_of_pass(step: Pass) -> tuple[Places, Places]:
    """Where the units that a pass moves lie, in bytes; of packed elements, in elements."""
    match step.kernel:
        case "copy":
            source, destination = _chunks(step)
            run, rows = np.arange(step.geometry[STREAM.run]), step.tables[1]
            followed = np.arange(len(rows)) * len(run)
            sources, targets = source[:, None, None] + rows[:, None] + run, destination[:, None] + followed
            return sources.reshape(-1), (targets[..., None] + run).reshape(-1)
        case "expand" | "compress":
            source, destination = _chunks(step)
            run = np.arange(step.geometry[STREAM.run])
            return (source[:, None] + run).reshape(-1), (destination[:, None] + run).reshape(-1)
        case "interleave":
            source, destination = _chunks(step)
            ways, run = step.geometry[STREAM.ways], np.arange(step.geometry[STREAM.run])
            assert ways == step.ways
            assert (step.tables[1][ways:] == step.tables[1][ways - 1]).all()
            stream = np.arange(ways) * step.width, ways * step.width
            return _grid(source, destination, step.tables[1][:ways], stream, run, step.width)
        case "deinterleave":
            source, destination = _chunks(step)
            ways, run = len(step.tables[1]), np.arange(step.geometry[STREAM.run])
            assert ways == step.ways
            stream = np.arange(ways) * step.width, ways * step.width
            targets, units = _grid(destination, source, step.tables[1], stream, run, step.width)
            return units, targets
        case "transpose":
            return _panels(step)
        case "strided":
            width, count, *strides, run_count, run_source_stride, run_destination_stride = step.geometry[:7]
            assert width == step.width
            starts = np.array(_blocks_of(step, 1)) + np.array((0, step.source_start, step.destination_start))
            runs, along = np.arange(run_count)[:, None], np.arange(count)
            sides = (starts[:, 1], runs * run_source_stride), (starts[:, 2], runs * run_destination_stride)
            source, target = (
                (begins[:, None, None] + of_runs + along * stride).reshape(-1)
                for (begins, of_runs), stride in zip(sides, strides, strict=True)
            )
            return source, target
        case _:
            assert step.kernel == "fill"
            begins = np.array(_blocks_of(step, 1))[:, 2] + step.destination_start
            run = np.arange(step.geometry[FILL.run_bytes])
            targets = (begins[:, None] + run).reshape(-1)
            return np.zeros_like(targets), targets


def _grid(
    rows: Places, stream: Places, row_offsets: Places, columns: tuple[Places, int], run: Places, width: int
) -> tuple[Places, Places]:
    """Every element of a chunk: row by row on one side, one of each row in turn on the other."""
    apart = rows[:, None, None] + row_offsets[:, None] + run * width
    stream_offsets, column_bytes = columns
    together = stream[:, None, None] + stream_offsets[:, None] + run * column_bytes
    return apart.reshape(-1), together.reshape(-1)


def _panels(step: Pass) -> tuple[Places, Places]:
    geometry, width = step.geometry, step.width
    row_block, row_count, column_block, column_count = geometry[
        [
            TRANSPOSE.row_block,
            TRANSPOSE.row_count,
            TRANSPOSE.column_block,
            TRANSPOSE.column_count,
        ]
    ]
    row_table, column_table = step.tables
    row_step = geometry[TRANSPOSE.row_source_stride]
    row_blocks, column_blocks = -(-row_count // row_block), -(-column_count // column_block)
    if row_blocks > 1 or geometry[TRANSPOSE.columns_joined]:
        # What follows the rows of a block in the destination: the next block, or the next column.
        following = row_table[row_block:]
        assert len(following) >= min(64 // width, row_count - row_block if row_blocks > 1 else row_count)
        np.testing.assert_array_equal(following, row_table[: len(following)] + (row_step or width))
    if geometry[TRANSPOSE.columns_joined]:
        assert row_blocks == 1
        assert (np.diff(column_table) == row_count * width).all()
    found = []
    for index, source, destination in _blocks_of(step, row_blocks * column_blocks):
        column_index, row_index = divmod(index, row_blocks)
        rows = row_table[: min(row_block, row_count - row_index * row_block)]
        columns = column_table[: min(column_block, column_count - column_index * column_block)]
        source += row_index * row_step + column_index * column_block * width + step.source_start
        destination += column_index * geometry[TRANSPOSE.column_target_stride] + row_index * row_block * width
        destination += step.destination_start
        units = source + rows[:, None] + np.arange(len(columns)) * width
        targets = destination + columns + np.arange(len(rows))[:, None] * width
        found.append(np.stack([units.reshape(-1), targets.reshape(-1)]))
    source, destination = np.concatenate(found, axis=1)
    return source, destination


def filled_by_pass(step: Pass) -> Places:
    """Where every byte of padding is that a pass writes."""
    return bytes_of_pass(step)[1] if step.kernel == "fill" else np.empty(0, np.int64)


def bytes_of_pass(step: Pass) -> tuple[Places, Places]:
    """Where every byte that a pass moves comes from and goes to."""
    source, destination = units_of_pass(step)
    width = 1 if step.kernel in ("copy", "fill") else step.width
    return bytes_of_units(source, width), bytes_of_units(destination, width)
