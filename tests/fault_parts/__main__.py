"""Run one part: ``python -m tests.fault_parts NAME SECONDS SEED FILE``; the counts are in FILE, whatever happens."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from tests.fault_parts.tally import Tally


def main() -> None:
    name, seconds, seed, path = sys.argv[1:]
    part = importlib.import_module(f"tests.fault_parts.{name}")
    tally = Tally(Path(path), float(seconds), int(seed))
    tally.save()
    try:
        part.run(tally)
    finally:
        tally.save()


if __name__ == "__main__":
    main()
