"""Boxes of whole periods of a coordinate that the two sides tile differently, and of rows that several nests write.

All are compared with the slow reference, between guards.

Tests of: moving.moves.boxes.plan, moving.moves.boxes.geometry, moving.moves.boxes.kernel, moving.numbers.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import numpy as np
import pytest

import fastindex as fi
from fastindex.algebra.loops import relayout_loops
from fastindex.arrays.arrays import address_of
from fastindex.moving.choice import plans
from fastindex.moving.movements import movement
from fastindex.moving.moves.boxes import geometry as periods
from fastindex.moving.moves.boxes import plan as boxes
from fastindex.moving.moves.boxes.plan import box_drafts
from fastindex.moving.passes import Pass, with_tables
from fastindex.runtime.machine import EPYC_1M
from fastindex.runtime.tuning import TUNING
from tests.cases import strategies
from tests.cases.assembly_cases import Guarded, Pair, move, moved_between_guards
from tests.cases.machines import run_here
from tests.oracles.partial_lines import partial_writes

WIDTHS = {"u8": 1, "bf16": 2, "f32": 4, "f64": 8, "c128": 16}

#: Whole periods and what is left of them, one of two values, all of a coordinate; padding; other orders and tiles that
#: merge differently; two coordinates; a dimension on its own.
NAMED = (
    ("[3,26,12]{1,2,0}", "[3,26,12]{2,1,0:T(2,*,16)}"),
    ("[3,26,12]{2,1,0:T(2,*,16)}", "[3,26,12]{1,2,0}"),
    ("[5,19,10]{0,1,2}", "[5,19,10]{2,1,0:T(2,*,16)}"),
    ("[5,19,10]{2,1,0:T(2,*,16)}", "[5,19,10]{0,1,2}"),
    ("[4,9,7,3]{3,1,2,0:T(2,*,4)}", "[4,9,7,3]{0,2,3,1:T(*,5,3,2)}"),
    ("[7,10,9]{2,1,0:T(2,*,24)}", "[7,10,9]{2,1,0:T(3,*,10)}"),
    ("[6,7,5,9]{2,3,0,1:T(*,8,*,4)}", "[6,7,5,9]"),
    ("[10,150]{1,0:T(2,12)}", "[10,150]{0,1:T(20,4)L(77)}"),
    ("[5,7,9,3]{1,3,0,2:T(2,*,8)(2,4)}", "[5,7,9,3]{3,2,1,0}"),
)


#: Remainders of rows, of rows and tiles, of several dimensions; boxes that end within lines; rows that do not continue.
ROWS: tuple[Pair, ...] = (
    ("u8[2,12,300]{2,1,0:T(4,128)(2,1)}", "u8[2,12,300]"),
    ("bf16[2,17,150]{2,1,0:T(8,128)(2,1)}", "bf16[2,17,150]"),
    ("f32[3,9,130]{2,1,0:T(8,128)}", "f32[3,9,130]"),
    ("u8[5,24,130]{2,1,0:T(8,128)(4,1)}", "u8[5,24,130]"),
    ("f64[9,5,35]{2,1,0:T(2,32)}", "f64[9,5,35]{2,0,1}"),
    ("c128[3,6,35]{2,1,0:T(2,32)}", "c128[3,6,35]"),
    ("f32[6,10,35]{2,1,0:T(4,32)}", "f32[6,10,35]{1,2,0}"),
    ("bf16[3,16,201]{2,1,0:T(8,128)(2,1)}", "bf16[3,16,201]{1,2,0}"),
    ("f32[3,4,5,20]{3,2,1,0:T(2,*,16)}", "f32[3,4,5,20]"),
    ("f32[5,3,40,20]{3,2,1,0:T(8,16)}", "f32[5,3,40,20]{3,2,0,1}"),
)


def passes_of(pair: Pair, streamed: bool, rows: bool = False) -> tuple[Pass, ...] | None:
    """The passes over boxes, of rows too if the two sides share loops and `rows`; None if there are none."""
    tuning = dataclasses.replace(TUNING, streamed_bytes=0 if streamed else TUNING.streamed_bytes)
    sides = [fi.Shape.parse(text) for text in pair]
    loops = relayout_loops(sides[0], sides[1]) if rows else None
    found = box_drafts(sides[0], sides[1], sides[0].element_bits // 8, EPYC_1M, tuning, loops)
    return None if found is None else with_tables(found)


def check(pair: Pair, streamed: bool, offsets: tuple[int, int], rows: bool = False) -> bool:
    """Move a pair; return whether there are boxes for it."""
    made = passes_of(pair, streamed, rows)
    return made is not None and moved_between_guards(pair, made, offsets)


@pytest.fixture(params=[None, 512])
def box_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large boxes, and small ones that have parts of loops."""
    if request.param is not None:
        monkeypatch.setattr(periods, "_RUN_BYTES", request.param // 4)
        monkeypatch.setattr(boxes, "LEAST_BOX_BYTES", request.param // 4)


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.usefixtures("box_bytes")
@pytest.mark.parametrize("element", WIDTHS)
def test_named_pairs(element: str) -> None:
    for number, (source, destination) in enumerate(NAMED):
        pair, width = (element + source, element + destination), WIDTHS[element]
        offsets = width * number % 64, 3 * width * number % 64
        assert check(pair, number % 2 == 0, offsets), pair


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.usefixtures("box_bytes")
@pytest.mark.parametrize("pair", ROWS, ids=lambda pair: f"{pair[0]} to {pair[1]}")
def test_rows_with_remainders(pair: Pair) -> None:
    for offsets in ((0, 0), (16, 48), (5, 13)):
        assert check(pair, True, offsets, rows=True)


def random_rows(seeds: range) -> Iterator[Pair]:
    chains = ("T(8,16)", "T(8,16)(2,1)", "T(8,32)(4,1)", "T(2,16)", "T(4,16)(2,1)", "T(1,16)", "T(32)", "T(2,*,16)")
    for seed in seeds:
        rng = random.Random(seed)
        rank = rng.randint(2, 4)
        dimensions = [rng.choice((1, 2, 3, 5, 9, 12, 17, 33, 40)) for _ in range(rank)]
        dimensions[rng.randrange(rank)] = 1
        order = rng.sample(range(rank), rank)
        other = order if rng.random() < 0.6 else rng.sample(range(rank), rank)
        start = f"{rng.choice(('u8', 'bf16', 'f32', 'f64', 'c128'))}[{','.join(map(str, dimensions))}]"
        # Tiles without padding, between whose columns other rows lie.
        tiles = rng.choice(("", "", "", "", ":T(2,2)", ":T(2,1)", ":T(1,2)", ":T(4,1)"))
        yield (
            f"{start}{{{','.join(map(str, order))}:{rng.choice(chains)}}}",
            f"{start}{{{','.join(map(str, other))}{tiles}}}",
        )


@pytest.mark.usefixtures("box_bytes")
def test_random_rows() -> None:
    seeds = strategies.seeds(160)
    found = [
        check(pair, True, (seed * 7 % 64, seed * 5 % 64), rows=True)
        for seed, pair in zip(seeds, random_rows(seeds), strict=True)
    ]
    assert sum(found) > 0.1 * len(found) or strategies.OTHER_SEEDS


def test_bytes_of_packed_elements_have_no_boxes() -> None:
    """Boxes of half bytes, counted as bytes, would be read and written twice as far as the buffers reach."""
    sides = "s4[5,64,130]{1,2,0:T(8,128)(8,1)E(4)}", "s4[5,64,130]{2,1,0:E(4)}"
    tuning = dataclasses.replace(TUNING, streamed_bytes=0, shifted_bytes=0)
    moved = movement(*map(fi.Shape.parse, sides), tuning, EPYC_1M)
    assert moved.slots.unit == "byte"
    assert "boxes" not in {one.name for one in plans(moved.problem)}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("columns", [1001, 131])
def test_threads_share_lines(threads: int, columns: int) -> None:
    """Rows of any size, so that the threads' shares begin and end within lines."""
    rows = (9 << 20) // columns
    source, destination = f"u8[{rows},{columns}]{{1,0:T(8,128)(4,1)}}", f"u8[{rows},{columns}]"
    sides = fi.Shape.parse(source), fi.Shape.parse(destination)
    assert "boxes" in {one.name for one in plans(movement(*sides, machine=EPYC_1M).problem)}
    moved = dataclasses.replace(movement(*sides, machine=run_here(EPYC_1M)), choice="boxes")
    values = np.random.default_rng(columns).integers(0, 256, (-(-rows // 8) * 8, -(-columns // 128) * 128), np.uint8)
    tiled = values.reshape(-1, 2, 4, values.shape[1] // 128, 128).transpose(0, 3, 1, 4, 2)
    given, found = np.ascontiguousarray(tiled).reshape(-1), np.zeros(rows * columns, np.uint8)
    moved.run_kernels(address_of(given), address_of(found), b"\0", threads)
    assert np.array_equal(found.reshape(rows, columns), values[:rows, :columns])


def test_small_arrays_and_whole_lines_have_no_row_boxes() -> None:
    """A small array; rows that no tile cuts; padding in the destination."""
    for source, destination in (
        ("f32[64,64,4]{2,1,0:T(2,3)}", "f32[64,64,4]"),
        ("f32[3144,2048]{1,0:T(8,128)(4,1)}", "f32[3144,2048]"),
        ("u8[3000,3,1100]{2,1,0:T(8,128)}", "u8[3000,3,1100]{1,2,0:T(8,128)}"),
    ):
        shapes = fi.Shape.parse(source), fi.Shape.parse(destination)
        loops = relayout_loops(*shapes)
        assert loops is not None
        assert box_drafts(*shapes, shapes[0].element_bits // 8, EPYC_1M, TUNING, loops) is None


def test_random_merged_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    found = 0
    for seed in strategies.rotating_seeds(240):
        rng = random.Random(seed)
        monkeypatch.setattr(periods, "_RUN_BYTES", rng.choice((16, 128, 512)))
        monkeypatch.setattr(boxes, "LEAST_BOX_BYTES", rng.choice((256, 2048, 1 << 17)))
        rank = rng.randint(3, 5)
        dimensions = ",".join(str(rng.choice((2, 3, 5, 7, 11))) for _ in range(rank))
        element, texts = rng.choice(list(WIDTHS)), []
        for _ in range(2):
            tile = [str(rng.choice((1, 2, 3, 4, 10, 16))) for _ in range(3)]
            tile[rng.randrange(2)] = "*"
            attributes = rng.choice(("", f":T({','.join(tile)})", f":T({','.join(tile)})(2,1)"))
            order = ",".join(map(str, rng.sample(range(rank), rank)))
            texts.append(f"{element}[{dimensions}]{{{order}{attributes}}}")
        width = WIDTHS[element]
        found += check((texts[0], texts[1]), seed % 2 == 0, (seed * width % 64, seed * 3 * width % 64))
    assert found or strategies.OTHER_SEEDS


def test_boxes_hold_long_runs_of_both_sides() -> None:
    pair = "f32[98,1000,127]{1,2,0}", "f32[98,1000,127]{2,1,0:T(2,*,128)}"
    plan = movement(*map(fi.Shape.parse, pair), machine=EPYC_1M)
    assert plan.passes is not None
    found = [one for one in plan.passes if one.kernel == "boxes"]
    assert found
    assert all(32 << 10 <= one.task_bytes <= 512 << 10 for one in found[:1])
    # Every piece of 128 is whole lines; only the end of each row of tiles is not.
    assert partial_writes(found) <= 4 * 98


def test_large_periods_are_left_alone() -> None:
    """Scratch memory holds no sixteenth of a period of 128 times 99999 elements."""
    pair = "f32[3,200,99999]{1,2,0}", "f32[3,200,99999]{2,1,0:T(2,*,128)}"
    assert passes_of(pair, True) is None


@pytest.mark.parametrize("element", ["u8", "f64"])
def test_parts_of_periods(element: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes begin within a tile or a row of either side where scratch memory does not hold a period."""
    width = WIDTHS[element]
    monkeypatch.setattr(boxes, "BOX_BYTES", 16 * width)
    monkeypatch.setattr(boxes, "LEAST_BOX_BYTES", 0)
    for source, destination in (
        ("[40,19,10]{0,1,2}", "[40,19,10]{2,1,0:T(2,*,16)}"),
        ("[40,19,10]{2,1,0:T(2,*,16)}", "[40,19,10]{0,1,2}"),
        ("[50,3,19,6]{0,2,1,3}", "[50,3,19,6]{3,2,1,0:T(4,*,32)}"),
    ):
        pair = element + source, element + destination
        made = passes_of(pair, True)
        assert made is not None
        assert len([one for one in made if one.kernel == "boxes"]) >= 3
        assert moved_between_guards(pair, made, (width * 3, width * 7))


def test_stretches_are_cut_at_units() -> None:
    cut = list(periods._units(5, 47, [1, 4, 20]))
    assert cut == [(5, 3, 0), (8, 3, 1), (20, 1, 2), (40, 1, 1), (44, 3, 0)]


def test_what_has_loops_has_no_boxes() -> None:
    assert passes_of(("f32[6,8,32]{1,2,0}", "f32[6,8,32]{2,1,0:T(2,*,16)}"), False) is None
    assert passes_of(("f32[0,8,31]{1,2,0}", "f32[0,8,31]{2,1,0:T(2,*,16)}"), False) is None


def test_other_ways_are_chosen_where_they_wait_less() -> None:
    pair = "f64[1228,50,100]{2,1,0:T(2,*,128)}", "f64[1228,50,100]{0,1,2}"
    sides = [fi.Shape.parse(text) for text in pair]
    assert box_drafts(sides[0], sides[1], 8, EPYC_1M, TUNING, None) is not None
    plan = movement(*sides, machine=EPYC_1M)
    assert plan.passes is not None
    assert {one.kernel for one in plan.passes} == {"column gather"}


@pytest.mark.parametrize("pair", [("f32[5,26,12]{1,2,0}", "f32[5,26,12]{2,1,0:T(2,*,16)}"), ROWS[2]])
def test_planted_bugs_are_noticed(pair: Pair) -> None:
    made = passes_of(pair, True, rows=pair in ROWS)
    assert made is not None
    assert move(pair, made, Guarded(), (0, 0)) == ""
    first, *rest = made
    planted = [
        dataclasses.replace(first, tasks=first.tasks - 1),
        dataclasses.replace(first, source_start=first.source_start + 4),
        dataclasses.replace(first, inner=first.inner[:-1]),
        dataclasses.replace(first, inner=((first.inner[0][0], True, True), *first.inner[1:])),
    ]
    for spoiled in planted:
        geometry = spoiled.geometry.copy()
        geometry[0] = len(spoiled.inner)
        assert move(pair, (dataclasses.replace(spoiled, geometry=geometry), *rest), Guarded(), (0, 0))
