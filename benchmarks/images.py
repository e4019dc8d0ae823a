"""Images: channels last to channels first and back, every small number of channels, beside every installed rival.

    python benchmarks/images.py                          1 to 17, 24 and 40 channels, bytes, bf16 and f32, both ways
    python benchmarks/images.py --channels 3 --types u8
    python benchmarks/images.py --update-readme          put the table into benchmarks/README.md

64 MiB each way. The rivals: `np.copyto` between transposed views, a loop of strided assignments (one channel after the
other), torch's `copy_`, oneDNN's reorder. Best of five, in turn; the copy is measured in the same rounds.
"""

from __future__ import annotations

import argparse
import datetime
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
    parser.add_argument("--channels", type=int, nargs="+", default=list(CHANNELS))
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
        "gigabytes_per_second": {name: round(speed, 2) for name, speed in speeds.items()},
        "copy": round(copy_speed, 2),
        "fraction_of_copy": round(speeds["fastindex"] / copy_speed, 3),
        "best_peer": best,
        "ratio_to_best_peer": round(speeds["fastindex"] / speeds[best], 2),
    }


def markdown(results: dict[str, Any]) -> str:
    machine, rows = results["machine"], results["rows"]
    names = report.peer_names(rows)
    lines = [
        [
            entry["case"],
            *report.speeds(entry, names),
            f"{entry['copy']:.1f}",
            f"{entry['fraction_of_copy']:.2f} {report.verdict(entry['fraction_of_copy'] >= LEAST)}",
            f"{entry['ratio_to_best_peer']:.2f} {report.verdict(entry['ratio_to_best_peer'] >= WANTED_RATIO)}",
        ]
        for entry in rows
    ]
    header = ["channels", *names, "copy", f"of copy ({LEAST})", f"x best rival ({WANTED_RATIO})"]
    where = (
        f"{results['date']}, {machine['processor']}, {machine['processors']} processors, {results['threads']} threads, "
        f"best of {_ROUNDS}, GB/s of bytes read and written:"
    )
    return f"{where}\n\n{report.table(header, lines)}\n"


def main() -> None:
    options = arguments()
    measure.use_processors(options.threads)
    from benchmarks import copy_ceiling

    copies = copy_ceiling.copies(IMAGE_BYTES, options.threads)
    rows = []
    for direction in LAYOUTS:
        for element_type in options.types:
            for channels in options.channels:
                rows.append(row(element_type, channels, direction, options.threads, copies))
                print(f"  {report.one_line({**rows[-1], 'size': ''})}", flush=True)
    results = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": measure.machine(),
        "threads": options.threads,
        "rows": rows,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    text = markdown(results)
    if options.update_readme:
        report.update(ROOT / "benchmarks" / "README.md", text, BEGIN, END)


if __name__ == "__main__":
    main()
