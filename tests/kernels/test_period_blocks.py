"""Blocks that are counted within one period of a coordinate: against the slow reference, between guards.

Tests of: lowering.period_blocks.
"""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

import fastindex as fi
from fastindex.cpu.movements import sure_movement
from fastindex.kernels.cpu.permutes import permuted_bytes
from fastindex.lowering.pass_form import Goal, Pass, with_tables
from fastindex.lowering.period_blocks import period_block_passes
from fastindex.lowering.tuning import TUNING
from tests.cases import strategies
from tests.cases.assembly_cases import Guarded, Pair, move, moved_between_guards

WIDTHS = {"u8": 1, "bf16": 2, "f32": 4, "f64": 8, "c128": 16}


def passes_of(pair: Pair, streamed: bool) -> tuple[Pass, ...] | None:
    sides = [fi.Shape.parse(text) for text in pair]
    width = sides[0].element_bits // 8
    goal = Goal(1, streamed, TUNING)
    found = period_block_passes(sides[0], sides[1], width, permuted_bytes(), goal, math.inf)
    return None if found is None else with_tables(found)


@pytest.mark.parametrize("element", WIDTHS)
def test_whole_periods_and_the_rest(element: str) -> None:
    width = WIDTHS[element]
    for number, (dimensions, tile) in enumerate((("70,19,10", 16), ("65,23,6", 8), ("80,3,18,5", 12))):
        order = ",".join(map(str, reversed(range(dimensions.count(",") + 1))))
        orders = ",".join(map(str, range(dimensions.count(",") + 1)))
        pair = f"{element}[{dimensions}]{{{order}:T(2,*,{tile})}}", f"{element}[{dimensions}]{{{orders}}}"
        made = passes_of(pair, number % 2 == 0)
        assert made is not None, pair
        assert moved_between_guards(pair, made, (width * number, width * 3 * number))


def test_random_merged_dimensions() -> None:
    found = 0
    for seed in strategies.rotating_seeds(90):
        rng = random.Random(seed)
        dimensions = f"{rng.choice((33, 64, 70, 130))},{rng.choice((7, 12, 19))},{rng.choice((3, 5, 10))}"
        element = rng.choice(list(WIDTHS))
        tiled = f"{element}[{dimensions}]{{2,1,0:T({rng.choice((1, 2, 4))},*,{rng.choice((4, 8, 16))})}}"
        pair = tiled, f"{element}[{dimensions}]{{0,{rng.choice(('1,2', '2,1'))}}}"
        made, width = passes_of(pair, seed % 2 == 0), WIDTHS[element]
        found += made is not None and moved_between_guards(pair, made, (seed * width % 64, seed * 3 * width % 64))
    assert found or strategies.OTHER_SEEDS


def test_padding_is_left_to_others() -> None:
    assert passes_of(("f32[70,19,10]{2,1,0:T(2,*,16)}", "f32[70,19,10]{0,1,2:T(8,128)}"), False) is None


def test_long_coordinates_have_blocks() -> None:
    """A hundred thousand places would be too many to count."""
    plan = sure_movement(
        fi.Shape.parse("f32[125,1000,100]{2,1,0:T(2,*,128)}"), fi.Shape.parse("f32[125,1000,100]{0,1,2}")
    )
    assert plan.passes is not None
    assert {one.kernel for one in plan.passes} == {"assemble columns"}


def test_planted_bugs_are_noticed() -> None:
    pair = "f32[70,19,10]{2,1,0:T(2,*,16)}", "f32[70,19,10]{0,1,2}"
    made = passes_of(pair, False)
    assert made is not None
    assert move(pair, made, Guarded(), (0, 0)) == ""
    assert len(made) > 1
    for place, one in enumerate(made):
        for change in ({"source_start": one.source_start + 4}, {"tasks": one.tasks - 1}):
            spoiled = [*made]
            spoiled[place] = dataclasses.replace(one, **change)
            assert move(pair, tuple(spoiled), Guarded(), (0, 0))
