"""Plans for the GPU without a GPU: every launch, followed unit by unit, does what the definition says.

Tests of: cuda.launches.launches, cuda.launches.records, cuda.launches.row_pieces, cuda.numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, relayout_loops
from fastindex.cuda import numbers as cuda_tables
from fastindex.cuda.launches import launches as cuda_plan
from fastindex.cuda.launches.launches import converting_launches, launches
from fastindex.cuda.launches.records import MOST_UNITS, Launch, ordered, table_numbers
from fastindex.index.numbers import narrow_quotient
from tests.cases import strategies
from tests.cases.gpu_cases import RELAYOUTS
from tests.oracles import reference
from tests.oracles.reference import ReferenceShape

WIDTHS = (1, 2, 4, 8, 16)


def places_of(loops: Sequence[Loop], source: int, destination: int) -> list[tuple[int, int]]:
    """Where each step of some loops is, in bytes, the first loop the fastest."""
    places = [(source, destination)]
    for loop in loops:
        places = [
            (s + k * loop.source_stride, d + k * loop.destination_stride) for k in range(loop.size) for s, d in places
        ]
    return places


def granules(launch: Launch, address: int) -> Iterator[tuple[int, int]]:
    """What a launch of shifts moves, as (bit of the source, byte of the destination), where that is at `address`."""
    for number, (s, d) in enumerate(places_of(launch.loops, launch.source_start, launch.destination_start)):
        before = 16 * (number % launch.loops[0].size)
        behind = (address + d) % 16
        for place in range(max(0, behind - before), min(16, launch.length + behind - before)):
            yield s + (place - behind) * launch.width, d + place - behind


def rows_moved(launch: Launch, address: int) -> Iterator[tuple[int, int, int]]:
    """What a launch of rows and tiles moves, byte by byte, where its rows are at `address`."""
    pieces = launch.pieces
    assert pieces is not None
    rows = 4 // launch.width
    part, apart = 16 // rows, launch.kernel == "deinterleave rows"

    def woven(granule: int, stride: int) -> int:
        return granule // pieces.size * stride + granule % pieces.size * 16

    for index, (s, d) in enumerate(places_of(launch.loops, launch.source_start, launch.destination_start)):
        number = index % launch.loops[0].size
        for row in range(rows):
            behind = (address + d + row * launch.step) % part if apart else 0
            for at in range(max(part * number - behind, 0), min(part * (number + 1) - behind, launch.length)):
                column, inside = at // launch.width, at % launch.width
                place = column % 4 * 4 + row * launch.width + inside
                if apart:
                    to = d - part * number + row * launch.step + at
                    yield s + woven(at // part, pieces.source_stride) + place, to, 1
                else:
                    yield (
                        s - part * number + row * launch.step + at,
                        d + woven(number, pieces.destination_stride) + place,
                        1,
                    )


def moves(launch: Launch, address: int = 0) -> Iterator[tuple[int, int, int]]:
    """What a launch moves, as (source, destination, bytes), by what its kernel's documentation says."""
    if launch.kernel == "shift":
        yield from ((s // 8, d, 1) for s, d in granules(launch, address))
        return
    if launch.pieces is not None:
        yield from rows_moved(launch, address)
        return
    width, tile = launch.width, launch.tile
    for number, (s, d) in enumerate(places_of(launch.loops, launch.source_start, launch.destination_start)):
        if launch.kernel in ("copy", "fill"):
            yield s, d, width
        elif launch.kernel in ("interleave", "deinterleave"):
            rows, columns = 4 // width, 4
            for row in range(rows):
                for column in range(columns):
                    woven, own = (column * rows + row) * width, row * launch.step + column * width
                    yield (s + own, d + woven, width) if launch.kernel == "interleave" else (s + woven, d + own, width)
        else:
            assert tile is not None
            first_column = number % launch.loops[0].size * tile.tile_columns
            first_row = number // launch.loops[0].size % launch.loops[1].size * tile.tile_rows
            for row in range(min(tile.tile_rows, tile.rows - first_row)):
                for column in range(min(tile.tile_columns, tile.columns - first_column)):
                    woven, own = (column * tile.rows + row) * width, tile.row_places[row] + column * width
                    if launch.kernel == "stage":
                        yield s + own, d + woven, width
                    elif launch.kernel == "unstage":
                        yield s + woven, d + own, width
                    else:
                        yield s + own, d + tile.column_places[column] + row * width, width


def check_shape(launch: Launch, alignment: int) -> None:
    """What a kernel takes for granted."""
    if launch.kernel == "shift":
        assert 0 < launch.units < 2**31
        assert (launch.loops[0].source_stride, launch.loops[0].destination_stride) == (16 * launch.width, 16)
        assert len({k.size for k in launch.loops[1:]} & {0, 1}) == 0
        return
    if launch.pieces is not None:
        assert alignment == 16
        assert 0 < launch.units <= MOST_UNITS
        apart, part = launch.kernel == "deinterleave rows", 4 * launch.width
        first = launch.loops[0]
        assert (first.source_stride, first.destination_stride) == ((0, part) if apart else (part, 0))
        # The last one is only read for.
        assert part * (first.size - 1) >= launch.length
        sides = [(k.source_stride, k.destination_stride) for k in (launch.pieces, *launch.loops[1:])]
        sides.append((launch.source_start, launch.destination_start))
        assert all(side[not apart] % 16 == 0 for side in sides)
        return
    assert launch.width in WIDTHS
    assert launch.width <= alignment
    assert 0 < launch.units <= MOST_UNITS
    words = launch.words
    unit = 16 if in_vectors(launch) else max(launch.width, 4 if words else 1)
    if launch.kernel in ("interleave", "deinterleave"):
        # 4 columns of each row make the 16 bytes of a unit.
        unit = 4 * launch.width
        sides = [(k.source_stride, k.destination_stride) for k in launch.loops if k.size > 1]
        sides.append((launch.source_start, launch.destination_start))
        assert all(side[launch.kernel == "interleave"] % 16 == 0 for side in sides)
    tile = launch.tile
    numbers = [launch.source_start, launch.destination_start, launch.step if launch.kernel != "fill" else 0]
    numbers += [n for loop in launch.loops if loop.size > 1 for n in (loop.source_stride, loop.destination_stride)]
    if tile is not None:
        numbers += [*tile.row_places, *tile.column_places]
        assert len(launch.loops) >= 2
        assert len(tile.row_places) == tile.tile_rows
        if launch.kernel.startswith("transpose"):
            assert len(tile.column_places) == tile.tile_columns
            tiles = cuda_plan.VECTOR_TILES if in_vectors(launch) else cuda_plan.ELEMENT_TILES
            assert tile.capacity in tiles[launch.width]
            assert (tile.tile_rows <= tile.capacity[0], tile.tile_columns <= tile.capacity[1]) == (True, True)
        else:
            assert tile.rows * tile.tile_columns * launch.width <= cuda_plan.STAGE_BYTES
        if launch.words and launch.kernel in ("stage", "unstage"):
            assert tile.columns * launch.width % 4 == tile.tile_columns * launch.width % 4 == 0
        if in_vectors(launch):
            columns = (tile.columns * launch.width, tile.tile_columns * launch.width)
            assert all(number % 16 == 0 for number in columns)
        if launch.kernel == "transpose":
            assert tile.rows * launch.width % 16 == tile.tile_rows * launch.width % 16 == 0
    assert all(number % unit == 0 for number in numbers)


def in_vectors(launch: Launch) -> bool:
    """Whether 16 bytes move at once, of a kernel that has a choice."""
    return launch.kernel in ("transpose", "interleave", "deinterleave")


def mapping(source: ReferenceShape, destination: ReferenceShape) -> list[int | None]:
    """For each slot of the destination, the slot of the source, or None for padding; by the definition."""
    slot_of = reference.linear_indices(source)
    return [None if cell is None else slot_of[cell] for cell in reference.slots(destination)]


def differences(source: ReferenceShape, destination: ReferenceShape, width: int, alignment: int) -> list[str]:
    loops = relayout_loops(fi.Shape.parse(str(source)), fi.Shape.parse(str(destination)))
    if loops is None:
        return []
    expected = mapping(source, destination)
    found: list[int | None] = [-1] * (len(expected) * width)
    wrong = []
    for launch in launches(loops, width, alignment):
        check_shape(launch, alignment)
        # The address that leaves the most of a granule before a run.
        for s, d, nbytes in moves(launch, 16 - alignment):
            for k in range(nbytes):
                # What was filled may be written again.
                if found[d + k] not in (-1, None):
                    wrong.append(f"byte {d + k} written twice, by {launch}")
                found[d + k] = None if launch.kernel == "fill" else s + k
    for place, got in enumerate(found):
        slot = expected[place // width]
        answer = None if slot is None else slot * width + place % width
        if got != answer:
            wrong.append(f"byte {place} of {destination}: {got}, expected {answer}")
            break
    return wrong


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.parametrize(("source", "destination"), RELAYOUTS)
def test_every_launch_moves_what_the_definition_says(source: str, destination: str) -> None:
    first, second = reference.parse(source), reference.parse(destination)
    width = fi.Shape.parse(source).element_type.nbytes
    for alignment in (16, 8, 1):
        assert differences(first, second, width, alignment) == []


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(450)[::50])])
def test_random_relayouts(first: int) -> None:
    for seed in range(first, first + 50):
        source, destination = strategies.random_pair(seed)
        draw = random.Random(seed)
        width, alignment = draw.choice(WIDTHS), draw.choice(WIDTHS)
        assert differences(source, destination, width, alignment) == [], f"seed {seed}"


