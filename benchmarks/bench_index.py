"""asv: index conversion in bulk; times, and ratios to NumPy and to the copy ceiling."""

from __future__ import annotations

from typing import Any

import fastindex as fi
from benchmarks.cases import INDEX_CASES, INDEX_COUNT
from benchmarks.copy_ceiling import copies
from benchmarks.index_rows import drop_in_rows, prepared, row, touched_nbytes

CASES = {case.name: case for case in INDEX_CASES}


class Index:
    """Time of one call on random indices, output given."""

    params = (list(CASES), ("linear_index", "multi_index"), (1, 2))
    param_names = ("case", "function", "threads")
    timeout = 300
    number = 1
    repeat = 7
    count = INDEX_COUNT

    def setup(self, name: str, function: str, threads: int) -> None:
        self.run = prepared(CASES[name], self.count, threads)[function]["fastindex"]

    def time_index(self, name: str, function: str, threads: int) -> None:
        self.run()

    def peakmem_index(self, name: str, function: str, threads: int) -> None:
        self.run()


class IndexRatios:
    """The same as ratios, measured beside NumPy and the ceiling in one process."""

    params = Index.params
    param_names = Index.param_names
    timeout = 600
    unit = "ratio"
    count = INDEX_COUNT
    ceiling_nbytes = 1 << 30
    rounds = 7

    def measured(self, name: str, function: str, threads: int) -> dict[str, Any]:
        case = CASES[name]
        runs = prepared(case, self.count, threads)[function]
        nbytes = touched_nbytes(fi.Shape.parse(case.shape), self.count)
        ceiling = copies(self.ceiling_nbytes, threads)
        return row(case, function, runs, nbytes, threads, self.rounds, ceiling, self.ceiling_nbytes)

    def track_fraction_of_copy(self, name: str, function: str, threads: int) -> float:
        return float(self.measured(name, function, threads)["fraction_of_copy"])

    def track_ratio_to_numpy(self, name: str, function: str, threads: int) -> float:
        return float(self.measured(name, function, threads)["ratio_to_numpy"])


class DropIns:
    """fastindex under NumPy's own signatures, beside NumPy."""

    params = (("ravel_multi_index", "ravel_multi_index, coordinates side by side", "unravel_index"),)
    param_names = ("function",)
    timeout = 300
    unit = "ratio"
    count = INDEX_COUNT
    rounds = 7

    def track_ratio_to_numpy(self, function: str) -> float:
        rows = drop_in_rows(self.count, 2, self.rounds)
        return next(float(found["ratio_to_numpy"]) for found in rows if found["function"] == function)
