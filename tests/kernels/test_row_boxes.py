"""Rows that several nests write, put together in the cache: against the slow reference, between guards.

Tests of: moving.moves.boxes.plan, moving.moves.boxes.kernel, moving.numbers.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import numpy as np
import pytest

import fastindex as fi
from fastindex.algebra.loops import in_bytes, relayout_loops
from fastindex.arrays.arrays import address_of
from fastindex.moving.choice import plans
from fastindex.moving.counts import read_lines, total
from fastindex.moving.movements import movement
from fastindex.moving.moves.boxes import geometry as box_geometry
from fastindex.moving.moves.boxes.plan import box_drafts, lines_of
from fastindex.moving.numbers import BOX
from fastindex.moving.passes import Pass, with_tables
from fastindex.runtime.machine import EPYC_1M
from fastindex.runtime.tuning import TUNING
from tests.cases import strategies
from tests.cases.assembly_cases import Guarded, Pair, move, moved_between_guards
from tests.cases.machines import run_here
from tests.oracles import reference
from tests.oracles.partial_lines import partial_writes

#: Rests of rows, of rows and tiles, of several dimensions; boxes that end within lines; rows that do not continue.
NAMED: tuple[Pair, ...] = (
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


def passes_of(source: str, destination: str) -> tuple[Pass, ...] | None:
    """The passes over rows, whatever the size; None where no nests share rows."""
    shapes = fi.Shape.parse(source), fi.Shape.parse(destination)
    loops, bits = relayout_loops(*shapes), shapes[0].element_bits
    if loops is None or bits % 8:
        return None
    made = box_drafts(*shapes, bits // 8, EPYC_1M, dataclasses.replace(TUNING, streamed_bytes=0), loops)
    return None if made is None else with_tables(made)


@pytest.fixture(params=[1 << 13, 700, 100], ids=["large", "middle", "small"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How large boxes are: small arrays then have several, and a rest of them."""
    monkeypatch.setattr(box_geometry, "_LEAST_ROW_BYTES", request.param)


def check(pair: Pair, offsets: tuple[int, int]) -> bool:
    """Move a pair; return whether rows are put together."""
    made = passes_of(*pair)
    return made is not None and moved_between_guards(pair, made, offsets)


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("pair", NAMED, ids=lambda pair: f"{pair[0]} to {pair[1]}")
def test_rows_with_rests(pair: Pair) -> None:
    made = passes_of(*pair)
    assert made is not None
    assert {one.kernel for one in made} == {"boxes"}
    assert all(one.geometry[BOX.row_bytes] for one in made)
    assert check(pair, (0, 0))
    assert check(pair, (16, 48))
    assert check(pair, (5, 13))


def test_bytes_of_packed_elements_have_no_boxes() -> None:
    """Boxes of half bytes, counted as bytes, would be read and written twice as far as the buffers reach."""
    sides = "s4[5,64,130]{1,2,0:T(8,128)(8,1)E(4)}", "s4[5,64,130]{2,1,0:E(4)}"
    tuning = dataclasses.replace(TUNING, streamed_bytes=0, shifted_bytes=0)
    moved = movement(*map(fi.Shape.parse, sides), tuning, EPYC_1M)
    assert moved.slots.unit == "byte"
    assert "boxes" not in {one.name for one in plans(moved.problem)}


@pytest.mark.parametrize(
    ("tiles", "are_runs"),
    [("T(2,2)", False), ("T(2,2)(2,2)", False), ("T(8,50)", False), ("T(4,1)", True), ("T(2,4)(2,1)", True)],
)
def test_rows_with_others_between_their_columns(tiles: str, are_runs: bool) -> None:
    """Rows of the destination are one run only where nothing lies between their values."""
    pair = "f32[16,100]{1,0:T(8,16)}", f"f32[16,100]{{1,0:{tiles}}}"
    assert (passes_of(*pair) is not None) == are_runs
    sides = [fi.Shape.parse(text) for text in pair]
    given = np.random.default_rng(0).integers(0, 256, sides[0].nbytes, np.uint8).tobytes()
    moved = movement(*sides, dataclasses.replace(TUNING, streamed_bytes=0, shifted_bytes=0))
    made = np.zeros(sides[1].nbytes, np.uint8)
    moved.run(np.frombuffer(given, np.uint8).ctypes.data, made.ctypes.data, bytes(8), 1)
    assert made.tobytes() == reference.relayout(given, *map(reference.parse, pair))


def random_pairs(seeds: range) -> Iterator[Pair]:
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


