"""Measure every tile chain in every width and size against a copy; a heat map, and the slowest cells by name.

    python benchmarks/sweep.py                   300 cells taken at random: some two minutes
    python benchmarks/sweep.py --cells 1000 --seed 7
    python benchmarks/sweep.py --full            every cell: some hours; goes on where it was interrupted
    python benchmarks/sweep.py --chain "T(2,*,128)" --width "2 bytes"
    python benchmarks/sweep.py --update-readme   put the table of what has been measured into benchmarks/README.md

A figure is the fraction of a copy's speed: bytes of the source's cache lines that hold an element and of the whole
destination, by the best of five calls into memory touched before, over the same of a copy of 48 MiB, its best of five,
measured in turn with the calls. A copy is the better of memmove and one with non-temporal stores, with as many threads.
Beside it stands what reading the same lines and writing as many takes, and nothing else (`own_lines.py`): hardly a
relayout is faster.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import measure, report, sweep_cells, sweep_report  # noqa: E402

ROUNDS = 5
_CHECKED_ELEMENTS = 2000
_SAVED_EVERY = 50


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=300, help="how many cells, taken at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", action="store_true", help="every cell")
    parser.add_argument("--chain", choices=sweep_cells.CHAINS, help="only these tiles")
    parser.add_argument("--width", choices=list(sweep_cells.TYPES), help="only this width")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "sweep.json")
    parser.add_argument("--update-readme", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; run again to go on")
    return parser.parse_args()


class Bench:
    """Memory that all cells share, and the copy that they are compared with."""

    def __init__(self, threads: int) -> None:
        from benchmarks import copy_ceiling, own_lines

        room = 2 * sweep_cells.CELL_BYTES
        self._threads, self._touches = threads, own_lines.touches
        self._source, self._output = measure.random_bytes(room), measure.touched_bytes(room)
        self._copies = copy_ceiling.copies(sweep_cells.CELL_BYTES, threads)
        # The first plan of a process loads the planner and the compiler.
        import fastindex as fi

        for destination in ("u8[64,64]{0,1}", "u8[64,64]{0,1:T(8,128)(4,1)}"):
            fi.relayout(self._source[:4096], "u8[64,64]", destination)

    def row(self, cell: sweep_cells.Cell) -> dict[str, Any]:
        """Measure one cell, after a check of its result."""
        import fastindex as fi

        source, destination = cell.shapes
        begin = time.perf_counter()
        plan = fi.plan_relayout(source, destination)
        plan_seconds = time.perf_counter() - begin
        buffers = self._source[: source.nbytes], self._output[: destination.nbytes]
        given, output = (as_buffer(*pair) for pair in zip(buffers, cell.shapes, strict=True))
        plan(given, out=output, threads=self._threads)
        check(cell, given, output)
        touches = self._touches(self._source, sweep_cells.numbers_of_lines(source), buffers[1], self._threads)
        seconds = [float("inf")] * (1 + len(touches))
        copy_seconds = float("inf")
        for _ in range(ROUNDS):
            for place, run in enumerate([lambda: plan(given, out=output, threads=self._threads), *touches]):
                # The copies also put out of the cache what the run before has left there.
                copied = [measure.sample(copy, 1) for copy in self._copies.values()]
                if place == 0:
                    # As many of each copy count as of the relayout: the best of more would be better by chance.
                    copy_seconds = min(copy_seconds, *copied)
                seconds[place] = min(seconds[place], measure.sample(run, 1))
        times = seconds[0], min(seconds[1:])
        speed, lines_speed = (cell.moved_bytes() / one / 1e9 for one in times)
        copy_speed = 2 * sweep_cells.CELL_BYTES / copy_seconds / 1e9
        return {
            "gigabytes_per_second": round(speed, 2),
            "copy": round(copy_speed, 2),
            "fraction_of_copy": float(f"{speed / copy_speed:.4g}"),
            "lines_of_copy": float(f"{lines_speed / copy_speed:.4g}"),
            "kernels": kernels_of(plan),
            "plan_microseconds": round(plan_seconds * 1e6, 1),
        }


def kernels_of(plan: Any) -> list[str]:
    """What moves most, as `describe` names it: the kernels of passes with a tenth of the bytes and more."""
    moved: dict[str, int] = {}
    for name, tasks, nbytes in re.findall(
        r"^([\w ]+), .*?([\d,]+) tasks?, about ([\d,]+) bytes", plan.describe(), re.M
    ):
        moved[name] = moved.get(name, 0) + int(tasks.replace(",", "")) * int(nbytes.replace(",", ""))
    return [name for name, nbytes in moved.items() if 10 * nbytes >= sum(moved.values())]


def as_buffer(memory: Any, shape: Any) -> Any:
    """View bytes as the buffer of a shape."""
    return memory if shape.element_bits < 8 else memory.view(shape.element_type.numpy_dtype)


def check(cell: sweep_cells.Cell, given: Any, output: Any) -> None:
    """Raise unless some elements, the last one among them, have the same bits on both sides."""
    import numpy as np

    import fastindex as fi

    source, destination = cell.shapes
    generator = np.random.default_rng(1)
    index = tuple(generator.integers(0, size, _CHECKED_ELEMENTS) for size in source.dimensions)
    for coordinates, size in zip(index, source.dimensions, strict=True):
        coordinates[0] = size - 1
    found, expected = (
        values_at(buffer, fi.linear_index(shape, index), shape.element_bits)
        for buffer, shape in ((output, destination), (given, source))
    )
    if not np.array_equal(found, expected):
        raise AssertionError(f"{source} to {destination} gives a wrong result")


def values_at(buffer: Any, slots: Any, bits: int) -> Any:
    import numpy as np

    if bits >= 8:
        return buffer.view(np.uint8).reshape(-1, bits // 8)[slots]
    return buffer[slots * bits // 8] >> (slots * bits % 8) & ((1 << bits) - 1)


def save(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    results["machine"], results["date"] = measure.machine(), datetime.datetime.now(datetime.UTC).date().isoformat()
    rest = {name: value for name, value in results.items() if name != "cells"}
    # A line for each cell.
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in sorted(results["cells"].items()))
    part = path.with_suffix(".part")
    part.write_text(f'{json.dumps(rest)[:-1]}, "cells": {{\n{lines}\n}}}}\n')
    part.replace(path)


def chosen(options: argparse.Namespace) -> list[sweep_cells.Cell]:
    cells = list(sweep_cells.every_cell())
    cells = [cell for cell in cells if options.chain in (None, cell.chain) and options.width in (None, cell.width)]
    return cells if options.full else sweep_cells.sampled(cells, options.cells, options.seed)


def main() -> None:
    options = arguments()
    results: dict[str, Any] = {"threads": options.threads, "cells": {}}
    if options.output.exists():
        results = json.loads(options.output.read_text())
        if results["threads"] != options.threads:
            raise SystemExit(f"{options.output} holds figures of {results['threads']} threads")
    cells = chosen(options)
    left = [cell for cell in cells if cell.key not in results["cells"]]
    measure.use_processors(options.threads)
    bench = Bench(options.threads) if left else None
    end = time.monotonic() + options.seconds
    for done, cell in enumerate(left):
        if time.monotonic() > end:
            print(f"stopped: {len(left) - done} cells are left")
            break
        assert bench is not None
        results["cells"][cell.key] = bench.row(cell)
        if done % _SAVED_EVERY == 0:
            save(options.output, results)
    save(options.output, results)
    measured = {cell.key: results["cells"][cell.key] for cell in cells if cell.key in results["cells"]}
    text = sweep_report.markdown(results, measured)
    print(text)
    if options.update_readme:
        options.output.with_suffix(".svg").write_text(sweep_report.heat_map(measured))
        options.output.with_name("sweep_exceptions.md").write_text(sweep_report.exceptions(results, measured))
        report.update(ROOT / "benchmarks" / "README.md", text, sweep_report.BEGIN, sweep_report.END)


if __name__ == "__main__":
    main()
