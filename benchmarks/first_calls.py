"""What a process waits for at first, with every kernel compiled and kept: seconds of fresh processes.

    python benchmarks/first_calls.py                 this checkout
    python benchmarks/first_calls.py ../another      beside another one, in turn

A row is a median of nine processes: the import, the first `pack` of 8 MiB, the first `linear_index` of a million pairs,
each without what came before it, and `fastindex relayout` of 64 MiB as a whole process. The first round compiles what
is missing, and is not counted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 9
SHAPE, OTHER = "f32[4096,4096]", "f32[4096,4096]{0,1}"

#: Prints the seconds of each of `STEPS` but the last.
PROGRAM = """
import time
import numpy as np
array, rows = np.zeros((1024, 2048), np.float32), np.arange(1_000_000)
begin = time.perf_counter()
import fastindex as fi
imported = time.perf_counter()
fi.pack(array, "f32[1024,2048]{1,0:T(8,128)}")
packed = time.perf_counter()
fi.linear_index("f32[1000000,1000]{1,0:T(8,128)}", (rows, rows % 1000))
print(imported - begin, packed - imported, time.perf_counter() - packed)
"""
STEPS = ("import fastindex", "first pack", "first linear_index", "fastindex relayout, the process")


def seconds(checkout: Path, folder: Path) -> list[float]:
    """Return the seconds of each of `STEPS`, in two processes."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-P", "-c", PROGRAM]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    files = [str(folder / "in"), str(folder / "out")]
    command = [sys.executable, "-P", "-m", "fastindex", "relayout", *files, "--from", SHAPE, "--to", OTHER]
    begin = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
    return [*map(float, done.stdout.split()), time.perf_counter() - begin]


def main() -> None:
    checkouts = [ROOT, *(Path(name).resolve() for name in sys.argv[1:])]
    times: dict[Path, list[list[float]]] = {checkout: [] for checkout in checkouts}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open(folder / "in", "wb") as file:
            file.truncate(64 << 20)
        for _ in range(1 + ROUNDS):
            for checkout in checkouts:
                times[checkout].append(seconds(checkout, folder))
    medians = [[statistics.median(step) for step in zip(*times[checkout][1:], strict=True)] for checkout in checkouts]
    sys.stdout.write(f"{'seconds':<34}" + "".join(f"{checkout.name:>14}" for checkout in checkouts) + "\n")
    for row, of_step in enumerate(zip(*medians, strict=True)):
        sys.stdout.write(f"{STEPS[row]:<34}" + "".join(f"{one:14.3f}" for one in of_step) + "\n")


if __name__ == "__main__":
    main()
