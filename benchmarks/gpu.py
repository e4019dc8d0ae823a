"""Check and measure every case on this machine's GPU, beside torch, CuPy and JAX and beside a copy on the device.

    python benchmarks/gpu.py                     everything: some minutes
    python benchmarks/gpu.py --seconds 180       start no case after 180 seconds; the most important come first
    python benchmarks/gpu.py --cases "odd|cast"  only cases with this in their name
    python benchmarks/gpu.py --mib 16 --count 100000 --no-compile   a quick look

Times are of the GPU (`gpu_clock`); rivals take turns. JAX works on its own streams, so its times are of many calls
from the host, and allocate. Every result is checked against the processor's, in memory that held other bytes before.
"Predicted" is what `gpu_counts.py --keep` counted without a GPU, at this GPU's clock and speed of copying. Writes
JSON, a table and a plot after each case, with the GPU's name, under ``benchmarks/results``; an interrupt prints the
table so far. Where a driver only stands in for a GPU's and executes no kernel, it says so, and checks no result.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
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
from benchmarks.cases import IndexCase  # noqa: E402
from benchmarks.gpu_cases import INDEX_TARGET, Move, in_order  # noqa: E402
from benchmarks.gpu_clock import Clock, Run  # noqa: E402
from benchmarks.gpu_counts import BYTES_A_CYCLE, INSTRUCTIONS_A_CYCLE  # noqa: E402
from benchmarks.problems import Problem  # noqa: E402
from fastindex.cuda.kernels.device import cuda  # noqa: E402

PACKAGES = ("fastindex", "numpy", "numba", "numba-cuda", "cuda-core", "torch", "cupy-cuda13x", "cupy-cuda12x", "jax")
JAX = ("jax",)
RESULTS = ROOT / "benchmarks" / "results"
COUNTS = RESULTS / "gpu-counts.json"

#: What outputs hold before a call that is checked.
POISON = 0xA5

NOT_EXECUTED = "This device executes no kernels: no figure is a speed, and no result is checked."


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="what names of cases to run contain, a regular expression")
    parser.add_argument("--mib", type=int, default=256, help="least size of the source of a relayout")
    parser.add_argument("--count", type=int, default=1 << 25, help="how many indices to convert")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no case later than this")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes seconds a case")
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


def poison(out: Any, nbytes: int) -> None:
    cuda.cudadrv.driver.device_memset(out, POISON, nbytes)
    cuda.synchronize()


def view(array: Any, shape: fi.Shape) -> Any:
    """The logical array of a buffer without tiles, as a strided view."""
    described = {
        "shape": shape.dimensions,
        "typestr": f"<u{shape.element_type.nbytes}",
        "data": array.__cuda_array_interface__["data"],
        "strides": shape.byte_strides,
        "version": 3,
    }
    return cuda.as_cuda_array(SimpleNamespace(__cuda_array_interface__=described, held=array))


def executes() -> bool:
    """Whether kernels write; a driver that stands in for a GPU's may take launches and do nothing."""
    one = cuda.to_device(np.zeros(1, np.uint8))
    fi.numpy.copyto(one, 1)
    return bool(one.copy_to_host()[0] == 1)


