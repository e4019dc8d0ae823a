"""Assemblies whose blocks take a column each of the same rows of the source: read by lines, then transposed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fastindex.lowering.assembly import Block
from fastindex.lowering.blocks import along, blocks, cut, even_steps
from fastindex.lowering.distinct import distinct
from fastindex.lowering.pass_form import Draft, Goal, Tables, iterations
from fastindex.lowering.relayout_loops import Loop, Nest, coalesced
from fastindex.lowering.vector_tables import VectorTable, on_lines
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
_LEAST_PIECES = 2
# Blocks that are read together, on average, where not all lie side by side.
_LEAST_GROUP = 4
_MOST_COLUMNS, _MOST_TABLES = 1024, 8
# So many lines of each row are read after each other.
_MOST_LINES = 16

Offsets = NDArray[np.int64]


class _Columns:
    """Which elements of a row some blocks take, and where these go, in slots.

    Attributes
    ----------
    targets : int64 array
        Of each block, in the order of the source.
    unit : int
        Elements that are moved as one: the blocks of a column take one each of them.
    whole, part : int64 array
        The unit of each block in the row, and which of its elements.
    parts : tuple of int
        The elements that blocks take.
    units : int64 array
        The columns that hold a block's elements.
    """

    def __init__(self, sources: Offsets, targets: Offsets, unit: int) -> None:
        self.targets, self.unit = targets, unit
        # A power of two.
        self.whole, self.part = sources >> unit.bit_length() - 1, sources & unit - 1
        self.parts = tuple(np.flatnonzero(np.bincount(self.part)).tolist())
        # The sources ascend.
        self.units = self.whole[np.concatenate(([True], self.whole[1:] != self.whole[:-1]))]

    def runs(self) -> tuple[Offsets, Offsets]:
        """Return where runs of adjacent columns begin, and where they end."""
        breaks = np.flatnonzero(self.units[1:] - self.units[:-1] != 1) + 1
        return np.concatenate(([0], breaks)), np.concatenate((breaks, [len(self.units)]))

    def groups(self, most: int, unit_bytes: int) -> Iterator[ColumnGroup]:
        """Yield groups of adjacent columns, at most so many together."""
        for begin, end in zip(*(ends.tolist() for ends in self.runs()), strict=True):
            for first in range(begin, end, most):
                yield ColumnGroup(int(self.units[first]) * unit_bytes, first, min(most, end - first))


class BlockColumns:
    """A block whose elements are collected by columns: what the passes over all its nests have in common.

    Parameters
    ----------
    block : Block
    slot_bits : (int, int)
        Of source and destination.
    direct : VectorTable
        The block's own table.
    goal : Goal
    source_slots : int
        How many slots of the source may be read, 0 where that is not known.
    """

    def __init__(
        self, block: Block, slot_bits: tuple[int, int], direct: VectorTable, goal: Goal, source_slots: int = 0
    ) -> None:
        self._block, self._slot_bits, self._direct, self._goal = block, slot_bits, direct, goal
        self._bits, self._source_slots = slot_bits[0], source_slots
        # By the unit, and the parts of it that blocks take.
        self._rows: dict[tuple[int, tuple[int, ...]], Offsets] = {}
        self._tables: dict[tuple[int, tuple[int, ...]], list[VectorTable]] = {}

    @cached_property
    def _elements(self) -> Offsets:
        return self._block.sources[~self._block.is_padding]

    @cached_property
    def _last(self) -> int:
        return int(self._elements.max())

    def passes(self, nest: Nest) -> list[Draft] | None:
        """Return the passes over the blocks of a nest, in slots, or None where these are better read straight."""
        direct = self._direct
        if direct.pieces < _LEAST_PIECES * direct.vectors * direct.vector_bytes / LINE_BYTES:
            return None
        if self._slot_bits[1] != self._bits or not 1 < len(self._elements) <= MOST_ROWS:
            return None
        found = []
        for sources, targets, around in self._parts(coalesced(nest)):
            for even in even_steps(around) if self._bits == HALF_BITS else (around,):
                one = self._pass_of(sources, targets, even)
                if one is None:
                    return None
                found.append(one)
        return found or None

    def _parts(self, nest: Nest) -> Iterator[tuple[Offsets, Offsets, Nest]]:
        """Yield blocks that lie within few lines of each row, and the nest around them, for each part of a nest."""
        starts = self._block.starts
        if len(starts) > 1:
            sources, targets = starts[np.argsort(starts[:, 0], kind="stable")].T
            for k in range(0, len(starts), _MOST_COLUMNS):
                yield sources[k : k + _MOST_COLUMNS], targets[k : k + _MOST_COLUMNS], nest
            return
        close = sorted(
            (k for k in nest.loops if 0 < k.source_stride * self._bits < 8 * LINE_BYTES), key=lambda k: k.source_stride
        )
        while len(close) > 1 and iterations(close[:-1]) > LINE_BYTES:
            close.pop()
        if not close:
            return
        most = max(self._goal.tuning.task_bytes // self._direct.block_bytes, LINE_BYTES * 8 // self._bits)
        piece = max(min(_MOST_COLUMNS, most) // iterations(close[:-1]), 1)
        for part in cut(nest, close[-1], piece):
            taken = [*close[:-1], along(part, close[-1])]
            together = blocks(taken, iterations(taken))
            sources, targets = together.sources(), together.targets()
            order = np.argsort(sources, kind="stable")
            others = tuple(k for k in part.loops if k not in taken)
            yield sources[order], targets[order], Nest(others, part.source_start, part.destination_start)

    def _pass_of(self, sources: Offsets, targets: Offsets, nest: Nest) -> Draft | None:
        """Return the pass over blocks that begin at the given slots, at every iteration of a nest."""
        columns = self._best_columns(sources, targets, nest)
        if columns is None:
            return None
        key = columns.unit, columns.parts
        if key not in self._tables:
            rows = self._rows_of(*key)
            if len(rows) > MOST_ROWS:
                return None
            self._tables[key] = [self._table(rows, part, columns.unit) for part in columns.parts]
        return _draft(nest, columns, self._rows_of(*key), self._tables[key], self._bits, self._goal)

    def _rows_of(self, unit: int, parts: tuple[int, ...]) -> Offsets:
        """Return the units that the elements of a block are in, whichever of some parts it takes."""
        if (unit, parts) not in self._rows:
            self._rows[unit, parts] = distinct((self._elements[:, None] + np.array(parts)) // unit)
        return self._rows[unit, parts]

    def _best_columns(self, sources: Offsets, targets: Offsets, nest: Nest) -> _Columns | None:
        """Choose the units for which the fewest lines are transposed; None where hardly any blocks are adjacent."""
        best: tuple[float, _Columns] | None = None
        last = nest.source_start + sum((k.size - 1) * max(k.source_stride, 0) for k in nest.loops) + self._last
        per_byte = max(8 // self._bits, 1)
        readable = -(-max(self._source_slots, last + int(sources[-1]) + 1) // per_byte) * per_byte
        for unit_bytes in _UNIT_BYTES:
            unit, rest = divmod(unit_bytes * 8, self._bits)
            if rest:
                continue
            if any(k.source_stride % unit for k in nest.loops):
                break
            shift = nest.source_start % unit
            columns = _Columns(sources + shift, targets, unit)
            # The last unit reads all rows, also those that only other parts of a unit need.
            rows_end = (self._last + columns.parts[-1]) // unit * unit
            end = last - self._last - shift + rows_end + int(columns.units[-1]) * unit + unit
            if end > readable or len(columns.parts) > _MOST_TABLES:
                break
            begins, ends = columns.runs()
            if len(sources) < _LEAST_GROUP * len(begins):
                continue
            per_line = LINE_BYTES // unit_bytes
            lines = int((-(-(ends - begins) // per_line)).sum())
            work = lines * math.ceil(len(self._rows_of(unit, (0,))) / per_line)
            if best is None or work < best[0]:
                best = work, columns
        return None if best is None else best[1]

    def _table(self, rows: Offsets, part: int, unit: int) -> VectorTable:
        """Return the table of the blocks that take one part of each unit, where the rows' units are adjacent."""
        block, elements = self._block, self._elements + part
        sources = np.zeros(len(block.sources), np.int64)
        sources[~block.is_padding] = rows.searchsorted(elements // unit) * unit + elements % unit
        moved = Block(sources, block.is_padding, (), block.starts)
        return VectorTable(moved, 0, self._slot_bits, self._direct.vector_bytes)


def _draft(nest: Nest, columns: _Columns, rows: Offsets, tables: Sequence[VectorTable], bits: int, goal: Goal) -> Draft:
    unit_bytes = columns.unit * bits // 8
    per_line = LINE_BYTES // unit_bytes
    squares = math.ceil(len(rows) / per_line)
    padded_rows = np.concatenate([rows, np.repeat(rows[-1:], squares * per_line - len(rows))]) * unit_bytes
    # An odd number of lines, so that columns do not meet in few sets of the cache.
    pitch = LINE_BYTES * (squares | 1)
    lines = max(min(MOST_COLLECTED_BYTES // (pitch * per_line), _MOST_LINES), 1)
    groups = list(columns.groups(lines * per_line, unit_bytes))

    def written_tables() -> Tables:
        places = np.full((len(columns.units), len(columns.parts)), NOWHERE, np.int64)
        at = columns.units.searchsorted(columns.whole), np.array(columns.parts).searchsorted(columns.part)
        places[at] = columns.targets * bits // 8
        first = np.concatenate([np.array(groups, np.int64).reshape(-1), places.reshape(-1)])
        return first, _numbers(padded_rows, tables)

    geometry = ColumnsGeometry(
        block_bytes=tables[0].block_bytes,
        streamed=goal.streamed,
        vectors=tables[0].vectors,
        rows=len(padded_rows),
        row_pitch=pitch,
        groups=len(groups),
        columns=len(columns.units),
        blocks=len(columns.parts),
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
        len(columns.whole) * tables[0].block_bytes,
        (nest.source_start - nest.source_start % columns.unit) * bits // 8,
        nest.destination_start * bits // 8,
        f"blocks of {tables[0].block_bytes} bytes, of a column each of {len(rows)} rows of the source",
        pieces=tables[0].pieces,
    )


def _numbers(rows: Offsets, tables: Sequence[VectorTable]) -> Offsets:
    """Return the rows and the tables of the blocks, as the kernel reads them."""
    nothing = np.empty(0, np.int64)
    numbers = [table.numbers(nothing) for table in tables]
    before = 8 * len(rows) + COLUMN_BLOCK_BYTES * len(tables)
    # Patterns begin with a line.
    begin = -(-before // LINE_BYTES) * LINE_BYTES
    rest = np.zeros((begin - before) // 8, np.int64)
    begins = itertools.accumulate((8 * len(one) for one in numbers[:-1]), initial=begin)
    heads = [ColumnBlock(begin, table.pieces) for begin, table in zip(begins, tables, strict=True)]
    return on_lines([rows, np.array(heads, np.int64).reshape(-1), rest, *numbers])
