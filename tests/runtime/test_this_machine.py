"""The machine at hand: asked once, and not when something is imported.

Tests of: runtime.machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fastindex as fi
from fastindex import RelayoutPlan
from fastindex.arrays.arrays import address_of
from fastindex.moving import timed_choices as choices
from fastindex.moving.movements import movement, movement_between
from fastindex.runtime.machine import EPYC_1M, Target, caches_in, check_runs_here, these_caches, this_machine
from fastindex.runtime.machine_code import features
from fastindex.runtime.threads import thread_count
from fastindex.runtime.tuning import TUNING
from tests.cases.hangs import HANG_SECONDS
from tests.cases.machines import MACHINE_VARIABLE, MACHINES, NEON_4M, SMALL_256K, run_here

ROOT = Path(fi.__file__).parents[1]
# The numbers of a relayout that asks them of both caches.
PAIR = "u8[983,50,2]{2,1,0:T(1024)}", "u8[983,50,2]{0,1,2}"

IMPORTS = """
import sys
read = []
sys.addaudithook(lambda event, about: read.append(event) if event in ("open", "os.scandir", "os.listdir")
                 and "cpu0/cache" in str(about[0]) else None)
import fastindex as fi, fastindex.moving.numpy_moves, fastindex.moving.warmup, fastindex.cli.commands, fastindex.xla
import fastindex.moving.relayout_calls, fastindex.moving.compiled_passes, fastindex.cuda.streaming
assert not read, read
fi.plan_relayout(*PAIR).candidates
print(len(read))
fi.plan_relayout(*reversed(PAIR)).candidates
print(len(read))
"""


def test_nothing_asks_for_caches_until_something_is_planned() -> None:
    program = f"PAIR = {PAIR}\n{IMPORTS}"
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert found.returncode == 0, found.stderr
    first, second = map(int, found.stdout.split())
    assert first == second
    # Where there is a folder, it is read.
    assert bool(first) == Path("/sys/devices/system/cpu/cpu0/cache").exists()


def test_this_machine_is_made_once() -> None:
    assert this_machine() is this_machine()
    assert this_machine().target == Target.of(features())
    assert this_machine().caches is these_caches()
    assert this_machine().processors >= 1


@pytest.mark.skipif(MACHINE_VARIABLE not in os.environ, reason="a machine of tests/machines.py")
def test_the_simulated_machine_is_this_one() -> None:
    simulated = MACHINES[os.environ[MACHINE_VARIABLE]]
    assert this_machine().caches == simulated.caches
    assert simulated.processors > 1 or thread_count() == 1
    assert this_machine().target.vector_bytes <= simulated.target.vector_bytes


def test_a_missing_folder_is_a_small_machine(tmp_path: Path) -> None:
    assert caches_in(tmp_path / "none") == SMALL_256K.caches


def another() -> fi.Shape:
    return fi.Shape.parse(PAIR[1])


def test_plans_for_another_target_are_described_and_counted_and_not_run() -> None:
    other = replace(NEON_4M, target=Target.of({"no such instruction", *this_machine().target.instructions}))
    sides = fi.Shape.parse(PAIR[0]), another()
    moved = movement(*sides, machine=other)
    assert moved.describe()
    given, made = np.zeros(sides[0].nbytes, np.uint8), np.zeros(sides[1].nbytes, np.uint8)
    with pytest.raises(fi.UnsupportedError, match=re.escape("a machine with no such instruction, which this one")):
        moved.run_kernels(address_of(given), address_of(made), b"\0", 1)
    plan = RelayoutPlan(*sides, TUNING, machine=other)
    assert plan.candidates
    with pytest.raises(fi.UnsupportedError, match="no such instruction"):
        plan(given)
    cast = movement_between(fi.Shape.parse("f32[300]"), fi.Shape.parse("bf16[300]"), machine=other)
    assert cast.describe()
    with pytest.raises(fi.UnsupportedError, match="no such instruction"):
        cast.run(address_of(given), address_of(made), b"\0\0", 1)
    check_runs_here(None)
    check_runs_here(run_here(NEON_4M))


def test_choices_of_one_machine_are_not_those_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "_folder", lambda: tmp_path)
    sides, choice = (fi.Shape.parse(PAIR[0]), another()), choices.Choice("blocks", 1, {"blocks": 1.0})
    choices.remember(*sides, EPYC_1M, TUNING, choice)
    assert choices.remembered(*sides, EPYC_1M, TUNING) == choice
    for other in (SMALL_256K, NEON_4M, replace(EPYC_1M, processors=3), this_machine()):
        if other != EPYC_1M:
            assert choices.remembered(*sides, other, TUNING) is None
