"""The same layouts, texts and HLO with ``PYTHONMALLOC=debug``, which checks every allocation of the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.tally import Tally, read

ROOT = Path(__file__).resolve().parents[2]
_DEBUGGED = ("layouts", "texts", "hlo_pieces")


def run(tally: Tally) -> None:
    """Run parts with checked memory, one after another."""
    for name in _DEBUGGED:
        environment = {"PYTHONMALLOC": "debug", "PYTHONFAULTHANDLER": "1"}
        run_child(tally, [], name, tally.seconds / len(_DEBUGGED), environment, "PYTHONMALLOC=debug: ")


def run_child(tally: Tally, tool: list[str], part: str, seconds: float, more: dict[str, str], prefix: str) -> None:
    """Run a part in a separate process, under a tool and with more environment; add its counts with a prefix."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "tally"
        command = [*tool, sys.executable, "-m", "tests.faults", part, str(seconds), str(tally.seed), str(state)]
        tally.begin(" ".join(command))
        ended = subprocess.run(command, cwd=ROOT, env={**os.environ, **more}, capture_output=True, text=True)
        saved = read(state)
        for name, row in saved.rows.items():
            tally.count(prefix + name, row.runs, row.refused)
        for finding in saved.findings:
            tally.find(prefix + finding.split(":")[0], finding)
        if ended.returncode:
            tally.find(f"{prefix}{part}", f"ended with {ended.returncode} in {saved.case}: {ended.stderr[-1000:]}")
        tally.save()
