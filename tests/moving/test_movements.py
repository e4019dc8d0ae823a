"""Destinations that begin within a line: moved by the plan that is made for them, to the definition's bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fastindex as fi
from fastindex.arrays.arrays import address_of
from fastindex.moving.choice import plans, select_plan
from fastindex.moving.movements import movement
from fastindex.runtime.machine import EPYC_1M
from fastindex.runtime.numbers import LINE_BYTES
from fastindex.runtime.tuning import TUNING
from tests.cases.machines import run_here
from tests.oracles import reference

STREAMED = replace(TUNING, streamed_bytes=0)
# Columns of whole lines, which are whole no more where the destination begins within one.
COLUMNS = "bf16[1,256,384]{2,1,0}", "bf16[1,256,384]{1,0,2:T(8,128)(2,1)}"
PAIRS = [
    COLUMNS,
    ("f32[300,64]", "f32[300,64]{1,0:T(8,128)}"),
    ("u8[200,300]", "u8[200,300]{0,1}"),
    ("bf16[37,150]{1,0:T(8,128)(2,1)}", "bf16[37,150]"),
    ("s4[24,256]{1,0:E(4)}", "s4[24,256]{0,1:T(8,128)(8,1)E(4)}"),
    ("c128[9,5,6]", "c128[9,5,6]{1,2,0}"),
]


def given(source: str) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, fi.Shape.parse(source).nbytes, np.uint8)


def place(nbytes: int, offset: int) -> np.ndarray:
    """Bytes that begin `offset` bytes after a line boundary."""
    memory = np.full(nbytes + 2 * LINE_BYTES, 0x5A, np.uint8)
    begin = -address_of(memory) % LINE_BYTES + offset
    return memory[begin : begin + nbytes]


@pytest.mark.in_turn(seconds=1.1)
@pytest.mark.parametrize("offset", [0, 1, 16, 63])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]} to {pair[1]}")
def test_every_candidate_writes_the_same_wherever_the_destination_begins(pair: tuple[str, str], offset: int) -> None:
    moved = movement(*map(fi.Shape.parse, pair), STREAMED, run_here(EPYC_1M))
    source = given(pair[0])
    expected = reference.relayout(source.tobytes(), *map(reference.parse, pair))
    names = {one.name for each in (moved, moved.within_lines) for one in plans(each.problem)}
    for name in names:
        out = place(len(expected), offset)
        replace(moved, choice=name).run_kernels(address_of(source), address_of(out), bytes(16), 1)
        assert out.tobytes() == expected, name


def test_a_destination_within_a_line_has_a_separate_plan() -> None:
    moved = movement(*map(fi.Shape.parse, COLUMNS), STREAMED, EPYC_1M)
    assert moved.depends_on_lines
    assert not moved.within_lines.depends_on_lines
    found = {each: {one.name: one for one in plans(each.problem)} for each in (moved, moved.within_lines)}
    whole, parts = (found[each]["columns"].drafts for each in (moved, moved.within_lines))
    assert whole is not None
    assert parts is not None
    assert [draft.geometry.whole_lines for draft in whole] == [1]
    assert not any(draft.geometry.whole_lines for draft in parts)
    assert sum(draft.counts.ends for draft in parts) > 0


def test_what_stays_in_the_cache_has_one_plan() -> None:
    assert not movement(*map(fi.Shape.parse, COLUMNS), machine=EPYC_1M).depends_on_lines


def test_each_destination_is_moved_by_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = movement(*map(fi.Shape.parse, COLUMNS), STREAMED)
    ran: list[object] = []
    monkeypatch.setattr(type(moved), "_move", lambda self, *_: ran.append(self))
    source = given(COLUMNS[0])
    for offset in (0, 16):
        moved.run_kernels(address_of(source), address_of(place(moved.nbytes, offset)), bytes(16), 1)
    assert ran == [moved, moved.within_lines]


def test_a_plan_moves_to_either_in_turn() -> None:
    plan = fi.plan_relayout("u8[3000,3000]", "u8[3000,3000]{0,1}")
    source = given("u8[3000,3000]")
    expected = source.reshape(3000, 3000).T.reshape(-1)
    for offset in (0, 16, 0, 5, 0):
        out = place(len(source), offset)
        assert plan(source, out) is out
        assert np.array_equal(out, expected)


def test_choices_that_were_timed_hold_for_both() -> None:
    moved = replace(movement(*map(fi.Shape.parse, COLUMNS), STREAMED, EPYC_1M), choice="loops")
    assert select_plan(moved.within_lines.problem, moved.within_lines.choice).name == "loops"
