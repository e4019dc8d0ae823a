"""The regret of the planner: how much slower the way it chose is than the best one that it had.

    python benchmarks/regret.py                    40 cells of 1 and of 48 MiB with one thread and two: some minutes
    python benchmarks/regret.py --cells 300 --seed 7 --seconds 280        run it again to go on
    python benchmarks/regret.py --without digits pairs   what it would cost to take candidates away
    python benchmarks/regret.py --update-readme    put the tables into benchmarks/README.md

Cells are drawn (`regret_cells.py`); layouts out of dumps are a separate class. Of each cell every candidate that
applies is timed in turn in one process, on the same memory, after all have given the same bytes: between buffers that
begin with a page, and 16 bytes after one, where large arrays of NumPy begin. A figure is the best of seven samples.
It asks the planner for its candidates, so it knows more than the public interface.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import measure, regret_cells, report  # noqa: E402

#: Bytes of the larger side, and the most of any cell.
SIZES = (1 << 20, 48 << 20)
MOST_BYTES = 2 * max(SIZES)
THREADS = (1, 2)
#: Where both buffers begin, in bytes after the begin of a page.
OFFSETS = (0, 16)
ROUNDS = 7
BEGIN, END = "<!-- regret: begin -->", "<!-- regret: end -->"
Row = dict[str, Any]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=40, help="how many of each size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=regret_cells.CLASSES, default=list(regret_cells.CLASSES))
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long; run again to go on")
    parser.add_argument("--output", type=Path, default=Path("regret.json"))
    parser.add_argument(
        "--shared", action="store_true", help="others use the machine: one thread, and the time that it has a processor"
    )
    parser.add_argument("--without", nargs="*", default=[], help="candidates to be taken away, all together")
    parser.add_argument("--update-readme", action="store_true")
    return parser.parse_args()


class Bench:
    """Memory that all cells share."""

    def __init__(self, most_bytes: int = MOST_BYTES, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        room = most_bytes + max(OFFSETS)
        self._source, self._output = measure.random_bytes(room), measure.touched_bytes(room)

    def row(self, cell: regret_cells.RegretCell, rounds: int = ROUNDS, threads: Sequence[int] = THREADS) -> Row:
        """Time every candidate of a cell, and say which one the planner takes."""
        chosen, times = {}, {}
        for offset in OFFSETS:
            taken, found = self._times_at(cell, offset, rounds, threads)
            chosen[str(offset)] = taken
            times.update({f"{count}, {offset}": of_each for count, of_each in found.items()})
        return {"cell": list(cell), "chosen": chosen, "microseconds": times}

    def _times_at(
        self, cell: regret_cells.RegretCell, offset: int, rounds: int, threads: Sequence[int]
    ) -> tuple[str, dict[int, dict[str, float]]]:
        import fastindex as fi
        from fastindex.arrays.arrays import address_of
        from fastindex.arrays.fills import fill_pattern
        from fastindex.moving.choice import plans, select_plan

        shapes = fi.Shape.parse(cell.source), fi.Shape.parse(cell.destination)
        chosen = movement_at(shapes, offset)
        found = {one.name: replace(chosen, choice=one.name) for one in plans(chosen.problem)}
        taken = select_plan(chosen.problem).name
        found.setdefault(taken, chosen)
        given, output = (
            memory[offset : offset + shape.nbytes]
            for memory, shape in zip((self._source, self._output), shapes, strict=True)
        )
        pattern, expected = fill_pattern(shapes[1]), None
        for name, other in found.items():
            output[:] = 0xA5
            other.run(address_of(given), address_of(output), pattern, None)
            if expected is None:
                expected = output.copy()
            elif expected.tobytes() != output.tobytes():
                raise AssertionError(f"{name} gives another result for {cell.source} to {cell.destination}")
        return taken, {count: self._times(found, given, output, pattern, count, rounds) for count in threads}

    def _times(
        self, found: dict[str, Any], given: Any, output: Any, pattern: bytes, threads: int, rounds: int
    ) -> dict[str, float]:
        from fastindex.arrays.arrays import address_of

        addresses = address_of(given), address_of(output)

        def sample(other: Any, repeats: int) -> float:
            begin = self._clock()
            for _ in range(repeats):
                other.run(*addresses, pattern, threads)
            return (self._clock() - begin) / repeats

        repeats = {name: max(1, min(50, round(5e-4 / max(sample(other, 1), 1e-6)))) for name, other in found.items()}
        best = dict.fromkeys(found, math.inf)
        for _ in range(rounds):
            for name, other in found.items():
                best[name] = min(best[name], sample(other, repeats[name]))
        return {name: round(1e6 * seconds, 2) for name, seconds in best.items()}


def movement_at(shapes: tuple[Any, Any], offset: int) -> Any:
    """The movement to a destination that begins `offset` bytes after the begin of a page."""
    from fastindex.moving.movements import movement

    found = movement(*shapes)
    return found.within_lines if offset and found.depends_on_lines else found


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Go on with the results of earlier runs, as far as the time goes."""
    results: dict[str, Any] = {"seed": options.seed, "rows": {}}
    if options.output.exists():
        results = json.loads(options.output.read_text())
        if results["seed"] != options.seed:
            raise SystemExit(f"{options.output} holds figures of seed {results['seed']}")
    cells = [
        (f"{nbytes}|{cell.source}|{cell.destination}", cell)
        for of_each in zip(*(regret_cells.drawn(options.cells, options.seed + n, n) for n in SIZES), strict=True)
        for nbytes, cell in zip(SIZES, of_each, strict=True)
        if cell.kind in options.kinds
    ]
    left = [(key, cell) for key, cell in cells if key not in results["rows"]]
    end = time.monotonic() + options.seconds
    bench = Bench(clock=time.thread_time if options.shared else time.perf_counter) if left else None
    for key, cell in left:
        if time.monotonic() > end:
            break
        assert bench is not None
        results["rows"][key] = bench.row(cell, threads=THREADS[:1] if options.shared else THREADS)
        results["machine"], results["date"] = measure.machine(), datetime.datetime.now(datetime.UTC).date().isoformat()
        options.output.write_text(json.dumps(results) + "\n")
    results["left"] = sum(key not in results["rows"] for key, _ in cells)
    return results


