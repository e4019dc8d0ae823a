"""`tests/machines.py`: which machines it runs, and that tests see what it simulates."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastindex.runtime.machine import caches_in
from tests import machines
from tests.cases.hangs import HANG_SECONDS
from tests.cases.machines import CACHES_VARIABLE, MACHINE_VARIABLE, MACHINES

ROOT = Path(machines.__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--all"], (list(MACHINES), [])),
        (["--all", "-k", "XEON_2M"], (list(MACHINES), ["-k", "XEON_2M"])),
        (["XEON_2M", "ONE_CORE", "--", "-n", "0", "--", "a"], (["XEON_2M", "ONE_CORE"], ["-n", "0", "--", "a"])),
        (["XEON_2M", "tests/moving"], (["XEON_2M"], ["tests/moving"])),
        ([], None),
        (["--help"], None),
        (["XEON"], None),
        (["--all", "XEON_2M"], None),
        (["--all", "--today"], None),
    ],
)
def test_command_lines(given: list[str], expected: object) -> None:
    assert machines.parsed(given) == expected


def test_each_machine_has_its_turn_within_days(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for day in range(3):

        class Day(datetime.date):
            number = 738_000 + day

            @classmethod
            def today(cls) -> datetime.date:
                return datetime.date.fromordinal(cls.number)

        monkeypatch.setattr(machines.datetime, "date", Day)
        seen += machines.todays()
    assert sorted(seen) == sorted(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_caches_are_described_as_linux_does(name: str, tmp_path: Path) -> None:
    machines.describe(tmp_path, 1, "Data", MACHINES[name].caches.l1)
    machines.describe(tmp_path, 2, "Unified", MACHINES[name].caches.l2)
    assert caches_in(tmp_path) == MACHINES[name].caches


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key not in (CACHES_VARIABLE, MACHINE_VARIABLE)}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


@pytest.mark.in_turn(seconds=8)
@pytest.mark.parametrize("may_mount", [True, False])
def test_tests_see_the_machine_and_failures_are_reported(may_mount: bool) -> None:
    """Where nothing can be mounted, `conftest` tells the tests."""
    test = "tests/runtime/test_this_machine.py::test_the_simulated_machine_is_this_one"
    program = f"""
import sys
from tests import machines
if not {may_mount}:
    machines.mounted = lambda *_: None
sys.exit(machines.main(["SMALL_256K", "NEON_4M", "--", "-q", "-n", "0", {test!r}, *sys.argv[1:]]))
"""
    found = run(program)
    assert found.returncode == 0, found.stdout + found.stderr
    assert [line.split(",")[0] for line in found.stdout.splitlines()[-2:]] == [
        "SMALL_256K: 1 passed",
        "NEON_4M: 1 passed",
    ]
    # No such test.
    failed = run(program.replace(test, f"{test}s"))
    assert failed.returncode == 1
