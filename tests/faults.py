"""Break fastindex at random for as long as told, and print what was tried and what was found.

Usage::

    python tests/faults.py --minutes 60
    python tests/faults.py --minutes 1 --only signals
    python tests/faults.py --table

Each part of `tests/fault_parts` takes its turn, in a process of its own: some make it die. A finding is an answer that
the definition does not have, a process that dies, bytes written outside an array, a half-written or forgotten file, an
error that is not one of fastindex's, or work that never ends. Errors that are due are counted as refusals. Counts add
up over runs in a file of totals; exit status 1 says that something was found.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.fault_parts.tally import Row, read  # noqa: E402

#: Parts, and the share of the time that each takes: millions of texts need more than thousands of signals.
PARTS = {
    "texts": 3,
    "hlo_pieces": 2,
    "layouts": 6,
    "signals": 2,
    "disks": 1,
    "sources": 1,
    "threads": 1,
    "forks": 1,
    "checked_memory": 2,
}
#: A turn of a part of share 1, at most.
_LONGEST_TURN_SECONDS = 90.0
#: How much longer than its time a part may take: to load kernels, or to compile them.
_GRACE_SECONDS = 240


@dataclass
class Turn:
    """One part for some seconds."""

    part: str
    seconds: float
    seed: int

    def run(self) -> tuple[dict[str, Row], list[str]]:
        """Run it in a process of its own; return its rows and findings."""
        with tempfile.TemporaryDirectory(prefix="fastindex-faults-") as folder:
            state = Path(folder) / "tally"
            arguments = ["-m", "tests.fault_parts", self.part, str(self.seconds), str(self.seed), str(state)]
            command = [sys.executable, *arguments]
            environment = {**os.environ, "PYTHONFAULTHANDLER": "1", "TMPDIR": folder}
            errors = Path(folder) / "stderr"
            with open(errors, "wb") as stderr:
                process = subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdout=stderr, stderr=stderr, start_new_session=True
                )
            try:
                status: int | str = process.wait(self.seconds + _GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                status = "no end"
            finally:
                _end_group(process)
            rows, findings, case = read(state)
            if status:
                ending = errors.read_text("ascii", "backslashreplace")[-3000:]
                findings.append(f"{self.part}, seed {self.seed}: ended with {status} in {case}\n{ending}")
            return rows, findings


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a part and whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def turns(minutes: float, only: str | None, seed: int) -> Any:
    """Yield turns until the time is over."""
    parts = {only: 1} if only else PARTS
    end = time.monotonic() + 60 * minutes
    unit = min(60 * minutes / sum(parts.values()), _LONGEST_TURN_SECONDS)
    number = 0
    while True:
        for part, share in parts.items():
            left = end - time.monotonic()
            if left < 1:
                return
            number += 1
            yield Turn(part, min(unit * share, left), seed + number)


class Totals:
    """Counts of all runs so far, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.content: dict[str, Any] = {"rows": {}, "minutes": 0.0, "machine": machine(), "last": ""}
        if path.exists():
            self.content = json.loads(path.read_text())

    def add(self, rows: dict[str, Row], findings: dict[str, int], seconds: float) -> None:
        """Add the counts of a turn."""
        for name in {*rows, *findings}:
            row = rows.get(name, Row())
            total = self.content["rows"].setdefault(name, {"runs": 0, "refused": 0, "findings": 0})
            total["runs"] += row.runs
            total["refused"] += row.refused
            total["findings"] += findings.get(name, 0)
        self.content["minutes"] += seconds / 60
        self.content["last"] = datetime.date.today().isoformat()
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(self.content, indent=1))
        temporary.replace(self._path)

    def table(self) -> str:
        """Return the totals as a table in Markdown."""
        lines = ["| what | runs | refused, as it should be | findings |", "|---|--:|--:|--:|"]
        for name, row in sorted(self.content["rows"].items()):
            lines.append(f"| {name} | {row['runs']:,} | {row['refused']:,} | {row['findings']:,} |")
        minutes, last = self.content["minutes"], self.content["last"]
        return "\n".join([*lines, "", f"{minutes:.0f} minutes in all until {last}, on {self.content['machine']}."])


def machine() -> str:
    """Return what these counts were made on."""
    model = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{os.cpu_count()} processors of {model}, {platform.system()}, Python {platform.python_version()}"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (1)")
    parser.add_argument("--only", choices=[*PARTS], help="one part alone")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="where random numbers begin (the time)")
    parser.add_argument("--totals", type=Path, default=ROOT / ".faults.json", help="the file of totals (.faults.json)")
    parser.add_argument("--table", action="store_true", help="print the totals of all runs so far, in Markdown")
    arguments = parser.parse_args()
    totals = Totals(arguments.totals)
    if arguments.table:
        print(totals.table())  # noqa: T201
        return 0
    scratch = tempfile.TemporaryDirectory(prefix="fastindex-faults-")
    here = Totals(Path(scratch.name) / "totals")
    found = 0
    for turn in turns(arguments.minutes, arguments.only, arguments.seed):
        began = time.monotonic()
        rows, findings = turn.run()
        seconds = time.monotonic() - began
        names: dict[str, int] = {}
        for finding in findings:
            name = finding.split(": ")[0] if finding.split(": ")[0] in rows else turn.part
            names[name] = names.get(name, 0) + 1
            print(f"FOUND by {turn.part}: {finding}", flush=True)  # noqa: T201
        found += len(findings)
        for counts in (totals, here):
            counts.add(rows, names, seconds)
    print(here.table())  # noqa: T201
    scratch.cleanup()
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
