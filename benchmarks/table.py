"""Measure every case beside every installed rival; write a table, its numbers as JSON, and a plot.

    python benchmarks/table.py                     everything, 1 and 2 threads: some 30 minutes
    python benchmarks/table.py --cases transpose   only cases with this in their name
    python benchmarks/table.py --sizes toy --ceiling-mib 16 --index-count 100000   a quick look

Each number of threads gets a separate process, kept on that many processors: every library obeys that.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import measure, report  # noqa: E402
from benchmarks.cases import SIZES  # noqa: E402

SECTIONS = ("relayout", "sweep", "index")
LIBRARIES = ("fastindex", "numpy", "numba", "torch", "onednn-cpu-gomp", "jax", "jaxlib")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cases", default="", help="part of the names of the relayout cases to run")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["round", "prime"])
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ceiling-mib", type=int, default=1024, help="size of the copy that sets the ceiling")
    parser.add_argument("--index-count", type=int, default=1 << 24)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--update-readme", action="store_true", help="put the table into benchmarks/README.md")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def child(options: argparse.Namespace) -> None:
    """Measure everything with one number of threads and write the rows to a file."""
    threads = options.threads[0]
    measure.use_processors(threads)
    # After the process is confined: each of these libraries sizes its threads when it is loaded.
    from benchmarks import copy_ceiling, index_rows, relayout_rows

    nbytes = options.ceiling_mib << 20
    common = {
        "threads": threads,
        "rounds": options.rounds,
        "ceiling": copy_ceiling.copies(nbytes, threads),
        "ceiling_nbytes": nbytes,
    }
    cases = relayout_rows.named(options.cases)
    sources = {
        "relayout": lambda: relayout_rows.case_rows(cases, tuple(options.sizes), **common),
        "sweep": lambda: relayout_rows.sweep_rows(cases, **common),
        "index": lambda: index_rows.index_rows(options.index_count, **common),
    }
    rows: dict[str, list[dict[str, Any]]] = {}
    for section in options.sections:
        rows[section] = []
        for row in sources[section]():
            print(f"  {report.one_line(row)}", flush=True)
            rows[section].append(row)
    if "index" in options.sections:
        rows["drop_ins"] = list(index_rows.drop_in_rows(options.index_count, threads, options.rounds))
    options.child.write_text(json.dumps(rows))


def measured(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """The rows of all numbers of threads, each from a separate process."""
    rows: dict[str, list[dict[str, Any]]] = {}
    passed = sys.argv[1:]
    for threads in options.threads:
        print(f"{threads} thread{'s' if threads > 1 else ''}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "rows.json"
            command = [sys.executable, __file__, *passed, "--threads", str(threads), "--child", str(result)]
            subprocess.run(command, check=True)
            for section, more in json.loads(result.read_text()).items():
                rows.setdefault(section, []).extend(more)
    return rows


def versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    options = arguments()
    if options.child:
        child(options)
        return
    results = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": measure.machine(),
        "versions": versions(),
        "options": {"rounds": options.rounds, "ceiling_mib": options.ceiling_mib},
        "rows": measured(options),
    }
    options.output.mkdir(parents=True, exist_ok=True)
    table = report.markdown(results)
    (options.output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.output / "table.md").write_text(table)
    (options.output / "fraction_of_copy.svg").write_text(report.plot(results))
    if options.update_readme:
        report.update(ROOT / "benchmarks" / "README.md", table)
    print(f"\n{table}\nwritten to {options.output}")


if __name__ == "__main__":
    main()
