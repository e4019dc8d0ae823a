"""Shared memory without conflicts, computed from the functions by which kernels address it.

Shared memory has 32 banks of 4 bytes. An access of a warp is served in phases: all lanes at once up to 4 bytes each,
half of them for 8 bytes, a quarter for 16. Lanes of a phase that want different words of one bank wait for each other.

Tests of: cuda.kernels.geometry, cuda.launches.records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.algebra.loops import relayout_loops
from fastindex.cuda.kernels.geometry import PaddedGeometry, SwizzledGeometry, WordGeometry, padded_bytes, skewed_place
from fastindex.cuda.launches.launches import (
    ELEMENT_TILES,
    FEW_BYTES,
    STAGE_BYTES,
    VECTOR_TILES,
    converting_launches,
    launches,
)
from fastindex.cuda.launches.records import Launch, stage_skew

THREADS, WARP = 256, 32
TILES = [(width, *room) for width, rooms in VECTOR_TILES.items() for room in rooms]


def ways(places: Iterable[int], size: int) -> int:
    """How many accesses a warp's access of `size` bytes a lane takes, per phase."""
    lanes = list(places)
    phase = WARP * 4 // max(size, 4)
    most = 0
    for first in range(0, WARP, phase):
        words = defaultdict(set)
        for place in lanes[first : first + phase]:
            assert place % size == 0
            for word in range(place // 4, (place + max(size, 4)) // 4):
                words[word % 32].add(word)
        most = max(most, *(len(found) for found in words.values()))
    return most


def cells(walk: Any) -> Iterator[list[tuple[int, int, int]]]:
    """Where each warp's lanes are in each step: across, along, cell."""
    begin = [walk.begin(np.uint32(thread)) for thread in range(THREADS)]
    for first in range(0, THREADS, WARP):
        for step in range(walk.steps):
            moved = int(walk.across(step)), int(walk.along(step))
            yield [
                (int(across) + moved[0], int(along) + moved[1], int(walk.place(0, cell, step)))
                for across, along, cell in begin[first : first + WARP]
            ]


@pytest.mark.parametrize(("width", "rows", "columns"), TILES)
def test_a_transpose_meets_in_no_bank(width: int, rows: int, columns: int) -> None:
    geometry = SwizzledGeometry(width, rows, columns, THREADS)
    stored = max(width, 4)
    read = max(ways((cell for _, _, cell in lanes), stored) for lanes in cells(geometry.reading))
    written = max(ways((cell for _, _, cell in lanes), 16) for lanes in cells(geometry.writing))
    assert (read, written) == (1, 1)


@pytest.mark.parametrize(("width", "rows", "columns"), TILES)
def test_what_is_read_is_where_it_is_written_from(width: int, rows: int, columns: int) -> None:
    """Both walks cover the tile once, and agree on where every granule stands."""
    geometry = SwizzledGeometry(width, rows, columns, THREADS)
    vector = 16 // width
    held = {}
    for lanes in cells(geometry.reading):
        for row, number, cell in lanes:
            for j in range(vector):
                for k in range(geometry.packed):
                    held[(cell ^ j * geometry.pitch) + k * width] = row + k, number * vector + j
    assert len(held) == rows * columns
    covered = 0
    for lanes in cells(geometry.writing):
        for column, granule, cell in lanes:
            covered += vector
            for i in range(vector):
                assert held[cell + i * width] == (granule * vector + i, column)
    assert covered == rows * columns


PADDED = [((width, width), room, (1, 1)) for width in (4, 8) for room in ELEMENT_TILES[width]]
PADDED += [((4, 2), (64, 64), (4, 8)), ((1, 4), (64, 64), (16, 4)), ((8, 1), (64, 64), (2, 16))]


@pytest.mark.parametrize(("widths", "room", "vectors"), PADDED)
def test_padded_tiles_meet_in_no_bank(widths: tuple[int, int], room: tuple[int, int], vectors: tuple[int, int]) -> None:
    """But for short lines, of which a warp takes two. Both walks agree on where every element is."""
    geometry, cell = PaddedGeometry(widths, room, THREADS, vectors), max(widths[1], 4)
    most = 1 if min(room) >= WARP else 2
    read: dict[tuple[int, int], int] = {}
    written: dict[tuple[int, int], int] = {}
    for lanes in cells(geometry.reading):
        for j in range(vectors[0]):
            assert ways((place + j * geometry.pitch for _, _, place in lanes), cell) <= most
            read |= {(row, number * vectors[0] + j): place + j * geometry.pitch for row, number, place in lanes}
    for lanes in cells(geometry.writing):
        for i in range(vectors[1]):
            assert ways((place + i * cell for _, _, place in lanes), cell) <= most
            written |= {(number * vectors[1] + i, column): place + i * cell for column, number, place in lanes}
    assert read == written
    assert len(set(read.values())) == len(read) == room[0] * room[1]
    assert max(read.values()) + cell <= geometry.size


@pytest.mark.in_turn(seconds=0.5)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("words", [False, True])
def test_woven_rows_meet_in_no_bank_more_than_twice(width: int, words: bool) -> None:
    """For any number of rows, on the side with several rows and on the side where they are interleaved."""
    unit = 4 if words and width < 4 else width
    place = skewed_place(max(unit, 4))
    for rows in range(1, FEW_BYTES // width):
        skew = np.uint32(stage_skew(rows, width, unit))
        for row in sorted({0, rows // 3, rows - 1}):
            for part in range(unit // width):
                for warp in (0, 1, 5):
                    columns = [(warp * WARP + lane) * unit // width + part for lane in range(WARP)]
                    offsets = [(column * rows + row) * width for column in columns]
                    found = ways((int(place(np.uint32(offset), skew)) for offset in offsets), width)
                    assert found <= 2, (rows, row, part, found)
        for first in range(0, 64 * unit, unit):
            offsets = [first * WARP + lane * unit for lane in range(WARP)]
            assert ways((int(place(np.uint32(offset), skew)) for offset in offsets), unit) <= 2


@pytest.mark.parametrize("width", [1, 2])
def test_blocks_of_words_cover_a_tile_once_and_meet_in_no_bank(width: int) -> None:
    ((rows, columns),) = ELEMENT_TILES[width]
    geometry = WordGeometry(width, rows, columns, THREADS)
    per = geometry.per_word
    covered = set()
    for step in range(geometry.steps):
        for warp in range(THREADS // WARP):
            group, number = map(int, geometry.patch_of(np.uint32(warp), step))
            blocks = [(group, number + lane) for lane in range(WARP - 1)]
            for j in range(per):
                places = (int(geometry.column_place(per * k)) + j * geometry.pitch + 4 * group for _, k in blocks)
                assert ways(places, 4) == 1
            covered |= set(blocks)
    # A warp's lanes less one are the words of the rows and of a stretch; the groups go on to a power of two.
    assert rows * width == 4 * (WARP - 1)
    assert covered == {(group, number) for group in range(WARP) for number in range(columns // per)}
    found = {int(geometry.column_place(column)) + 4 * group for column in range(columns) for group in range(WARP)}
    assert len(found) == WARP * columns
    assert max(found) + 4 <= geometry.size
    # The columns of a block are as far apart as the kernel writes them.
    assert {
        geometry.column_place(k + 1) - geometry.column_place(k) for k in range(columns - 1) if k % per < per - 1
    } == {geometry.pitch}


# Global memory moves in sectors of 32 bytes

SECTOR_CASES = (
    ("bf16[64,1024]{1,0}", "bf16[64,1024]{1,0:T(8,128)(2,1)}", "interleave"),
    ("bf16[64,1024]{1,0:T(8,128)(2,1)}", "bf16[64,1024]{1,0}", "deinterleave"),
    ("s8[64,1024]{1,0}", "s8[64,1024]{1,0:T(8,128)(4,1)}", "interleave"),
    ("s8[64,1024]{1,0:T(8,128)(4,1)}", "s8[64,1024]{1,0}", "deinterleave"),
    ("f32[64,1024]{1,0}", "f32[64,1024]{1,0:T(8,128)}", "copy"),
    ("s4[64,1024]{1,0}", "s4[64,1024]{1,0:T(8,128)E(4)}", "compress"),
    ("u2[64,2048]{1,0}", "u2[64,2048]{1,0:T(8,256)E(2)}", "compress"),
)


def filled_sectors(places: Iterable[int], size: int) -> float:
    """The part that the bytes of an access take of the sectors that it touches."""
    touched = {byte for place in places for byte in range(place, place + size)}
    return len(touched) / (32 * len({byte // 32 for byte in touched}))


def accesses(launch: Launch) -> Iterator[tuple[list[int], int]]:
    """What the lanes of the first warps access at once, as (places, bytes), by what a kernel's documentation says."""
    for warp in range(4):
        sides: list[tuple[int, int]] = []
        for number in range(warp * WARP, (warp + 1) * WARP):
            source, destination = launch.source_start, launch.destination_start
            for loop in launch.loops:
                number, digit = divmod(number, loop.size)
                source, destination = source + digit * loop.source_stride, destination + digit * loop.destination_stride
            sides.append((source, destination))
        sources, destinations = ([side[i] for side in sides] for i in range(2))
        if launch.kernel in ("interleave", "deinterleave"):
            woven, apart = (destinations, sources) if launch.kernel == "interleave" else (sources, destinations)
            yield woven, 16
            for row in range(4 // launch.width):
                yield [place + row * launch.step for place in apart], 4 * launch.width
        else:
            yield sources, 16
            yield destinations, 2 * launch.width if launch.kernel == "compress" else 16


@pytest.mark.parametrize(("source", "destination", "kernel"), SECTOR_CASES)
def test_every_access_of_a_warp_fills_whole_sectors(source: str, destination: str, kernel: str) -> None:
    first, second = fi.Shape.parse(source), fi.Shape.parse(destination)
    loops = relayout_loops(first, second)
    assert loops is not None
    bits = second.element_bits
    found = converting_launches(loops, bits, False, 16) if bits < 8 else launches(loops, first.element_type.nbytes)
    assert found is not None
    assert [launch.kernel for launch in found] == [kernel]
    assert {filled_sectors(*access) for access in accesses(found[0])} == {1.0}


def test_half_filled_sectors_show() -> None:
    assert filled_sectors([lane * 32 for lane in range(WARP)], 16) == 0.5
    assert filled_sectors([lane * 16 for lane in range(WARP)], 16) == 1


@pytest.mark.parametrize("unit", [4, 8])
@pytest.mark.parametrize("skew", [31, 7, 8])
def test_skewed_places_are_apart_and_inside(unit: int, skew: int) -> None:
    place = skewed_place(unit)
    places = [int(place(np.uint32(offset), np.uint32(skew))) for offset in range(0, STAGE_BYTES, unit)]
    assert len(set(places)) == len(places)
    assert all(place % unit == 0 for place in places)
    assert max(places) + unit <= padded_bytes(STAGE_BYTES, unit)


def test_conflicts_show() -> None:
    assert ways((lane * 128 for lane in range(WARP)), 4) == 32
    assert ways((lane * 8 for lane in range(WARP)), 4) == 2
    assert ways((lane * 4 for lane in range(WARP)), 4) == 1
    assert ways((lane * 16 for lane in range(WARP)), 16) == 1
    assert ways((lane // 4 for lane in range(WARP)), 1) == 1
    assert ways((lane * 32 for lane in range(WARP)), 16) == 2