def test_a_wrong_stride_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ordered
    monkeypatch.setattr(
        cuda_plan, "ordered", lambda loops: [Loop(k.size, k.source_stride + 16, 16) for k in right(loops)]
    )
    tiled = reference.parse("f32[24,256]{1,0}"), reference.parse("f32[24,256]{1,0:T(8,128)}")
    assert differences(*tiled, 4, 16) != []


def kernels_of(source: str, destination: str, alignment: int) -> set[tuple[Any, ...]]:
    first, second = fi.Shape.parse(source), fi.Shape.parse(destination)
    loops = relayout_loops(first, second)
    width = first.element_type.nbytes
    found = () if loops is None else launches(loops, width, alignment)
    kernels = {
        (launch.kernel, launch.width, in_vectors(launch) or launch.words or launch.kernel == "transpose words")
        for launch in found
    }
    transposes = ("transpose", "transpose elements")
    rooms = {(launch.width, launch.tile.capacity) for launch in found if launch.tile and launch.kernel in transposes}
    return kernels | rooms


def test_the_cases_run_every_kernel() -> None:
    """What the simulator and a GPU are asked covers each kernel in each width."""
    found = {kernel for pair in RELAYOUTS for alignment in (16, 8, 4, 2, 1) for kernel in kernels_of(*pair, alignment)}
    expected: set[tuple[Any, ...]] = {("copy", width, False) for width in WIDTHS} | {
        ("fill", width, False) for width in WIDTHS
    }
    expected |= {("shift", 8, False)} | {("transpose", width, True) for width in WIDTHS}
    expected |= {(width, room) for width in WIDTHS for room in cuda_plan.VECTOR_TILES[width]}
    expected |= {(width, room) for width in (4, 8) for room in cuda_plan.ELEMENT_TILES[width]}
    expected |= {("transpose elements", width, False) for width in (4, 8)}
    expected |= {("transpose words", width, True) for width in (1, 2)}
    expected |= {(name, width, True) for name in ("interleave", "deinterleave") for width in (1, 2)}
    expected |= {(name, width, False) for name in ("interleave rows", "deinterleave rows") for width in (1, 2, 4)}
    expected |= {
        (name, width, words) for name in ("stage", "unstage") for width in (1, 2, 4, 8) for words in {False, width < 4}
    }
    assert expected - found == set()


