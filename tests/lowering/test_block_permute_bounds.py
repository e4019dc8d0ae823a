"""What assemblies take at least, against the cost of those that there are.

Tests of: lowering.relayout.moves.block_permute_bounds.
"""

from __future__ import annotations

import math

import pytest

import fastindex as fi
from fastindex.lowering.relayout.moves.block_permute import permuted_blocks
from fastindex.lowering.relayout.moves.block_permute_bounds import least_cycles
from fastindex.lowering.relayout.moves.block_permute_passes import BlockPermutes
from fastindex.lowering.relayout.passes.calibration import cost
from fastindex.lowering.relayout.problem.problem import Context, Problem
from fastindex.lowering.relayout.problem.shared_digits import Strides, shared_digits
from fastindex.lowering.relayout.problem.slot_moves import slot_move
from fastindex.lowering.tuning import TUNING
from tests.cases import assembly_cases, strategies

VECTOR_BYTES = (16, 32, 64)


def bound_and_cost(source: fi.Shape, destination: fi.Shape, vector_bytes: int) -> tuple[float, float]:
    """The bound, and the cost of the cheapest block permute, infinity where there is none."""
    bits = source.element_bits, destination.element_bits
    found = [permuted_blocks(*digits, destination, bits[1]) for digits in shared_digits(source, destination)]
    context, most = Context(1, True, TUNING), source.slot_count
    made = [BlockPermutes(one, bits, vector_bytes, context, most) for one in found if one is not None]
    costs = [cost(each) for one in made for each in (one.straight, one.with_columns()) if each is not None]
    problem = Problem(source, destination, slot_move(source, destination), vector_bytes, TUNING)
    return least_cycles(problem), min(costs, default=math.inf)


def test_no_assembly_is_cheaper() -> None:
    tight = []
    for seed, texts in enumerate(assembly_cases.random_pairs(strategies.seeds(150))):
        source, destination = (fi.Shape.parse(text) for text in texts)
        bound, least = bound_and_cost(source, destination, VECTOR_BYTES[seed % 3])
        assert bound <= least, (texts, seed)
        tight.append(bound / least)
    assert max(tight) > 0.6 or strategies.OTHER_SEEDS


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        # One element of every line, and rows that become columns: nearly all that a block permute takes is known.
        ("u8[98304,1]{1,0:T(8,128)}", "u8[98304,1]"),
        ("f32[4096,4096]", "f32[4096,4096]{0,1}"),
        ("f64[3000,2]{1,0:T(2,128)}", "f64[3000,2]{0,1}"),
    ],
)
def test_what_lies_apart_in_the_source_costs_a_piece_or_a_line_each(source: str, destination: str) -> None:
    bound, least = bound_and_cost(fi.Shape.parse(source), fi.Shape.parse(destination), 64)
    assert 0.6 * least < bound <= least


def test_elements_that_may_be_read_twice_have_no_bound() -> None:
    shape, side = fi.Shape.parse("f32[64,12]{1,0:T(4,128)}"), Strides((64, 12), (0, 1))
    assert least_cycles(Problem(side, shape, slot_move(side, shape), 64, TUNING)) == 0
