"""From blocks of the destination to passes that write them, by direct permutes or by column gathers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fastindex.algebra.loops import Loop, Nest, coalesced
from fastindex.algebra.shared_digits import shared_digits
from fastindex.core.digits import runs_backwards
from fastindex.core.shape import Shape
from fastindex.moving.counts import LINES_AHEAD, Counts, cycles, overflows, piece_ends
from fastindex.moving.moves.block_permute import MOST_BLOCK_BYTES, AssemblyGeometry
from fastindex.moving.moves.block_permute.geometry import Block, PermutedBlocks, permuted_blocks
from fastindex.moving.moves.block_permute.tables import VectorTable
from fastindex.moving.moves.column_gather.plan import BlockColumns, has_columns
from fastindex.moving.moves.nests.plan import fill_pass
from fastindex.moving.numbers import NIBBLE_BITS
from fastindex.moving.passes import (
    Blocks,
    Draft,
    Offsets,
    Tables,
    along,
    blocks,
    cost,
    cut,
    even_steps,
    iterations,
    without,
)
from fastindex.moving.problem import Context, Problem
from fastindex.runtime.machine import Caches
from fastindex.runtime.numbers import LINE_BYTES

# Blocks that share lines of the source follow each other until they have used this much of each line.
_SHARED_BYTES = 128


class _Permuted(NamedTuple):
    """The blocks of a nest: the passes of a direct permute, their cost, and a lower bound of the cost by columns."""

    block: Block
    nest: Nest
    straight: list[Draft]
    cost: float
    least: float


class BlockPermutes:
    """The passes that write blocks, by permutes directly from the source or by column gathers.

    Parameters
    ----------
    found : PermutedBlocks
    slot_bits : (int, int)
        Bits of a slot of the source and of the destination: 4, or whole bytes.
    context : Context
    source_slots : int
        Number of readable slots of the source; 0 if unknown.
    """

    def __init__(
        self,
        found: PermutedBlocks,
        slot_bits: tuple[int, int],
        context: Context,
        source_slots: int = 0,
    ) -> None:
        vector_bytes = context.machine.target.vector_bytes
        self._fills = [_fill_between(nest, slot_bits[1], context) for nest in found.fills]
        self._parts: list[_Permuted] = []
        self._columns_of = lru_cache(lambda block: BlockColumns(block, slot_bits[0], context, source_slots))
        for block in found.blocks:
            tables = {0: VectorTable(block, 0, slot_bits, vector_bytes)}
            may_gather = slot_bits[0] == slot_bits[1] and has_columns(block, slot_bits[0], tables[0])
            for nest in block.nests:
                straight: list[Draft] = []
                for phase, part, starts in _phases(nest, block.starts, slot_bits):
                    if phase not in tables:
                        tables[phase] = VectorTable(block, phase, slot_bits, vector_bytes)
                    straight += _passes_of(part, starts, tables[phase], context)
                least = _least_by_columns(block, nest, tables[0], source_slots) if may_gather else math.inf
                self._parts.append(_Permuted(block, nest, straight, cost(straight), least))

    @property
    def straight(self) -> tuple[Draft, ...]:
        """The passes that permute every block directly from the source."""
        return (*itertools.chain(*(one.straight for one in self._parts)), *self._fills)

    @property
    def least_with_columns(self) -> float:
        """A lower bound of the cost of `with_columns`; infinite if that is certainly None."""
        if all(one.least >= one.cost for one in self._parts):
            return math.inf
        return sum(min(one.cost, one.least) for one in self._parts) + cost(self._fills)

    def with_columns(self) -> tuple[Draft, ...] | None:
        """Return passes that gather columns wherever that is cheaper; None if it never is."""
        made: list[Draft] = []
        has_any = False
        for one in self._parts:
            gathered = self._columns_of(one.block).passes(one.nest) if one.least < one.cost else None
            is_cheaper = gathered is not None and cost(gathered) < one.cost
            made += gathered if gathered is not None and is_cheaper else one.straight
            has_any |= is_cheaper
        return (*made, *self._fills) if has_any else None


@lru_cache(maxsize=4)
def block_permutes(problem: Problem) -> BlockPermutes | None:
    """Return the passes that write a destination block by block, or None if that is impossible."""
    if not problem.may_permute or not (problem.slots.unit != "value" or problem.may_convert or problem.is_plain):
        return None
    source, slot_bits = problem.source, problem.slot_bits
    readable = source.slot_count if isinstance(source, Shape) else 0
    for variables, left, right in shared_digits(source, problem.destination):
        if runs_backwards(variables):
            continue
        found = permuted_blocks(variables, left, right, problem.destination, slot_bits[1])
        if found is None or any(len(block.sources) * slot_bits[1] > 8 * MOST_BLOCK_BYTES for block in found.blocks):
            continue
        return BlockPermutes(found, slot_bits, problem.context, readable)
    return None


def straight_permutes(problem: Problem) -> tuple[Draft, ...] | None:
    """Return the passes that permute every block directly from the source."""
    found = block_permutes(problem)
    return None if found is None else found.straight


def column_gathers(problem: Problem) -> tuple[Draft, ...] | None:
    """Return passes that gather columns wherever that is cheaper; None if it never is."""
    found = block_permutes(problem)
    return None if found is None else found.with_columns()


def least_of_columns(problem: Problem) -> float:
    """Return a lower bound of the cost of `column_gathers`; infinite if there are none."""
    found = block_permutes(problem)
    return math.inf if found is None else found.least_with_columns


def _fill_between(nest: Nest, bits: int, context: Context) -> Draft:
    """Return the pass that fills the slots of a nest, between blocks."""
    # A gap of one slot has no loop along it.
    run = nest.loop_of(destination=1) or Loop(1, 0, 1)
    others = (k for k in nest.loops if k is not run)
    loops = (Loop(run.size * bits // 8, 0, 1), *(Loop(k.size, 0, k.destination_stride * bits // 8) for k in others))
    in_single_bytes = Context(1, context.streamed, context.tuning, context.machine)
    return fill_pass(Nest(loops, 0, nest.destination_start * bits // 8), in_single_bytes)


def _least_by_columns(block: Block, nest: Nest, table: VectorTable, source_slots: int) -> float:
    """Return a lower bound of the cost of blocks by columns, in cycles; 0 if elements may be read twice."""
    if not source_slots:
        return 0
    lines = table.used_bytes / LINE_BYTES
    filled = (table.block_bytes - table.used_bytes) / LINE_BYTES
    one = Counts(lines=lines, filled=filled, runs=1, rows=lines, slots=lines)
    return cycles(one) * len(block.starts) * nest.element_count


def _phases(nest: Nest, starts: Offsets, slot_bits: tuple[int, int]) -> Iterator[tuple[int, Nest, Offsets]]:
    """Yield (phase, nest, starts), in bytes; the phase is the nibble with which blocks begin in the source."""
    count = 2 if slot_bits[0] == NIBBLE_BITS else 1
    units = np.array(slot_bits)
    for even in even_steps(nest) if count > 1 else (nest,):
        loops = tuple(
            Loop(k.size, k.source_stride * slot_bits[0] // 8, k.destination_stride * slot_bits[1] // 8)
            for k in even.loops
        )
        for odd in range(count):
            chosen = starts if count == 1 else starts[starts[:, 0] % count == odd] - [odd, 0]
            if len(chosen):
                begin, phase = divmod((even.source_start + odd) * slot_bits[0], 8)
                part = Nest(loops, begin, even.destination_start * slot_bits[1] // 8)
                yield phase // NIBBLE_BITS, part, chosen * units // 8


def _passes_of(nest: Nest, starts: Offsets, table: VectorTable, context: Context) -> Iterator[Draft]:
    """Yield the passes over the blocks of a nest, in bytes; blocks that share lines of the source are consecutive."""
    nest = coalesced(nest)
    if len(starts) > 1:
        yield _pass(nest, (), table, context, starts)
        return
    if 3 * table.used_bytes > 2 * LINE_BYTES * len(table.lines):
        yield _pass(nest, (), table, context)
        return
    for part, shared in _sharing(nest, ()):
        yield _pass(part, shared, table, context)


def _sharing(nest: Nest, taken: tuple[Loop, ...]) -> Iterator[tuple[Nest, tuple[Loop, ...]]]:
    """Yield the parts of a nest, and the loops of each along which blocks share lines of the source."""
    close = [k for k in nest.loops if 0 < abs(k.source_stride) < LINE_BYTES and k not in taken]
    if not close or iterations(taken) >= _SHARED_BYTES:
        yield nest, taken
        return
    loop = min(close, key=lambda k: abs(k.source_stride))
    for part in cut(nest, loop, -(-_SHARED_BYTES // abs(loop.source_stride))):
        yield from _sharing(part, (*taken, along(part, loop)))


def _shares_lines(others: Iterable[Loop], table: VectorTable) -> bool:
    """Whether blocks use only a part of the lines that they read, and much later blocks read these lines again."""
    close = any(0 < abs(k.source_stride) < 2 * LINE_BYTES for k in others)
    return close and 3 * table.used_bytes < 2 * LINE_BYTES * len(table.lines)


def _pass(
    nest: Nest, shared: tuple[Loop, ...], table: VectorTable, context: Context, starts: Offsets | None = None
) -> Draft:
    tuning, every = context.tuning, iterations(shared)
    most = max(1, tuning.task_bytes // max(table.block_bytes, LINE_BYTES * len(table.lines) // every))
    ordered = [*shared, *without(nest.loops, shared)]
    found = blocks(ordered, most) if starts is None else Blocks((), len(starts), len(starts), 0, 0, tuple(ordered))
    reach = 0 if starts is None else int(starts[:, 0].max())

    def tables() -> Tables:
        return found.offsets() if starts is None else starts, table.numbers(table.lines)

    is_shared = _shares_lines([k for k in nest.loops if k not in shared], table)
    groups_ahead = max(1, -(-LINES_AHEAD // max(1, len(table.lines))))
    geometry = (
        *found.chunks,
        *AssemblyGeometry(
            block_bytes=table.block_bytes,
            streamed=context.streamed,
            readable_bytes=reach + table.high + sum((k.size - 1) * max(k.source_stride, 0) for k in nest.loops),
            vectors=table.vectors,
            filled=table.filled,
            pieces=table.pieces,
            lines=len(table.lines),
            lines_every=every,
            lines_ahead=every * groups_ahead,
            low=table.low,
            high=table.high,
        ),
    )
    return Draft(
        "block permute",
        table.vector_bytes,
        found.around(nest),
        geometry,
        found.places * table.block_bytes,
        f"blocks of {table.block_bytes} bytes, a vector of {table.pieces / table.vectors:.1f} pieces of the source",
        _counts(table, every, found.count * iterations(found.outer), is_shared, context.machine.caches)._replace(
            ends=piece_ends(nest, table.block_bytes, context.streamed, tuning.line_offset)
            * (1 if starts is None else len(starts))
        ),
        tables,
        table.nibbles,
        found.number,
    )


def _counts(table: VectorTable, every: int, blocks: int, is_shared: bool, caches: Caches) -> Counts:
    """Count the work of `blocks` blocks.

    Groups of `every` blocks share lines of the source; `is_shared` says that much later blocks share them too.
    """
    lines, l1 = len(table.lines), caches.l1
    is_evicted = every > 1 and overflows(table.lines, *caches.l2)
    # Lines that other blocks read again much later: evicted ones come from memory, the others from L2.
    # Lines that share few sets of L1 are evicted to L2 before the next piece is read from them.
    near = table.pieces if table.pieces > 2 * lines > 2 * l1.ways and overflows(table.lines, *l1) else 0
    return Counts(
        lines=(table.vectors - table.filled) * table.vector_bytes / LINE_BYTES,
        filled=table.filled * table.vector_bytes / LINE_BYTES,
        blocks=1,
        vectors=table.vectors - table.filled,
        # A piece of nibbles is permuted twice: from its line, and from that line shifted by half a byte.
        pieces=table.pieces * table.nibbles,
        missed=lines * is_evicted,
        scratch=near + lines * is_shared,
    ).times(blocks)
