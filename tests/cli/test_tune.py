"""`fastindex relayout --tune`: the file is the same, and what was timed is remembered.

Tests of: cli.moving.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastindex as fi
from fastindex.moving import timed_choices as choices
from fastindex.moving.movements import movement
from tests.commands import run_command

SOURCE, DESTINATION = "f32[700,513]", "f32[700,513]{0,1:T(8,128)}"


def test_a_tuned_relayout_writes_the_same_and_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tuned"
    monkeypatch.setattr(choices, "_folder", lambda: folder)
    # Another test's plan may know nothing yet.
    movement.cache_clear()
    values = np.random.default_rng(0).random(700 * 513, np.float32)
    values.tofile(tmp_path / "in.raw")
    command = ["relayout", str(tmp_path / "in.raw"), str(tmp_path / "out.raw"), "--from", SOURCE, "--to", DESTINATION]
    found = run_command([*command, "--tune"])
    assert found.exit_code == 0, found.output
    expected = fi.relayout(values, SOURCE, DESTINATION)
    assert (tmp_path / "out.raw").read_bytes() == expected.tobytes()
    assert len(list(folder.glob("*.json"))) == 1


@pytest.mark.parametrize("others", [["--device", "cuda"], ["--workers", "2"]])
def test_only_this_processor_is_timed(others: list[str]) -> None:
    command = ["relayout", "in.raw", "out.raw", "--from", SOURCE, "--to", DESTINATION, "--tune", *others]
    found = run_command(command)
    assert found.exit_code == 2
    assert "--tune" in found.output
