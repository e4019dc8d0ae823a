"""Relayouts put together of permuted vectors: against the slow reference, in any memory, with planted bugs.

Tests of: moving.moves.block_permute.geometry, moving.moves.column_gather.blocks, moving.moves.column_gather.plan,
moving.moves.block_permute.tables, moving.moves.block_permute.kernel, moving.moves.column_gather.kernel,
moving.kernels.lanes, moving.moves.block_permute, moving.moves.column_gather.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import fastindex as fi
from fastindex import RelayoutPlan
from fastindex.moving import movements
from fastindex.moving.movements import movement
from fastindex.moving.moves import column_gather as columns
from fastindex.moving.moves.block_permute import ASSEMBLY, VECTOR_HEADER, VECTOR_HEADER_BYTES, VECTOR_RUN
from fastindex.moving.moves.column_gather import plan as column_passes
from fastindex.moving.passes import Pass
from fastindex.moving.timed_choices import Choice
from fastindex.runtime.machine import EPYC_1M, this_machine
from fastindex.runtime.tuning import TUNING
from tests.cases import strategies
from tests.cases.assembly_cases import NAMED, Guarded, Pair, move, moved_between_guards, passes_of, random_pairs
from tests.cases.machines import run_here

OWN = this_machine().target.vector_bytes
VECTORS = sorted({16, OWN})


def check(pair: Pair, vector_bytes: int, streamed: bool, offsets: tuple[int, int]) -> bool:
    """Move a pair; return whether blocks can."""
    made = passes_of(*pair, vector_bytes, streamed)
    return made is not None and moved_between_guards(pair, made, offsets)


@pytest.mark.parametrize("vector_bytes", VECTORS)
@pytest.mark.parametrize("pair", list(strategies.rotating(NAMED)), ids=lambda pair: f"{pair[0]} to {pair[1]}")
def test_slow_layouts(pair: Pair, vector_bytes: int) -> None:
    assert check(pair, vector_bytes, False, (0, 0))
    check(pair, vector_bytes, True, (13, 16))


@pytest.mark.parametrize("vector_bytes", VECTORS)
def test_random_layouts(vector_bytes: int) -> None:
    seeds = strategies.seeds(40)
    found = [
        check(pair, vector_bytes, seed % 2 == 0, (seed * 7 % 64, 16 * seed % 64 + seed % 3))
        for seed, pair in zip(seeds, random_pairs(seeds), strict=True)
    ]
    assert sum(found) > 0.6 * len(found) or strategies.OTHER_SEEDS


def test_the_last_odd_rows_are_collected_too() -> None:
    """Packed rows of an odd number of elements that begin with either nibble: nothing follows the last."""
    source, destination = "s4[261,160,35]{0,1,2:E(4)}", "s4[261,160,35]{2,1,0:T(64)E(4)}"
    sides = fi.Shape.parse(source), fi.Shape.parse(destination)
    chosen = movement(*sides, machine=EPYC_1M)
    assert [one.kernel for one in chosen.passes or ()][:2] == ["column gather"] * 2
    plan = RelayoutPlan(*sides, TUNING, machine=run_here(EPYC_1M))
    plan._take(Choice("columns", 1, {"columns": 1.0}))
    packed = np.random.default_rng(1).integers(0, 256, 261 * 160 * 35 // 2, np.uint8)
    values = np.stack([packed & 15, packed >> 4], -1).reshape(35, 160, 261)
    padded = np.zeros((261, 160, 64), np.uint8)
    padded[..., :35] = values.transpose(2, 1, 0)
    assert np.array_equal(plan(packed), (padded[..., ::2] | padded[..., 1::2] << 4).reshape(-1))


def wrong(pair: Pair, one: Pass) -> bool:
    """Whether a pass that was tampered with is noticed."""
    return bool(move(pair, (one,), Guarded(), (0, 0)))


#: Whose columns are transposed into whole lines: bytes with padding, and wider elements.
COLUMNS = (
    ("u8[70,2,60]{0,1,2}", "u8[70,2,60]{2,1,0:T(4,128)}"),
    ("f32[131,50]{0,1}", "f32[131,50]{1,0:T(8,128)}"),
    # Several runs of columns, and rows of padding as long as all of these.
    ("u8[7,900]{1,0:T(2,128)}", "u8[7,900]{0,1:T(8,16)}"),
)


@pytest.mark.parametrize("pair", COLUMNS, ids=lambda pair: pair[0])
def test_planted_bugs_of_columns_are_noticed(pair: Pair) -> None:
    made = passes_of(*pair, OWN, True)
    assert made is not None
    one = max(made, key=lambda candidate: candidate.tasks * candidate.task_bytes)
    assert "column" in one.kernel
    rest = tuple(other for other in made if other is not one)
    assert moved_between_guards(pair, made, (13, 16))
    assert moved_between_guards(pair, made, (0, 0))
    groups, numbers = one.tables
    bands, block = int(one.geometry[columns.COLUMNS.bands]), int(one.geometry[columns.COLUMNS.block_bytes])
    lines = bands * len(columns.ColumnBand._fields)
    rows = lines + -(-block // 64)
    places = int(one.geometry[columns.COLUMNS.groups]) * len(columns.ColumnGroup._fields)
    filled = rows + int(np.flatnonzero(numbers[rows:] != columns.NOWHERE)[0])
    moved, dropped, swapped = numbers.copy(), numbers.copy(), groups.copy()
    moved[filled] = numbers[filled + 1]
    dropped[filled] = columns.NOWHERE
    used = places + np.flatnonzero(groups[places:] != columns.NOWHERE)[:2]
    swapped[used] = groups[used[::-1]]
    for tables in ((groups, moved), (groups, dropped), (swapped, numbers)):
        assert move(pair, (dataclasses.replace(one, tables=tables), *rest), Guarded(), (0, 0))


@pytest.mark.parametrize("step", [194, 195, 131])
def test_chunks_of_a_group_begin_with_the_same_half_of_a_byte(step: int) -> None:
    """Runs of packed columns that are an odd number of elements apart: their offsets within a row are bytes."""
    begins = range(-1, 3 * step, step)
    runs = [column_passes._Run(k, 66, np.arange(k, k + 66), np.arange(66) * 900) for k in begins]
    groups = list(column_passes._groups(runs, 32, 128))
    assert not any(offset % 2 for one in groups for offset in one.offsets)
    written = np.concatenate([place for one in groups for place in one.places])
    assert np.array_equal(written[written != columns.NOWHERE], np.tile(np.arange(66) * 900, len(runs)))


def test_planted_bugs_are_noticed() -> None:
    pair = NAMED[5]
    made = passes_of(*pair, OWN, True)
    assert made is not None
    one = max(made, key=lambda candidate: candidate.tasks * candidate.task_bytes)
    rest = tuple(other for other in made if other is not one)
    assert move(pair, made, Guarded(), (0, 0)) == ""
    chunks, numbers = one.tables
    begin, run = int(numbers[VECTOR_HEADER.pieces_begin]) // 8, VECTOR_HEADER_BYTES // 8
    shifted, missing, fewer, moved, turned = (numbers.copy() for _ in range(5))
    shifted[begin] += 1
    missing[run + VECTOR_RUN.pieces] -= 1
    fewer[run + VECTOR_RUN.vectors] -= 1
    moved[run + VECTOR_RUN.patterns] += OWN
    patterns = begin + sum(int(one.geometry[place]) for place in (ASSEMBLY.pieces, ASSEMBLY.lines))
    turned.view(np.uint8)[8 * patterns + OWN] ^= 1
    for planted in (shifted, missing, fewer, moved, turned):
        spoiled = dataclasses.replace(one, tables=(chunks, planted))
        assert move(pair, (spoiled, *rest), Guarded(), (0, 0))


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("s4[1,4,130]{2,1,0}", "s4[1,4,130]{2,1,0:PAD(1,7,133)PV(highest)T(4)(7,5)E(4)}"),
        ("u1[130,8]{0,1}", "u1[130,8]{0,1:PAD(133,11)PV(one)T(*,1,5)(1)E(4)}"),
    ],
)
def test_half_a_byte_after_the_last_slot_stays_zero(
    source: str, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last slots are padding, which is not zero."""
    monkeypatch.setattr(movements, "bytes_by_numpy", lambda nbytes: False)
    plan = fi.plan_relayout(source, destination)
    elements = fi.Shape.parse(source).element_count
    given = (np.arange(elements) % 2).astype(plan.source.element_type.numpy_dtype)
    moved = plan(given)
    assert moved[-1] >> 4 == 0
    assert moved[-1] & 15 == moved[-2] >> 4 != 0
