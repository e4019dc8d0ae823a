"""The table of an assembly: of which pieces of the source each vector of a block is made, as the kernel reads it."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fastindex.lowering.assembly import Block
from fastindex.lowering.distinct import distinct
from fastindex.tables.assemblies import HALF_BITS, HIGH_HALF, NOTHING
from fastindex.tables.cache_lines import LINE_BYTES

Offsets = NDArray[np.int64]
Flags = NDArray[np.bool_]


class VectorTable:
    """Of which pieces of the source the vectors of a block are made.

    Numbers that costs follow from are there at once, the patterns of the pieces once they are asked for.

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
        self._block = block
        # A unit is what permutations move: a byte, or half of one. Grains are units that stay together.
        units = [bits * self.halves // 8 for bits in slot_bits]
        self._grain = math.gcd(*units, vector_bytes * self.halves, phase)
        self._grains = units[0] // self._grain, units[1] // self._grain
        self.block_bytes = -(-len(block.sources) * units[1] // self.halves)
        self.vectors = -(-self.block_bytes // vector_bytes)
        self._per_vector = vector_bytes * self.halves // self._grain
        self._slots, places = self._elements(phase // self._grain)
        # Grains of half a byte lie in bytes, the others are counted as they are.
        addresses = places if self.halves == 1 else places // self.halves
        self._is_high = places % self.halves if self.halves > 1 else None
        low, high = (int(addresses.min()), int(addresses.max()) + 1) if len(addresses) else (0, 0)
        self.low, self.high = low * self._grain, high * self._grain
        self.used_bytes = len(addresses) * self._grain // self.halves
        # Addresses of the vectors one after the other, so far apart that no piece reaches from one to the next.
        self._window = vector_bytes // self._grain
        self._apart = high - low + 2 * self._window
        self._vectors = self._slots // self._per_vector
        self._keys = addresses - low + self._vectors * self._apart
        self._count_pieces(low, max(0, high - low - self._window))

    def _elements(self, phase: int) -> tuple[Offsets, Offsets]:
        """Return which grains of the block are elements, and where each is in the source."""
        source, target = self._grains
        slots = np.flatnonzero(~self._block.is_padding)
        places = self._block.sources[slots] * source + phase
        if target == 1:
            return slots, places
        within = np.arange(min(source, target))
        return (slots[:, None] * target + within).reshape(-1), (places[:, None] + within).reshape(-1)

    def _count_pieces(self, low: int, last: int) -> None:
        """Cover the bytes of every vector by pieces, each from the first byte on that no piece has yet."""
        self._firsts = _covering(np.sort(self._keys), self._window)
        vectors = self._firsts // self._apart
        # The last piece ends with what may be read.
        self._begins = np.minimum(self._firsts - vectors * self._apart, last)
        self.pieces = len(self._firsts)
        self._counts = np.bincount(vectors, minlength=self.vectors)
        self._offsets = (self._begins + low) * self._grain
        ends = self._offsets + self.vector_bytes - 1
        lines = distinct(np.concatenate([self._offsets // LINE_BYTES, ends // LINE_BYTES])) * LINE_BYTES
        # So that the patterns begin with a line of the table.
        rest = -(self.vectors + self.pieces + len(lines)) % 8
        self.lines = np.concatenate((lines, lines[-1:].repeat(rest)))

    def numbers(self, between: Offsets) -> Offsets:
        """Return the table, with what the kernel finds between the offsets of the pieces and the patterns."""
        return np.concatenate([self._counts, self._offsets, between, self._patterns])

    @cached_property
    def _patterns(self) -> Offsets:
        """The patterns of each vector: where it has padding, then for each piece which byte of it goes where."""
        places = self.vector_bytes // self._grain
        table = np.full((self.vectors + self.halves * self.pieces, places, self._grain), NOTHING, np.uint8)
        before = np.cumsum(self._counts) - self._counts
        heads = np.arange(self.vectors) + self.halves * before
        table[heads] = self._padding_masks() if self._block.is_padding.any() else 0
        piece = self._firsts.searchsorted(self._keys, "right") - 1
        rows, at = self._vectors + 1 + self.halves * piece, self._slots - self._vectors * self._per_vector
        taken = (self._keys - self._vectors * self._apart - self._begins[piece]) * self._grain
        if self._is_high is not None:
            taken += self._is_high * HIGH_HALF
            rows += at % self.halves
            at //= self.halves
        grains = taken.astype(np.uint8)[:, None] + np.arange(self._grain, dtype=np.uint8)
        table.reshape(-1, self._grain)[rows * places + at] = grains
        return table.reshape(-1).view(np.int64)

    def _padding_masks(self) -> NDArray[np.uint8]:
        """Return all ones where there is padding."""
        is_padding = np.zeros(self.vectors * self._per_vector, bool)
        padded = np.repeat(self._block.is_padding, self._grains[1])
        is_padding[: len(padded)] = padded
        ones = np.array([0xFF] if self.halves == 1 else [0x0F, 0xF0], np.uint8)
        return (is_padding.reshape(self.vectors, -1, self.halves) @ ones)[:, :, None]


def _covering(places: Offsets, length: int) -> Offsets:
    """Return where pieces of a length begin that cover sorted places: each at the first that no piece has yet."""
    if not len(places):
        return places
    begins = np.concatenate(([0], np.flatnonzero(places[1:] - places[:-1] >= length) + 1))
    # What lies between two gaps is covered by itself, all of it a piece further at a time.
    ends, found = np.concatenate((begins[1:], [len(places)])), [begins]
    while True:
        after = places.searchsorted(places[begins] + length)
        left = after < ends
        if not left.any():
            return places[begins if len(found) == 1 else np.sort(np.concatenate(found))]
        begins, ends = after[left], ends[left]
        found.append(begins)