class Bench:
    """Everything that the rows share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.executes = executes()
        self.clock = Clock(options.rounds if self.executes else 1)
        self.libraries = gpu_peers.installed()
        self.nbytes = options.mib << 20
        self.count = options.count
        self.compiles = not options.no_compile
        self.counts: dict[str, list[list[float]]] = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
        self._copies: dict[int, float] = {}
        self._random = measure.random_bytes(2 * self.nbytes)
        self._there = cuda.to_device(self._random)
        device = cuda.get_current_device()
        self._cycles = device.MULTIPROCESSOR_COUNT * 1e3 * device.CLOCK_RATE
        measured = 2 * self.nbytes / self.copy_seconds(self.nbytes) / self._cycles
        self.bytes_a_cycle = measured if self.executes else BYTES_A_CYCLE

    def random(self, nbytes: int) -> tuple[Any, Any]:
        """Return `nbytes` random bytes, on the host and on the GPU."""
        if nbytes > len(self._random):
            self._random = measure.random_bytes(nbytes)
            self._there = cuda.to_device(self._random)
        return self._random[:nbytes], self._there[:nbytes]

    def copy_seconds(self, nbytes: int) -> float:
        """A copy on the device of as many bytes, in whole MiB."""
        mib = max(nbytes >> 20, 1)
        if mib not in self._copies:
            source, target = (cuda.device_array(mib << 20, np.uint8) for _ in range(2))
            self._copies[mib] = self.clock.medians({"copy": lambda: target.copy_to_device(source)})["copy"]
        return self._copies[mib] * nbytes / (mib << 20)

    def predicted(self, name: str) -> float | None:
        """Fraction of a copy, of what was counted: sectors against bytes, instructions a byte, launch by launch."""
        if name not in self.counts:
            return None
        return 1 / sum(
            share * max(sectors, instructions * self.bytes_a_cycle / INSTRUCTIONS_A_CYCLE)
            for share, sectors, instructions in self.counts[name]
        )

    def move_row(self, case: Move) -> dict[str, Any]:
        source, destination = map(fi.Shape.parse, case.enlarged(self.nbytes))
        buffer, given = self.random(source.nbytes)
        out = cuda.device_array(destination.nbytes, np.uint8)
        if case.as_view:
            views = view(out, destination), view(given, source)
            call: Run = lambda: fi.numpy.copyto(*views)  # noqa: E731
        else:
            plan = fi.plan_relayout(source, destination, casting="unsafe")
            call = lambda: plan(given, out=out)  # noqa: E731
        begin = time.perf_counter()
        call()
        cuda.synchronize()
        first = time.perf_counter() - begin
        rivals: dict[str, Run] = {"fastindex": call}
        try:
            if source.element_type == destination.element_type:
                problem = Problem(str(source), str(destination), buffer)
                rivals |= gpu_peers.relayout_rivals(problem, given, self.libraries, self.compiles)
            else:
                rivals |= gpu_peers.cast_rivals(source, destination, given, self.libraries)
        except ValueError as error:
            print(f"  no rivals: {error}")
        seconds = self.clock.medians(rivals, JAX)
        right = None
        if self.executes:
            poison(out, destination.nbytes)
            call()
            expected = fi.relayout(buffer, source, destination, casting="unsafe").view(np.uint8)
            right = np.array_equal(out.copy_to_host(), expected)
        moved = source.nbytes + destination.nbytes
        found = row(case.name, case.target, right, moved, seconds, self.copy_seconds(moved // 2))
        return found | {"first_call": first, "predicted": self.predicted(case.name)}

    def index_rows(self, case: IndexCase) -> list[dict[str, Any]]:
        shape, count = fi.Shape.parse(case.shape), self.count
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
        rivals = gpu_peers.index_rivals(shape, columns, flat, self.libraries)
        moved = 8 * count * (shape.rank + 1)
        copy = self.copy_seconds(moved // 2)
        rows = []
        for direction, call in calls.items():
            seconds = self.clock.medians({"fastindex": call} | rivals[direction], JAX)
            right = None
            if self.executes:
                for one in (out, *outs):
                    poison(one, 8 * count)
                call()
                found, expected = ([out], [slots]) if direction == "linear_index" else (outs, indices)
                right = all(np.array_equal(a.copy_to_host(), b) for a, b in zip(found, expected, strict=True))
            name = f"{direction}, {case.name}"
            rows.append(row(name, INDEX_TARGET, right, moved, seconds, copy) | {"predicted": self.predicted(name)})
        return rows


#: How a row says that its result is right, wrong, or was not made.
CORRECT = {True: "yes", False: "**WRONG**", None: "not run"}


def row(
    name: str, target: float, right: bool | None, moved: int, seconds: dict[str, float], copy: float
) -> dict[str, Any]:
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
    plan = fi.plan_relayout("f32[64,64]{1,0}", "f32[64,64]{0,1}")
    given, out = (cuda.to_device(np.zeros(4096, np.float32)) for _ in range(2))
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


def one_line(found: dict[str, Any]) -> str:
    """A row as it is printed while the cases run, with its prediction."""
    predicted = "" if found["predicted"] is None else f"  predicted {found['predicted']:.2f}"
    return f"{report.one_line(found)}{predicted}  {CORRECT[found['correct']]}"


def table(rows: list[dict[str, Any]], heading: str) -> str:
    header = ["case", "GB/s", "of a copy", "predicted", "target", "correct", "x best peer", "peers, times slower"]
    lines = []
    for found in rows:
        own = found["seconds"]["fastindex"]
        others = ", ".join(f"{name} {t / own:.2f}" for name, t in found["seconds"].items() if name != "fastindex")
        met = "" if found["correct"] is None else report.verdict(found["fraction_of_copy"] >= found["target"])
        predicted = found["predicted"]
        lines.append(
            [
                found["case"],
                f"{found['gigabytes_per_second']['fastindex']:.0f}",
                f"{found['fraction_of_copy']:.2f}",
                "" if predicted is None else f"{predicted:.2f}",
                f"{found['target']:.2f} {met}",
                CORRECT[found["correct"]],
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


def write(options: argparse.Namespace, bench: Bench, launch: dict[str, float], rows: list[dict[str, Any]]) -> str:
    """Write what has been measured so far, and return the table."""
    name, date = fastindex.cuda.device_name(), datetime.date.today().isoformat()
    result = {
        "machine": {"processor": name, "bytes_a_cycle": bench.bytes_a_cycle},
        "date": date,
        "versions": versions(),
        "options": {"mib": options.mib, "count": options.count, "rounds": options.rounds},
        "launch_us": launch,
        "rows": {"relayout": rows},
    }
    options.output.mkdir(parents=True, exist_ok=True)
    stem = options.output / f"gpu-{re.sub('[^a-z0-9]+', '-', name.lower())}-{date}"
    host = ", ".join(f"{call} {cost:.0f} µs" for call, cost in launch.items())
    notice = "" if bench.executes else f"**{NOT_EXECUTED}** "
    heading = (
        f"{notice}{name}, {date}; sources of at least {options.mib} MiB, {options.count} indices; host: {host} a call."
    )
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    stem.with_suffix(".md").write_text(found := table(rows, heading))
    stem.with_suffix(".svg").write_text(report.plot(result, "Fraction of the speed of a copy on the GPU"))
    return found


def main() -> int:
    begin, options = time.monotonic(), arguments()
    reason = fastindex.cuda.why_unavailable()
    if reason is not None:
        print(f"nothing to measure: {reason}", file=sys.stderr)
        return 1
    bench, launch = Bench(options), launch_microseconds()
    if not bench.executes:
        print(NOT_EXECUTED, flush=True)
    rows: list[dict[str, Any]] = []
    shown, last = "", begin + options.seconds
    try:
        for case in in_order():
            if not re.search(options.cases, case.name):
                continue
            if time.monotonic() > last:
                print(f"no time for {case.name} and what follows")
                break
            for one in bench.index_rows(case) if isinstance(case, IndexCase) else [bench.move_row(case)]:
                rows.append(one)
                print(one_line(one), flush=True)
            shown = write(options, bench, launch, rows)
    except KeyboardInterrupt:
        print(f"interrupted in {case.name}")
    print(shown)
    return 0 if all(found["correct"] for found in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
