"""The same layouts, texts and HLO where every allocation is checked: with ``PYTHONMALLOC=debug``, and in Valgrind.

In Valgrind kernels are compiled for any processor of the kind, since it does not know AVX-512. What it says of code
that has no name is about kernels; the interpreter and the loader have findings of their own, which are not counted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fault_parts.tally import Tally, read

_ROOT = Path(__file__).resolve().parents[2]
#: Starting takes half a minute in Valgrind, so shorter runs leave it out.
_LEAST_VALGRIND_SECONDS = 120
_DEBUGGED = ("layouts", "texts", "hlo_pieces")


def run(tally: Tally) -> None:
    """Run parts with checked memory, one after another."""
    has_valgrind = shutil.which("valgrind") is not None and tally.seconds >= _LEAST_VALGRIND_SECONDS
    for name in _DEBUGGED:
        seconds = tally.seconds * (0.4 if has_valgrind else 1) / len(_DEBUGGED)
        environment = {"PYTHONMALLOC": "debug", "PYTHONFAULTHANDLER": "1"}
        _run_child(tally, [], f"tests.fault_parts {name}", seconds, environment, "PYTHONMALLOC=debug: ")
    if has_valgrind:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            options = ["--error-limit=no", "--undef-value-errors=no", "--redzone-size=256", f"--log-file={log}"]
            environment = {"PYTHONMALLOC": "malloc", "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
            command = ["valgrind", *options]
            _run_child(
                tally, command, "tests.fault_parts plain_layouts", tally.seconds * 0.6, environment, "Valgrind: "
            )
            for what in accesses_of_kernels(log.read_text()):
                tally.find("Valgrind: relayouts", what)


def _run_child(tally: Tally, tool: list[str], module: str, seconds: float, more: dict[str, str], prefix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "tally"
        command = [*tool, sys.executable, "-m", *module.split(), str(seconds), str(tally.seed), str(state)]
        tally.begin(" ".join(command))
        ended = subprocess.run(command, cwd=_ROOT, env={**os.environ, **more}, capture_output=True, text=True)
        rows, findings, case = read(state)
        for name, row in rows.items():
            tally.count(prefix + name, row.runs, row.refused)
        for finding in findings:
            tally.find(prefix + finding.split(":")[0], finding)
        if ended.returncode:
            tally.find(f"{prefix}{module}", f"ended with {ended.returncode} in {case}: {ended.stderr[-1000:]}")
        tally.save()


def accesses_of_kernels(log: str) -> list[str]:
    """Return Valgrind's errors about code that has no name: what Numba has compiled."""
    errors = re.split(r"==\d+== ?\n", log)
    found = []
    for error in errors:
        lines = [re.sub(r"^==\d+== ?", "", line) for line in error.splitlines()]
        if lines and re.match(r"Invalid (read|write)|Jump to the invalid", lines[0]) and "???" in lines[1]:
            found.append("; ".join(line.strip() for line in lines[:12]))
    return found
