"""Tiles both ways: `from_tile_index`, flat numbers and `tile_slots`, against the reference.

Tests of: index.tiles.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fastindex as fi
from tests.cases import strategies
from tests.oracles import reference
from tests.oracles.reference import ReferenceShape


def tiled_shapes(count: int) -> list[tuple[int, ReferenceShape]]:
    shapes = [(seed, strategies.random_shape(seed, movable=False)) for seed in strategies.rotating_seeds(count)]
    return [(seed, shape) for seed, shape in shapes if shape.tiles]


@pytest.mark.parametrize("part", range(4))
def test_there_and_back(part: int) -> None:
    """Every place of every tile: its element, or padding."""
    for seed, shape in tiled_shapes(1000)[part::4]:
        level = strategies.RandomSource(seed).integer(0, len(shape.tiles) - 1)
        elements = {reference.tile_index(shape, at, level): at for at in reference.every_index(shape.dimensions)}
        text = str(shape)
        tiles = fi.tile_slots(text, level)
        sizes = (*tiles.counts, *tiles.sizes)
        places = list(itertools.product(*map(range, sizes)))
        if not places or len(places) > 3000:
            continue
        split = len(tiles.counts)
        columns = [np.array(column) for column in zip(*places, strict=True)]
        found = fi.from_tile_index(text, columns[:split], columns[split:], level, padding="mark")
        wanted = [elements.get((at[:split], at[split:]), (-1,) * len(shape.dimensions)) for at in places]
        assert [c.tolist() for c in found] == [list(c) for c in zip(*wanted, strict=True)][: len(found)], (seed, text)


@pytest.mark.parametrize("part", range(4))
def test_flat_numbers(part: int) -> None:
    """Tiles in one piece each: number and place are the slot's quotient and remainder."""
    pieces = 0
    for seed, shape in tiled_shapes(1000)[part::4]:
        level, text = strategies.RandomSource(seed).integer(0, len(shape.tiles) - 1), str(shape)
        tiles = fi.tile_slots(text, level)
        slots = reference.linear_indices(shape)
        if not slots or not shape.dimensions:
            continue
        coordinates = list(zip(*slots, strict=True))
        by_tile: dict[tuple[int, ...], set[int]] = {}
        for at, slot in slots.items():
            by_tile.setdefault(reference.tile_index(shape, at, level)[0], set()).add(slot)
        if not tiles.is_contiguous:
            with pytest.raises(fi.UnsupportedError, match="not one piece"):
                fi.tile_index(text, coordinates, level, flat=True)
            continue
        pieces += 1
        # A tile's elements stay within its piece, and no other tile's are there.
        homes = [{slot // tiles.slots_per_tile for slot in found} for found in by_tile.values()]
        assert all(len(home) == 1 for home in homes), (seed, text)
        assert len(set.union(*homes)) == len(homes)
        number, place = fi.tile_index(text, coordinates, level, flat=True)
        assert (number * tiles.slots_per_tile + place).tolist() == list(slots.values())
        assert number.tolist() == [slot // tiles.slots_per_tile for slot in slots.values()]
        back = fi.from_tile_index(text, number, place, level, flat=True)
        assert [c.tolist() for c in back] == [list(c) for c in coordinates]
        bits = reference.element_bits(shape)
        if tiles.bits_per_tile % 8 == 0:
            at_byte = fi.tile_index(text, coordinates, level, flat=True, unit="byte")
            assert at_byte[0].tolist() == number.tolist()
            assert at_byte[1].tolist() == [int(p) * bits // 8 for p in place]
        at_bit = fi.tile_index(text, coordinates, level, flat=True, unit="bit")[1] + bits - 1
        assert [c.tolist() for c in fi.from_tile_index(text, number, at_bit, level, flat=True, unit="bit")] == [
            list(c) for c in coordinates
        ]
    assert pieces > (20 if strategies.PART is None else 5) or strategies.OTHER_SEEDS


def test_tile_slots_by_hand() -> None:
    tiles = fi.tile_slots("bf16[1024,1000]{1,0:T(8,128)(2,1)}")
    assert (tiles.counts, tiles.sizes, tiles.tile_count) == ((128, 8), (8, 128), 1024)
    assert (tiles.slots_per_tile, tiles.bytes_per_tile, tiles.is_contiguous) == (1024, 2048, True)
    pairs = fi.tile_slots("bf16[1024,1000]{1,0:T(8,128)(2,1)}", -1)
    assert (pairs.counts, pairs.sizes, pairs.slots_per_tile) == ((128, 8, 4, 128), (2, 1), 2)
    # Three elements padded to two pairs.
    assert fi.tile_slots("f32[7]{0:T(3)(2)}").slots_per_tile == 4
    assert not fi.tile_slots("bf16[16,256]{1,0:T(8,128)(2,1,1,1)}").is_contiguous
    assert fi.tile_slots("bf16[16,256]{1,0:T(8,128)(1,1,2,1)}").is_contiguous
    assert fi.tile_slots("s4[7]{0:T(3)E(4)}").bytes_per_tile == 1.5


def test_windows_and_outputs() -> None:
    text = "bf16[32,256]{1,0:T(8,128)(2,1)}"
    rows, columns = np.ix_(np.arange(4, 12), np.arange(120, 140))
    number, place = fi.tile_index(text, (rows, columns), flat=True)
    in_window = fi.tile_index(text, np.s_[4:12, 120:140], flat=True)
    assert np.array_equal(in_window[0], number)
    assert np.array_equal(in_window[1], place)
    outputs = np.empty((2, 8, 20), np.int64)
    given = fi.tile_index(text, np.s_[4:12, 120:140], flat=True, out=(outputs[0], outputs[1]))
    assert given[0].base is outputs
    assert np.array_equal(outputs, [number, place])
    back = [np.empty((8, 20), np.int64) for _ in range(2)]
    fi.from_tile_index(text, number, place, flat=True, out=back)
    assert (back[0] == rows).all()
    assert (back[1] == columns).all()


def test_bad_input() -> None:
    text = "f32[3,5]{1,0:T(2,2)}"
    with pytest.raises(fi.LayoutError, match="has no tiles"):
        fi.tile_slots("f32[3,5]")
    with pytest.raises(fi.OutOfBoundsError, match="level 1 is out of bounds for the 1 tiles"):
        fi.from_tile_index(text, ([0], [0]), ([0], [0]), 1)
    with pytest.raises(fi.ArgumentTypeError, match="level must be an integer"):
        fi.tile_slots(text, 0.5)  # type: ignore[arg-type]
    with pytest.raises(fi.OutOfBoundsError, match=r"tile\[1\] is 3 at position 1, out of bounds for the 3"):
        fi.from_tile_index(text, ([0, 0], [0, 3]), ([0, 0], [0, 0]))
    with pytest.raises(fi.OutOfBoundsError, match=r"tile\[0\] = 1, tile\[1\] = 0, within\[0\] = 1, .* is padding"):
        fi.from_tile_index(text, (1, 0), (1, 0))
    with pytest.raises(fi.OutOfBoundsError, match="the slot within the tile is 4"):
        fi.from_tile_index(text, [0], [4], flat=True)
    with pytest.raises(fi.FastIndexError, match=r"must hold 2 arrays of coordinates .* flat=True"):
        fi.from_tile_index(text, 0, 3)
    with pytest.raises(fi.FastIndexError, match="padding must be"):
        fi.from_tile_index(text, 0, 3, flat=True, padding="drop")
    with pytest.raises(fi.FastIndexError, match="unit='byte' is for flat=True"):
        fi.tile_index(text, (0, 0), unit="byte")
    with pytest.raises(fi.FastIndexError, match="unit='byte' is for flat=True"):
        fi.from_tile_index(text, (0, 0), (0, 0), unit="byte")
    one = np.empty(3, np.int64)
    with pytest.raises(fi.FastIndexError, match="out overlaps"):
        fi.tile_index(text, np.s_[:, 1], flat=True, out=(one, one))
    with pytest.raises(fi.UnsupportedError, match="ends within a byte"):
        fi.tile_index("s4[7]{0:T(3)E(4)}", ([1],), flat=True, unit="byte")
    with pytest.raises(fi.UnsupportedError, match="several elements"):
        fi.from_tile_index("s4[8]{0:T(4)E(4)}", [0], [0], flat=True, unit="byte")
