"""The tables of assemblies, read as the kernel does, against the elements of a block one by one.

Tests of: moving.moves.block_permute.tables, moving.counts.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from fastindex.moving.counts import distinct
from fastindex.moving.moves.block_permute import SHORT_PIECE_BYTES, VectorHeader, VectorRun
from fastindex.moving.moves.block_permute.geometry import Block
from fastindex.moving.moves.block_permute.tables import VectorTable
from fastindex.moving.numbers import HIGH_NIBBLE, NOTHING
from fastindex.runtime.numbers import LINE_BYTES
from tests.cases import strategies

Numbers = NDArray[np.int64]

# What a unit of the destination, a byte or a half of one, is where it is no unit of the source.
_PADDING, _NOTHING = -1, -2

SLOT_BITS = [(8, 8), (16, 16), (24, 24), (32, 32), (128, 128), (32, 8), (8, 32), (4, 4), (4, 8), (8, 4)]


def random_block(rng: random.Random) -> Block:
    """Elements in runs near each other or far apart, in order or not, and padding among them."""
    size = rng.choice((1, 2, 7, 16, 64, 100, 300))
    step, run = rng.choice((1, 1, 2, 3, 31, 63, 70, 1000)), rng.choice((1, 2, 3, 8, 64))
    places = [k // run * step * run + k % run + rng.choice((0, 5)) for k in range(size)]
    if rng.random() < 0.3:
        rng.shuffle(places)
    often = rng.choice((0, 0, 0.3, 1))
    is_padding = np.array([rng.random() < often for _ in range(size)])
    if rng.random() < 0.3:
        # Vectors that are alike, with others between them.
        times, apart = rng.choice((2, 5, 40)), rng.choice((0, 8, 64, 1000))
        places = [place + time * apart for time in range(times) for place in places]
        is_padding = np.tile(is_padding, times)
    return Block(np.where(is_padding, 0, np.array(places, np.int64)), is_padding, (), np.zeros((1, 2), np.int64))


def units_of_block(block: Block, phase: int, slot_bits: tuple[int, int]) -> Numbers:
    """Of each unit of the destination, which unit of the source it is."""
    read, written = (bits * (2 if 4 in slot_bits else 1) // 8 for bits in slot_bits)
    units = np.full((len(block.sources), written), _NOTHING)
    for slot, (place, is_padding) in enumerate(zip(block.sources.tolist(), block.is_padding.tolist(), strict=True)):
        if is_padding:
            units[slot] = _PADDING
        else:
            moved = min(read, written)
            units[slot, :moved] = place * read + phase + np.arange(moved)
    return units.reshape(-1)


def units_of_table(table: VectorTable) -> tuple[Numbers, list[list[int]], list[int]]:
    """The same, the offsets of the pieces of each vector, and where reads of them end, as the kernel reads them."""
    v, nibbles = table.vector_bytes, table.nibbles
    numbers = table.numbers(np.empty(0, np.int64))
    head = len(VectorHeader._fields)
    header = VectorHeader(*numbers[:head].tolist())
    ends = []
    begin, width = header.pieces_begin // 8, len(VectorRun._fields)
    offsets = numbers[begin : begin + table.pieces].tolist()
    assert numbers[begin + table.pieces :].ctypes.data % LINE_BYTES == 0
    patterns = numbers[begin + table.pieces :].view(np.uint8).reshape(-1, v)
    units, used = np.full((table.vectors, v, nibbles), _NOTHING), set[int]()
    pieces: list[list[int]] = [[] for _ in range(table.vectors)]
    seen = []
    for number in range(header.runs):
        run = VectorRun(*numbers[head + width * number :][:width].tolist())
        for k in range(run.vectors):
            vector, row = len(seen), (run.patterns + k * run.pattern_step) // v
            seen.append(vector)
            if not run.pieces:
                units[vector] = _PADDING
                continue
            for half, ones in enumerate((0xFF,) if nibbles == 1 else (0x0F, 0xF0)):
                units[vector, patterns[row] & ones == ones, half] = _PADDING
            used |= set(range(row, row + 1 + (1 if nibbles == 1 else 3) * run.pieces))
            pieces[vector] = [offsets.pop(0) for _ in range(run.pieces)]
            piece_bytes = min(SHORT_PIECE_BYTES, v) if header.short and run.pieces > 1 else v
            ends += [offset + piece_bytes - 1 for offset in pieces[vector]]
            for offset in pieces[vector]:
                masks = np.zeros(v, np.uint8)
                for half in range(nibbles):
                    row += 1
                    pattern = patterns[row].astype(np.int64)
                    taken = pattern & NOTHING == 0
                    masks[taken] |= (0x0F, 0xF0)[half]
                    assert (units[vector, taken, half] == _NOTHING).all()
                    assert (pattern[taken] & (HIGH_NIBBLE - 1) < piece_bytes).all()
                    byte, high = offset + (pattern & (HIGH_NIBBLE - 1)), pattern & HIGH_NIBBLE != 0
                    units[vector, taken, half] = (byte * nibbles + high)[taken]
                if nibbles > 1:
                    row += 1
                    np.testing.assert_array_equal(patterns[row], masks)
    assert sorted(seen) == list(range(table.vectors))
    assert used == set(range(len(patterns)))
    return units.reshape(-1), pieces, ends


def pieces_of(units: Numbers, table: VectorTable) -> list[int]:
    """How many pieces each vector needs, each from the first byte on that none before has."""
    counts = []
    for vector in units.reshape(table.vectors, -1).tolist():
        end, count = -(1 << 60), 0
        for byte in sorted(unit // table.nibbles for unit in vector if unit >= 0):
            if byte >= end:
                end, count = byte + table.vector_bytes, count + 1
        counts.append(count)
    return counts


def check(block: Block, phase: int, slot_bits: tuple[int, int], vector_bytes: int) -> None:
    """Compare what a table takes for each unit of a block with what the block says."""
    table = VectorTable(block, phase, slot_bits, vector_bytes)
    found, pieces, lasts = units_of_table(table)
    units = units_of_block(block, phase, slot_bits)
    expected = np.append(units, np.full(len(found) - len(units), _NOTHING))
    # What follows the block in its last vector is not written anywhere.
    np.testing.assert_array_equal(found[: len(units)], units)
    assert (found[len(units) :] < 0).all()
    assert table.block_bytes == -(-len(units) // table.nibbles)
    assert [len(of_one) for of_one in pieces] == pieces_of(expected, table)
    assert table.filled == sum(not of_one for of_one in pieces)
    read = expected[expected >= 0] // table.nibbles
    assert table.used_bytes == len(read) // table.nibbles
    assert (table.low, table.high) == ((read.min(), read.max() + 1) if len(read) else (0, 0))
    ends = [*lasts, *(offset for of_one in pieces for offset in of_one)]
    assert sorted(set(table.lines.tolist())) == sorted({end // LINE_BYTES * LINE_BYTES for end in ends})
    # Nothing is read outside what the block reads, unless that is less than a vector.
    assert all(table.low <= end < max(table.high, table.low + vector_bytes) for end in ends)


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.parametrize("slot_bits", SLOT_BITS)
def test_units_come_from_where_the_block_says(slot_bits: tuple[int, int]) -> None:
    for seed in strategies.seeds(40):
        rng = random.Random(seed)
        block, vector_bytes = random_block(rng), rng.choice((16, 32, 64))
        check(block, rng.choice((0, 1)) if slot_bits[0] == 4 else 0, slot_bits, vector_bytes)


@pytest.mark.parametrize("vector_bytes", [16, 64])
def test_long_blocks(vector_bytes: int) -> None:
    """Many runs of vectors."""
    count, run = 3000, 128
    sources = np.arange(count * run // 8).reshape(-1, run)
    is_padding = np.zeros(sources.shape, bool)
    is_padding[:, 10:] = True
    is_padding[7::13, :5] = True
    block = Block(sources.reshape(-1), is_padding.reshape(-1), (), np.zeros((1, 2), np.int64))
    check(block, 0, (8, 8), vector_bytes)


@pytest.mark.parametrize("numbers", [[], [7], [3, 3], [5, 2, 5, 3, 2], [[4, 1], [1, 9]]])
def test_distinct_is_unique(numbers: list[int]) -> None:
    array = np.array(numbers, np.int64)
    np.testing.assert_array_equal(distinct(array), np.unique(array))
