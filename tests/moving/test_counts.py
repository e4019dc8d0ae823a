"""What passes count, and the cost that is linear in it.

Tests of: moving.counts.
"""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

import fastindex as fi
from fastindex.algebra.loops import Loop, Nest
from fastindex.moving.choice import plans, select_plan
from fastindex.moving.counts import COEFFICIENTS, Counts, cycles, overflows, piece_ends, total
from fastindex.moving.movements import movement
from fastindex.moving.passes import cost
from fastindex.runtime.machine import EPYC_1M, Machine
from fastindex.runtime.numbers import LINE_BYTES
from tests.cases import strategies
from tests.cases.machines import MACHINES

#: The most coefficients that all candidates have together.
MOST_COEFFICIENTS = 16


def test_few_coefficients() -> None:
    assert len(COEFFICIENTS) <= MOST_COEFFICIENTS
    assert all(value > 0 for value in COEFFICIENTS)


def test_the_cost_is_linear() -> None:
    one, other = Counts(*range(16)), Counts(*range(16, 0, -1))
    assert cycles(total((one, other.times(3)))) == pytest.approx(cycles(one) + 3 * cycles(other))
    assert total(()) == Counts()


@pytest.mark.parametrize("seed", strategies.seeds(30))
def test_ends_of_pieces_are_those_of_every_piece(seed: int) -> None:
    """Counted piece by piece where strides reach all places of a line alike."""
    source = random.Random(seed)
    length = source.choice([8, 40, 64, 100, 200])
    stride = LINE_BYTES * source.choice([4, 8]) + source.choice([0, 4, 8, 16, 32])
    count, start = 64 * source.randint(1, 3), 0
    nest = Nest((Loop(length // 4, 4, 4), Loop(count, 4096, stride)), 0, start)
    places = start + stride * np.arange(count)
    expected = int((places % LINE_BYTES != 0).sum() + ((places + length) % LINE_BYTES != 0).sum())
    found = piece_ends(nest, 4, True)
    # Begins and ends that only some multiples meet count by their average.
    assert found == pytest.approx(expected, abs=count * math.gcd(LINE_BYTES, stride) / LINE_BYTES)
    assert piece_ends(nest, 4, False) == 0


def test_pieces_that_continue_each_other_share_no_line() -> None:
    nest = Nest((Loop(10, 4, 4), Loop(1000, 512, 40)))
    assert piece_ends(nest, 4, True) < 2
    assert piece_ends(nest, 40, True, in_order=False) > 1000


def test_lines_that_meet_in_a_set_overflow_it() -> None:
    apart = LINE_BYTES * np.arange(9, dtype=np.int64)
    assert not overflows(apart, 4, 3)
    assert overflows(4 * apart[:4], 4, 3)
    assert not overflows(4 * apart[:3], 4, 3)
    assert not overflows(np.zeros(100, np.int64), 4, 3)


@pytest.mark.parametrize(
    "pair",
    [
        ("f32[300,200]", "f32[300,200]{0,1:T(8,128)}"),
        ("s4[30,200]{1,0:T(8,128)(8,1)E(4)}", "s4[30,200]{0,1:E(4)}"),
        ("bf16[128,16,8]{2,1,0:T(2,*,128)}", "bf16[128,16,8]{0,1,2}"),
        ("s4[31,41]{1,0:E(4)}", "s4[31,41]{0,1}"),
    ],
)
@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
def test_the_cheapest_candidate_is_taken_and_any_other_on_demand(pair: tuple[str, str], machine: Machine) -> None:
    problem = movement(*map(fi.Shape.parse, pair), machine=machine).problem
    found = {one.name: one for one in plans(problem)}
    assert len(found) > 1
    cheapest = min(found.values(), key=lambda one: cycles(one.counts))
    assert select_plan(problem).name == cheapest.name
    for name, one in found.items():
        assert select_plan(problem, name).name == name
        assert one.drafts is not None
        assert cost(one.drafts) <= cycles(one.counts)
    assert select_plan(problem, "no such candidate").name == cheapest.name
    for one, other in itertools.pairwise(found.values()):
        assert one.name != other.name


def counts_by(name: str, source: str, destination: str) -> Counts:
    problem = movement(fi.Shape.parse(source), fi.Shape.parse(destination), machine=EPYC_1M).problem
    return next(plan.counts for plan in plans(problem) if plan.name == name)


def test_slots_that_are_expanded_separately_are_lines_unless_their_memory_is_new() -> None:
    """Of 3 and of 300 times 2**16 slots; all of them move by transposes between."""
    small, large = (
        counts_by("loops", f"s4[{rows},65536]{{1,0:E(4)}}", f"s4[{rows},65536]{{0,1}}") for rows in (3, 300)
    )
    assert small.gathered == 0
    assert small.lines == 2 * 3 * 65536 / LINE_BYTES
    assert large.gathered == 300 * 65536


@pytest.mark.parametrize(("columns", "by_themselves"), [(20, True), (32, False), (64, False)])
def test_elements_of_short_rows_are_deinterleaved_one_by_one(columns: int, by_themselves: bool) -> None:
    """Two rows of elements of two bytes: of 32 a line is full."""
    shape = f"s16[18,8,7,20,{columns}]"
    found = counts_by("loops", f"{shape}{{4,1,3,2,0:T(8,128)(2,1)}}", shape)
    assert found.gathered == by_themselves * 18 * 8 * 7 * 20 * columns


def test_rows_on_separate_pages_are_expensive_to_gather() -> None:
    """Rows of 4 KiB, and rows of which two share a page."""
    far, near = (counts_by("columns", f"u8[16384,{row}]", f"u8[16384,{row}]{{0,1}}") for row in (4096, 2048))
    assert far.scratch == far.rows > 0
    assert near.scratch == 0 < near.rows


def test_rows_that_begin_with_either_nibble_are_loaded_twice() -> None:
    even, odd = (
        counts_by("columns", f"s4[512,{n},9]{{2,1,0:E(4)}}", f"s4[512,{n},9]{{0,2,1:E(4)}}") for n in (2048, 2047)
    )
    assert odd.rows == pytest.approx(2 * even.rows, rel=0.02)
