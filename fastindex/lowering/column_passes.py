"""Assemblies whose blocks take a column each of the same rows of the source: read by lines, then transposed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastindex.lowering.assembly import Block
from fastindex.lowering.blocks import cut, even_steps
from fastindex.lowering.distinct import distinct
from fastindex.lowering.pass_form import Draft, Goal, Tables, iterations
from fastindex.lowering.relayout_loops import Loop, Nest, coalesced
from fastindex.lowering.vector_tables import VectorTable
from fastindex.tables.assemblies import (
    COLUMN_BLOCK_BYTES,
    HALF_BITS,
    MOST_COLLECTED_BYTES,
    MOST_ROWS,
    NOWHERE,
    ColumnBlock,
    ColumnGroup,
    ColumnsGeometry,
)
from fastindex.tables.cache_lines import LINE_BYTES

_UNIT_BYTES = (1, 2, 4, 8, 16)
# Vectors of fewer pieces are put together straight from the source.
_LEAST_PIECES = 4
# Blocks that are read together, on average, where not all lie side by side.
_LEAST_GROUP = 4
_MOST_COLUMNS, _MOST_TABLES = 1024, 8
# So many lines of each row are read after each other.
_MOST_LINES = 16

Offsets = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """Which elements of a row the blocks take, and where these go, in slots.

    Attributes
    ----------
    sources, targets : int64 array
        Of each block, sorted by the source.
    unit : int
        Elements that are moved as one: the blocks of a column take one each of them.
    """

    sources: Offsets
    targets: Offsets
    unit: int

    @property
    def units(self) -> Offsets:
        """The columns that hold a block's elements."""
        return distinct(self.sources // self.unit)


def column_passes(
    block: Block,
    nest: Nest,
    slot_bits: tuple[int, int],
    direct: VectorTable,
    goal: Goal,
    source_slots: int = 0,
) -> list[Draft] | None:
    """Return the passes over the blocks of a nest, or None where these are better read straight.

    Parameters
    ----------
    block : Block
    nest : Nest
        One of its nests, in slots.
    slot_bits : (int, int)
        Of source and destination.
    direct : VectorTable
        The block's own table.
    goal : Goal
    source_slots : int
        How many slots of the source may be read, 0 where that is not known.
    """
    bits, elements = slot_bits[1], block.sources[~block.is_padding]
    if slot_bits[0] != bits or not 1 < len(elements) <= MOST_ROWS:
        return None
    if direct.pieces < _LEAST_PIECES * direct.vectors * direct.vector_bytes / LINE_BYTES:
        return None
    nest = coalesced(nest)
    if len(block.starts) > 1:
        order = np.argsort(block.starts[:, 0], kind="stable")
        sources, targets = block.starts[order].T
        pieces = range(0, len(order), _MOST_COLUMNS)
        parts = [(sources[k : k + _MOST_COLUMNS], targets[k : k + _MOST_COLUMNS], nest) for k in pieces]
    else:
        parts = list(_parts(nest, bits, goal, direct.block_bytes))
    found = []
    for sources, targets, around in parts:
        for even in even_steps(around) if bits == HALF_BITS else (around,):
            one = _pass_of(block, (sources, targets), even, slot_bits, direct.vector_bytes, goal, source_slots)
            if one is None:
                return None
            found.append(one)
    return found or None


def _parts(nest: Nest, bits: int, goal: Goal, block_bytes: int) -> Iterator[tuple[Offsets, Offsets, Nest]]:
    """Yield blocks that lie within few lines of each row, and the nest around them, for each part of a nest."""
    close = sorted(
        (k for k in nest.loops if 0 < k.source_stride * bits < 8 * LINE_BYTES), key=lambda k: k.source_stride
    )
    while len(close) > 1 and iterations(close[:-1]) > LINE_BYTES:
        close.pop()
    if not close:
        return
    *inner, longest = close
    most = min(_MOST_COLUMNS, max(goal.tuning.task_bytes // block_bytes, LINE_BYTES * 8 // bits))
    piece = max(most // iterations(inner), 1)
    for part in cut(nest, longest, piece):
        left = list(part.loops)
        sources, targets = np.zeros(1, np.int64), np.zeros(1, np.int64)
        for loop in close:
            strides = loop.source_stride, loop.destination_stride
            taken = next(k for k in left if (k.source_stride, k.destination_stride) == strides)
            left.remove(taken)
            steps = np.arange(taken.size)[:, None]
            sources = (steps * taken.source_stride + sources).reshape(-1)
            targets = (steps * taken.destination_stride + targets).reshape(-1)
        order = np.argsort(sources, kind="stable")
        yield sources[order], targets[order], Nest(tuple(left), part.source_start, part.destination_start)


def _pass_of(
    block: Block,
    blocks: tuple[Offsets, Offsets],
    nest: Nest,
    slot_bits: tuple[int, int],
    vector_bytes: int,
    goal: Goal,
    source_slots: int,
) -> Draft | None:
    """Return the pass over blocks that begin at the given slots, at every iteration of a nest."""
    elements = block.sources[~block.is_padding]
    columns = _best_unit(blocks, nest, elements, slot_bits[0], source_slots)
    if columns is None:
        return None
    parts = sorted(set((columns.sources % columns.unit).tolist()))
    rows = distinct((elements[:, None] + np.array(parts)) // columns.unit)
    if len(rows) > MOST_ROWS:
        return None
    tables = [_table(block, rows, part, columns.unit, slot_bits, vector_bytes) for part in parts]
    return _pass(nest, columns, rows, parts, tables, slot_bits[0], goal)


def _best_unit(
    blocks: tuple[Offsets, Offsets], nest: Nest, elements: Offsets, bits: int, source_slots: int
) -> _Columns | None:
    """Choose the units for which the fewest lines are transposed; None where hardly any blocks lie side by side."""
    best: tuple[float, _Columns] | None = None
    strides = [k.source_stride for k in nest.loops]
    last = nest.source_start + sum((k.size - 1) * max(k.source_stride, 0) for k in nest.loops) + int(elements.max())
    per_byte = max(8 // bits, 1)
    readable = -(-max(source_slots, last + int(blocks[0][-1]) + 1) // per_byte) * per_byte
    for unit_bytes in _UNIT_BYTES:
        unit, rest = divmod(unit_bytes * 8, bits)
        if rest:
            continue
        shift = nest.source_start % unit
        columns = _Columns(blocks[0] + shift, blocks[1], unit)
        # The last unit reads all rows, also those that only other parts of a unit need.
        rows_end = (int(elements.max()) + int((columns.sources % unit).max())) // unit * unit
        end = last - int(elements.max()) - shift + rows_end + int(columns.sources[-1]) // unit * unit + unit
        is_divided = not any(stride % unit for stride in strides)
        if not is_divided or end > readable or len(set((columns.sources % unit).tolist())) > _MOST_TABLES:
            break
        units = columns.units
        per_line = LINE_BYTES // unit_bytes
        begins, ends = _runs(units).T
        if len(columns.sources) < _LEAST_GROUP * len(begins):
            continue
        lines = int((-(-(ends - begins) // per_line)).sum())
        work = lines * math.ceil(len(distinct(elements // unit)) / per_line)
        if best is None or work < best[0]:
            best = work, columns
    return None if best is None else best[1]


def _runs(units: Offsets) -> Offsets:
    """Return where runs of adjacent columns begin, and where they end."""
    breaks = np.flatnonzero(np.diff(units) != 1) + 1
    return np.stack([np.concatenate([[0], breaks]), np.concatenate([breaks, [len(units)]])], 1)


def _table(
    block: Block, rows: Offsets, part: int, unit: int, slot_bits: tuple[int, int], vector_bytes: int
) -> VectorTable:
    """Return the table of the blocks that take one part of each unit, where the rows' units are adjacent."""
    is_element = ~block.is_padding
    elements = block.sources[is_element] + part
    sources = np.zeros(len(block.sources), np.int64)
    sources[is_element] = np.searchsorted(rows, elements // unit) * unit + elements % unit
    return VectorTable(Block(sources, block.is_padding, (), block.starts), 0, slot_bits, vector_bytes)


def _groups(units: Offsets, most: int, unit_bytes: int) -> Iterator[ColumnGroup]:
    """Yield groups of adjacent columns, at most so many together."""
    for begin, end in _runs(units).tolist():
        for first in range(begin, end, most):
            yield ColumnGroup(int(units[first]) * unit_bytes, first, min(most, end - first))


def _pass(
    nest: Nest,
    columns: _Columns,
    rows: Offsets,
    parts: Sequence[int],
    tables: Sequence[VectorTable],
    bits: int,
    goal: Goal,
) -> Draft:
    unit_bytes = columns.unit * bits // 8
    per_line = LINE_BYTES // unit_bytes
    squares = math.ceil(len(rows) / per_line)
    padded_rows = np.concatenate([rows, np.repeat(rows[-1:], squares * per_line - len(rows))]) * unit_bytes
    # An odd number of lines, so that columns do not meet in few sets of the cache.
    pitch = LINE_BYTES * (squares | 1)
    lines = max(min(MOST_COLLECTED_BYTES // (pitch * per_line), _MOST_LINES), 1)
    units = columns.units
    groups = list(_groups(units, lines * per_line, unit_bytes))

    def written_tables() -> Tables:
        at = np.searchsorted(units, columns.sources // columns.unit)
        places = np.full((len(units), len(parts)), NOWHERE, np.int64)
        places[at, np.searchsorted(parts, columns.sources % columns.unit)] = columns.targets * bits // 8
        first = np.concatenate([np.array(groups, np.int64).reshape(-1), places.reshape(-1)])
        return first, _numbers(padded_rows, tables)

    geometry = ColumnsGeometry(
        block_bytes=tables[0].block_bytes,
        streamed=goal.streamed,
        vectors=tables[0].vectors,
        rows=len(padded_rows),
        row_pitch=pitch,
        groups=len(groups),
        columns=len(units),
        blocks=len(parts),
    )
    outer = [
        Loop(k.size, k.source_stride * bits // 8, k.destination_stride * bits // 8)
        for k in sorted(nest.loops, key=lambda k: (abs(k.destination_stride), abs(k.source_stride)))
    ]
    return Draft(
        "assemble columns" if tables[0].halves == 1 else "assemble half columns",
        unit_bytes,
        tables[0].vector_bytes,
        outer,
        geometry,
        written_tables,
        iterations(outer),
        len(columns.sources) * tables[0].block_bytes,
        (nest.source_start - nest.source_start % columns.unit) * bits // 8,
        nest.destination_start * bits // 8,
        f"blocks of {tables[0].block_bytes} bytes, of a column each of {len(rows)} rows of the source",
        pieces=tables[0].pieces,
    )


def _numbers(rows: Offsets, tables: Sequence[VectorTable]) -> Offsets:
    """Return the rows and the tables of the blocks, as the kernel reads them."""
    nothing = np.empty(0, np.int64)
    numbers = [table.numbers(nothing) for table in tables]
    begin = 8 * len(rows) + COLUMN_BLOCK_BYTES * len(tables)
    begins = itertools.accumulate((8 * len(one) for one in numbers[:-1]), initial=begin)
    heads = [ColumnBlock(begin, table.pieces) for begin, table in zip(begins, tables, strict=True)]
    return np.concatenate([rows, np.array(heads, np.int64).reshape(-1), *numbers])
