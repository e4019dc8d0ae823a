"""Images: channels last to channels first and back, every small number of channels, beside every installed rival.

    python benchmarks/images.py                          1 to 17, 24 and 40 channels, bytes, bf16 and f32, both ways
    python benchmarks/images.py --channels 3 --types u8
    python benchmarks/images.py --update-readme          put the tables into benchmarks/README.md

What is measured is added to the results of earlier runs, so that it can be done in parts; `--channels` without a
number measures nothing. 64 MiB each way. The rivals: `np.copyto` between transposed views, a loop of strided
assignments (one channel after the other), torch's `copy_`, oneDNN's reorder. Best of five, in turn; the copy is
measured in the same rounds.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import measure, report  # noqa: E402

CHANNELS = (*range(1, 18), 24, 40)
TYPES = ("u8", "bf16", "f32")
LAYOUTS = {"NHWC to NCHW": ("{1,3,2,0}", "{3,2,1,0}"), "NCHW to NHWC": ("{3,2,1,0}", "{1,3,2,0}")}
IMAGE_BYTES = 64 << 20
BEGIN, END = "<!-- images: begin -->", "<!-- images: end -->"

#: Least fraction of a copy's speed, and least ratio to the best rival.
LEAST, WANTED_RATIO = 0.5, 1.3
_ROUNDS = 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, nargs="*", default=list(CHANNELS))
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "images.json")
    parser.add_argument("--update-readme", action="store_true")
    return parser.parse_args()


def shapes(element_type: str, channels: int, direction: str) -> tuple[str, str]:
    """Source and destination text: square images of 224 by 224, as many as make 64 MiB."""
    element_bytes = {"u8": 1, "bf16": 2, "f32": 4}[element_type]
    images = max(1, round(IMAGE_BYTES / (224 * 224 * channels * element_bytes)))
    dimensions = f"{element_type}[{images},{channels},224,224]"
    source, destination = (dimensions + layout for layout in LAYOUTS[direction])
    return source, destination


def assignments(problem: Any) -> Any:
    """A loop over channels, each a strided assignment, as people write it."""
    from benchmarks.problems import Rival, in_order

    output = problem.new_output()
    given = in_order(problem.buffer.view(problem.dtype), problem.dimensions, problem.source_order)
    made = in_order(output, problem.dimensions, problem.destination_order)

    def run() -> None:
        for channel in range(problem.dimensions[1]):
            made[:, channel] = given[:, channel]

    return Rival(run, lambda: output)


def row(element_type: str, channels: int, direction: str, threads: int, copies: dict[str, Any]) -> dict[str, Any]:
    """Measure fastindex and its rivals on one case; all results are compared first."""
    import numpy as np

    from benchmarks import onednn, peers, relayout_rows
    from benchmarks.problems import Problem

    source, destination = shapes(element_type, channels, direction)
    buffer = relayout_rows.source_buffer(source)
    problem = Problem(source, destination, buffer)
    found = {
        "fastindex": relayout_rows.ours(source, destination, buffer, threads),
        "NumPy": peers.numpy_rival(problem),
        "assignments": assignments(problem),
        "torch": peers.torch_rival(problem),
        **onednn.onednn_rivals(problem),
    }
    rivals = {name: rival for name, rival in found.items() if rival is not None}
    for rival in rivals.values():
        rival.run()
    results = {name: relayout_rows.as_bytes(rival.result()) for name, rival in rivals.items()}
    for name, result in results.items():
        if not np.array_equal(result, results["NumPy"]):
            raise AssertionError(f"{name} gives a wrong result for {source} to {destination}")
    runs = {**{name: rival.run for name, rival in rivals.items()}, **copies}
    seconds = dict.fromkeys(runs, math.inf)
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            seconds[name] = min(seconds[name], measure.sample(run, 1))
    speeds = {name: 2 * len(buffer) / seconds[name] / 1e9 for name in rivals}
    copy_speed = max(2 * IMAGE_BYTES / seconds[name] / 1e9 for name in copies)
    best = max((name for name in speeds if name != "fastindex"), key=speeds.__getitem__)
    return {
        "case": f"{direction}, {channels} x {element_type}",
        "direction": direction,
        "channels": channels,
        "type": element_type,
        "threads": threads,
        "gigabytes_per_second": {name: round(speed, 2) for name, speed in speeds.items()},
        "copy": round(copy_speed, 2),
        "fraction_of_copy": round(speeds["fastindex"] / copy_speed, 3),
        "best_peer": best,
        "ratio_to_best_peer": round(speeds["fastindex"] / speeds[best], 2),
    }


def markdown(results: dict[str, Any]) -> str:
    """A table for each direction and number of threads, and what is missed."""
    rows = results["rows"]
    parts = [
        f"{results['date']}, {results['machine']['processor']}, {results['machine']['processors']} processors, "
        f"best of {_ROUNDS}: GB/s of bytes read and written, of copy, times the best rival "
        "(N: NumPy, A: assignments, T: torch, O: oneDNN)."
    ]
    for threads in sorted({entry["threads"] for entry in rows}):
        for direction in LAYOUTS:
            of = {(e["channels"], e["type"]): e for e in rows if (e["threads"], e["direction"]) == (threads, direction)}
            channels = sorted({key[0] for key in of})
            lines = [[str(count), *(_cell(of.get((count, kind))) for kind in TYPES)] for count in channels]
            parts.append(f"{direction}, {threads} thread{'s' * (threads > 1)}:")
            parts.append(report.table(["channels", *TYPES], lines).rstrip())
    for wanted, field, what in (
        (LEAST, "fraction_of_copy", "of copy"),
        (WANTED_RATIO, "ratio_to_best_peer", "x the best rival"),
    ):
        missed = [
            f"{entry['case']}, {entry['threads']} ({entry[field]:.2f})" for entry in rows if entry[field] < wanted
        ]
        parts.append(f"Below {wanted} {what}, {len(missed)} of {len(rows)}: {'; '.join(missed) or 'none'}.")
    return "\n\n".join(parts) + "\n"


def _cell(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return ""
    speed, ratio = entry["gigabytes_per_second"]["fastindex"], entry["ratio_to_best_peer"]
    return f"{speed:.1f}, {entry['fraction_of_copy']:.2f}, {ratio:.1f} {entry['best_peer'][0].upper()}"


def main() -> None:
    options = arguments()
    measure.use_processors(options.threads)
    from benchmarks import copy_ceiling

    copies = copy_ceiling.copies(IMAGE_BYTES, options.threads) if options.channels else {}
    found: dict[tuple[str, int], dict[str, Any]] = {}
    if options.output.exists():
        earlier = json.loads(options.output.read_text())["rows"]
        found = {(entry["case"], entry["threads"]): entry for entry in earlier}
    results = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": measure.machine(),
        "rows": list(found.values()),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for element_type, channels, direction in itertools.product(options.types, options.channels, LAYOUTS):
        one = row(element_type, channels, direction, options.threads, copies)
        found[one["case"], options.threads] = one
        results["rows"] = list(found.values())
        options.output.write_text(json.dumps(results, indent=1) + "\n")
        print(f"  {report.one_line({**one, 'size': ''})}", flush=True)
    text = markdown(results)
    if options.update_readme:
        report.update(ROOT / "benchmarks" / "README.md", text, BEGIN, END)


if __name__ == "__main__":
    main()
