"""Two versions of fastindex beside each other: an older commit and the one checked out, cell by cell, in turn.

    python benchmarks/paired.py 94825b8                         some minutes, one thread
    python benchmarks/paired.py 94825b8 --cells 80 --seed 3 --threads 2

Each version runs in a process of its own, with buffers of its own; the package of the older one is laid out in a
folder. Cells are layouts out of dumps and random ones (`regret_cells.py`), the sweep, images and the relayouts of
`table.py`. The processes take turns, so that what disturbs the machine disturbs both; with one thread it is the
processor's time. Printed are, for each kind, the geometric mean of how many times as fast the version checked out is,
and what got slower by 1.3 times and more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import cases, images, regret_cells, sweep_cells  # noqa: E402

SIZES = (1 << 20, 48 << 20)
#: How much faster a version has to be for a cell to be listed.
LISTED = 1.3
_TURNS, _LEAST_SECONDS = 7, 2e-3


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
    """A process that runs relayouts with the package in a folder, when it is told to."""

    def __init__(self, folder: Path, threads: int) -> None:
        command = [sys.executable, "-P", str(ROOT / "benchmarks" / "paired_server.py"), str(threads)]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def ask(self, question: object) -> float:
        """Return the answer: seconds, or 0 for a cell that this version does not take."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def ratio_of(cell: Cell, versions: Sequence[Version]) -> float | None:
    """Return how many times as long the first version takes as the second; None for a cell that is too large."""
    first = [version.ask([cell.source, cell.destination]) for version in versions]
    if min(first) <= 1e-7:
        return None
    calls = max(1, math.ceil(_LEAST_SECONDS / min(first)))
    turns = [[version.ask(calls) for version in versions] for _ in range(_TURNS)]
    old, new = (statistics.median(times) for times in zip(*turns, strict=True))
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
    """Print the geometric mean of each kind, and the cells that got faster or slower by much."""
    of_kind: dict[str, list[float]] = {}
    for cell, ratio in ratios.items():
        of_kind.setdefault(cell.kind, []).append(ratio)
    print("| cells | count | times as fast, geometric mean | least | most |\n| --- | --: | --: | --: | --: |")
    for kind, found in (*sorted(of_kind.items()), ("all", list(ratios.values()))):
        print(
            f"| {kind} | {len(found)} | {statistics.geometric_mean(found):.3f} | {min(found):.2f} | {max(found):.2f} |"
        )
    print("\nSlower by more:")
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
        versions = [Version(laid_out(options.commit, Path(folder)), options.threads), Version(ROOT, options.threads)]
        began = time.monotonic()
        for cell in drawn(options.cells, options.seed):
            if time.monotonic() - began > options.seconds:
                break
            ratio = ratio_of(cell, versions)
            if ratio is not None:
                ratios[cell] = ratio
                print(f"{ratio:.2f}  {' '.join(cell)}", file=sys.stderr, flush=True)
        for version in versions:
            version.close()
    report(ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
