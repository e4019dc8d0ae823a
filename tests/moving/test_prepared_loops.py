"""Calls of plans that NumPy answers: prepared views give the definition's bytes, other arrays are refused.

Tests of: moving.numpy_moves.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fastindex as fi
from fastindex import RelayoutPlan
from tests.oracles import reference

PAIRS = [
    ("f32[37,50]", "f32[37,50]{1,0:T(8,128)}"),
    ("f32[37,50]{1,0:T(8,128)}", "f32[37,50]{0,1}"),
    ("u8[5,7,9]", "u8[5,7,9]{0,2,1:T(2,4)}"),
    ("c128[5,7]", "c128[5,7]{0,1}"),
    ("bf16[9,20]{0,1:T(8,128)(2,1)}", "bf16[9,20]"),
    ("s4[8,32]{1,0:E(4)}", "s4[8,32]{1,0:T(2,32)E(4)}"),
    ("f32[]", "f32[]"),
    ("u8[0,3]", "u8[0,3]{0,1}"),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]} to {pair[1]}")
def test_prepared_views_move_what_the_definition_says(pair: tuple[str, str]) -> None:
    plan = RelayoutPlan(*map(fi.Shape.parse, pair))
    loops = plan._numpy_loops
    assert loops is not None
    given = np.random.default_rng(0).integers(0, 256, plan.source.nbytes, np.uint8)
    expected = reference.relayout(given.tobytes(), *map(reference.parse, pair))
    # A dtype of the package's own choice.
    source, out = given.view(np.asarray(plan(given)).dtype), plan(given)
    out.view(np.uint8)[:] = 0x77
    assert loops.run(source, out)
    assert out.tobytes() == expected
    out.view(np.uint8)[:] = 0x77
    assert loops.run(given, out.view(np.uint8))
    assert out.tobytes() == expected


@pytest.mark.parametrize(
    "spoil",
    [
        lambda given, out: (given.view(np.int32), out),
        lambda given, out: (given[:-1], out),
        lambda given, out: (given, out[:-1]),
        lambda given, out: (given.reshape(64, 64), out),
        lambda given, out: (np.repeat(given, 2)[::2], out),
        lambda given, out: (out, out),
    ],
)
def test_other_arrays_are_looked_at_more_closely(spoil: object) -> None:
    plan = RelayoutPlan(fi.Shape.parse("f32[64,64]"), fi.Shape.parse("f32[64,64]{0,1}"))
    given, out = np.ones(4096, np.float32), np.zeros(4096, np.float32)
    loops = plan._numpy_loops
    assert loops is not None
    assert not loops.run(*spoil(given, out))  # type: ignore[operator]
    assert not out.any()
    out.flags.writeable = False
    assert not loops.run(given, out)


def test_what_is_unpacked_or_large_is_left_to_others() -> None:
    for pair in (("s4[9,31]{1,0:E(4)}", "s4[9,31]{0,1:E(4)}"), ("f32[1024,1024]", "f32[1024,1024]{0,1}")):
        assert RelayoutPlan(*map(fi.Shape.parse, pair))._numpy_loops is None


def test_small_calls_before_kernels_are_loaded() -> None:
    program = """
import sys
import numpy as np, fastindex as fi
plan = fi.plan_relayout("f32[3,5]", "f32[3,5]{0,1}")
given, out = np.arange(15, dtype=np.float32), np.empty(15, np.float32)
for _ in range(3):
    assert plan(given, out) is out
    assert out.tolist() == given.reshape(3, 5).T.reshape(-1).tolist()
    out[:] = 0
for wrong in (given, out[:-1], out.view(np.int32)):
    try:
        plan(given, wrong)
    except fi.FastIndexError:
        continue
    raise AssertionError(wrong)
assert "llvmlite" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": ""}
    subprocess.run([sys.executable, "-c", program], cwd=Path(fi.__file__).parents[1], env=environment, check=True)
