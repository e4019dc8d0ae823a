"""How much of the random tests a run takes: the parts together are everything, and sweeps run where asked for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import strategies
from tests.cases.hangs import HANG_SECONDS
from tests.conftest import process_count

ROOT = Path(__file__).resolve().parents[2]
SWEEP = """
import pytest

@pytest.mark.sweep
def test_every():
    pass

def test_some():
    pass
"""

SLOW = """
import pytest

@pytest.mark.sweep
@pytest.mark.in_turn(seconds=1)
@pytest.mark.parametrize("number", range(34, 46))
def test_slower(number):
    pass

@pytest.mark.in_turn(seconds=1)
@pytest.mark.parametrize("number", range(10, 34))
def test_slow(number):
    pass
"""


def run_tests(part: str | None, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, in a separate process; without the variable where `part` is None."""
    environment = {name: value for name, value in os.environ.items() if name != strategies.PART_VARIABLE}
    if part is not None:
        environment[strategies.PART_VARIABLE] = part
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options],
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
        cwd=folder,
    )


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20, 600])
def test_the_parts_together_are_everything(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, cases = [], []
    for part in range(strategies.PARTS):
        monkeypatch.setattr(strategies, "PART", part)
        seeds += strategies.rotating_seeds(count)
        cases += strategies.rotating(iter(range(count)))
        assert strategies.rotating_seeds(count)
    assert set(seeds) == set(strategies.seeds(count))
    assert len(seeds) == max(count, strategies.PARTS)
    assert set(cases) == set(range(count))
    assert len(cases) == max(count, strategies.PARTS)
    monkeypatch.setattr(strategies, "PART", None)
    assert strategies.rotating_seeds(count) == strategies.seeds(count)
    assert list(strategies.rotating(range(count))) == list(range(count))


def test_slow_tests_are_dealt_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {f"test {number}": 1 + number * number % 31 for number in range(40)}
    parts = []
    for part in range(strategies.PARTS):
        monkeypatch.setattr(strategies, "PART", part)
        parts.append(strategies.dealt(seconds))
    assert sorted(name for names in parts for name in names) == sorted(seconds)
    sums = [sum(seconds[name] for name in names) for names in parts]
    assert max(sums) - min(sums) <= 2
    monkeypatch.setattr(strategies, "PART", None)
    assert strategies.dealt(seconds) == {*seconds}


@pytest.mark.parametrize(
    ("load", "processors", "expected"), [(0.1, 2, 2), (2.4, 2, 2), (2.6, 2, 4), (1.6, 1, 2), (2.9, 6, 6), (30.0, 6, 8)]
)
def test_a_busy_machine_gets_twice_as_many_processes(
    load: float, processors: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTINDEX_NUM_THREADS", str(processors))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert process_count() == expected


def test_a_plain_run_is_the_same_each_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which part runs is in the variable alone: what reads the date while tests are collected would rotate."""
    program = """
import datetime, sys
class Date(datetime.date):
    @classmethod
    def today(cls):
        return cls(2026, 1, int(sys.argv[1]))
datetime.date = Date
from tests.cases import strategies
print(strategies.PART, strategies.PLAIN, *strategies.rotating_seeds(600))
"""
    monkeypatch.delenv(strategies.PART_VARIABLE, raising=False)
    commands = [[sys.executable, "-c", program, day] for day in ("1", "2")]
    first, second = (subprocess.check_output(command, text=True, cwd=ROOT) for command in commands)
    assert first == second
    assert first.startswith("8 True 400 401 ")


def test_a_system_that_does_not_know_how_busy_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.setenv("FASTINDEX_NUM_THREADS", "3")
    monkeypatch.setattr(os, "getloadavg", unknown)
    assert process_count() == 3


@pytest.mark.in_turn(seconds=3.8)
@pytest.mark.parametrize(
    ("part", "options", "expected"),
    [
        (None, ["-n", "0"], set()),
        (None, ["-n", "0", "slow"], {*range(10, 34)}),
        ("2/12", ["-n", "0"], {11, 23, 35}),
        ("2/12", ["-n", "2"], {11, 23, 35}),
        ("6/6", ["-n", "0"], {15, 21, 27, 33, 39, 45}),
        ("2/12", ["-n", "0", "slow"], {*range(10, 34)}),
        ("all", ["-n", "0"], {*range(10, 46)}),
    ],
)
def test_slow_tests_and_sweeps_rotate_in_whole_runs_only(
    part: str | None, options: list[str], expected: set[int], tmp_path: Path
) -> None:
    pytest.importorskip("xdist")
    folder = tmp_path / "slow"
    folder.mkdir()
    (tmp_path / "conftest.py").write_text("from tests.conftest import *")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = slow\nmarkers =\n in_turn\n sweep\n long\n")
    (folder / "test_slow.py").write_text(SLOW)
    done = run_tests(part, tmp_path, *options)
    # pytest's 5: there was nothing to run.
    assert done.returncode == (0 if expected else 5), done.stdout
    lines = [line for line in done.stdout.splitlines() if "PASSED" in line]
    assert {int(number) for line in lines for number in re.findall(r"test_slow(?:er)?\[(\d+)\]", line)} == expected


@pytest.mark.in_turn(seconds=2.5)
@pytest.mark.parametrize(
    ("part", "options", "expected"),
    [
        (None, [], {"some"}),
        ("1/12", [], {"some"}),
        ("all", [], {"every", "some"}),
        (None, ["-m", "sweep"], {"every"}),
        ("13/12", [], None),
    ],
)
def test_sweeps_run_where_they_are_asked_for(
    part: str | None, options: list[str], expected: set[str] | None, tmp_path: Path
) -> None:
    # Below a conftest.py that is the tests' own.
    (tmp_path / "conftest.py").write_text("from tests.conftest import *")
    (tmp_path / "test_widths.py").write_text(SWEEP)
    config = str(ROOT / "pyproject.toml")
    done = run_tests(part, ROOT, "-c", config, *options, "--rootdir", str(tmp_path), str(tmp_path))
    if expected is None:
        assert "'13/12'" in done.stdout + done.stderr
        return
    assert {name for name in ("every", "some") if f"::test_{name} PASSED" in done.stdout} == expected, done.stdout
    assert "random tests: " in done.stdout
    assert part == "all" or f"FASTINDEX_TEST_PART={part or 'plain'} " in done.stdout
