"""Packed elements that move box by box, and halves of bytes by themselves: against the slow reference, between guards.

Tests of: lowering.relayout.moves.nibble_boxes, kernels.cpu.relayout.moves.boxes, kernels.cpu.relayout.lines.nibbles,
tables.boxes.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import numpy as np
import pytest

import fastindex as fi
from fastindex.cpu.movements import sure_movement
from fastindex.lowering.relayout.moves import box_parts
from fastindex.lowering.relayout.moves import nibble_boxes as boxed_passes
from fastindex.lowering.relayout.passes.form import Draft, Goal, Pass, with_tables
from fastindex.lowering.relayout.problem.loops import Loop, relayout_loops
from fastindex.lowering.tuning import TUNING
from fastindex.shapes.slot_format import slot_format
from fastindex.tables import boxes
from tests.cases import strategies
from tests.cases.assembly_cases import Guarded, Pair, move, moved_between_guards

#: Runs that begin and end within bytes, joined runs, rests of every loop, spans with gaps, one packed side.
NAMED: tuple[Pair, ...] = (
    ("s4[67,35]{1,0:E(4)}", "s4[67,35]{0,1:E(4)}"),
    ("s4[66,35]{1,0:E(4)}", "s4[66,35]{0,1:E(4)}"),
    ("s4[67,34]{1,0:E(4)}", "s4[67,34]{0,1:E(4)}"),
    ("s4[1,51,71]{2,1,0:E(4)}", "s4[1,51,71]{1,2,0:E(4)}"),
    ("s4[5,7,33]{2,1,0:E(4)}", "s4[5,7,33]{0,1,2:E(4)}"),
    ("s4[5,7,33]{1,2,0:E(4)}", "s4[5,7,33]{2,0,1:E(4)}"),
    ("s4[43,5,3]{2,1,0:T(8,32)(2,1)E(4)}", "s4[43,5,3]{0,1,2:E(4)}"),
    ("s4[43,5,30]{2,1,0:T(1,32)E(4)}", "s4[43,5,30]{0,1,2:E(4)}"),
    ("s4[45,11,20]{1,2,0:E(4)}", "s4[45,11,20]{2,1,0:E(4)}"),
    ("u4[301,13]", "u4[301,13]{0,1:E(4)}"),
    ("u4[13,301]", "u4[13,301]{0,1:E(4)}"),
    ("u4[301,13]{1,0:E(4)}", "u4[301,13]{0,1}"),
    ("u4[31,130]{1,0:T(8,32)E(4)}", "u4[31,130]{0,1}"),
    ("s4[9,5,7,11]{3,2,1,0:E(4)}", "s4[9,5,7,11]{0,2,1,3:E(4)}"),
    ("s4[2,3]{1,0:E(4)}", "s4[2,3]{0,1:E(4)}"),
    # Columns of less than a line, each of which begins where the one before ends, past the cache.
    ("s4[2,8,31,12,5]{2,4,0,3,1:L(128)E(4)}", "s4[2,8,31,12,5]{4,3,2,1,0}"),
)


def passes_of(source: str, destination: str, streamed: bool) -> tuple[Pass, ...] | None:
    """The passes over boxes, whatever they cost; None where there are none."""
    sides = fi.Shape.parse(source), fi.Shape.parse(destination)
    loops = relayout_loops(*sides)
    if loops is None:
        return None
    formats = slot_format(sides[0]), slot_format(sides[1])
    # Those over pairs of rows have tests of their own.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boxed_passes, "paired_passes", lambda *_: None)
        goal = Goal(1, streamed, TUNING)
        found = boxed_passes.boxed_passes(loops, formats, goal, sides[1].slot_count, sides[0].nbytes)
    return None if found is None else with_tables(found)


@pytest.fixture(params=[(1 << 17, 1 << 13, 32), (600, 500, 4), (3000, 200, 16)], ids=["large", "small", "middle"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How large boxes are: small arrays then have several, and rests of them."""
    most, least, first = request.param
    monkeypatch.setattr(box_parts, "_MOST_ELEMENTS", most)
    monkeypatch.setattr(box_parts, "_LEAST_ELEMENTS", least)
    monkeypatch.setattr(box_parts, "_FIRST_RUN", first)


def check(pair: Pair, streamed: bool, offsets: tuple[int, int]) -> bool:
    """Move a pair; return whether boxes can."""
    made = passes_of(*pair, streamed)
    return made is not None and moved_between_guards(pair, made, offsets)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("pair", NAMED, ids=lambda pair: f"{pair[0]} to {pair[1]}")
def test_packed_layouts(pair: Pair) -> None:
    assert check(pair, False, (0, 0))
    assert check(pair, True, (13, 17))


