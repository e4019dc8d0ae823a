"""Plans that have timed their candidates: every one gives the definition's bytes, the choice is kept and found again.

Tests of: moving.relayout_plans, moving.timed_choices, moving.choice, moving.counts.
"""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fastindex as fi
from fastindex import RearrangePlan, RelayoutPlan
from fastindex.moving import relayout_plans
from fastindex.moving import timed_choices as choices
from fastindex.moving.choice import CANDIDATES, plans
from fastindex.moving.movements import Movement, movement
from fastindex.moving.timed_choices import Choice
from fastindex.runtime.machine import EPYC_1M, Machine, this_machine
from fastindex.runtime.tuning import TUNING
from tests.cases.machines import run_here
from tests.cases.pipes import needs_pipes, pipe
from tests.oracles import reference
from tests.oracles.comparison import clear_unused_bits

PAIRS = [
    ("f32[37,150]", "f32[37,150]{0,1:T(8,128)}"),
    ("u8[37,150]{1,0:T(8,128)(4,1)}", "u8[37,150]{0,1}"),
    ("s4[37,150]{1,0:T(8,128)(8,1)E(4)}", "s4[37,150]{0,1:E(4)}"),
    ("s4[11,40]{1,0:E(4)}", "s4[11,40]{0,1}"),
    ("c128[9,5,6]", "c128[9,5,6]{1,2,0}"),
    ("bf16[20,15,40]{2,1,0:T(2,*,128)}", "bf16[20,15,40]{0,1,2}"),
    ("u2[37,150]{1,0:E(2)}", "u2[37,150]{0,1:E(2)}"),
    ("bf16[20,3,10]{2,0,1:T(2,128)}", "bf16[20,3,10]{0,1,2}"),
    ("s4[4,2,16,4]{0,1,2,3:T(8,128)E(4)}", "s4[4,2,16,4]{0,3,2,1}"),
    ("s4[3,128,4]{1,2,0:T(4,128)E(4)}", "s4[3,128,4]{2,1,0:E(4)}"),
    ("s4[5,64,130]{1,2,0:T(8,128)(8,1)E(4)}", "s4[5,64,130]{2,1,0:E(4)}"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test's own for what is remembered."""
    monkeypatch.setattr(choices, "_folder", lambda: tmp_path / "tuned")
    return tmp_path / "tuned"


def buffers(source: str, destination: str) -> tuple[np.ndarray, np.ndarray, bytes]:
    """A buffer with random bits, one to write to, and what the definition says."""
    sides = reference.parse(source), reference.parse(destination)
    given = np.random.default_rng(1).integers(0, 256, fi.Shape.parse(source).nbytes, np.uint8)
    given = np.frombuffer(clear_unused_bits(sides[0], bytes(given)), np.uint8)
    return given, np.empty(fi.Shape.parse(destination).nbytes, np.uint8), reference.relayout(given.tobytes(), *sides)


def plan_of(source: str, destination: str) -> RelayoutPlan:
    """A plan that no other test has."""
    return RelayoutPlan(fi.Shape.parse(source), fi.Shape.parse(destination))


def movement_of(pair: tuple[str, str], streamed: bool, machine: Machine) -> Movement:
    """The movement of a pair; as between buffers that no cache holds, if it is streamed."""
    tuning = replace(TUNING, streamed_bytes=0, shifted_bytes=0) if streamed else TUNING
    return movement(*map(fi.Shape.parse, pair), tuning, machine)


def test_every_candidate_applies_to_a_pair() -> None:
    found = {
        one.name for pair in PAIRS for each in (False, True) for one in plans(movement_of(pair, each, EPYC_1M).problem)
    }
    assert found >= {one.name for one in CANDIDATES}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]} to {pair[1]}")
@pytest.mark.parametrize("streamed", [False, True])
def test_every_candidate_gives_the_same(pair: tuple[str, str], streamed: bool) -> None:
    given, out, expected = buffers(*pair)
    moved = movement_of(pair, streamed, run_here(EPYC_1M))
    found = list(plans(moved.problem))
    assert found
    for one in found:
        out[:] = 0x5A
        replace(moved, choice=one.name).run_kernels(given.ctypes.data, out.ctypes.data, bytes(16), 1)
        assert out.tobytes() == expected, one.name


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]} to {pair[1]}")
def test_a_tuned_plan_takes_the_fastest_and_says_so(pair: tuple[str, str]) -> None:
    given, out, expected = buffers(*pair)
    plan = plan_of(*pair)
    before = plan.candidates
    assert all(one.seconds is None for one in before)
    assert sum(one.is_taken for one in before) == 1
    found = plan.tune(given, out, threads=1)
    assert out.tobytes() == expected
    assert found == plan.candidates
    assert {one.name for one in found} == {one.name for one in before}
    assert [one.is_taken for one in found] == [True] + [False] * (len(found) - 1)
    seconds = [one.seconds for one in found]
    assert None not in seconds
    assert seconds == sorted(seconds)
    assert plan.describe().splitlines()[-1].startswith(f"timed with 1 thread, microseconds: {found[0].name} ")
    out[:] = 0
    assert plan(given, out) is out
    assert out.tobytes() == expected
    assert np.asarray(plan(given)).tobytes() == expected