@pytest.mark.usefixtures("sizes")
def test_random_rows() -> None:
    seeds = strategies.seeds(160)
    found = [check(pair, (seed * 7 % 64, seed * 5 % 64)) for seed, pair in zip(seeds, random_pairs(seeds), strict=True)]
    assert sum(found) > 0.1 * len(found) or strategies.OTHER_SEEDS


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("columns", [1001, 131])
def test_threads_share_lines(threads: int, columns: int) -> None:
    """Rows of any size, so that the threads' shares begin and end within lines."""
    rows = (9 << 20) // columns
    source, destination = f"u8[{rows},{columns}]{{1,0:T(8,128)(4,1)}}", f"u8[{rows},{columns}]"
    sides = fi.Shape.parse(source), fi.Shape.parse(destination)
    assert "boxes" in {one.kernel for one in movement(*sides, machine=EPYC_1M).passes or ()}
    moved = dataclasses.replace(movement(*sides, machine=run_here(EPYC_1M)), choice="boxes")
    values = np.random.default_rng(columns).integers(0, 256, (-(-rows // 8) * 8, -(-columns // 128) * 128), np.uint8)
    tiled = values.reshape(-1, 2, 4, values.shape[1] // 128, 128).transpose(0, 3, 1, 4, 2)
    given, found = np.ascontiguousarray(tiled).reshape(-1), np.zeros(rows * columns, np.uint8)
    moved.run_kernels(address_of(given), address_of(found), b"\0", threads)
    assert np.array_equal(found.reshape(rows, columns), values[:rows, :columns])


def test_lines_are_written_whole() -> None:
    """All nests of a row together: no line is written twice but where boxes do not continue each other."""
    for pair in (
        ("u8[49,1000,1000]{2,1,0:T(4,128)(2,1)}", "u8[49,1000,1000]"),
        ("bf16[12288,9,190]{2,1,0:T(2,128)}", "bf16[12288,9,190]"),
        ("f32[40,1001,333]{2,1,0:T(8,128)}", "f32[40,1001,333]"),
    ):
        moved = movement(*map(fi.Shape.parse, pair), machine=EPYC_1M)
        assert moved.passes is not None
        assert partial_writes(moved.passes) <= 2 * sum(map(_runs_of, moved.passes))


def _runs_of(one: Pass) -> int:
    """How many runs of the destination the boxes of a pass make, those that continue each other taken together."""
    loops = one.outer.tolist()
    return one.tasks // (loops[0][0] if loops and loops[0][2] == one.task_bytes else 1)


@pytest.mark.parametrize("pair", NAMED[:4], ids=lambda pair: f"{pair[0]} to {pair[1]}")
def test_boxes_ask_for_the_lines_that_they_read(pair: Pair) -> None:
    """Every element of the source is in a line that its box asks for, and there are no others."""
    shapes = tuple(map(fi.Shape.parse, pair))
    width = shapes[0].element_bits // 8
    loops = relayout_loops(*shapes)
    assert loops is not None
    nests = [in_bytes(nest, width) for nest in loops.copies]
    places = np.zeros(0, np.int64)
    for nest in nests:
        at = np.array([nest.source_start])
        for loop in nest.loops:
            at = (at + loop.source_stride * np.arange(loop.size)[:, None]).reshape(-1)
        places = np.concatenate((places, at))
    expected = np.unique(np.concatenate((places, places + width - 1)) // 64) * 64
    found = lines_of(nests, width)
    assert np.isin(expected, found).all()
    assert len(found) <= read_lines(loops, width) + len(expected) // 4


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


def test_lines_that_boxes_read_again_are_counted() -> None:
    """Rows of the destination that are columns of the source: 64 of them share its lines, and a box has fewer."""
    sides = [fi.Shape.parse(f"u8[2048,40,131]{order}") for order in ("{0,2,1:T(4,128)}", "{2,1,0}")]
    found = box_drafts(sides[0], sides[1], 1, EPYC_1M, TUNING, movement(sides[0], sides[1]).slots.loops)
    assert found is not None
    counts = total(one.counts for one in found)
    rows = {one.task_bytes / (40 * 131) for one in found}
    assert rows == {8}
    assert counts.missed == pytest.approx((64 / 8 - 1) * counts.lines, rel=0.01)


def test_planted_bugs_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_geometry, "_LEAST_ROW_BYTES", 700)
    pair = NAMED[0]
    made = passes_of(*pair)
    assert made is not None
    assert move(pair, made, Guarded(), (0, 0)) == ""
    for at, one in enumerate(made):
        for spoiled in _spoiled(one):
            planted = (*made[:at], spoiled, *made[at + 1 :])
            assert move(pair, planted, Guarded(), (0, 0)), spoiled.describe()


def _spoiled(one: Pass) -> Iterator[Pass]:
    """Yield a pass with one number or step wrong."""
    for k, (inner, *places) in enumerate(one.inner):
        later = dataclasses.replace(inner, source_start=inner.source_start + 1)
        yield dataclasses.replace(one, inner=(*one.inner[:k], (later, *places), *one.inner[k + 1 :]))
        if len(one.inner) > 1:
            fewer = (*one.inner[:k], *one.inner[k + 1 :])
            geometry = np.array([len(fewer), *one.geometry[1:]], np.int64)
            yield dataclasses.replace(one, inner=fewer, geometry=geometry)
    shorter = one.geometry.copy()
    shorter[BOX.row_bytes] -= 1
    yield dataclasses.replace(one, geometry=shorter)
