"""Check and measure every case on this machine's GPU, beside torch, CuPy and JAX and beside a copy on the device.

    python benchmarks/gpu.py                     everything: some minutes
    python benchmarks/gpu.py --cases transpose   only cases with this in their name
    python benchmarks/gpu.py --mib 16 --count 100000   a quick look

Times are medians of CUDA events around a call; rivals take turns. JAX works on streams of its own, so its times are of
the host, and allocate. Writes JSON and a table, with the GPU's name, under ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import fastindex as fi  # noqa: E402
import fastindex.cuda  # noqa: E402
from benchmarks import gpu_peers, measure  # noqa: E402
from benchmarks.cases import INDEX_CASES, RELAYOUT_CASES, RelayoutCase, text  # noqa: E402
from benchmarks.problems import Problem  # noqa: E402

Run = Callable[[], object]

#: Least fraction of the copy's speed, by kind of case: 1- and 2-byte transposes have one of their own.
TARGETS = {"long runs": 0.95, "transpose": 0.9, "narrow transpose": 0.85, "other": 0.6, "index": 0.85}
PACKAGES = ("fastindex", "numba", "numba-cuda", "torch", "cupy", "jax")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="part of the names of the cases to run")
    parser.add_argument("--mib", type=int, default=256, help="least size of the source of a relayout")
    parser.add_argument("--count", type=int, default=1 << 26, help="how many indices to convert")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    return parser.parse_args()


class Clock:
    """Milliseconds between CUDA events on the default stream."""

    def __init__(self, rounds: int) -> None:
        from numba import cuda

        self._cuda = cuda
        self._rounds = rounds

    def medians(self, rivals: dict[str, Run]) -> dict[str, float]:
        """Median seconds of every rival; they take turns."""
        names = list(rivals)
        times: dict[str, list[float]] = {name: [] for name in names}
        for name in names:
            rivals[name]()
        for number in range(self._rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                times[name].append(self._host(rivals[name]) if name == "jax" else self._events(rivals[name]))
        return {name: statistics.median(found) for name, found in times.items()}

    def _events(self, run: Run) -> float:
        begin, end = self._cuda.event(), self._cuda.event()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(self._cuda.event_elapsed_time(begin, end)) / 1e3

    def _host(self, run: Run) -> float:
        self._cuda.synchronize()
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin


def enlarged(case: RelayoutCase, nbytes: int) -> tuple[str, str]:
    """The case with its first dimension a multiple of what it is, so that nothing else changes."""
    size = fi.Shape.parse(case.source()).nbytes
    dimensions = (case.round[0] * max(1, math.ceil(nbytes / size)), *case.round[1:])
    return (
        text(case.element_type, dimensions, case.source_layout),
        text(case.element_type, dimensions, case.destination_layout),
    )


def kind_of(case: RelayoutCase) -> str:
    narrow = case.kind == "byte transpose" or (case.kind == "transpose" and case.element_type in ("bf16", "f16"))
    return "narrow transpose" if narrow else case.kind


def copy_seconds(clock: Clock, nbytes: int) -> float:
    """A copy on the device of as many bytes."""
    from numba import cuda

    source, target = (cuda.device_array(nbytes, np.uint8) for _ in range(2))
    return clock.medians({"copy": lambda: target.copy_to_device(source)})["copy"]


def relayout_row(case: RelayoutCase, clock: Clock, nbytes: int, libraries: dict[str, Any]) -> dict[str, Any]:
    from numba import cuda

    source, destination = map(fi.Shape.parse, enlarged(case, nbytes))
    buffer = measure.random_bytes(source.nbytes)
    given, out = cuda.to_device(buffer), cuda.device_array(destination.nbytes, np.uint8)
    plan = fi.plan_relayout(source, destination)
    plan(given, out=out)
    right = bool(np.array_equal(out.copy_to_host(), fi.relayout(buffer, source, destination).view(np.uint8)))
    rivals: dict[str, Run] = {"fastindex": lambda: plan(given, out=out)}
    try:
        rivals |= gpu_peers.relayout_rivals(Problem(str(source), str(destination), buffer), buffer, libraries)
    except ValueError as error:
        print(f"  no rivals: {error}")
    moved = source.nbytes + destination.nbytes
    return row(case.name, kind_of(case), right, moved, clock.medians(rivals), copy_seconds(clock, moved // 2))


def row(name: str, kind: str, right: bool, moved: int, seconds: dict[str, float], copy: float) -> dict[str, Any]:
    return {
        "case": name,
        "kind": kind,
        "correct": right,
        "bytes": moved,
        "seconds": seconds,
        "gigabytes_per_second": moved / seconds["fastindex"] / 1e9,
        "copy_seconds": copy,
        "fraction_of_copy": copy / seconds["fastindex"],
        "target": TARGETS[kind],
        "ahead_of_rivals": all(seconds["fastindex"] <= other for other in seconds.values()),
    }


def index_rows(name: str, shape_text: str, clock: Clock, count: int, libraries: dict[str, Any]) -> list[dict[str, Any]]:
    from numba import cuda

    shape = fi.Shape.parse(shape_text)
    generator = np.random.default_rng(0)
    indices = [generator.integers(size, size=count) for size in shape.dimensions]
    slots = fi.linear_index(shape, indices)
    columns, flat = [cuda.to_device(index) for index in indices], cuda.to_device(slots)
    # "wrap" does not wait for the GPU; multi_index has to, for slots outside the buffer.
    out, outs = cuda.device_array(count, np.int64), [cuda.device_array(count, np.int64) for _ in indices]
    calls: dict[str, Run] = {
        "linear_index": lambda: fi.linear_index(shape, columns, "wrap", out=out),
        "multi_index": lambda: fi.multi_index(shape, flat, padding="mark", out=outs),
    }
    for call in calls.values():
        call()
    right = {
        "linear_index": bool(np.array_equal(out.copy_to_host(), slots)),
        "multi_index": all(np.array_equal(a.copy_to_host(), b) for a, b in zip(outs, indices, strict=True)),
    }
    rivals = gpu_peers.index_rivals(shape, indices, slots, libraries)
    moved = 8 * count * (shape.rank + 1)
    copy = copy_seconds(clock, moved // 2)
    return [
        row(
            f"{direction}, {name}",
            "index",
            right[direction],
            moved,
            clock.medians({"fastindex": call} | rivals[direction]),
            copy,
        )
        for direction, call in calls.items()
    ]


def launch_microseconds() -> dict[str, float]:
    """What a call of a plan costs the host, and with the GPU's work for a small buffer."""
    from numba import cuda

    plan = fi.plan_relayout("f32[64,64]{1,0}", "f32[64,64]{0,1}")
    given, out = cuda.device_array(4096, np.float32), cuda.device_array(4096, np.float32)
    plan(given, out=out)
    cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(1000):
        plan(given, out=out)
    submitted = time.perf_counter() - begin
    cuda.synchronize()
    return {"submit": submitted * 1e3, "complete": (time.perf_counter() - begin) * 1e3}