def forced(plan: RelayoutPlan, name: str) -> Choice:
    """What would be remembered if this candidate had been the fastest."""
    names = [one.name for one in plan.candidates]
    assert name in names
    return Choice(name, 1, {each: 1.0 if each == name else 2.0 for each in names})


def other_name(plan: RelayoutPlan) -> str:
    """A candidate that the planner would not take."""
    return plan.candidates[-1].name


def test_a_choice_is_found_by_later_plans() -> None:
    pair = PAIRS[0]
    plan = plan_of(*pair)
    name = other_name(plan)
    choices.remember(plan.source, plan.destination, this_machine(), TUNING, forced(plan, name))
    movement.cache_clear()
    later = plan_of(*pair)
    assert later.candidates[0].name == name
    assert later.candidates[0].seconds == 1.0
    assert f"microseconds: {name} 1,000,000" in later.describe()
    given, out, expected = buffers(*pair)
    assert np.asarray(later(given, out)).tobytes() == expected
    turned = plan_of(*reversed(pair))
    assert all(one.seconds is None for one in turned.candidates)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[" * 100_000,
        lambda text: "null",
        lambda text: json.dumps({**json.loads(text), "choice": 3}),
        lambda text: json.dumps({**json.loads(text), "choice": "no such way"}),
        lambda text: json.dumps({**json.loads(text), "seconds": {"loops": "fast"}}),
        lambda text: json.dumps({**json.loads(text), "seconds": {"loops": -1.0}}),
        lambda text: json.dumps({**json.loads(text), "seconds": {}}),
        lambda text: json.dumps({**json.loads(text), "key": {}}),
        lambda text: json.dumps({**json.loads(text), "key": {**json.loads(text)["key"], "processor": "another"}}),
    ],
)
def test_damaged_and_foreign_files_are_left_alone_and_rewritten(spoil: object, folder: Path) -> None:
    plan = plan_of(*PAIRS[0])
    choice = forced(plan, other_name(plan))
    choices.remember(plan.source, plan.destination, this_machine(), TUNING, choice)
    (path,) = folder.iterdir()
    path.write_text(spoil(path.read_text()))  # type: ignore[operator]
    assert choices.remembered(plan.source, plan.destination, this_machine(), TUNING) is None
    choices.remember(plan.source, plan.destination, this_machine(), TUNING, choice)
    assert choices.remembered(plan.source, plan.destination, this_machine(), TUNING) == choice
    assert list(folder.iterdir()) == [path]


@needs_pipes
def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    plan = plan_of(*PAIRS[0])
    choice = forced(plan, other_name(plan))
    choices.remember(plan.source, plan.destination, this_machine(), TUNING, choice)
    (path,) = folder.iterdir()
    path.unlink()
    with pipe(path):
        assert choices.remembered(plan.source, plan.destination, this_machine(), TUNING) is None
        assert plan_of(*PAIRS[0]).candidates


def test_a_candidate_that_is_no_more_is_not_taken(folder: Path) -> None:
    plan = plan_of(*PAIRS[0])
    choices.remember(plan.source, plan.destination, this_machine(), TUNING, Choice("former", 1, {"former": 1.0}))
    later = plan_of(*PAIRS[0])
    assert later.candidates[0].name == plan.candidates[0].name


