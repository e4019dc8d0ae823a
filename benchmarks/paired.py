"""Two versions of fastindex beside each other: an older commit and the one checked out, cell by cell, in turn.

    python benchmarks/paired.py 94825b8                         some minutes, one thread
    python benchmarks/paired.py 94825b8 --cells 80 --seed 3 --threads 2

Both versions run in one process, on the same memory: how long a transpose takes depends on where its pages lie. The
package of the older one is laid out in a folder. Cells are layouts out of dumps and random ones (`regret_cells.py`),
the sweep, images and the relayouts of `table.py`. The versions take turns, so that what disturbs the machine disturbs
both; with one thread it is the processor's time. Printed are, for each kind, the geometric mean of how many times as
fast the version checked out is, and what got slower by 1.3 times and more.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import fastindex as fi  # noqa: E402
from benchmarks import cases, images, measure, regret_cells, sweep_cells  # noqa: E402

SIZES = (1 << 20, 48 << 20)
#: The most bytes of a side: those of the largest relayouts of `table.py`.
MOST_BYTES = 288 << 20
#: How many times as long a cell has to take to be listed.
LISTED = 1.3
_TURNS, _LEAST_SECONDS = 7, 2e-3

Bytes = NDArray[np.uint8]


class Cell(NamedTuple):
    kind: str
    source: str
    destination: str


def drawn(count: int, seed: int) -> Iterator[Cell]:
    """Cells of every kind: `count` of the sweep, and as many of each size of dumps and random layouts."""
    for nbytes in SIZES:
        for cell in regret_cells.drawn(count, seed, nbytes):
            yield Cell(f"{cell.kind}, {nbytes >> 20} MiB", cell.source, cell.destination)
    for one in sweep_cells.sampled(list(sweep_cells.every_cell()), count, seed):
        yield Cell("sweep", *map(str, one.shapes))
    for element_type in images.TYPES:
        for direction in images.LAYOUTS:
            for channels in images.CHANNELS:
                yield Cell("images", *images.shapes(element_type, channels, direction))
    for case in cases.RELAYOUT_CASES:
        for size in ("round", "prime"):
            yield Cell("table.py", case.source(size), case.destination(size))


class Version:
    """A package of fastindex: its own modules, which are those of their names while it runs."""

    def __init__(self, folder: Path) -> None:
        self._modules: dict[str, ModuleType] = {}
        self._folder = str(folder)

    def planned(self, cell: Cell, source: Bytes, output: Bytes, threads: int) -> Callable[[int], float]:
        """Plan a relayout; return what runs it a number of times, and returns the seconds."""
        clock = time.thread_time if threads == 1 else time.perf_counter
        with self._taking_part():
            plan = importlib.import_module("fastindex").plan_relayout(cell.source, cell.destination)

        def run(calls: int) -> float:
            with self._taking_part():
                began = clock()
                for _ in range(calls):
                    plan(source, output, threads=threads)
                return clock() - began

        return run

    @contextmanager
    def _taking_part(self) -> Iterator[None]:
        others = _taken_out()
        sys.modules.update(self._modules)
        sys.path.insert(0, self._folder)
        try:
            yield
        finally:
            sys.path.remove(self._folder)
            self._modules = _taken_out()
            sys.modules.update(others)


def _taken_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == "fastindex"]
    return {name: sys.modules.pop(name) for name in names}


def ratio_of(cell: Cell, versions: Sequence[Version], memory: tuple[Bytes, Bytes], threads: int) -> float | None:
    """Return how many times as long the first version takes as the second; None for a cell that is too large."""
    sizes = [fi.Shape.parse(text).nbytes for text in (cell.source, cell.destination)]
    if max(sizes) > MOST_BYTES:
        return None
    source, output = (block[:size] for block, size in zip(memory, sizes, strict=True))
    runs = [version.planned(cell, source, output, threads) for version in versions]
    for run in runs:
        # What is compiled or imported on the way.
        run(3)
    calls = math.ceil(_LEAST_SECONDS / max(min(run(1) for run in runs), 1e-7))
    taken = [[run(calls) for run in runs] for _ in range(_TURNS)]
    old, new = (statistics.median(times) for times in zip(*taken, strict=True))
    return old / new


def laid_out(commit: str, folder: Path) -> Path:
    """Lay the package of a commit out in a folder."""
    archive = folder / "package.tar"
    with archive.open("wb") as file:
        subprocess.run(["git", "archive", commit, "fastindex"], cwd=ROOT, check=True, stdout=file)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder


def report(ratios: dict[Cell, float]) -> None:
    """Print the geometric mean of each kind, and the cells that got slower by much."""
    of_kind: dict[str, list[float]] = {}
    for cell, ratio in ratios.items():
        of_kind.setdefault(cell.kind, []).append(ratio)
    print("| cells | count | times as fast, geometric mean | least | most |\n| --- | --: | --: | --: | --: |")
    for kind, found in (*sorted(of_kind.items()), ("all", list(ratios.values()))):
        print(
            f"| {kind} | {len(found)} | {statistics.geometric_mean(found):.3f} | {min(found):.2f} | {max(found):.2f} |"
        )
    print(f"\nSlower by more than {LISTED} times:")
    for cell, ratio in sorted(ratios.items(), key=lambda pair: pair[1]):
        if ratio * LISTED < 1:
            print(f"{ratio:.2f}  {cell.kind}: {cell.source} to {cell.destination}")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default="94825b8")
    parser.add_argument("--cells", type=int, default=40, help="how many of the sweep, and of each size of drawn ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    options = parser.parse_args()
    ratios: dict[Cell, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        versions = Version(laid_out(options.commit, Path(folder))), Version(ROOT)
        memory = measure.random_bytes(MOST_BYTES), measure.touched_bytes(MOST_BYTES)
        began = time.monotonic()
        for cell in drawn(options.cells, options.seed):
            if time.monotonic() - began > options.seconds:
                break
            ratio = ratio_of(cell, versions, memory, options.threads)
            if ratio is not None:
                ratios[cell] = ratio
                print(f"{ratio:.2f}  {' '.join(cell)}", file=sys.stderr, flush=True)
    report(ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