def random_pairs(seeds: range) -> Iterator[Pair]:
    chains = ("", "", "T(8,16)", "T(8,16)(2,1)", "T(1,16)", "T(32)", "T(6,10)")
    sizes = (1, 2, 3, 5, 6, 7, 8, 12, 17, 31, 33, 40, 101)
    for seed in seeds:
        rng = random.Random(seed)
        rank = rng.randint(2, 4)
        dimensions: list[int] = []
        for _ in range(rank):
            dimensions.append(rng.choice([n for n in sizes if n * int(np.prod(dimensions)) <= 6000] or [1]))
        texts = []
        for packed in rng.choice(((True, True), (True, True), (True, False), (False, True))):
            order = ",".join(map(str, rng.sample(range(rank), rank)))
            attributes = rng.choice(chains) + ("E(4)" if packed else "")
            layout = f"{{{order}{':' if attributes else ''}{attributes}}}"
            texts.append(f"s4[{','.join(map(str, dimensions))}]{layout}")
        yield texts[0], texts[1]


@pytest.mark.usefixtures("sizes")
def test_random_packed_layouts() -> None:
    seeds = strategies.seeds(45)
    found = [
        check(pair, seed % 2 == 0, (seed * 7 % 64, seed * 5 % 64))
        for seed, pair in zip(seeds, random_pairs(seeds), strict=True)
    ]
    assert sum(found) > 0.3 * len(found) or strategies.OTHER_SEEDS


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_share_bytes(threads: int) -> None:
    """Each byte at the end of a row belongs to the last element of one and the first of the next."""
    rows, columns = 1025, 4099
    generator = np.random.default_rng(5)
    values = generator.integers(0, 16, (rows, columns), np.uint8)
    given = np.append(values.reshape(-1), np.uint8(0))
    packed = np.asarray(given[::2] | given[1::2] << 4, np.uint8)
    source, destination = (f"u4[{rows},{columns}]{{{order}:E(4)}}" for order in ("1,0", "0,1"))
    moved = sure_movement(fi.Shape.parse(source), fi.Shape.parse(destination))
    assert moved.passes is not None
    assert {one.kernel for one in moved.passes} == {"boxes", "halves"}
    out = np.full(len(packed), 0xFF, np.uint8)
    fi.relayout(packed, source, destination, out=out, threads=threads)
    turned = np.append(values.T.reshape(-1), np.uint8(0))
    assert np.array_equal(out, turned[::2] | turned[1::2] << 4)


def test_planted_bugs_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_parts, "_MOST_ELEMENTS", 600)
    monkeypatch.setattr(box_parts, "_LEAST_ELEMENTS", 500)
    monkeypatch.setattr(box_parts, "_FIRST_RUN", 4)
    pair = NAMED[0]
    made = passes_of(*pair, True)
    assert made is not None
    assert {one.kernel for one in made} == {"boxes", "halves"}
    assert move(pair, made, Guarded(), (0, 0)) == ""
    for at, one in enumerate(made):
        for spoiled in _spoiled(one):
            planted = (*made[:at], spoiled, *made[at + 1 :])
            assert move(pair, planted, Guarded(), (0, 0)), spoiled.describe()


def _spoiled(one: Pass) -> Iterator[Pass]:
    """Yield a pass with one number or step wrong."""
    if one.kernel == "boxes":
        for k, (inner, *places) in enumerate(one.inner):
            if inner.kernel != "expand":
                later = dataclasses.replace(inner, source_start=inner.source_start + 1)
                yield dataclasses.replace(one, inner=(*one.inner[:k], (later, *places), *one.inner[k + 1 :]))
            fewer = (*one.inner[:k], *one.inner[k + 1 :])
            yield dataclasses.replace(
                one, inner=fewer, geometry=np.array([len(fewer), one.geometry[boxes.READABLE_BYTES]])
            )
        return
    for place in (boxes.HALVES_SOURCE_START, boxes.HALVES_TARGET_START, boxes.HALVES):
        geometry = one.geometry.copy()
        geometry[place] -= 1
        yield dataclasses.replace(one, geometry=geometry)


def test_sources_are_read_by_longer_runs_where_only_these_have_room() -> None:
    rows, seconds, minor = Loop(50331, 2000, 1), Loop(50, 40, 50331), Loop(40, 1, 50331 * 50)
    found: list[dict[Loop, int]] = []

    def keep(sizes: dict[Loop, int]) -> list[Draft]:
        found.append(sizes)
        return []

    box_parts.with_largest_boxes((rows, seconds, minor), keep)
    assert found == [{rows: 512, seconds: 4, minor: 40}]