def test_no_folder_costs_only_the_memory(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    folder.parent.joinpath("tuned").write_text("a file where the folder should be")
    given, out, expected = buffers(*PAIRS[0])
    plan = plan_of(*PAIRS[0])
    assert plan.tune(given, out, 1)[0].is_taken
    assert out.tobytes() == expected
    monkeypatch.setattr(choices, "_folder", lambda: None)
    assert plan.tune(given, out, 1)[0].is_taken
    assert choices.remembered(plan.source, plan.destination, this_machine(), TUNING) is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_pickles_keep_their_choice(copied: object, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(*PAIRS[0])
    plan._take(forced(plan, other_name(plan)))
    monkeypatch.setattr(choices, "_folder", lambda: None)
    again = copied(plan)  # type: ignore[operator]
    assert again.candidates == plan.candidates
    assert again.describe() == plan.describe()
    given, out, expected = buffers(*PAIRS[0])
    assert np.asarray(again(given, out)).tobytes() == expected


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
@pytest.mark.parametrize("is_tuned", [False, True])
def test_plans_equal_their_copies(copied: object, is_tuned: bool) -> None:
    other = plan_of(*reversed(PAIRS[0]))
    for plan in (plan_of(*PAIRS[0]), rearranged("a b -> b a"), fi.plan_relayout("f32[8,4]", "bf16[8,4]{0,1}")):
        if is_tuned and len(plan.candidates) > 1:
            plan._take(forced(plan, other_name(plan)))
        again = copied(plan)  # type: ignore[operator]
        assert (again == plan, again != plan, hash(again) == hash(plan)) == (True, False, True)
        assert len({again, plan, other}) == 2
        assert other not in (plan, again, None)
    assert plan_of(*PAIRS[1]) != plan_of(*PAIRS[0])


def test_plans_of_the_same_shapes_share_what_one_has_found() -> None:
    source, destination = "f32[38,151]", "f32[38,151]{0,1:T(8,128)}"
    plan = fi.plan_relayout(source, destination)
    plan._take(forced(plan, other_name(plan)))
    assert fi.plan_relayout(source, destination).candidates == plan.candidates
    relayout_plans.plan_of.cache_clear()


def test_what_cannot_be_timed_is_refused() -> None:
    given, out, _ = buffers(*PAIRS[0])
    plan = plan_of(*PAIRS[0])
    with pytest.raises(fi.FastIndexError, match="bytes"):
        plan.tune(given[:-1], out)
    same = np.zeros(4096, np.uint8)
    with pytest.raises(fi.FastIndexError, match="overlap"):
        plan_of("u8[64,64]", "u8[64,64]{0,1}").tune(same, same)
    with pytest.raises(fi.FastIndexError, match="threads"):
        plan.tune(given, out, threads=0)


def test_what_is_looked_up_has_no_candidates() -> None:
    """Merged in two ways of which none continues the other."""
    pair = "u8[6,10,14]{2,1,0:T(*,100)}", "u8[6,10,14]{2,0,1:T(*,77)}"
    plan = plan_of(*pair)
    given, out, expected = buffers(*pair)
    if plan._movement.passes is None:
        assert plan.candidates == ()
    plan.tune(given, out)
    assert out.tobytes() == expected


def test_without_kernels_nothing_is_timed() -> None:
    program = """
import numpy as np, fastindex as fi
try:
    fi.plan_relayout("u8[3,5]", "u8[3,5]{0,1}").tune(np.zeros(15, np.uint8))
except fi.UnsupportedError as error:
    print(error)
"""
    environment = {"FASTINDEX_DISABLE_JIT": "1", "PATH": ""}
    root = Path(fi.__file__).parents[1]
    found = subprocess.run([sys.executable, "-c", program], env=environment, cwd=root, capture_output=True, text=True)
    assert "FASTINDEX_DISABLE_JIT" in found.stdout, found.stderr


def rearranged(pattern: str, **sizes: int) -> RearrangePlan:
    """A plan that no other test has, and that asks the folder again."""
    movement.cache_clear()
    return copy.copy(fi.plan_rearrange(pattern, "f32[40,96]", "f32[96,40]{1,0:T(8,128)}", **sizes))


def test_rearrangements_are_tuned_and_found_by_what_they_move() -> None:
    given = np.random.default_rng(1).random((40, 96), np.float32)
    plan = rearranged("a (b c) -> (b c) a", c=8)
    expected = fi.pack(np.ascontiguousarray(given.T), plan.destination)
    found = plan.tune(given.reshape(-1), threads=1)
    assert len(found) > 1
    assert found[0].is_taken
    assert all(one.seconds is not None for one in found)
    name = other_name(plan)
    choices.remember(*plan._sides, this_machine(), TUNING, forced(plan, name))
    # The same move, spelled otherwise, and another one.
    for pattern, sizes, is_known in (
        ("a (b c) -> (b c) a", {"c": 8}, True),
        ("x y -> y x", {}, True),
        ("(u v) (y z) -> (y z) (u v)", {"v": 5, "z": 2}, True),
        ("a (b c) -> (c b) a", {"c": 12}, False),
    ):
        later = rearranged(pattern, **sizes)
        assert (later.candidates[0].seconds is not None) == is_known, pattern
        if is_known:
            assert later.candidates[0].name == name
            assert np.array_equal(later(given.reshape(-1)), expected)
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert [one.seconds for one in again.candidates] == [one.seconds for one in plan.candidates]
    assert np.array_equal(again(given.reshape(-1)), expected)
    with pytest.raises(fi.FastIndexError, match="takes 15360 bytes"):
        plan.tune(given.reshape(-1)[1:])
