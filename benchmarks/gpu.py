"""Check and measure every case on this machine's GPU, beside torch, CuPy and JAX and beside a copy on the device.

    python benchmarks/gpu.py                     everything: some minutes
    python benchmarks/gpu.py --cases transpose   only cases with this in their name
    python benchmarks/gpu.py --mib 16 --count 100000 --no-compile   a quick look

Times are of the GPU (`gpu_clock`); rivals take turns. JAX works on streams of its own, so its times are of many calls
from the host, and allocate. Every result is checked against the processor's, in memory that held other bytes before.
Writes JSON, a table and a plot, with the GPU's name, under ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import re
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# JAX would take three quarters of the memory at once; and the kernel that spins is small on purpose.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import fastindex as fi  # noqa: E402
import fastindex.cuda  # noqa: E402
from benchmarks import gpu_peers, measure, report  # noqa: E402
from benchmarks.cases import INDEX_CASES, RELAYOUT_CASES, RelayoutCase, text  # noqa: E402
from benchmarks.gpu_clock import Clock, Run  # noqa: E402
from benchmarks.problems import Problem  # noqa: E402

#: Least fraction of the copy's speed, by kind of case; odd sizes have their own.
TARGETS = {"copy": 0.9, "transpose": 0.9, "2-byte transpose": 0.85, "1-byte transpose": 0.75, "other": 0.6}
ODD_TARGET, INDEX_TARGET = 0.6, 0.85
PACKAGES = ("fastindex", "numpy", "numba", "numba-cuda", "cuda-core", "torch", "cupy-cuda13x", "cupy-cuda12x", "jax")
JAX = ("jax",)

#: What outputs hold before a call that is checked.
POISON = 0xA5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="part of the names of the cases to run")
    parser.add_argument("--mib", type=int, default=512, help="least size of the source of a relayout")
    parser.add_argument("--count", type=int, default=1 << 26, help="how many indices to convert")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes seconds a case")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    return parser.parse_args()


def enlarged(case: RelayoutCase, size: str, nbytes: int) -> tuple[str, str]:
    """The case with its first dimension a multiple of what it is, so that nothing else changes."""
    first, *rest = case.dimensions(size)
    dimensions = (first * max(1, math.ceil(nbytes / fi.Shape.parse(case.source(size)).nbytes)), *rest)
    return (
        text(case.element_type, dimensions, case.source_layout),
        text(case.element_type, dimensions, case.destination_layout),
    )


def kind_of(case: RelayoutCase) -> str:
    if case.kind == "long runs":
        return "copy"
    if "transpose" in case.kind:
        width = fi.Shape.parse(case.source("toy")).element_type.nbytes
        return f"{width}-byte transpose" if width < 4 else "transpose"
    return "other"


def poison(out: Any, nbytes: int) -> None:
    from numba import cuda

    cuda.cudadrv.driver.device_memset(out, POISON, nbytes)
    cuda.synchronize()


class Bench:
    """Everything that the rows share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.clock = Clock(options.rounds)
        self.libraries = gpu_peers.installed()
        self.nbytes = options.mib << 20
        self.count = options.count
        self.compiles = not options.no_compile
        self._copies: dict[int, float] = {}
        self._random = measure.random_bytes(4 * self.nbytes)

    def random(self, nbytes: int) -> Any:
        if nbytes > len(self._random):
            self._random = measure.random_bytes(nbytes)
        return self._random[:nbytes]

    def copy_seconds(self, nbytes: int) -> float:
        """A copy on the device of as many bytes, in whole MiB."""
        from numba import cuda

        mib = max(nbytes >> 20, 1)
        if mib not in self._copies:
            source, target = (cuda.device_array(mib << 20, np.uint8) for _ in range(2))
            self._copies[mib] = self.clock.medians({"copy": lambda: target.copy_to_device(source)})["copy"]
        return self._copies[mib] * nbytes / (mib << 20)

    def relayout_row(self, case: RelayoutCase, size: str) -> dict[str, Any]:
        from numba import cuda

        source, destination = map(fi.Shape.parse, enlarged(case, size, self.nbytes))
        buffer = self.random(source.nbytes)
        given, out = cuda.to_device(buffer), cuda.device_array(destination.nbytes, np.uint8)
        plan = fi.plan_relayout(source, destination)
        begin = time.perf_counter()
        plan(given, out=out)
        cuda.synchronize()
        first = time.perf_counter() - begin
        rivals: dict[str, Run] = {"fastindex": lambda: plan(given, out=out)}
        try:
            problem = Problem(str(source), str(destination), buffer)
            rivals |= gpu_peers.relayout_rivals(problem, buffer, self.libraries, self.compiles)
        except ValueError as error:
            print(f"  no rivals: {error}")
        seconds = self.clock.medians(rivals, JAX)
        poison(out, destination.nbytes)
        plan(given, out=out)
        expected = fi.relayout(buffer, source, destination).view(np.uint8)
        right = bool(np.array_equal(out.copy_to_host(), expected))
        moved = source.nbytes + destination.nbytes
        name, target = (case.name, TARGETS[kind_of(case)]) if size == "round" else (f"{case.name}, odd", ODD_TARGET)
        return row(name, target, right, moved, seconds, self.copy_seconds(moved // 2)) | {"first_call": first}

    def index_rows(self, name: str, shape_text: str) -> list[dict[str, Any]]:
        from numba import cuda

        shape, count = fi.Shape.parse(shape_text), self.count
        generator = np.random.default_rng(0)
        indices = [generator.integers(size, size=count) for size in shape.dimensions]
        slots = fi.linear_index(shape, indices)
        columns, flat = [cuda.to_device(index) for index in indices], cuda.to_device(slots)
        # "wrap" does not wait for the GPU; multi_index has to, for slots outside the buffer: its rows say so.
        out, outs = cuda.device_array(count, np.int64), [cuda.device_array(count, np.int64) for _ in indices]
        calls: dict[str, Run] = {
            "linear_index": lambda: fi.linear_index(shape, columns, "wrap", out=out),
            "multi_index": lambda: fi.multi_index(shape, flat, padding="mark", out=outs),
        }
        rivals = gpu_peers.index_rivals(shape, indices, slots, self.libraries)
        moved = 8 * count * (shape.rank + 1)
        copy = self.copy_seconds(moved // 2)
        rows = []
        for direction, call in calls.items():
            seconds = self.clock.medians({"fastindex": call} | rivals[direction], JAX)
            for one in (out, *outs):
                poison(one, 8 * count)
            call()
            if direction == "linear_index":
                right = bool(np.array_equal(out.copy_to_host(), slots))
            else:
                right = all(np.array_equal(a.copy_to_host(), b) for a, b in zip(outs, indices, strict=True))
            rows.append(row(f"{direction}, {name}", INDEX_TARGET, right, moved, seconds, copy))
        return rows


def row(name: str, target: float, right: bool, moved: int, seconds: dict[str, float], copy: float) -> dict[str, Any]:
    own = seconds["fastindex"]
    peers = {peer: other for peer, other in seconds.items() if peer != "fastindex"}
    best = min(peers, key=peers.__getitem__) if peers else "copy"
    return {
        "case": name,
        "size": "round",
        "threads": 1,
        "correct": right,
        "bytes": moved,
        "seconds": seconds,
        "gigabytes_per_second": {peer: moved / other / 1e9 for peer, other in seconds.items()},
        "copy_seconds": copy,
        "fraction_of_copy": copy / own,
        "target": target,
        "best_peer": best,
        "ratio_to_best_peer": peers.get(best, copy) / own,
    }


def launch_microseconds() -> dict[str, float]:
    """What a call costs the host alone: the GPU is held by a spinning kernel, or has long been done."""
    from numba import cuda

    plan = fi.plan_relayout("f32[64,64]{1,0}", "f32[64,64]{0,1}")
    given, out = cuda.device_array(4096, np.float32), cuda.device_array(4096, np.float32)
    columns, slots = [cuda.to_device(np.zeros(64, np.int64)) for _ in range(2)], cuda.device_array(64, np.int64)
    calls = {
        "plan": lambda: plan(given, out=out),
        "linear_index": lambda: fi.linear_index("f32[64,64]", columns, "wrap", out=slots),
    }
    found = {}
    for name, call in calls.items():
        call()
        cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(500):
            call()
        found[name] = (time.perf_counter() - begin) / 500 * 1e6
        cuda.synchronize()
    return found


def table(rows: list[dict[str, Any]], heading: str) -> str:
    header = ["case", "GB/s", "of a copy", "target", "correct", "x best peer", "peers, times slower"]
    lines = []
    for found in rows:
        own = found["seconds"]["fastindex"]
        others = ", ".join(f"{name} {t / own:.2f}" for name, t in found["seconds"].items() if name != "fastindex")
        met = report.verdict(found["fraction_of_copy"] >= found["target"])
        lines.append(
            [
                found["case"],
                f"{found['gigabytes_per_second']['fastindex']:.0f}",
                f"{found['fraction_of_copy']:.2f}",
                f"{found['target']:.2f} {met}",
                "yes" if found["correct"] else "**NO**",
                f"{found['ratio_to_best_peer']:.2f}" if others else "",
                others or "none",
            ]
        )
    return f"{heading}\n\n{report.table(header, lines)}\n"


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
    name, date, bench = fastindex.cuda.device_name(), datetime.date.today().isoformat(), Bench(options)
    rows: list[dict[str, Any]] = []

    def done(found: dict[str, Any]) -> None:
        rows.append(found)
        print(report.one_line(found), "" if found["correct"] else "WRONG", flush=True)

    for case in RELAYOUT_CASES:
        for size in ("round", "prime"):
            if options.cases in (case.name if size == "round" else f"{case.name}, odd"):
                done(bench.relayout_row(case, size))
    for index_case in INDEX_CASES:
        if options.cases in index_case.name:
            for found in bench.index_rows(index_case.name, index_case.shape):
                done(found)
    launch = launch_microseconds()
    result = {
        "machine": {"processor": name},
        "date": date,
        "versions": versions(),
        "options": {"mib": options.mib, "count": options.count, "rounds": options.rounds},
        "launch_us": launch,
        "rows": {"relayout": rows},
    }
    options.output.mkdir(parents=True, exist_ok=True)
    stem = options.output / f"gpu-{re.sub('[^a-z0-9]+', '-', name.lower())}-{date}"
    host = ", ".join(f"{call} {cost:.0f} µs" for call, cost in launch.items())
    heading = f"{name}, {date}; sources of at least {options.mib} MiB, {options.count} indices; host: {host} a call."
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    stem.with_suffix(".md").write_text(table(rows, heading))
    stem.with_suffix(".svg").write_text(report.plot(result, "Fraction of the speed of a copy on the GPU"))
    print(table(rows, heading))
    return 0 if all(found["correct"] for found in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
