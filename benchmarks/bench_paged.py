"""asv: paged caches, beside a copy of as many bytes and what engines do by hand."""

from __future__ import annotations

from benchmarks.copy_ceiling import copies
from benchmarks.measure import medians
from benchmarks.paged import MOVES, Job, moves, runs, slots


class _Jobs:
    """One job of a list, by its place."""

    param_names = ("job", "threads")
    timeout = 600
    rounds = 5

    def job(self, number: int, threads: int) -> Job:
        raise NotImplementedError

    def setup(self, number: int, threads: int) -> None:
        self.found = self.job(number, threads)

    def time_ours(self, number: int, threads: int) -> None:
        self.found.ours()

    def track_ratio_to_rival(self, number: int, threads: int) -> float:
        name, rival = next(iter(self.found.rivals.items()))
        seconds = medians({"ours": self.found.ours, name: rival}, self.rounds)
        return seconds[name] / seconds["ours"]


class _Copies(_Jobs):
    """Jobs whose ceiling is a copy."""

    def track_fraction_of_copy(self, number: int, threads: int) -> float:
        seconds = medians({"ours": self.found.ours, **copies(self.found.copied_bytes, threads)}, self.rounds)
        return min(time for name, time in seconds.items() if name != "ours") / seconds["ours"]


class Slots(_Copies):
    """Slot mappings: positions in order, and in any order."""

    params = ([0, 1], [1, 2])
    slot_count = 1 << 24

    def job(self, number: int, threads: int) -> Job:
        return [*slots(threads, self.slot_count)][number]


class Runs(_Jobs):
    """A million runs: of one layer, of 32 layers, of single heads."""

    params = ([0, 1, 2], [1])
    run_count = 1 << 20

    def job(self, number: int, threads: int) -> Job:
        return [*runs(self.run_count)][number]


class Moves(_Copies):
    """Copies of 64 MiB between layouts."""

    params = ([*range(len(MOVES))], [1, 2])
    moved_nbytes = 64 << 20

    def job(self, number: int, threads: int) -> Job:
        return [*moves(threads, self.moved_nbytes)][number]
