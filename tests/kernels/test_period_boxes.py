"""Boxes of whole periods of a coordinate that the two sides tile differently: against the reference, between guards.

Tests of: moving.moves.boxes.plan, moving.moves.boxes.geometry.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

import fastindex as fi
from fastindex.moving.movements import movement
from fastindex.moving.moves.boxes import geometry as periods
from fastindex.moving.moves.boxes import plan as boxes
from fastindex.moving.moves.boxes.plan import box_drafts
from fastindex.moving.passes import Pass, with_tables
from fastindex.runtime.machine import EPYC_1M
from fastindex.runtime.tuning import TUNING
from tests.cases import strategies
from tests.cases.assembly_cases import Guarded, Pair, move, moved_between_guards
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


def passes_of(pair: Pair, streamed: bool) -> tuple[Pass, ...] | None:
    tuning = dataclasses.replace(TUNING, streamed_bytes=0 if streamed else TUNING.streamed_bytes)
    sides = [fi.Shape.parse(text) for text in pair]
    found = box_drafts(sides[0], sides[1], sides[0].element_bits // 8, EPYC_1M, tuning, None)
    return None if found is None else with_tables(found)


def check(pair: Pair, streamed: bool, offsets: tuple[int, int]) -> bool:
    """Move a pair; return whether there are boxes for it."""
    made = passes_of(pair, streamed)
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


def test_planted_bugs_are_noticed() -> None:
    pair = "f32[5,26,12]{1,2,0}", "f32[5,26,12]{2,1,0:T(2,*,16)}"
    made = passes_of(pair, False)
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
