"""From blocks of the destination to passes that put them together by permutations of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.lowering.assembly import Assembly, Block
from fastindex.lowering.blocks import along, blocks, cut, without
from fastindex.lowering.pass_form import Goal, Pass, geometry_table, iterations, outer_table
from fastindex.lowering.passes import fill_pass
from fastindex.lowering.relayout_loops import Loop, Nest, coalesced
from fastindex.tables.assemblies import HIGH_HALF, NOTHING, AssemblyGeometry
from fastindex.tables.cache_lines import LINE_BYTES

_HALF_BITS = 4
# Blocks that share lines of the source follow each other until they have used so many bytes of each line.
_SHARED_BYTES = 128
# So many lines of the source are asked for before they are read.
_LINES_AHEAD = 48

Offsets = NDArray[np.int64]
Flags = NDArray[np.bool_]


def assembly_passes(found: Assembly, slot_bits: tuple[int, int], vector_bytes: int, goal: Goal) -> tuple[Pass, ...]:
    """Return the passes that write the blocks, and those that fill what lies between them.

    Parameters
    ----------
    found : Assembly
    slot_bits : (int, int)
        Bits of a slot of the source and of the destination: 4, or whole bytes.
    vector_bytes : int
        What the machine permutes with one instruction.
    goal : Goal
    """
    made = []
    for block in found.blocks:
        for phase, nests in _phases(block.nests, slot_bits):
            table = VectorTable(block, phase, slot_bits, vector_bytes)
            made += [one for nest in nests for one in _passes_of(nest, table, goal)]
    for nest in found.fills:
        run = next(k for k in nest.loops if k.destination_stride == 1)
        others = (k for k in nest.loops if k is not run)
        bits = slot_bits[1]
        loops = (Loop(run.size * bits // 8, 0, 1), *(Loop(k.size, 0, k.destination_stride * bits // 8) for k in others))
        made.append(fill_pass(Nest(loops, 0, nest.destination_start * bits // 8), Goal(1, goal.streamed, goal.tuning)))
    return tuple(made)


class VectorTable:
    """Of which pieces of the source the vectors of a block are made.

    Attributes
    ----------
    vector_bytes : int
    halves : int
        2 where halves of bytes move.
    block_bytes : int
    vectors, pieces : int
    lines : int64 array
        Offsets of the lines of the source that are read.
    low, high : int
        Where what is read begins and ends, in bytes.
    used_bytes : int
        How much of the source is needed.
    numbers : int64 array
        As the kernel reads them.
    """

    def __init__(self, block: Block, phase: int, slot_bits: tuple[int, int], vector_bytes: int) -> None:
        self.vector_bytes = vector_bytes
        self.halves = 2 if _HALF_BITS in slot_bits else 1
        # A unit is what permutations move: a byte, or half of one.
        units = [bits * self.halves // 8 for bits in slot_bits]
        moved = min(units)
        element = np.zeros((len(block.sources), units[1]), bool)
        element[:, :moved] = ~block.is_padding[:, None]
        padding = np.repeat(block.is_padding, units[1])
        places = np.zeros((len(block.sources), units[1]), np.int64)
        places[:, :moved] = (block.sources * units[0] + phase)[:, None] + np.arange(moved)
        self.block_bytes = -(-len(padding) // self.halves)
        self.vectors = -(-self.block_bytes // vector_bytes)
        per_vector = vector_bytes * self.halves
        shape = self.vectors, per_vector
        at, is_element, is_padding = (
            _lengthened(a.reshape(-1), self.vectors * per_vector).reshape(shape) for a in (places, element, padding)
        )
        halves = (at % self.halves * HIGH_HALF).astype(np.uint8)
        at //= self.halves
        needed = at[is_element]
        self.low, self.high = (int(needed.min()), int(needed.max()) + 1) if len(needed) else (0, 0)
        self.used_bytes = len(needed) // self.halves
        self._write(at, halves, is_element, is_padding)

    def _write(self, at: Offsets, halves: NDArray[np.uint8], left: Flags, is_padding: Flags) -> None:
        """Cover the bytes of every vector by pieces, each from the first byte on that no piece has yet."""
        last = max(self.low, self.high - self.vector_bytes)
        starts, patterns, active = [], [], []
        while left.any():
            start = np.minimum(np.where(left, at, self.high).min(axis=1), last)
            taken = left & (at < (start + self.vector_bytes)[:, None])
            pattern = (at - start[:, None]).astype(np.uint8) | halves
            starts.append(start)
            active.append(taken.any(axis=1))
            patterns.append(np.where(taken, pattern, np.uint8(NOTHING)))
            left = left & ~taken
        counts = np.array(active, bool).reshape(len(starts), self.vectors).sum(axis=0)
        self.pieces = int(counts.sum())
        before = np.cumsum(counts) - counts
        first = np.arange(self.vectors) + self.halves * before
        table = np.empty((self.vectors + self.halves * self.pieces, self.vector_bytes), np.uint8)
        table[first] = self._mask(is_padding)
        offsets = np.empty(self.pieces, np.int64)
        for k, (start, pattern, some) in enumerate(zip(starts, patterns, active, strict=True)):
            offsets[before[some] + k] = start[some]
            for half in range(self.halves):
                table[first[some] + 1 + self.halves * k + half] = pattern[some, half :: self.halves]
        ends = offsets + self.vector_bytes - 1
        lines = np.unique(np.concatenate([offsets // LINE_BYTES, ends // LINE_BYTES])) * LINE_BYTES
        # So that the patterns begin with a line of the table.
        rest = -(self.vectors + self.pieces + len(lines)) % 8
        self.lines = np.concatenate([lines, np.repeat(lines[-1:], rest)])
        self.numbers = np.concatenate([counts, offsets, self.lines, table.reshape(-1).view(np.int64)])

    def _mask(self, is_padding: Flags) -> NDArray[np.uint8]:
        """Return all ones where there is padding."""
        if self.halves == 1:
            return is_padding * np.uint8(0xFF)
        return is_padding[:, 0::2] * np.uint8(0x0F) | is_padding[:, 1::2] * np.uint8(0xF0)


def _lengthened(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return an array that goes on with zeros."""
    longer = np.zeros(size, array.dtype)
    longer[: len(array)] = array
    return longer