def times_of(rows: Iterable[Row]) -> list[tuple[str, str, dict[str, float]]]:
    """Class, choice and times of each cell, each number of threads and each offset separately."""
    return [
        (row["cell"][0], row["chosen"][key.split(", ")[1]], times)
        for row in rows
        for key, times in row["microseconds"].items()
    ]


def regrets(found: Iterable[tuple[str, str, dict[str, float]]]) -> dict[str, list[float]]:
    """Times of the choice over the best one, by class, and of all classes together."""
    by_class: dict[str, list[float]] = {"all": []}
    for kind, chosen, times in found:
        ratio = times[chosen] / min(times.values())
        by_class.setdefault(kind, []).append(ratio)
        by_class["all"].append(ratio)
    return by_class


def removal(rows: Iterable[Row], names: Sequence[str]) -> dict[str, list[float]]:
    """Times of the best one without some candidates over the best of all, by class, where one of them is the best."""
    found: dict[str, list[float]] = {"all": []}
    for kind, _, times in times_of(rows):
        rest = {name: one for name, one in times.items() if name not in names}
        if not rest or min(rest.values()) == min(times.values()):
            continue
        ratio = min(rest.values()) / min(times.values())
        found.setdefault(kind, []).append(ratio)
        found["all"].append(ratio)
    return found


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else 1.0


def _line(name: str, ratios: Sequence[float]) -> list[str]:
    ordered = sorted(ratios)
    tenth = ordered[len(ordered) * 9 // 10]
    return [name, str(len(ratios)), f"{geometric_mean(ratios):.3f}", f"{tenth:.2f}", f"{ordered[-1]:.2f}"]


def markdown(results: dict[str, Any]) -> str:
    """The regret by class, and what each candidate is worth."""
    rows = list(results["rows"].values())
    found = times_of(rows)
    by_class = regrets(found)
    kinds = [kind for kind in (*regret_cells.CLASSES, "all") if by_class.get(kind)]
    parts = [
        f"{results['date']}, {results['machine']['processor']}, {results['machine']['processors']} processors, seed "
        f"{results['seed']}, best of {ROUNDS}: {len(rows)} cells of 1 and of 48 MiB, buffers at pages and "
        "16 bytes after.",
        report.table(
            ["chosen over best", "cases", "geometric mean", "a tenth above", "worst"],
            [_line(kind, by_class[kind]) for kind in kinds],
        ),
    ]
    names = sorted({name for _, _, times in found for name in times})
    lines = []
    for name in names:
        applies = sum(name in times for _, _, times in found)
        chosen = sum(name == one for _, one, _ in found)
        lost = removal(rows, [name])["all"]
        dumps = removal(rows, [name]).get("dumps", [])
        lines.append(
            [name, str(applies), str(chosen), str(len(lost)), f"{geometric_mean(lost):.3f}"]
            + [f"{max(ratios):.2f}" if ratios else "" for ratios in (lost, dumps)]
        )
    header = ["candidate", "applies", "chosen", "is best", "by, geometric mean", "at most", "at most, of dumps"]
    parts.append(report.table(header, lines))
    return "\n\n".join(parts) + "\n"


def main() -> None:
    options = arguments()
    measure.use_processors(max(THREADS))
    results = measured(options)
    print(f"seed {options.seed}, {results['left']} cells are left\n")
    text = markdown(results)
    print(text)
    if options.without:
        lost = removal(results["rows"].values(), options.without)
        print(f"Without {', '.join(options.without)}, where one of them is the best:\n")
        lines = [_line(kind, ratios) for kind, ratios in lost.items() if ratios]
        print(report.table(["best of the rest over best", "cases", "geometric mean", "a tenth above", "worst"], lines))
    if options.update_readme:
        report.update(ROOT / "benchmarks" / "README.md", text, BEGIN, END)


if __name__ == "__main__":
    main()
