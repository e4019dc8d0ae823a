"""The choice on machines that permute 16 bytes at a time, and on those that permute 64.

How many pieces of the source a vector of the destination is made of is counted here from the definition, slot by slot.
With that in place of what the planner has counted, the cheapest candidate has to be the one that it takes.

Tests of: moving.choice, moving.moves.block_permute.tables.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
from fastindex.moving.choice import Plan, plans, select_plan
from fastindex.moving.counts import cycles
from fastindex.moving.movements import movement
from fastindex.runtime.machine import EPYC_1M, Machine
from fastindex.runtime.tuning import TUNING
from tests.cases import strategies
from tests.cases.machines import EPYC_512K_AVX2
from tests.oracles import reference

#: Tiles that XLA chooses for processors of each width of elements, in bytes.
TILES = {1: ("T(8,128)(4,1)", "T(4,128)(4,1)"), 2: ("T(8,128)(2,1)", "T(2,128)(2,1)"), 4: ("T(8,128)", "T(2,128)")}
ORDERS = ("2,1,0", "1,2,0", "0,1,2")
TYPES = {1: "u8", 2: "bf16", 4: "f32"}
#: Costs that are closer are a draw: blocks need not begin with a vector of the destination as it is counted here.
DRAW = 1.1


def pair_of(seed: int) -> tuple[int, str, str]:
    """Bytes of an element, and two layouts of an array of some ten thousand elements."""
    source = random.Random(seed)
    width = source.choice(list(TILES))
    sizes = source.randint(2, 12), source.choice((1, 2, 3, 8, 30)), source.choice((3, 5, 12, 40, 127, 200))
    text = ",".join(map(str, sizes))
    sides = [f"{{2,1,0:{source.choice(TILES[width])}}}", f"{{{source.choice(ORDERS)}}}"]
    source.shuffle(sides)
    return width, *(f"{TYPES[width]}[{text}]{side}" for side in sides)  # type: ignore[return-value]


@cache
def places_of(source: str, destination: str) -> NDArray[np.int64]:
    """For each slot of the destination the slot of the source whose element it holds, -1 for padding."""
    sides = [reference.parse(text) for text in (source, destination)]
    cells = [reference.physical_array(side) for side in sides]
    where = {cell: slot for slot, cell in enumerate(cells[0].cells) if cell is not None}
    return np.array([-1 if cell is None else where[cell] for cell in cells[1].cells], np.int64)


def pieces_of(places: NDArray[np.int64], width: int, vector_bytes: int) -> tuple[int, int]:
    """How many windows of a vector's length its vectors need at least, and how many vectors have elements."""
    pieces = vectors = 0
    for begin in range(0, len(places), vector_bytes // width):
        taken = sorted(place for place in places[begin : begin + vector_bytes // width].tolist() if place >= 0)
        vectors += bool(taken)
        end = -1
        for place in taken:
            if place >= end:
                pieces, end = pieces + 1, place + vector_bytes // width
    return pieces, vectors


def cost_of(plan: Plan, found: tuple[int, int], vector_bytes: int) -> float:
    """What a plan takes, with the pieces and vectors that were found, where it permutes blocks and nothing else."""
    drafts = plan.drafts or ()
    if plan.name != "blocks" or any(one.kernel != "block permute" for one in drafts):
        return cycles(plan.counts)
    pieces, vectors = found
    return cycles(plan.counts._replace(pieces=pieces, vectors=vectors, lines=vectors * vector_bytes / 64))


@pytest.mark.in_turn(seconds=0.3)
@pytest.mark.parametrize("machine", [EPYC_512K_AVX2, EPYC_1M], ids=["AVX2", "AVX-512"])
@pytest.mark.parametrize("first", strategies.seeds(120)[::30])
def test_the_cheapest_by_pieces_of_the_definition_is_taken(first: int, machine: Machine) -> None:
    by_blocks = 0
    for seed in range(first, first + 30):
        width, source, destination = pair_of(seed)
        # As large ones are planned.
        tuning = replace(TUNING, streamed_bytes=0)
        problem = movement(fi.Shape.parse(source), fi.Shape.parse(destination), tuning, machine).problem
        vector_bytes = machine.target.vector_bytes
        found = pieces_of(places_of(source, destination), width, vector_bytes)
        costs = {plan.name: cost_of(plan, found, vector_bytes) for plan in plans(problem)}
        taken = select_plan(problem).name
        assert costs[taken] <= DRAW * min(costs.values()), (source, destination, costs)
        by_blocks += taken == "blocks"
    assert by_blocks or strategies.OTHER_SEEDS


def test_where_vectors_are_short_more_pieces_are_counted() -> None:
    """A line of rows of 24 bytes is three or four windows of 64 bytes, and six to eight of 16."""
    source, destination = "u8[6000,24]{1,0:T(8,128)(4,1)}", "u8[6000,24]"
    sides = fi.Shape.parse(source), fi.Shape.parse(destination)
    counted = []
    for machine in (EPYC_1M, EPYC_512K_AVX2):
        problem = movement(*sides, machine=machine).problem
        found = {one.name: one.counts.pieces for one in plans(problem)}
        counted.append(found["blocks"])
    assert counted[0] < counted[1]