# What is chosen


def chosen(source: str, destination: str, alignment: int = 16) -> list[str]:
    first, second = fi.Shape.parse(source), fi.Shape.parse(destination)
    loops = relayout_loops(first, second)
    assert loops is not None
    return [described(launch) for launch in launches(loops, first.element_type.nbytes, alignment)]


def described(launch: Launch) -> str:
    unit = f"{launch.width} bits" if launch.kernel == "shift" else f"{launch.width}-byte units"
    at_once = 16 if in_vectors(launch) or launch.kernel == "shift" else 4 if launch.words else None
    parts = [launch.kernel, unit, *([f"{at_once} bytes at once"] if at_once else [])]
    return f"{', '.join(parts)}, {launch.units} {'tiles' if launch.tile else 'units'}"


@pytest.mark.parametrize(
    ("source", "destination", "kernel"),
    [
        ("f32[8192,8192]{1,0}", "f32[8192,8192]{0,1}", "transpose, 4-byte units, 16 bytes at once, 16384 tiles"),
        ("u8[8192,8192]{1,0}", "u8[8192,8192]{0,1}", "transpose, 1-byte units, 16 bytes at once, 4096 tiles"),
        (
            "f32[32,64,112,112]{3,2,1,0}",
            "f32[32,64,112,112]{3,2,1,0:T(16,1,1)}",
            "transpose, 4-byte units, 16 bytes at once, 6272 tiles",
        ),
        ("f32[8191,8209]{1,0}", "f32[8191,8209]{0,1}", "transpose elements, 4-byte units, 16512 tiles"),
        ("f32[8192,8192]{1,0}", "f32[8192,8192]{1,0:T(8,128)}", "copy, 16-byte units, 16777216 units"),
        (
            "bf16[8192,8192]{1,0}",
            "bf16[8192,8192]{1,0:T(8,128)(2,1)}",
            "interleave, 2-byte units, 16 bytes at once, 8388608 units",
        ),
        (
            "s8[8192,8192]{1,0:T(8,128)(4,1)}",
            "s8[8192,8192]{1,0}",
            "deinterleave, 1-byte units, 16 bytes at once, 4194304 units",
        ),
        ("u8[64,3,224,224]{3,2,1,0}", "u8[64,3,224,224]{1,3,2,0}", "stage, 1-byte units, 4 bytes at once, 640 tiles"),
    ],
)
def test_choice(source: str, destination: str, kernel: str) -> None:
    (found,) = chosen(source, destination)
    assert found.startswith(kernel), found


