"""The table of an assembly: of which pieces of the source each vector of a block is made, as the kernel reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.lowering.assembly import Block
from fastindex.tables.assemblies import HALF_BITS, HIGH_HALF, NOTHING
from fastindex.tables.cache_lines import LINE_BYTES

Offsets = NDArray[np.int64]
Flags = NDArray[np.bool_]


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
    """

    def __init__(self, block: Block, phase: int, slot_bits: tuple[int, int], vector_bytes: int) -> None:
        self.vector_bytes = vector_bytes
        self.halves = 2 if HALF_BITS in slot_bits else 1
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
        self._counts, self._offsets, self._patterns = counts, offsets, table.reshape(-1).view(np.int64)

    def numbers(self, between: Offsets) -> Offsets:
        """Return the table, with what the kernel finds between the offsets of the pieces and the patterns."""
        return np.concatenate([self._counts, self._offsets, between, self._patterns])

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
