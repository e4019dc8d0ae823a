"""Boxes whose elements are unpacked as they are read, or packed as they are written: against the slow reference.

Tests of: moving.moves.boxes.plan, moving.moves.boxes.kernel, moving.moves.streams.kernel.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import pytest

import fastindex as fi
from fastindex.moving.choice import plans, select_plan
from fastindex.moving.movements import movement
from fastindex.moving.moves.boxes import geometry as box_geometry
from fastindex.moving.moves.boxes import plan as boxes
from fastindex.moving.moves.boxes.plan import packed_boxes
from fastindex.moving.passes import Pass, with_tables
from fastindex.moving.problem import Problem, slot_move
from fastindex.runtime.machine import EPYC_1M
from fastindex.runtime.tuning import TUNING
from tests.cases import strategies
from tests.cases.assembly_cases import Pair, moved_between_guards

#: Plain and packed: rests of rows, of tiles and of both, padding, other orders, and tiles that merge dimensions.
NAMED = (
    ("s4[36,150]", "s4[36,150]{1,0:T(8,128)(8,1)E(4)}"),
    ("s4[6,40,64]{1,2,0}", "s4[6,40,64]{2,1,0:T(8,128)(8,1)E(4)}"),
    ("u4[100,72]", "u4[100,72]{0,1:T(8,32)(8,1)E(4)}"),
    ("u2[40,56]{0,1}", "u2[40,56]{1,0:T(16,16)(16,1)E(2)}"),
    ("pred[64,100]", "pred[64,100]{1,0:T(32,128)(32,1)E(1)}"),
    ("s4[6,26,12]{1,2,0}", "s4[6,26,12]{2,1,0:T(2,*,16)E(4)}"),
    # Both packed, turned within scratch memory.
    ("s4[40,6,64]{1,2,0:T(4,16)E(4)}", "s4[40,6,64]{2,0,1:E(4)}"),
    ("s4[36,150]{1,0:E(4)}", "s4[36,150]{1,0:T(8,128)(8,1)E(4)}"),
    ("u2[40,56]{1,0:T(8,8)E(2)}", "u2[40,56]{1,0:T(16,16)(16,1)E(2)}"),
)


def passes_of(pair: Pair, streamed: bool) -> tuple[Pass, ...] | None:
    tuning = dataclasses.replace(TUNING, streamed_bytes=0 if streamed else TUNING.streamed_bytes)
    source, destination = map(fi.Shape.parse, pair)
    found = packed_boxes(Problem(source, destination, slot_move(source, destination), EPYC_1M, tuning))
    return None if found is None else with_tables(found)


def check(pair: Pair, streamed: bool, offsets: tuple[int, int]) -> int:
    """Move a pair; return how many passes over boxes there are for it."""
    made = passes_of(pair, streamed)
    if made is None:
        return 0
    moved_between_guards(pair, made, offsets)
    return sum(one.kernel == "boxes" for one in made)


def set_sizes(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Let boxes have at least `nbytes` bytes in scratch memory."""
    monkeypatch.setattr(box_geometry, "_RUN_BYTES", min(nbytes, 512))
    monkeypatch.setattr(boxes, "LEAST_BOX_BYTES", nbytes)


@pytest.mark.in_turn(seconds=0.4)
@pytest.mark.parametrize("nbytes", [16, 512, 128 << 10])
@pytest.mark.parametrize("pair", NAMED, ids=lambda pair: f"{pair[0]} to {pair[1]}")
def test_named_pairs(pair: Pair, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_sizes(monkeypatch, nbytes)
    for sides in (pair, pair[::-1]):
        assert check((sides[0], sides[1]), False, (0, 0))
        assert check((sides[0], sides[1]), True, (13, 17))


def test_what_is_packed_ends_with_a_byte() -> None:
    plain, packed = "s4[37,150]", "s4[37,150]{1,0:T(8,128)(8,1)E(4)}"
    assert passes_of((plain, packed), False) is None
    assert check((packed, plain), False, (0, 0))


def test_boxes_begin_with_a_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 32 elements, 33 apart: every other one begins within a byte."""
    set_sizes(monkeypatch, 16)
    assert passes_of(("s4[64,32]{1,0:T(1,33)E(4)}", "s4[64,32]"), False) is None
    assert check(("s4[64,32]{1,0:T(1,34)E(4)}", "s4[64,32]"), False, (0, 0))


def random_pairs(seeds: range) -> Iterator[Pair]:
    """Pairs of sides of which one is packed or both, some of which merge dimensions."""
    for seed in seeds:
        rng = random.Random(seed)
        rank, (element, bits) = rng.randint(1, 4), rng.choice((("s4", 4), ("u4", 4), ("u2", 2), ("pred", 1)))
        dimensions = ",".join(str(rng.choice((2, 4, 6, 7, 8, 16, 33))) for _ in range(rank))
        orders = [",".join(map(str, rng.sample(range(rank), rank))) for _ in range(2)]
        chain = rng.choice(("", "T(8,16)(8,1)", "T(16)", "T(1,32)", "T(4,24)(8,1)", "T(2,*,16)"))
        attributes = f"{chain if chain.count(',') < rank else ''}E({bits})"
        plain = f"{orders[0]}:E({bits})" if rng.random() < 0.3 else orders[0]
        sides = [f"{element}[{dimensions}]{{{plain}}}", f"{element}[{dimensions}]{{{orders[1]}:{attributes}}}"]
        yield (sides[0], sides[1]) if rng.random() < 0.5 else (sides[1], sides[0])


def test_random_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    found, seeds = 0, strategies.rotating_seeds(240)
    for seed, pair in zip(seeds, random_pairs(seeds), strict=True):
        set_sizes(monkeypatch, random.Random(seed).choice((16, 256, 4096)))
        found += check(pair, seed % 2 == 0, (seed * 7 % 64, seed * 5 % 64)) > 0
    assert found or strategies.OTHER_SEEDS


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("s4[167772,300]", "s4[167772,300]{1,0:T(8,128)(8,1)E(4)}"),
        ("s4[50331648]", "s4[50331648]{0:T(1024)(128)(8,1)E(4)}"),
        ("s4[29,200,33,256]{3,2,1,0}", "s4[29,200,33,256]{3,1,2,0:T(8,128)(8,1)E(4)}"),
        ("s4[128,393216]{0,1:T(8,128)(8,1)E(4)}", "s4[128,393216]{1,0}"),
        ("s4[200,39,300,33]{2,0,3,1:T(8,128)(8,1)E(4)}", "s4[200,39,300,33]{3,2,1,0:E(4)}"),
    ],
)
def test_layouts_out_of_dumps_go_by_boxes(source: str, destination: str) -> None:
    """They take a third to 0.7 of the time of any other way (AMD EPYC, one thread, 2026-11-26)."""
    moved = movement(fi.Shape.parse(source), fi.Shape.parse(destination), machine=EPYC_1M)
    assert any(one.kernel == "boxes" for one in moved.passes or ())


def test_short_runs_are_not_unpacked_in_boxes() -> None:
    """A run of seven takes as long as one of a line: boxes took 2.8 times the time of loops here."""
    sides = map(fi.Shape.parse, ("s4[7,851,256,33]{2,0,3,1:T(8,128)(8,1)E(4)}", "s4[7,851,256,33]"))
    problem = movement(*sides, machine=EPYC_1M).problem
    assert "packed boxes" in {one.name for one in plans(problem)}
    assert select_plan(problem).name != "packed boxes"
