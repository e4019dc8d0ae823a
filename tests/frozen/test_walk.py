"""Walks of a parameter: on a package that is made up, and that those of this tree are no longer than recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frozen.walk import Counts, Package, Walk, recorded, walk

CONTRACT = """
[[tool.importlinter.contracts]]
id = "layers"
layers = ["upper", "middle", "base"]
"""
MODULES = {
    "__init__": (
        "from fastindex.lazy import lazy_names\n"
        'x = lazy_names(__name__, {"fastindex.upper.moves": ("move",), "fastindex.upper": ("Plan",)})\n'
    ),
    "upper/__init__": "class Plan:\n    pass\n",
    "upper/moves": """
from fastindex import base
from fastindex.middle import checks, run as run_it
from fastindex.middle.plans import Plan, plan_of

def move(source, threads):
    checks.check_threads(threads)
    checks.check(source)
    copied = given = source
    plan = plan_of(1, shape=given)
    if len(source) > base.least(2):
        _finish(plan)
    with_lock(run_it, plan)
    plan.run(threads)
    return [later(one) for one in plan.parts]

def with_lock(function, *arguments): ...
def _finish(plan: "Plan"): plan.mid.start()
def later(part): ...
def never(source): ...
""",
    "base": "def least(k): ...\ndef size_of(shape) -> int: ...\n",
    "middle/__init__": "def run(plan): ...\n",
    "middle/checks": """
from fastindex import base

def check_threads(threads): ...
def check(shape):
    base.size_of(shape)
    raise_for(base.size_of(shape))
def raise_for(number) -> int: ...
""",
    "middle/plans": """
from __future__ import annotations
from dataclasses import dataclass
from fastindex.middle import checks

class _Base:
    def start(self): checks.check(self)

class Middle(_Base):
    pass

@dataclass
class Plan(_Base):
    mid: "Middle"
    count: int
    parts: list[Middle]

    @property
    def size(self) -> int: return 1

    def run(self, threads):
        checks.raise_for(self.count)
        return self.size

def plan_of(count, shape) -> Plan:
    if (found := kept(shape)) is None:
        found = Plan(Middle(), 1, shape)
    return found

def kept(shape) -> Plan | None: ...
""",
}
STEPS = """\
upper.moves.move
  middle.checks.check
    base.size_of
  middle.plans.plan_of  <- climb
    middle.plans.kept
    middle.plans.Plan
  upper.moves._finish  <- climb return
    middle.plans._Base.start  <- return
  upper.moves.with_lock  <- climb return
  middle.run
  middle.plans.Plan.run  <- return
    middle.plans.Plan.size
  upper.moves.later  <- climb return"""


@pytest.fixture
def package(tmp_path: Path) -> Package:
    (tmp_path / "pyproject.toml").write_text(CONTRACT)
    for name, text in MODULES.items():
        path = tmp_path / "fastindex" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Package(tmp_path)


def test_steps_of_a_walk(package: Package) -> None:
    found = Walk(package, "move", "source")
    assert "\n".join(found.lines()) == STEPS
    assert found.counts() == Counts(functions=13, rooms=3, climbs=4, returns=5)


def test_another_parameter_goes_elsewhere(package: Package) -> None:
    found = Walk(package, "move", "threads")
    assert [str(one) for _, one in found.steps] == [
        "upper.moves.move",
        "middle.checks.check_threads",
        "middle.plans.Plan.run",
    ]


def test_a_name_is_public_or_has_its_module(package: Package) -> None:
    assert str(Walk(package, "plan_of", "shape").steps[0][1]) == "middle.plans.plan_of"
    assert str(Walk(package, "middle.plans.plan_of", "count").steps[0][1]) == "middle.plans.plan_of"
    for name, parameter in (("nothing", "source"), ("move", "shape"), ("Plan", "source")):
        with pytest.raises(SystemExit, match=r"is no function|has no parameter"):
            Walk(package, name, parameter)


@pytest.mark.in_turn(seconds=10)
def test_walks_are_no_longer_than_recorded() -> None:
    """What a change shortens is recorded with ``python -m tests.frozen.walk --write``."""
    for name, before in recorded().items():
        now = walk(name).counts()
        assert (now.climbs <= before.climbs, now.returns <= before.returns) == (True, True), (name, now, before)
