"""Packed elements that are transposed by pairs of rows: against the slow reference, between guards.

Tests of: moving.moves.nibble_pairs.plan, moving.moves.nibble_pairs.kernel, moving.moves.boxes.kernel,
moving.moves.nests.kernel, moving.numbers.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import numpy as np
import pytest

import fastindex as fi
from fastindex.arrays.arrays import address_of
from fastindex.moving.movements import movement
from fastindex.moving.moves.boxes import geometry as box_geometry
from fastindex.moving.moves.nibble_pairs import PAIR
from fastindex.moving.moves.nibble_pairs import plan as nibble_pairs
from fastindex.moving.passes import Pass
from fastindex.runtime.machine import EPYC_1M
from tests.cases import strategies
from tests.cases.assembly_cases import Guarded, Pair, move, moved_between_guards
from tests.cases.machines import run_here
from tests.cases.paired_cases import NAMED, passes_of


@pytest.fixture(params=[(1 << 17, 1 << 13, 256), (600, 100, 16), (3000, 200, 64)], ids=["large", "small", "middle"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How large boxes are: small arrays then have several, and rests of them."""
    set_sizes(monkeypatch, *request.param)


def set_sizes(monkeypatch: pytest.MonkeyPatch, most: int, least: int, run: int) -> None:
    """Set the most and the fewest elements of a box, and what is long enough for a run."""
    monkeypatch.setattr(nibble_pairs, "_MOST_ELEMENTS", most)
    monkeypatch.setattr(nibble_pairs, "_LEAST_ELEMENTS", least)
    monkeypatch.setattr(box_geometry, "_RUN_BYTES", 2 * run)


def check(pair: Pair, streamed: bool, offsets: tuple[int, int]) -> bool:
    """Move a pair; return whether its rows can be paired."""
    made = passes_of(*pair, streamed)
    return made is not None and moved_between_guards(pair, made, offsets)


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
def test_pairs_of_rows() -> None:
    for pair in strategies.rotating(list(NAMED)):
        assert check(pair, False, (0, 0))
        assert check(pair, True, (13, 17))


@pytest.mark.usefixtures("sizes")
def test_random_packed_layouts() -> None:
    seeds = strategies.seeds(60)
    found = [
        check(pair, seed % 2 == 0, (seed * 7 % 64, seed * 5 % 64))
        for seed, pair in zip(seeds, random_pairs(seeds), strict=True)
        if all("E(4)" in side for side in pair)
    ]
    assert sum(found) > 0.3 * len(found) or strategies.OTHER_SEEDS


def test_every_number_of_columns() -> None:
    """Rows of any length, from either nibble on, to columns that begin with either."""
    for columns in strategies.rotating(list(range(2, 140))):
        pair = f"s4[7,{columns}]{{1,0:E(4)}}", f"s4[7,{columns}]{{0,1:E(4)}}"
        assert check(pair, columns % 2 == 0, (columns % 64, 3))


@pytest.mark.parametrize("group", [2, 4, 8])
def test_rows_that_alternate(group: int) -> None:
    """They are paired a line at a time, and the last line in part."""
    for minor in range(6, 140, 44):
        source = f"s4[3,{group},{minor}]{{2,1,0:T({group},128)({group},1)E(4)}}"
        pair = source, f"s4[3,{group},{minor}]{{2,1,0:E(4)}}"
        made = passes_of(*pair, False)
        assert made is not None
        assert any(one.geometry[PAIR.group_bytes] == group // 2 for one in _pairing(made))
        assert moved_between_guards(pair, made, (minor, 5))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [(1025, 4098), (1025, 4099)])
def test_plans_pair_rows(size: tuple[int, int], threads: int) -> None:
    rows, columns = size
    values = np.random.default_rng(5).integers(0, 16, size, np.uint8)
    given, turned = (np.append(one.reshape(-1), np.zeros(values.size % 2, np.uint8)) for one in (values, values.T))
    source, destination = (f"u4[{rows},{columns}]{{{order}:E(4)}}" for order in ("1,0", "0,1"))
    sides = fi.Shape.parse(source), fi.Shape.parse(destination)
    assert list(_pairing(movement(*sides, machine=EPYC_1M).passes or ()))
    moved = dataclasses.replace(movement(*sides, machine=run_here(EPYC_1M)), choice="pairs")
    out = np.full(len(given) // 2, 0xFF, np.uint8)
    packed = given[::2] | given[1::2] << 4
    moved.run_kernels(address_of(packed), address_of(out), b"\0", threads)
    assert np.array_equal(out, turned[::2] | turned[1::2] << 4)


def _pairing(made: tuple[Pass, ...]) -> Iterator[Pass]:
    yield from (inner for one in made for inner, _, _ in one.inner if inner.kernel == "pair nibbles")


@pytest.mark.parametrize("pair", [NAMED[0], NAMED[8], NAMED[13]])
def test_planted_bugs_are_noticed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    set_sizes(monkeypatch, 600, 100, 16)
    made = passes_of(*pair, True)
    assert made is not None
    assert move(pair, made, Guarded(), (0, 0)) == ""
    planted = 0
    for at, one in enumerate(made):
        for place, (inner, *where) in enumerate(one.inner):
            # Where odd columns take other pairs, their part of these is not used.
            uses_high = sum(each.kernel == "pair nibbles" for each, _, _ in one.inner) == 1
            for spoiled in _spoiled(inner, uses_high):
                steps = (*one.inner[:place], (spoiled, *where), *one.inner[place + 1 :])
                wrong = (*made[:at], dataclasses.replace(one, inner=steps), *made[at + 1 :])
                assert move(pair, wrong, Guarded(), (0, 0)), spoiled.geometry
                planted += 1
    assert planted > 4


def _spoiled(one: Pass, uses_high: bool) -> Iterator[Pass]:
    """Yield a pass with one number wrong."""
    if one.kernel != "pair nibbles":
        yield dataclasses.replace(one, source_start=one.source_start + 1)
        return
    group = one.geometry[PAIR.group_bytes]
    places = {PAIR.begin: int(4 * group) or 1}
    places |= ({PAIR.high: 1} if uses_high else {}) | ({} if group else {PAIR.row_stride: 1})
    for place, step in places.items():
        geometry = one.geometry.copy()
        geometry[place] += step
        yield dataclasses.replace(one, geometry=geometry)
