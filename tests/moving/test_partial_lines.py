"""How many lines of the destination plans write in parts, and that those of tiled layouts write them whole.

Tests of: moving.counts.
"""

from __future__ import annotations

import itertools
import random

import pytest

import fastindex as fi
from fastindex.algebra.loops import Loop, Nest, relayout_loops
from fastindex.moving.movements import movement
from fastindex.moving.moves.nests.plan import fill_pass, passes
from fastindex.moving.problem import Context
from fastindex.runtime.machine import EPYC_1M
from fastindex.runtime.tuning import TUNING
from tests.cases import strategies
from tests.oracles.partial_lines import partial_writes

#: Values and padding of each line together, though rows of the array end within lines.
WHOLE = [
    ("f32[98304,10]", "f32[98304,10]{1,0:T(8,128)}"),
    ("bf16[1964,3,5]{1,2,0}", "bf16[1964,3,5]{2,1,0:T(2,128)}"),
    ("u8[980,8,127]{0,1,2}", "u8[980,8,127]{2,1,0:T(8,128)(4,1)}"),
    ("s4[98,8,127]{2,1,0:E(4)}", "s4[98,8,127]{2,1,0:T(2,128)E(4)}"),
    ("bf16[204,1,24,128]", "bf16[204,1,24,128]{0,1,3,2:T(4,128)(2,1)}"),
    ("f64[702,8,100]{0,1,2}", "f64[702,8,100]{2,1,0:T(2,*,128)}"),
    ("f32[8192,896]", "f32[8192,896]{1,0:T(8,128)}"),
    ("f32[4096,4096]", "f32[4096,4096]{0,1}"),
    ("u8[4480,3,224]{1,2,0}", "u8[4480,3,224]"),
]


@pytest.mark.parametrize(("source", "destination"), WHOLE)
def test_lines_are_written_whole(source: str, destination: str) -> None:
    """But for one at either end of a task."""
    moved = movement(fi.Shape.parse(source), fi.Shape.parse(destination), machine=EPYC_1M)
    assert moved.passes is not None
    assert partial_writes(moved.passes) <= 2 * sum(one.tasks for one in moved.passes)


def test_runs_and_fills_within_lines_are_counted() -> None:
    """By loops, 40 bytes of each row of 512 are copied and the rest is filled: two parts of one line."""
    loops = relayout_loops(fi.Shape.parse("f32[1228,3,10]"), fi.Shape.parse("f32[1228,3,10]{2,1,0:T(8,128)}"))
    assert loops is not None
    assert partial_writes(passes(loops, 4, EPYC_1M)) == 2 * 3 * 1228


def test_elements_moved_one_by_one_are_counted() -> None:
    loops = relayout_loops(fi.Shape.parse("u8[65536,3,1]{2,1,0:T(256)}"), fi.Shape.parse("u8[65536,3,1]"))
    assert loops is not None
    assert partial_writes(passes(loops, 1, EPYC_1M)) >= 3 * 65536 * 63 // 64


@pytest.mark.parametrize("seed", strategies.seeds(40))
def test_every_run_is_counted_where_it_is(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice((1, 2, 3, 5, 64, 70)) for _ in range(rng.randint(1, 3))]
    size, start = rng.choice((1, 3, 40, 64, 100, 128)), rng.randrange(130)
    loops, stride = [Loop(size, 0, 1)], size
    for count in sizes:
        stride += rng.choice((0, 1, 7, 24, 64 - stride % 64))
        loops.append(Loop(count, 0, stride))
        stride *= count
    expected = 0
    steps = (range(0, k.size * k.destination_stride, k.destination_stride) for k in loops[1:])
    for begin in itertools.product(*steps):
        first, last = start + sum(begin), start + sum(begin) + size
        parts = {at // 64 for at in (first, last) if at % 64}
        expected += len(parts)
    assert (
        partial_writes([fill_pass(Nest(tuple(loops), 0, start), Context(1, True, TUNING, EPYC_1M)).written()])
        == expected
    )
