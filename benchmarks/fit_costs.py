"""Fit the coefficients of the planner's cost on each half of measured cells, and test them on the other half.

    python benchmarks/regret.py --cells 300 --seed 7 --output regret.json
    python benchmarks/fit_costs.py regret.json         prints the table for `moving/counts.py`

The cost is linear in what candidates count, and it serves to choose: so what is made small is the time of the choice
over the best one, its logarithm on average, and a little of how far the ratios of costs are from those of times. One
coefficient after the other is made larger and smaller as long as that helps, from the table that there is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

#: Factors that are tried, coarse ones first, and how much the ratios of costs count beside the regret.
FACTORS = (2.0, 1.4, 1.2, 1.1)
_SHARE_OF_RATIOS = 0.02
_HELD_BACK = 0.06
_SHAKES, _SHAKEN_BY = 12, 0.5
#: How many times layouts out of dumps count.
_DUMPS = 2.0

Floats = NDArray[np.float64]


class Cases:
    """Counts and times of the candidates of each cell, as arrays padded to the most candidates."""

    def __init__(self, rows: Iterable[tuple[Floats, Floats, float]]) -> None:
        """Each row: counts of (candidates, terms), times of (candidates,), and how much the cell counts."""
        found = list(rows)
        most = max(len(times) for _, times, _ in found)
        terms = found[0][0].shape[1]
        self.counts = np.zeros((len(found), most, terms))
        self.times = np.full((len(found), most), np.inf)
        self.weights = np.array([weight for *_, weight in found])
        for k, (counts, times, _) in enumerate(found):
            self.counts[k, : len(times)], self.times[k, : len(times)] = counts, times
        self.is_there = np.isfinite(self.times)
        self.logs = np.where(self.is_there, np.log(np.where(self.is_there, self.times, 1)), 0)

    def part(self, chosen: NDArray[np.bool_]) -> Cases:
        """The cells that are chosen."""
        rows = zip(self.counts[chosen], self.times[chosen], self.weights[chosen], strict=True)
        return Cases((counts[np.isfinite(times)], times[np.isfinite(times)], weight) for counts, times, weight in rows)

    def regret(self, coefficients: Floats) -> Floats:
        """Logarithms of the time of the choice over the best one."""
        costs = np.where(self.is_there, self.counts @ coefficients, np.inf)
        taken = costs.argmin(1)
        logs = np.where(self.is_there, self.logs, np.inf)
        return logs[np.arange(len(taken)), taken] - logs.min(1)

    def loss(self, coefficients: Floats, first: Floats) -> float:
        """What the fit makes small; what it begins with holds it back."""
        costs = np.log(np.maximum(self.counts @ coefficients, 1e-9))
        off = np.where(self.is_there, costs - self.logs, 0)
        count = self.is_there.sum(1, keepdims=True)
        off = np.where(self.is_there, off - off.sum(1, keepdims=True) / count, 0)
        ratios = np.abs(off).sum(1) / count[:, 0]
        found = np.average(self.regret(coefficients) + _SHARE_OF_RATIOS * ratios, weights=self.weights)
        return float(found + _HELD_BACK * np.abs(np.log(coefficients / first)).mean())


def cases_of(results: Iterable[dict[str, object]]) -> tuple[Cases, list[str]]:
    """The cases of some results, planned again, and their cells."""
    import fastindex as fi
    from benchmarks.regret import OFFSETS, movement_at
    from fastindex.moving.choice import plans

    rows: list[tuple[Floats, Floats, float]] = []
    keys: list[str] = []
    for result in results:
        for key, row in result["rows"].items():  # type: ignore[attr-defined]
            kind, source, destination = row["cell"]
            shapes = fi.Shape.parse(source), fi.Shape.parse(destination)
            of_each = {
                str(offset): {one.name: one.counts for one in plans(movement_at(shapes, offset).problem)}
                for offset in OFFSETS
            }
            for which, times in row["microseconds"].items():
                counts = of_each[which.split(", ")[1]]
                names = [name for name in counts if name in times]
                if len(names) < 2:
                    continue
                both = [counts[name] for name in names], [times[name] for name in names]
                rows.append((np.array(both[0], float), np.array(both[1], float), _DUMPS if kind == "dumps" else 1.0))
                keys.append(key)
    return Cases(rows), keys


def fitted(cases: Cases, first: Floats) -> Floats:
    """Coefficients that are better for some cases: one change after the other, from many places."""
    generator = np.random.default_rng(0)
    best = _descended(cases, first, first)
    for _ in range(_SHAKES):
        shaken = best * np.exp(generator.normal(0, _SHAKEN_BY, len(best)))
        best = min((best, _descended(cases, shaken, first)), key=lambda one: cases.loss(one, first))
    return best


def _descended(cases: Cases, coefficients: Floats, first: Floats) -> Floats:
    best, least = coefficients.copy(), cases.loss(coefficients, first)
    for factor in FACTORS:
        is_better = True
        while is_better:
            is_better = False
            for term in range(len(best)):
                for change in (factor, 1 / factor):
                    tried = best.copy()
                    tried[term] *= change
                    if (loss := cases.loss(tried, first)) < least - 1e-6:
                        best, least, is_better = tried, loss, True
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="what regret.py has written")
    from fastindex.moving.counts import COEFFICIENTS, Counts

    cases, keys = cases_of(json.loads(path.read_text()) for path in parser.parse_args().results)
    # Both numbers of threads of a cell, and both sizes of a layout, stay in one half.
    halves = np.array([hash_of(key) % 2 == 0 for key in keys])
    before = np.array(COEFFICIENTS, float)
    parts = cases.part(halves), cases.part(~halves)
    found = [fitted(part, before) for part in parts]
    mean = np.exp(np.mean(np.log(found), axis=0))
    for name, part, after in (*zip(("tested on",) * 2, parts, found[::-1], strict=True), ("mean, on all", cases, mean)):
        regrets = [np.exp(part.regret(each).mean()) for each in (before, after)]
        worst = [np.exp(part.regret(each).max()) for each in (before, after)]
        print(
            f"{name} {len(part.times)} cases: chosen over best {regrets[0]:.3f} before, {regrets[1]:.3f} after; ",
            end="",
        )
        print(f"worst {worst[0]:.2f} and {worst[1]:.2f}")
    for name, value in zip(Counts._fields, mean, strict=True):
        print(f"    {name}={value:.3g},")


def hash_of(key: str) -> int:
    """A number that is the same in every run."""
    import zlib

    return zlib.crc32(key.encode())


if __name__ == "__main__":
    main()
