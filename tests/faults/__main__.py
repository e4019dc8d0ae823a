"""Run one part: ``python -m tests.faults NAME SECONDS SEED FILE``; the counts are in FILE, whatever happens."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from tests.faults.tally import Tally


def main() -> None:
    name, seconds, seed, path = sys.argv[1:]
    module, _, function = name.partition(".")
    run = getattr(importlib.import_module(f"tests.faults.{module}"), function or "run")
    tally = Tally(Path(path), float(seconds), int(seed))
    tally.save()
    try:
        run(tally)
    finally:
        tally.save()


if __name__ == "__main__":
    main()
