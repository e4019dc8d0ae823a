"""Packed elements in sparse tiles, whose spans are collected first: against the slow reference, between guards.

Tests of: lowering.relayout.moves.collected_passes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

import fastindex as fi
from fastindex.cpu.movements import sure_movement
from fastindex.kernels.cpu.relayout.lines.permutes import permuted_bytes
from fastindex.lowering.relayout.moves import collected_passes
from fastindex.tables import streams
from tests.cases import strategies
from tests.cases.assembly_cases import Guarded, Pair, move, moved_between_guards
from tests.cases.collected_cases import NAMED, passes_of
from tests.kernels.test_boxes import random_pairs


@pytest.fixture(params=[(128, 32 << 10, 16), (4, 64, 8), (2, 1000, 4)], ids=["large", "small", "middle"])
def slabs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How large slabs are, and how large a gap: small arrays then have several, and a rest."""
    for name, value in zip(("_STEPS", "_MOST_BYTES", "_LEAST_GAP"), request.param, strict=True):
        monkeypatch.setattr(collected_passes, name, value)
    monkeypatch.setattr(collected_passes, "_LEAST_TASKS", 1)


def check(pair: Pair, streamed: bool, offsets: tuple[int, int]) -> bool:
    """Move a pair; return whether its spans can be collected."""
    made = passes_of(*pair, permuted_bytes(), streamed)
    return made is not None and moved_between_guards(pair, made, offsets)


@pytest.mark.usefixtures("slabs")
def test_collected_spans() -> None:
    found = [
        check(pair, streamed, offsets)
        for pair in strategies.rotating(NAMED)
        for streamed, offsets in ((False, (0, 0)), (True, (13, 17)))
    ]
    assert sum(found) > len(found) // 2 or strategies.OTHER_SEEDS


@pytest.mark.usefixtures("slabs")
def test_random_packed_layouts() -> None:
    seeds = strategies.rotating_seeds(45)
    for seed, pair in zip(seeds, random_pairs(seeds), strict=True):
        if all("E(4)" in side for side in pair):
            check(pair, seed % 2 == 0, (seed * 7 % 64, seed * 5 % 64))


@pytest.mark.parametrize("threads", [1, 2])
def test_plans_collect_spans(threads: int) -> None:
    source, destination = "s4[5000,6,5]{2,1,0:T(8,128)(2,1)E(4)}", "s4[5000,6,5]{2,1,0:E(4)}"
    moved = replace(sure_movement(fi.Shape.parse(source), fi.Shape.parse(destination)), choice="collected")
    assert moved.passes is not None
    first, *_, last = (inner.kernel for inner, _, _ in moved.passes[0].inner)
    assert first == "copy"
    assert last.startswith("assemble")
    values = np.random.default_rng(3).integers(0, 16, 150_000, np.uint8)
    dense = values[::2] | values[1::2] << 4
    tiled = fi.relayout(dense, destination, source)
    found = np.zeros_like(dense)
    moved.run_kernels(tiled.ctypes.data, found.ctypes.data, bytes(1), threads)
    assert np.array_equal(found, dense)


@pytest.mark.parametrize(("columns", "run"), [(1, 1), (2, 5), (5, 24), (6, 24)])
def test_spans_are_copied_to_where_the_next_begins(columns: int, run: int) -> None:
    """Else each of them would be written by itself."""
    made = passes_of(
        f"s4[512,2,{columns}]{{2,1,0:T(8,128)(8,1)E(4)}}", f"s4[512,2,{columns}]{{2,1,0:E(4)}}", permuted_bytes(), True
    )
    assert made is not None
    copied = made[0].inner[0][0]
    assert copied.kernel == "copy"
    assert copied.geometry[streams.RUN] == run


def test_planted_bugs_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected_passes, "_STEPS", 4)
    monkeypatch.setattr(collected_passes, "_MOST_BYTES", 2000)
    pair = NAMED[0]
    made = passes_of(*pair, permuted_bytes(), True)
    assert made is not None
    assert move(pair, made, Guarded(), (0, 0)) == ""
    for at, one in enumerate(made):
        for place, (inner, *where) in enumerate(one.inner):
            later = dataclasses.replace(inner, source_start=inner.source_start + 1)
            for steps in ([(later, *where)], []):
                inside = (*one.inner[:place], *steps, *one.inner[place + 1 :])
                numbers = np.array([len(inside), one.geometry[1]])
                wrong = dataclasses.replace(one, inner=inside, geometry=numbers)
                assert move(pair, (*made[:at], wrong, *made[at + 1 :]), Guarded(), (0, 0)), later.describe()


@pytest.mark.parametrize("split", ["SC(0:631)", "SC(0:20010)"])
def test_a_layout_may_be_split_beyond_a_slab(split: str) -> None:
    plain, divided = "s4[20011,1]{1,0:E(4)}", f"s4[20011,1]{{1,0:E(4){split}}}"
    given = np.random.default_rng(0).integers(0, 256, 10006, np.uint8)
    given[-1] &= 15
    for source, destination in ((plain, divided), (divided, plain)):
        np.testing.assert_array_equal(fi.relayout(given, source, destination), given)
