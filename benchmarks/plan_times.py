"""How long a new plan takes until bytes move: reading the texts, planning, and choosing the passes.

    python benchmarks/plan_times.py               600 layouts of the sweep, best of three each
    python benchmarks/plan_times.py --cells 2000

The first call of a plan chooses its passes, and so does the first `describe()`: what it takes longer than the second is
that choice, and nothing has to be moved. More layouts are planned in turn than plans are kept, so every plan is new.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import fastindex as fi  # noqa: E402
from benchmarks import sweep_cells  # noqa: E402

#: Plans, and what they are made from, are kept for fewer layouts than that.
LEAST_CELLS = 600
_ROUNDS, _SEED = 3, 1
PARTS = ("texts", "plan", "passes")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=LEAST_CELLS, help=f"how many layouts, at least {LEAST_CELLS}")
    return parser.parse_args()


def seconds(do: Callable[[], object]) -> float:
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin


def times_of(source: str, destination: str) -> tuple[float, float, float]:
    """Seconds for two texts, for a plan, and for its passes."""
    texts = seconds(lambda: (fi.Shape.parse(source), fi.Shape.parse(destination)))
    shapes = fi.Shape.parse(source), fi.Shape.parse(destination)
    begin = time.perf_counter()
    plan = fi.plan_relayout(*shapes)
    planned = time.perf_counter() - begin
    chosen = seconds(plan.describe)
    described = min(seconds(plan.describe) for _ in range(_ROUNDS))
    return texts, planned, max(chosen - described, 0.0)


def main() -> None:
    cells = sweep_cells.sampled(list(sweep_cells.every_cell()), max(arguments().cells, LEAST_CELLS), _SEED)
    texts = [(str(source), str(destination)) for source, destination in (cell.shapes for cell in cells)]
    # The first plan of a process loads the planner and the compiler.
    fi.plan_relayout("f32[8,128]", "f32[8,128]{0,1}").describe()
    rounds = [[times_of(*pair) for pair in texts] for _ in range(_ROUNDS)]
    best = [tuple(min(part) for part in zip(*of_one, strict=True)) for of_one in zip(*rounds, strict=True)]
    rows = {name: [times[i] for times in best] for i, name in enumerate(PARTS)}
    rows["plan and passes"] = [planned + passes for _, planned, passes in best]
    rows["all"] = [sum(times) for times in best]
    print(f"{len(cells)} layouts, microseconds\n\n| | median | a tenth above | longest |\n|---|--:|--:|--:|")
    for name, found in rows.items():
        ordered = sorted(1e6 * value for value in found)
        tenth = ordered[len(ordered) * 9 // 10]
        print(f"| {name} | {statistics.median(ordered):.0f} | {tenth:.0f} | {ordered[-1]:.0f} |")
    slowest = max(range(len(cells)), key=lambda i: rows["all"][i])
    print(f"\nThe longest: {texts[slowest][0]} to {texts[slowest][1]}")


if __name__ == "__main__":
    main()
