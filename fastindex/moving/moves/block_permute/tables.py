"""The table of a block permute: the pieces of the source that make up each vector, and their shuffle patterns.

A piece is a vector's worth of contiguous bytes of the source. The pieces of a vector are a greedy interval cover of the
bytes that it needs; a pattern says, for each byte of the vector, which byte of a piece to take, or `NOTHING`::

    needed bytes        100 101 102 103       220 221
    pieces             [100 ... 115]         [220 ... 235]        vectors of 16 bytes
    pattern of each      0 - 1 - 2 - 3 - ..    - 0 - 1 - - - - ..  (- NOTHING)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastindex.moving.counts import distinct
from fastindex.moving.moves.block_permute import (
    SHORT_PIECE_BYTES,
    VECTOR_HEADER_BYTES,
    VECTOR_RUN_BYTES,
    VectorHeader,
    VectorRun,
    patterns_of_piece,
)
from fastindex.moving.moves.block_permute.geometry import Block
from fastindex.moving.numbers import HIGH_NIBBLE, NIBBLE_BITS, NOTHING
from fastindex.moving.passes import Offsets
from fastindex.runtime.numbers import LINE_BYTES

# All ones in the low and in the high nibble.
_ONES = np.uint8(0x0F), np.uint8(0xF0)


class VectorTable:
    """The pieces of the source that the vectors of a block are made of.

    The numbers that the cost depends on are computed at once, the patterns of the pieces only on demand.

    Attributes
    ----------
    vector_bytes : int
    nibbles : int
        2 if nibbles move, else 1.
    block_bytes : int
    vectors, filled, pieces : int
        Number of vectors, of vectors of only padding, and of pieces of all vectors.
    lines : int64 array
        Offsets of the lines of the source that are read.
    low, high : int
        Range of the source that is read, in bytes from the start of the block.
    used_bytes : int
        Bytes of the source that are needed.
    """

    def __init__(self, block: Block, phase: int, slot_bits: tuple[int, int], vector_bytes: int) -> None:
        self.vector_bytes = vector_bytes
        self.nibbles = 2 if NIBBLE_BITS in slot_bits else 1
        self._block = block
        # A unit is the smallest thing that a permutation moves: a byte, or a nibble. Units of a grain stay together.
        units = [bits * self.nibbles // 8 for bits in slot_bits]
        self._grain = math.gcd(*units, vector_bytes * self.nibbles, phase)
        self._grains = units[0] // self._grain, units[1] // self._grain
        self.block_bytes = -(-len(block.sources) * units[1] // self.nibbles)
        self.vectors = -(-self.block_bytes // vector_bytes)
        self._per_vector = vector_bytes * self.nibbles // self._grain
        self._slots, places = self._elements(phase // self._grain)
        # Addresses count bytes if grains are nibbles, and grains otherwise.
        addresses = places if self.nibbles == 1 else places // self.nibbles
        self._is_high = places % self.nibbles if self.nibbles > 1 else None
        low, high = 0, 0
        if len(addresses):
            low, high = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses)) + 1
        self.low, self.high = low * self._grain, high * self._grain
        self.used_bytes = len(addresses) * self._grain // self.nibbles
        # Addresses, offset by vector at a pitch so large that no piece reaches from one vector to the next.
        self._window = vector_bytes // self._grain
        self._vector_pitch = high - low + 2 * self._window
        self._vectors = self._slots // self._per_vector
        self._keys = addresses - low + self._vectors * self._vector_pitch
        self._count_pieces(low, high)

    def _elements(self, phase: int) -> tuple[Offsets, Offsets]:
        """Return the numbers of the block's grains that are elements, and their places in the source."""
        source, target = self._grains
        slots = (~self._block.is_padding).nonzero()[0]
        places = self._block.sources[slots] * source + phase
        if target == 1:
            return slots, places
        within = np.arange(min(source, target))
        return (slots[:, None] * target + within).reshape(-1), (places[:, None] + within).reshape(-1)

    def _count_pieces(self, low: int, high: int) -> None:
        """Cover the bytes of every vector by pieces, each beginning at the first byte that no piece covers yet."""
        keys = np.sort(self._keys)
        begins = _covering(keys, self._window)
        self._firsts = keys[begins]
        vectors = self._firsts // self._vector_pitch
        self.pieces = len(begins)
        self._counts = np.bincount(vectors, minlength=self.vectors)
        self.filled = self._counts.tolist().count(0)
        is_shared = self._counts[vectors] > 1
        lasts = keys[np.concatenate((begins[1:], [len(keys)])) - 1] if len(begins) else begins
        spans = (lasts - self._firsts)[is_shared]
        self._is_short = bool(len(spans)) and int(np.maximum.reduce(spans)) < SHORT_PIECE_BYTES // self._grain
        read: int | Offsets = self.vector_bytes
        if self._is_short:
            read = np.where(is_shared, min(SHORT_PIECE_BYTES, read), read)
        # No piece ends after the last byte that the block needs.
        last = np.maximum(0, high - low - read // self._grain)
        self._begins = np.minimum(self._firsts - vectors * self._vector_pitch, last)
        self._offsets = (self._begins + low) * self._grain
        touched = np.concatenate((self._offsets, self._offsets + (read - 1))) // LINE_BYTES
        self.lines = distinct(touched) * LINE_BYTES

    def numbers(self, between: Offsets) -> Offsets:
        """Return the table; `between` is stored between the offsets of the pieces and the patterns."""
        counts = self._counts.tolist()
        # Vectors of only padding have no patterns.
        heights = [1 + patterns_of_piece(self.nibbles) * count if count else 0 for count in counts]
        patterns = _parted(self._patterns.tobytes(), heights, self.vector_bytes)
        runs, kept = self._runs(patterns, counts)
        # The patterns begin on a line boundary.
        begin = VECTOR_HEADER_BYTES + VECTOR_RUN_BYTES * len(runs)
        gap = -(begin + 8 * (self.pieces + len(between))) % LINE_BYTES // 8
        heads = [
            *VectorHeader(len(runs), begin + 8 * gap, self._is_short),
            *itertools.chain(*runs),
            *[0] * gap,
        ]
        parts = [
            np.array(heads, np.int64),
            self._offsets,
            between,
            np.frombuffer(b"".join([patterns[place] for place in kept]), np.int64),
        ]
        return on_lines(parts)

    def _runs(self, patterns: Sequence[bytes], counts: Sequence[int]) -> tuple[list[VectorRun], list[int]]:
        """Return the runs of vectors with equal numbers of pieces, and the vectors whose patterns are kept."""
        taken, begin = 0, 0
        found: list[VectorRun] = []
        kept: list[int] = []
        for count, group in itertools.groupby(counts):
            number = len(list(group))
            of_run = patterns[begin : begin + number]
            are_alike = all(one == of_run[0] for one in of_run)
            found.append(VectorRun(count, number, taken, 0 if are_alike else len(of_run[0])))
            kept += [begin] if are_alike else range(begin, begin + number)
            taken += len(of_run[0]) * (1 if are_alike else number)
            begin += number
        return found, kept

    @property
    def _patterns(self) -> NDArray[np.uint8]:
        """The patterns of each vector: a mask of its padding, then for each piece the byte to take for each place.

        Vectors of only padding have none.
        """
        places = self.vector_bytes // self._grain
        is_made, of_piece = self._counts > 0, patterns_of_piece(self.nibbles)
        heights = self._counts * of_piece + is_made
        made, heads = is_made.cumsum() - is_made, (heights.cumsum() - heights)[is_made]
        rows = len(heads) + of_piece * self.pieces
        table = np.full((rows, places, self._grain), NOTHING, np.uint8)
        has_padding = self.used_bytes < self.block_bytes
        table[heads] = self._padding_masks()[is_made] if has_padding else 0
        piece = self._firsts.searchsorted(self._keys, "right") - 1
        row, at = made[self._vectors] + 1 + of_piece * piece, self._slots - self._vectors * self._per_vector
        taken = (self._keys - self._vectors * self._vector_pitch - self._begins[piece]) * self._grain
        if self._is_high is not None:
            taken += self._is_high * HIGH_NIBBLE
            row += at % self.nibbles
            at //= self.nibbles
        grains = taken.astype(np.uint8)[:, None] + np.arange(self._grain, dtype=np.uint8)
        table.reshape(-1, self._grain)[row * places + at] = grains
        patterns = table.reshape(-1, self.vector_bytes)
        if self.nibbles > 1:
            low = made[self._firsts // self._vector_pitch] + 1 + of_piece * np.arange(self.pieces)
            taken_nibbles = [(patterns[low + half] < NOTHING) * ones for half, ones in enumerate(_ONES)]
            patterns[low + self.nibbles] = taken_nibbles[0] | taken_nibbles[1]
        return patterns

    def _padding_masks(self) -> NDArray[np.uint8]:
        """Return a mask of all ones where there is padding, for each vector."""
        is_padding = np.zeros(self.vectors * self._per_vector, np.uint8)
        padded = self._block.is_padding
        if self._grains[1] > 1:
            padded = padded.repeat(self._grains[1])
        is_padding[: len(padded)] = padded
        if self.nibbles == 1:
            masks = is_padding * np.uint8(0xFF)
        else:
            masks = is_padding[::2] * _ONES[0] | is_padding[1::2] * _ONES[1]
        return masks.reshape(self.vectors, -1, 1)


def _covering(places: Offsets, length: int) -> Offsets:
    """Return which of the sorted places begin a piece of `length`: greedily, each the first that is not covered."""
    if not len(places):
        return np.zeros(0, np.int64)
    gaps = (places[1:] - places[:-1] >= length).nonzero()[0]
    begins = np.concatenate(([0], gaps + 1))
    # Ranges between gaps are covered independently: each iteration adds one piece to all of them.
    ends, found = np.concatenate((begins[1:], [len(places)])), [begins]
    while True:
        after = places.searchsorted(places[begins] + length)
        left = (after < ends).nonzero()[0]
        if not len(left):
            return begins if len(found) == 1 else np.sort(np.concatenate(found))
        begins, ends = after[left], ends[left]
        found.append(begins)


def _parted(numbers: bytes, counts: Sequence[int], size: int) -> list[bytes]:
    """Split bytes into parts of ``count * size`` bytes, one for each of `counts`."""
    ends = itertools.accumulate((count * size for count in counts), initial=0)
    return [numbers[begin:end] for begin, end in itertools.pairwise(ends)]


def on_lines(parts: Sequence[Offsets]) -> Offsets:
    """Return the concatenation of arrays, on a cache line boundary."""
    size, per_line = sum(map(len, parts)), LINE_BYTES // 8
    memory = np.empty(size + per_line, np.int64)
    first = -memory.__array_interface__["data"][0] // 8 % per_line
    return np.concatenate(parts, out=memory[first : first + size])
