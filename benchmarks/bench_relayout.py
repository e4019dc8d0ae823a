"""asv: relayout of every case; times, and ratios to the copy ceiling and to the best rival."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import RELAYOUT_CASES
from benchmarks.copy_ceiling import copies
from benchmarks.relayout_rows import ours, row, source_buffer

NAMES = [case.name for case in RELAYOUT_CASES]
CASES = {case.name: case for case in RELAYOUT_CASES}


class Relayout:
    """Time of one call of a cached plan, output given."""

    params = (NAMES, ("round", "prime"), (1, 2))
    param_names = ("case", "size", "threads")
    timeout = 300
    number = 1
    repeat = 7
    rounds = 2

    def setup(self, name: str, size: str, threads: int) -> None:
        case = CASES[name]
        source, destination = case.source(size), case.destination(size)
        self.run = ours(source, destination, source_buffer(source), threads).run
        self.run()

    def time_relayout(self, name: str, size: str, threads: int) -> None:
        self.run()

    def peakmem_relayout(self, name: str, size: str, threads: int) -> None:
        self.run()


class RelayoutRatios:
    """The same as ratios, measured beside the ceiling and the rivals in one process."""

    params = Relayout.params
    param_names = Relayout.param_names
    timeout = 600
    unit = "ratio"
    ceiling_nbytes = 1 << 30
    rounds = 7

    def measured(self, name: str, size: str, threads: int) -> dict[str, Any]:
        case = CASES[name]
        ceiling = copies(self.ceiling_nbytes, threads)
        return row(case.source(size), case.destination(size), threads, self.rounds, ceiling, self.ceiling_nbytes)

    def track_fraction_of_copy(self, name: str, size: str, threads: int) -> float:
        return float(self.measured(name, size, threads)["fraction_of_copy"])

    def track_ratio_to_best_peer(self, name: str, size: str, threads: int) -> float:
        return float(self.measured(name, size, threads)["ratio_to_best_peer"])
