"""Transposes whose rows are counted one by one: against the slow reference, between guards, with planted bugs.

Tests of: lowering.relayout.moves.row_tables.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

import fastindex as fi
from fastindex.cpu.movements import sure_movement
from fastindex.lowering.relayout.moves.row_tables import counted_passes
from fastindex.lowering.relayout.passes.form import Pass, with_tables
from fastindex.lowering.tuning import TUNING
from fastindex.tables import transposes
from tests.cases import strategies
from tests.cases.assembly_cases import Guarded, Pair, move, moved_between_guards

WIDTHS = {"u8": 1, "bf16": 2, "f32": 4, "f64": 8, "c128": 16}


def passes_of(pair: Pair, streamed: bool) -> tuple[Pass, ...] | None:
    tuning = dataclasses.replace(TUNING, streamed_bytes=0 if streamed else TUNING.streamed_bytes)
    sides = [fi.Shape.parse(text) for text in pair]
    found = counted_passes(sides[0], sides[1], sides[0].element_bits // 8, tuning)
    return None if found is None else with_tables(found)


def check(pair: Pair, streamed: bool, offsets: tuple[int, int]) -> bool:
    """Move a pair; return whether its rows can be counted."""
    made = passes_of(pair, streamed)
    return made is not None and moved_between_guards(pair, made, offsets)


@pytest.mark.parametrize("element", WIDTHS)
@pytest.mark.parametrize("streamed", [False, True])
def test_merged_dimensions(element: str, streamed: bool) -> None:
    """Blocks of less than a line, of lines and of more; a last one that is short; rows of less than a line."""
    for dimensions, tile in (
        ("13,25,22", "T(2,*,16)"),
        ("11,19,37", "T(3,*,128)"),
        ("7,19,70", "T(2,*,33)"),
        ("5,7,2,31", "T(2,*,12)"),
        ("30,21,3", "T(2,*,64)"),
    ):
        order = ",".join(map(str, range(dimensions.count(",") + 1)))
        pair = f"{element}[{dimensions}]", f"{element}[{dimensions}]{{{order}:{tile}}}"
        assert check(pair, streamed, (0, 0)), pair
        assert check(pair, streamed, (16, 48)), pair
        if element == "u8":
            assert check(pair, streamed, (13, 7)), pair


def test_random_merged_dimensions() -> None:
    found = 0
    for seed in strategies.rotating_seeds(90):
        rng = random.Random(seed)
        rank = rng.randint(3, 4)
        dimensions = ",".join(str(rng.choice((1, 2, 3, 5, 7, 12, 17, 33))) for _ in range(rank))
        element = rng.choice(list(WIDTHS))
        orders = (",".join(map(str, rng.sample(range(rank), rank))) for _ in range(2))
        tiles = rng.choice(("", "", "T(3,4)")), f"T({rng.choice((1, 2, 3))},*,{rng.choice((5, 16, 40, 128))})"
        sides = [
            f"{element}[{dimensions}]{{{order}{':' if tile else ''}{tile}}}"
            for order, tile in zip(orders, tiles, strict=True)
        ]
        width = WIDTHS[element]
        found += check((sides[0], sides[1]), seed % 2 == 0, (seed * width % 64, seed * 3 * width % 64))
    assert found or strategies.OTHER_SEEDS


def test_large_ones_are_not_looked_up() -> None:
    plan = sure_movement(fi.Shape.parse("f32[123,456,224]"), fi.Shape.parse("f32[123,456,224]{0,1,2:T(2,*,128)}"))
    assert plan.passes is not None
    assert [one.kernel for one in plan.passes] == ["transpose", "fill"]


def test_planted_bugs_are_noticed() -> None:
    pair = "f32[13,25,22]", "f32[13,25,22]{0,1,2:T(2,*,16)}"
    made = passes_of(pair, False)
    assert made is not None
    assert move(pair, made, Guarded(), (0, 0)) == ""
    one, *rest = made
    rows = one.tables[0].copy()
    rows[-1] -= 4
    planted = [dataclasses.replace(one, tables=(rows, one.tables[1]))]
    for place, change in (
        (transposes.ROW_TARGET_STRIDE, -4),
        (transposes.ROW_TABLE_STEP, -1),
        (transposes.ROW_COUNT, -1),
    ):
        geometry = one.geometry.copy()
        geometry[place] += change
        planted.append(dataclasses.replace(one, geometry=geometry))
    for spoiled in planted:
        assert move(pair, (spoiled, *rest), Guarded(), (0, 0))
