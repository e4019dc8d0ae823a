"""Assemblies whose blocks take a column each of the same rows of the source: read by lines, then transposed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fastindex.lowering.assembly import Block
from fastindex.lowering.blocks import along, cut, without
from fastindex.lowering.pass_form import Goal, Pass, geometry_table, iterations, outer_table
from fastindex.lowering.relayout_loops import Loop, Nest, coalesced
from fastindex.lowering.vector_tables import VectorTable
from fastindex.tables.assemblies import MOST_ROWS, ColumnGroup, ColumnsGeometry
from fastindex.tables.cache_lines import LINE_BYTES

_UNIT_BYTES = (1, 2, 4, 8, 16)
# Vectors of fewer pieces are put together straight from the source.
_LEAST_PIECES = 4
# Columns that are read together, on average, where not all lie side by side.
_LEAST_GROUP = 4
_MOST_COLUMNS = 1024

Offsets = NDArray[np.int64]


def column_passes(
    block: Block, nest: Nest, slot_bits: tuple[int, int], direct: VectorTable, goal: Goal
) -> list[Pass] | None:
    """Return the passes over the blocks of a nest, in bytes, or None where these are better read straight.

    Parameters
    ----------
    block : Block
    nest : Nest
        One of its nests, in bytes.
    slot_bits : (int, int)
        Of source and destination.
    direct : VectorTable
        The block's own table.
    goal : Goal
    """
    width, elements = slot_bits[1] // 8, block.sources[~block.is_padding]
    if slot_bits[0] != slot_bits[1] or width not in _UNIT_BYTES or not 1 < len(elements) <= MOST_ROWS:
        return None
    if direct.pieces < _LEAST_PIECES * direct.vectors * direct.vector_bytes / LINE_BYTES:
        return None
    nest, starts = coalesced(nest), block.starts * width
    loops = [k for k in nest.loops if k.source_stride in _UNIT_BYTES and k.source_stride >= width]
    column = min(loops, key=lambda k: k.source_stride, default=None)
    if len(starts) == 1 and (column is None or column.size < _LEAST_GROUP):
        return None
    # Elements of a row that lie side by side in every column are one unit.
    unit = width if column is None or len(starts) > 1 else column.source_stride
    rows, table = _collected(block, unit // width, slot_bits, direct.vector_bytes)
    if len(rows) * (unit // width) != len(elements):
        return None
    if len(starts) > 1:
        starts = starts[np.argsort(starts[:, 0], kind="stable")]
        if _runs(starts[:, 0], width).shape[0] * _LEAST_GROUP > len(starts):
            return None
        pieces = range(0, len(starts), _MOST_COLUMNS)
        return [_pass(nest, starts[k : k + _MOST_COLUMNS], rows * unit, table, unit, goal) for k in pieces]
    assert column is not None
    return list(_regular(nest, column, rows * unit, table, unit, goal))


def _collected(
    block: Block, per_unit: int, slot_bits: tuple[int, int], vector_bytes: int
) -> tuple[Offsets, VectorTable]:
    """Return the units that a block reads, and its table where these are adjacent."""
    is_element = ~block.is_padding
    elements = block.sources[is_element]
    rows, places = np.unique(elements // per_unit, return_inverse=True)
    sources = np.zeros(len(block.sources), np.int64)
    sources[is_element] = places.reshape(-1) * per_unit + elements % per_unit
    return rows, VectorTable(Block(sources, block.is_padding, (), block.starts), 0, slot_bits, vector_bytes)


def _regular(nest: Nest, column: Loop, rows: Offsets, table: VectorTable, width: int, goal: Goal) -> Iterator[Pass]:
    per_line = LINE_BYTES // width
    most = min(_MOST_COLUMNS, goal.tuning.task_bytes // table.block_bytes)
    for part in cut(nest, column, max(most // per_line, 1) * per_line):
        loop = along(part, column)
        starts = np.arange(loop.size)[:, None] * np.array([loop.source_stride, loop.destination_stride])
        others = Nest(tuple(k for k in part.loops if k is not loop), part.source_start, part.destination_start)
        yield _pass(others, starts, rows, table, width, goal)


def _runs(sources: Offsets, width: int) -> Offsets:
    """Return where runs of adjacent columns begin, and where they end."""
    breaks = np.flatnonzero(np.diff(sources) != width) + 1
    return np.stack([np.concatenate([[0], breaks]), np.concatenate([breaks, [len(sources)]])], 1)


def _groups(sources: Offsets, width: int) -> Iterator[ColumnGroup]:
    """Yield groups of at most a line of columns; the last of a run begins earlier, so that it is a whole line too."""
    per_line = LINE_BYTES // width
    for begin, end in _runs(sources, width).tolist():
        for first in range(begin, end, per_line):
            place = max(begin, min(first, end - per_line))
            yield ColumnGroup(int(sources[place]), place, min(per_line, end - place))


def _pass(nest: Nest, starts: Offsets, rows: Offsets, table: VectorTable, width: int, goal: Goal) -> Pass:
    per_line = LINE_BYTES // width
    squares = math.ceil(len(rows) / per_line)
    padded_rows = np.concatenate([rows, np.repeat(rows[-1:], squares * per_line - len(rows))])
    groups = list(_groups(starts[:, 0], width))
    geometry = ColumnsGeometry(
        block_bytes=table.block_bytes,
        streamed=goal.streamed,
        vectors=table.vectors,
        pieces=table.pieces,
        rows=len(padded_rows),
        # An odd number of lines, so that columns do not meet in few sets of the cache.
        row_pitch=LINE_BYTES * (squares | 1),
        groups=len(groups),
        columns=len(starts),
    )
    outer = without(nest.loops, ())
    return Pass(
        "assemble columns",
        width,
        table.vector_bytes,
        outer_table(outer),
        (np.concatenate([np.array(groups, np.int64).reshape(-1), starts[:, 1]]), table.numbers(padded_rows)),
        geometry_table(geometry),
        iterations(outer),
        len(starts) * table.block_bytes,
        nest.source_start,
        nest.destination_start,
        f"blocks of {table.block_bytes} bytes, of a column each of {len(rows)} rows of the source",
    )