def test_a_misaligned_address_takes_smaller_units() -> None:
    pair = "f32[8192,8192]{1,0}", "f32[8192,8192]{1,0:T(8,128)}"
    for alignment in (8, 4, 2, 1):
        (found,) = chosen(*pair, alignment)
        wanted = "copy, 8-byte units" if alignment == 8 else "shift, 8 bits, 16 bytes at once, 17825792 units"
        assert found.startswith(wanted), found


@pytest.mark.parametrize("widens", [True, False])
def test_fills_write_other_elements_only_before_copies(widens: bool) -> None:
    rows = RelayoutLoops((), (Nest((Loop(24, 0, 1), Loop(2, 0, 48)), 0, 120),))
    written = {
        begin + byte
        for launch in launches(rows, 1, 16, widens)
        for _, begin in places_of(launch.loops, 0, launch.destination_start)
        for byte in range(launch.width)
    }
    padding = {120 + 48 * row + byte for row in range(2) for byte in range(24)}
    assert written > padding if widens else written == padding


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("u8[65536,65536]{1,0}", "u8[65536,65536]{0,1}"),
        ("u8[200003,100019]{1,0}", "u8[200003,100019]{0,1:T(8)}"),
        ("c128[3,3000000011]{1,0}", "c128[3,3000000011]{0,1}"),
        ("f32[40000000000]{0}", "f32[40000000000]{0:T(1024)}"),
        ("bf16[400000,400000]{1,0}", "bf16[400000,400000]{1,0:T(8,128)(2,1)}"),
    ],
)
def test_beyond_32_bits_nests_are_cut(source: str, destination: str) -> None:
    first, second = fi.Shape.parse(source), fi.Shape.parse(destination)
    loops = relayout_loops(first, second)
    assert loops is not None
    width = first.element_type.nbytes
    found = launches(loops, width)
    for launch in found:
        check_shape(launch, 16)
        last = launch.destination_start + sum((k.size - 1) * k.destination_stride for k in launch.loops)
        assert last < second.nbytes
    written = 0
    for launch in found:
        if launch.tile is not None:
            others = math.prod(loop.size for loop in launch.loops[2:])
            blocks = math.prod(
                -(-n // t)
                for n, t in (
                    (launch.tile.rows, launch.tile.tile_rows),
                    (launch.tile.columns, launch.tile.tile_columns),
                )
            )
            assert launch.units == blocks * others
            written += launch.tile.rows * launch.tile.columns * others * width
        else:
            written += launch.units * (16 if launch.kernel in ("interleave", "deinterleave") else launch.width)
    assert written == second.nbytes


# Tables


def test_table() -> None:
    header, places = (9, 10, 11, 12, 31), (13, 14)
    table = table_numbers([Loop(4, 16, 64), Loop(3, 7, 8)], header, places)
    assert table.dtype == np.int64
    assert (table[:5].tolist(), table[-2:].tolist(), len(table)) == ([*header], [*places], 17)
    for loop, (size, source, destination) in enumerate([(4, 16, 64), (3, 7, 8)]):
        start = cuda_tables.HEADER_BYTES + loop * cuda_tables.LOOP_BYTES
        columns = cuda_tables.SIZE, cuda_tables.MAGIC, cuda_tables.SHIFT, cuda_tables.SOURCE, cuda_tables.DESTINATION
        found = [int(table[(start + column) // 8]) for column in columns]
        assert (found[0], *found[3:]) == (size, source, destination)
        numbers = (0, 1, size - 1, size, 7 * size + 1, 2**31 - 1)
        assert [narrow_quotient(number, found[1], found[2]) for number in numbers] == [n // size for n in numbers]


def differences_in_packing(source: str, destination: str, bits: int, expand: bool, alignment: int) -> str | None:
    """What is wrong with the launches that convert packed elements, bit by bit; None where there are none."""
    loops = relayout_loops(fi.Shape.parse(source), fi.Shape.parse(destination))
    assert loops is not None
    found = converting_launches(loops, bits, expand, alignment)
    if found is None:
        return None
    first, second = reference.parse(source), reference.parse(destination)
    expected = dict(enumerate(mapping(first, second)))
    moved: dict[int, int | None] = {}
    for launch in found:
        pairs: Any
        if launch.kernel == "shift":
            check_shape(launch, alignment)
            pairs = [(s // bits, d) for s, d in granules(launch, 16 - alignment) if s % bits == 0]
        elif launch.kernel == "pack bits":
            assert (launch.loops, launch.source_start, launch.destination_start) == ((Loop(launch.units, 1, 1),), 0, 0)
            pairs = [(k, k) for k in range(launch.units)]
        elif launch.kernel in ("expand", "compress"):
            assert launch.kernel == ("expand" if expand else "compress")
            places = places_of(launch.loops, launch.source_start, launch.destination_start)
            elements = [(s * 8 // bits, d) if expand else (s, d * 8 // bits) for s, d in places]
            assert all(number % 16 == 0 for pair in elements for number in pair)
            pairs = [(s + k, d + k) for s, d in elements for k in range(16)]
        else:
            slots = 1 if expand else 8 // bits
            pairs = [(None, d * slots + k) for _, d, n in moves(launch) for k in range(n * slots)]
        for s, d in pairs:
            if moved.get(d) is not None:
                return f"slot {d} is written twice"
            moved[d] = s
    wrong = [d for d in {*expected, *moved} if moved.get(d, -1) != expected.get(d, -1)]
    return f"wrong: {wrong[:5]}" if wrong else ""


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("alignment", [16, 4, 1])
@pytest.mark.parametrize(
    ("dimensions", "layout", "compressed"),
    [
        ("9,128", "{1,0:T(4,32)}", True),
        ("9,40", "{1,0:T(4,32)}", False),
        ("13,67", "{1,0:T(8,128)}", False),
        ("7,33", "{1,0:T(4,16)}", False),
        ("37", "{0}", True),
        ("48", "{0:T(64)}", True),
    ],
)
def test_packed_elements_are_converted_on_their_way(
    dimensions: str, layout: str, compressed: bool, alignment: int, bits: int
) -> None:
    element_type = {1: "pred", 2: "u2", 4: "s4"}[bits]
    plain = f"{element_type}[{dimensions}]{layout}"
    order = layout[: layout.index("0") + 1]
    packed = f"{element_type}[{dimensions}]{order}:E({bits})}}"
    assert differences_in_packing(packed, plain, bits, True, alignment) == ""
    backwards = f"{plain[:-1]}{'' if ':' in layout else ':'}E({bits})}}"
    answer = differences_in_packing(f"{element_type}[{dimensions}]", backwards, bits, False, alignment)
    assert answer == ("" if compressed and (alignment == 16 or "," not in dimensions) else None)