def table(rows: list[dict[str, Any]], heading: str) -> str:
    lines = [
        heading,
        "",
        "| case | GB/s | of a copy | target | correct | rivals, times slower |",
        "|---|---|---|---|---|---|",
    ]
    for found in rows:
        own = found["seconds"]["fastindex"]
        others = ", ".join(f"{name} {t / own:.2f}" for name, t in found["seconds"].items() if name != "fastindex")
        mark = "" if found["fraction_of_copy"] >= found["target"] else " (below)"
        lines.append(
            f"| {found['case']} | {found['gigabytes_per_second']:.0f} | {found['fraction_of_copy']:.2f}{mark} | "
            f"{found['target']:.2f} | {'yes' if found['correct'] else 'NO'} | {others or '-'} |"
        )
    return "\n".join(lines) + "\n"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def main() -> int:
    options = arguments()
    reason = fastindex.cuda.why_unavailable()
    if reason is not None:
        print(f"nothing to measure: {reason}", file=sys.stderr)
        return 1
    name, libraries, clock = fastindex.cuda.device_name(), gpu_peers.installed(), Clock(options.rounds)
    rows: list[dict[str, Any]] = []
    for case in RELAYOUT_CASES:
        if options.cases in case.name:
            print(case.name, flush=True)
            rows.append(relayout_row(case, clock, options.mib << 20, libraries))
    for index_case in INDEX_CASES:
        if options.cases in index_case.name:
            print(index_case.name, flush=True)
            rows += index_rows(index_case.name, index_case.shape, clock, options.count, libraries)
    date = datetime.date.today().isoformat()
    result = {"gpu": name, "date": date, "versions": versions(), "launch_us": launch_microseconds(), "rows": rows}
    options.output.mkdir(parents=True, exist_ok=True)
    stem = options.output / f"gpu-{re.sub('[^a-z0-9]+', '-', name.lower())}-{date}"
    written = table(rows, f"{name}, {date}; sources of at least {options.mib} MiB, {options.count} indices")
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    stem.with_suffix(".md").write_text(written)
    print(written)
    return 0 if all(found["correct"] for found in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
