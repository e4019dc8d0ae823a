"""Layouts through the kernels in Valgrind, which watches every access to memory.

Kernels are compiled for any processor of the kind, since Valgrind does not know AVX-512. What it says of code that has
no name is about kernels; the interpreter and the loader have findings themselves, which are not counted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.checked_memory import ROOT, run_child
from tests.faults.tally import Tally

#: Starting takes half a minute.
_LEAST_SECONDS = 90


def run(tally: Tally) -> None:
    """Draw layouts in Valgrind until the time is over."""
    if shutil.which("valgrind") is None:
        tally.skip("valgrind is not installed")
        return
    if tally.seconds < _LEAST_SECONDS:
        tally.skip(f"it needs {_LEAST_SECONDS} seconds, and has {tally.seconds:.0f}")
        return
    environment = {"PYTHONMALLOC": "malloc", "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    began = time.monotonic()
    # The compiler would take hours in Valgrind; it finds what is kept on disk.
    tally.begin("compiling")
    warm = [sys.executable, "-m", "fastindex", "warmup"]
    try:
        subprocess.run(
            warm, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, check=True, timeout=tally.seconds
        )
    except subprocess.TimeoutExpired:
        # On a slow or busy machine; what has been compiled is kept.
        tally.skip(f"kernels for any processor were not compiled in {tally.seconds:.0f} seconds; the next run goes on")
        return
    seconds = max(tally.seconds - (time.monotonic() - began), _LEAST_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        options = ["--error-limit=no", "--undef-value-errors=no", "--redzone-size=256", f"--log-file={log}"]
        run_child(tally, ["valgrind", *options], "layouts.run_plain", seconds, environment, "Valgrind: ")
        for what in accesses_of_kernels(log.read_text()):
            tally.find("Valgrind: relayouts of layouts", what)


def accesses_of_kernels(log: str) -> list[str]:
    """Return Valgrind's errors about code that has no name: what Numba has compiled."""
    errors = re.split(r"==\d+== ?\n", log)
    found = []
    for error in errors:
        lines = [re.sub(r"^==\d+== ?", "", line) for line in error.splitlines()]
        if lines and re.match(r"Invalid (read|write)|Jump to the invalid", lines[0]) and "???" in lines[1]:
            found.append("; ".join(line.strip() for line in lines[:12]))
    return found
