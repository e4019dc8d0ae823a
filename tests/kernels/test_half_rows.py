"""Rows of packed elements that are put together as streams: against the slow reference, between guards.

Tests of: lowering.half_row_passes, kernels.cpu.half_rows, tables.half_rows.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import fastindex as fi
from fastindex.cpu.movements import sure_movement
from fastindex.lowering.half_row_passes import half_row_passes
from fastindex.lowering.pass_form import Goal
from fastindex.lowering.relayout_loops import Loop, Nest
from fastindex.lowering.tuning import TUNING
from fastindex.tables.half_rows import HalfRowsGeometry
from tests.cases import strategies
from tests.cases.assembly_cases import Guarded, Pair, move, moved_between_guards
from tests.cases.half_row_cases import NAMED, passes_of, random_pairs

_BOXES = ((32768, 2048), (100, 16), (300, 2048))


@pytest.mark.parametrize("pair", NAMED, ids=lambda pair: f"{pair[0]} to {pair[1]}")
def test_streams_of_rows(pair: Pair) -> None:
    for box, piece in _BOXES:
        for streamed, offsets in ((False, (0, 0)), (True, (0, 0)), (True, (13, 17))):
            made = passes_of(*pair, streamed, box, piece)
            assert made
            assert moved_between_guards(pair, made, offsets)


def test_random_layouts() -> None:
    seeds = strategies.seeds(45)
    found = []
    for seed, pair in zip(seeds, random_pairs(seeds), strict=True):
        made = passes_of(*pair, seed % 2 == 0, *_BOXES[seed % 3])
        found.append(bool(made) and moved_between_guards(pair, made, (seed * 7 % 64, seed * 5 % 64)))
    assert sum(found) > 0.4 * len(found) or strategies.OTHER_SEEDS


def test_every_length_of_rows() -> None:
    """Pieces and rows of any length, from either half of a byte on."""
    for columns in strategies.rotating(list(range(2, 300))):
        pair = f"u4[5,{columns}]{{1,0:T(4,128)E(4)}}", f"u4[5,{columns}]{{1,0:E(4)}}"
        assert moved_between_guards(pair, passes_of(*pair, columns % 2 == 0, 2 * columns), (columns % 64, 3))


def test_what_it_is_not_for() -> None:
    goal = Goal(1, True, TUNING)
    run = Loop(100, 1, 1)
    assert half_row_passes([Nest((run, Loop(9, 200, 100)))], True, goal, 900, 1000)
    # Runs that are short, elements of every third byte, rows with gaps, nothing that is worth it.
    assert half_row_passes([Nest((Loop(10, 1, 1), Loop(9, 200, 10)))], True, goal, 90, 1000) is None
    assert half_row_passes([Nest((Loop(100, 3, 1), Loop(9, 300, 100)))], True, goal, 900, 2000) is None
    assert half_row_passes([Nest((run, Loop(9, 200, 101), Loop(3, 2000, 2)))], True, goal, 3000, 9000) is None
    assert half_row_passes([Nest((run, Loop(9, 200, 100)))], True, Goal(1, False, TUNING), 900, 1000) is None


@pytest.mark.parametrize(("run", "is_close"), [(65, True), (127, True), (128, False), (1001, True), (1025, False)])
def test_boxes_that_share_lines_of_the_source_follow_each_other(run: int, is_close: bool) -> None:
    close, rows = Loop(33, run, run * 3000), Loop(3000, 33 * run, run)
    made = half_row_passes([Nest((Loop(run, 1, 1), rows, close))], True, Goal(1, True, TUNING), 99000 * run, 1 << 30)
    assert made
    assert (made[0].outer[0] == close) == is_close
    assert made[0].shares_lines == is_close


@pytest.mark.parametrize("threads", [1, 2])
def test_plans_of_large_arrays(threads: int) -> None:
    for tiles in strategies.rotating(["T(8,128)E(4)", "T(8,128)(2,1)E(4)", "T(8,128)"]):
        rows, columns = 4999, 4099
        values = np.random.default_rng(5).integers(0, 16, rows * columns, np.uint8)
        source, destination = f"u4[{rows},{columns}]{{1,0:{tiles}}}", f"u4[{rows},{columns}]{{1,0:E(4)}}"
        given = fi.pack(values.reshape(rows, columns).astype(fi.Shape.parse(source).element_type.numpy_dtype), source)
        moved = sure_movement(fi.Shape.parse(source), fi.Shape.parse(destination))
        assert moved.passes is not None
        assert {one.kernel for one in moved.passes} == {"stream halves"}
        expected = np.append(values, np.zeros(values.size % 2, np.uint8))
        out = np.full(len(expected) // 2, 0xFF, np.uint8)
        fi.relayout(given, source, destination, out=out, threads=threads)
        assert np.array_equal(out, expected[::2] | expected[1::2] << 4)


def test_planted_bugs_are_noticed() -> None:
    pair = NAMED[0]
    made = passes_of(*pair, True, 200)
    assert move(pair, made, Guarded(), (0, 0)) == ""
    for name, step in (("source_start", 1), ("target_start", 1), ("pieces", -1)):
        geometry = made[0].geometry.copy()
        geometry[HalfRowsGeometry._fields.index(name)] += step
        assert move(pair, (dataclasses.replace(made[0], geometry=geometry), *made[1:]), Guarded(), (0, 0)), name
    pieces = made[0].tables[0].copy()
    pieces[3] += 1
    assert move(pair, (dataclasses.replace(made[0], tables=(pieces,)), *made[1:]), Guarded(), (0, 0))