def _phases(nests: Sequence[Nest], slot_bits: tuple[int, int]) -> Iterator[tuple[int, list[Nest]]]:
    """Yield nests in bytes by the half of a byte that their elements begin with in the source."""
    phases: tuple[list[Nest], list[Nest]] = [], []
    for nest in nests:
        for even in _even_steps(nest) if slot_bits[0] == _HALF_BITS else (nest,):
            bits = even.source_start * slot_bits[0]
            loops = (
                Loop(k.size, k.source_stride * slot_bits[0] // 8, k.destination_stride * slot_bits[1] // 8)
                for k in even.loops
            )
            start = even.destination_start * slot_bits[1] // 8
            phases[bits % 8 // _HALF_BITS].append(Nest(tuple(loops), bits // 8, start))
    for phase, found in enumerate(phases):
        if found:
            yield phase, found


def _even_steps(nest: Nest) -> Iterator[Nest]:
    """Cut every loop of odd steps in the source in two: steps of twice the length from its first and second place."""
    odd = next((k for k in nest.loops if k.source_stride % 2), None)
    if odd is None:
        yield nest
        return
    others = tuple(k for k in nest.loops if k is not odd)
    for first in range(min(2, odd.size)):
        loop = Loop((odd.size - first + 1) // 2, 2 * odd.source_stride, 2 * odd.destination_stride)
        starts = (
            nest.source_start + first * odd.source_stride,
            nest.destination_start + first * odd.destination_stride,
        )
        yield from _even_steps(Nest((loop, *others), *starts))


def _passes_of(nest: Nest, table: VectorTable, goal: Goal) -> Iterator[Pass]:
    """Yield the passes over the blocks of a nest, in bytes: those that share lines of the source after each other."""
    nest = coalesced(nest)
    if 3 * table.used_bytes > 2 * LINE_BYTES * len(table.lines):
        yield _pass(nest, (), table, goal)
        return
    for part, shared in _sharing(nest, ()):
        yield _pass(part, shared, table, goal)


def _sharing(nest: Nest, taken: tuple[Loop, ...]) -> Iterator[tuple[Nest, tuple[Loop, ...]]]:
    """Yield the parts of a nest, and the loops of each along which blocks share lines of the source."""
    close = [k for k in nest.loops if 0 < abs(k.source_stride) < LINE_BYTES and k not in taken]
    if not close or iterations(taken) >= _SHARED_BYTES:
        yield nest, taken
        return
    loop = min(close, key=lambda k: abs(k.source_stride))
    for part in cut(nest, loop, -(-_SHARED_BYTES // abs(loop.source_stride))):
        yield from _sharing(part, (*taken, along(part, loop)))


def _pass(nest: Nest, shared: tuple[Loop, ...], table: VectorTable, goal: Goal) -> Pass:
    tuning, every = goal.tuning, iterations(shared)
    most = max(1, min(tuning.task_chunks, tuning.task_bytes // table.block_bytes))
    found = blocks([*shared, *without(nest.loops, shared)], most)
    groups_ahead = max(1, -(-_LINES_AHEAD // max(1, len(table.lines))))
    geometry = AssemblyGeometry(
        chunk_block=len(found.offsets),
        chunk_count=found.count,
        chunk_source_stride=found.source_stride,
        chunk_target_stride=found.destination_stride,
        block_bytes=table.block_bytes,
        streamed=goal.streamed,
        readable_bytes=table.high + sum((k.size - 1) * max(k.source_stride, 0) for k in nest.loops),
        vectors=table.vectors,
        pieces=table.pieces,
        lines=len(table.lines),
        lines_every=every,
        lines_ahead=every * groups_ahead,
        low=table.low,
        high=table.high,
    )
    return Pass(
        "assemble",
        table.vector_bytes,
        table.halves,
        outer_table(found.outer),
        (found.offsets, table.numbers),
        geometry_table(geometry),
        found.number * iterations(found.outer),
        len(found.offsets) * table.block_bytes,
        nest.source_start,
        nest.destination_start,
        f"blocks of {table.block_bytes} bytes, a vector of {table.pieces / table.vectors:.1f} pieces of the source",
    )
