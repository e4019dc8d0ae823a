"""Break fastindex at random for a given time, and print what was tried and what was found.

Usage::

    python -m tests.faults.campaign --minutes 30 --processes 2
    python -m tests.faults.campaign --minutes 1 --only signals disks
    python -m tests.faults.campaign --table          the totals of all runs so far
    python -m tests.faults.campaign --update-page    put them into docs/reliability.md

Each part is a module of this folder. The parts run one after the other, each in a separate process, because some of
them kill it. A part reports that it cannot run if a tool or a library is missing: Valgrind, a C compiler, or the extras
dask and zarr. A finding is an answer that differs from the definition, a process that dies, bytes written outside an
array, a half-written or forgotten file, an error that is not one of fastindex's, or work that never ends. Expected
errors count as refusals. Counts of all runs, concurrent ones included, add up in a file of totals; exit status 1 means
that something was found.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cases.hangs import HANG_SECONDS
from tests.faults.tally import Row, Saved, read

ROOT = Path(__file__).resolve().parents[2]

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"

_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
#: Lines of the table, and the beginnings of the names of their rows; a process that dies counts under its part's name.
LINES: dict[str, tuple[str, ...]] = {
    "texts of shapes, layouts and shardings, damaged": ("texts",),
    "protos of shapes and shardings, damaged": ("protos of ",),
    "pieces of HLO, of other dumps and messages, damaged": ("pieces of ", "hlo_pieces"),
    "modules of HLO, damaged in their structure": ("modules of HLO",),
    "questions about divided arrays, subgroups of all kinds": ("divided arrays", "divisions"),
    "metadata of Zarr stores, damaged": ("metadata of Zarr stores",),
    "relayouts between guard pages, random layouts": ("relayouts between fenced pages", "layouts"),
    "indices, `pack`, `unpack` between guard pages": ("indices, pack and unpack between fenced pages",),
    "SIGKILL, SIGTERM, SIGINT during file jobs": (*(f"{name} during file jobs" for name in _SIGNALS), "signals"),
    "the same during jobs on Zarr stores": (*(f"{name} during jobs on Zarr stores" for name in _SIGNALS), "stores"),
    "SIGKILL at calls of jobs on checkpoints": ("SIGKILL at calls of checkpoint jobs", "checkpoints"),
    "headers and indices of checkpoints and GGUF files, damaged": (
        "headers of checkpoints",
        "indices of checkpoints",
        "headers of GGUF",
    ),
    "Dask workers killed in the middle of a job": ("Dask workers", "workers"),
    "full disks, limits, failing calls under file jobs": (
        "full disks",
        "limits of file sizes",
        "failing calls under",
        "disks",
    ),
    "every call of file jobs failing, interrupted or half done": ("failing calls one by one", "every_call"),
    "sources that change or shrink while file jobs read": ("sources",),
    "calls from eight threads at once": ("calls from eight threads", "threads"),
    "children forked and spawned under load": ("children ", "forks"),
    "calls after interrupted first ones": ("first calls after", "interrupts"),
    "long calls interrupted": ("long calls that",),
    "processes that end while daemon threads are in calls": ("processes that end", "exits"),
    "texts, HLO and layouts with `PYTHONMALLOC=debug`": ("PYTHONMALLOC=debug: ", "checked_memory"),
    "layouts through the kernels in Valgrind": ("Valgrind: ", "valgrind"),
}

#: Parts, and the share of the time that each takes: so that 60 minutes of one process are about ten million texts, a
#: million pieces of HLO and a million relayouts (on an AMD EPYC: 1.4 million, 170,000 and 40,000 a minute).
PARTS = {
    "texts": 8,
    "hlo_pieces": 6,
    "divisions": 1,
    "signals": 2,
    "disks": 1,
    "every_call": 1,
    "sources": 1,
    "stores": 1,
    "checkpoints": 1,
    "workers": 1,
    "threads": 1,
    "forks": 1,
    "exits": 1,
    "interrupts": 1,
    "checked_memory": 1,
    "valgrind": 2,
    "layouts": 24,
}
#: A turn of a part of share 1, at most.
_LONGEST_UNIT_SECONDS = 75.0
#: Shorter turns would be over before everything is loaded; longer ones are several.
_SHORTEST_TURN_SECONDS, _LONGEST_TURN_SECONDS = 4.0, 300.0
#: How much longer than its time a part may take: to load kernels, or to compile them.
_GRACE_SECONDS = HANG_SECONDS


@dataclass
class Turn:
    """One part for some seconds."""

    part: str
    seconds: float
    seed: int

    def run(self) -> Saved:
        """Run it in a separate process; return what it has saved."""
        with tempfile.TemporaryDirectory(prefix="fastindex-faults-") as folder:
            state = Path(folder) / "tally"
            arguments = ["-m", "tests.faults", self.part, str(self.seconds), str(self.seed), str(state)]
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
            saved = read(state)
            if status:
                ending = errors.read_text("ascii", "backslashreplace")[-3000:]
                saved.findings.append(f"{self.part}, seed {self.seed}: ended with {status} in {saved.case}\n{ending}")
            return saved


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a part and whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def turns(minutes: float, only: list[str] | None, seed: int, processes: int) -> Iterator[Turn]:
    """Yield turns until the time is over, and one of each part at least, however long these take to load."""
    parts = {part: PARTS[part] for part in only or PARTS}
    end = time.monotonic() + 60 * minutes
    unit = min(60 * minutes * processes / sum(parts.values()), _LONGEST_UNIT_SECONDS)
    number = 0
    while True:
        for part, share in parts.items():
            seconds = max(unit * share, _SHORTEST_TURN_SECONDS)
            count = math.ceil(seconds / _LONGEST_TURN_SECONDS)
            for _ in range(count):
                left = end - time.monotonic()
                if left < 1 and number >= len(parts):
                    return
                number += 1
                yield Turn(part, min(seconds / count, max(left, 1)), seed + number)


def markdown(content: dict[str, Any]) -> str:
    """Return the totals as a sentence and a table; rows that no line has stand for themselves."""
    lines = {line: [0, 0, 0] for line in LINES}
    for name, row in sorted(content["rows"].items()):
        counts = lines.setdefault(line_of(name) or name, [0, 0, 0])
        for place, kind in enumerate(("runs", "refused", "findings")):
            counts[place] += row[kind]
    rows = [
        f"| {line} | {runs:,} | {refused:,} | {findings:,} |"
        for line, (runs, refused, findings) in lines.items()
        if runs or findings
    ]
    made = f"In {content['minutes']:.0f} minutes of one process, until {content['last']}, on {content['machine']}:"
    return "\n".join([made, "", "| tried | runs | rejected as expected | faults found |", "|---|--:|--:|--:|", *rows])


def line_of(name: str) -> str | None:
    """Return the line of the table to which a row belongs."""
    return next((line for line, beginnings in LINES.items() if name.startswith(beginnings)), None)


def with_table(page: str, content: dict[str, Any]) -> str:
    """Return a page with the table between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{markdown(content)}\n\n{END}{after}"


class Totals:
    """Counts of all runs so far, in a file to which several processes add."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.content = self._read()

    def _read(self) -> dict[str, Any]:
        if self._path.exists():
            found: dict[str, Any] = json.loads(self._path.read_text())
            return found
        return {"rows": {}, "minutes": 0.0, "machine": machine(), "last": ""}

    def add(self, rows: dict[str, Row], findings: dict[str, int], seconds: float) -> None:
        """Add the counts of a turn."""
        with open(self._path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.content = self._read()
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


class Run:
    """Turns that several threads take, each with a separate process."""

    def __init__(self, turns: Iterator[Turn], totals: tuple[Totals, ...]) -> None:
        self._turns, self._totals = turns, totals
        self._lock = threading.Lock()
        self._skipped: set[str] = set()
        self.found = 0

    def take_turns(self) -> None:
        """Take turns until there are none."""
        while True:
            with self._lock:
                turn = next(self._turns, None)
            if turn is None:
                return
            began = time.monotonic()
            saved = turn.run()
            with self._lock:
                self._note(turn, saved, time.monotonic() - began)

    def _note(self, turn: Turn, saved: Saved, seconds: float) -> None:
        names: dict[str, int] = {}
        for finding in saved.findings:
            name = finding.split(": ")[0] if finding.split(": ")[0] in saved.rows else turn.part
            names[name] = names.get(name, 0) + 1
            print(f"FOUND by {turn.part}: {finding}", flush=True)  # noqa: T201
        if saved.skipped and turn.part not in self._skipped:
            self._skipped.add(turn.part)
            print(f"{turn.part} is left out: {saved.skipped}", flush=True)  # noqa: T201
        self.found += len(saved.findings)
        for counts in self._totals:
            counts.add(saved.rows, names, seconds)


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
    parser.add_argument("--processes", type=int, default=1, help="how many parts at the same time (1)")
    parser.add_argument("--only", choices=[*PARTS], nargs="+", help="these parts alone")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="where random numbers begin (the time)")
    parser.add_argument("--totals", type=Path, default=ROOT / ".faults.json", help="the file of totals (.faults.json)")
    parser.add_argument("--table", action="store_true", help="print the totals of all runs so far, in Markdown")
    parser.add_argument("--update-page", action="store_true", help="put that table into docs/reliability.md")
    arguments = parser.parse_args()
    totals = Totals(arguments.totals)
    if arguments.table or arguments.update_page:
        print(markdown(totals.content))  # noqa: T201
        if arguments.update_page:
            page = ROOT / "docs" / "reliability.md"
            page.write_text(with_table(page.read_text(), totals.content))
        return 0
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As of what a shell runs in the background; children would ignore it too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="fastindex-faults-") as scratch:
        here = Totals(Path(scratch) / "totals")
        run = Run(
            turns(arguments.minutes, arguments.only, arguments.seed, arguments.processes),
            (totals, here),
        )
        threads = [threading.Thread(target=run.take_turns) for _ in range(arguments.processes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(markdown(here.content))  # noqa: T201
    return int(run.found > 0)


if __name__ == "__main__":
    sys.exit(main())
