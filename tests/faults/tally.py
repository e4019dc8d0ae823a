"""What a part has done so far, in numbers that survive its death."""

from __future__ import annotations

import json
import mmap
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

#: A part stops after this many findings: the same one over and over says nothing new.
MOST_FINDINGS = 20
_STATE_BYTES = 1 << 16
_LONGEST_FINDING = 2000


@dataclass
class Row:
    """Counts of one line of the table.

    Attributes
    ----------
    runs : int
    refused : int
        Runs that ended in an error that was due.
    """

    runs: int = 0
    refused: int = 0


@dataclass
class Tally:
    """Counts of a part, kept in a mapped file: whoever started the part reads them even after SIGSEGV or SIGKILL.

    Parameters
    ----------
    path : Path
    seconds : float
    seed : int
    """

    path: Path
    seconds: float
    seed: int
    rows: dict[str, Row] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    skipped: str = ""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._end = time.monotonic() + self.seconds
        self._has_begun = False
        with open(self.path, "w+b") as file:
            file.truncate(_STATE_BYTES)
            self._map = mmap.mmap(file.fileno(), _STATE_BYTES)
        self._case_at = _STATE_BYTES // 2

    def in_time(self, row: str, case: str, seconds: float) -> Limit:
        """Return a block in which `case` must end within `seconds` of processor time; else it is a finding."""
        return Limit(self, row, case, seconds)

    def going(self) -> bool:
        """Whether there is time for another run; for the first there always is."""
        is_first, self._has_begun = not self._has_begun, True
        return (is_first or time.monotonic() < self._end) and len(self.findings) < MOST_FINDINGS

    def begin(self, case: str) -> None:
        """Note what is tried now, for the case that it kills the process."""
        content = case.encode("ascii", "backslashreplace")[: _STATE_BYTES // 2 - 4]
        self._map[self._case_at : self._case_at + 4 + len(content)] = len(content).to_bytes(4, "little") + content

    def count(self, row: str, runs: int = 1, refused: int = 0) -> None:
        """Count runs, and those of them that ended in an error that was due."""
        found = self.rows.get(row)
        if found is None:
            found = self.rows[row] = Row()
        found.runs += runs
        found.refused += refused

    def skip(self, reason: str) -> None:
        """Note why this part does nothing here."""
        self.skipped = reason
        self.save()

    def find(self, row: str, what: str) -> None:
        """Note a fault."""
        self.count(row, 0)
        found = f"{row}: {what}"[:_LONGEST_FINDING]
        self.findings.append(found.encode("ascii", "backslashreplace").decode())
        self.save()

    def save(self) -> None:
        """Write the counts to the mapped file."""
        rows = {name: [row.runs, row.refused] for name, row in self.rows.items()}
        findings = self.findings
        while True:
            content = json.dumps({"rows": rows, "findings": findings, "skipped": self.skipped}).encode()
            if len(content) + 4 <= self._case_at:
                break
            findings = findings[:-1]
        self._map[: 4 + len(content)] = len(content).to_bytes(4, "little") + content


class TookTooLong(BaseException):
    """Raised out of work that does not end; no handler of errors takes it for one."""


class Limit:
    """A block that ends in time, or is left."""

    def __init__(self, tally: Tally, row: str, case: str, seconds: float) -> None:
        self._tally, self._row, self._case, self._seconds = tally, row, case, seconds

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, self._seconds)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if kind is not TookTooLong:
            return False
        self._tally.find(self._row, f"more than {self._seconds} s for {self._case}")
        return True


def _leave(number: int, frame: object) -> None:
    raise TookTooLong


signal.signal(signal.SIGVTALRM, _leave)


class Saved(NamedTuple):
    """What a part has saved.

    Attributes
    ----------
    rows : dict of str to Row
    findings : list of str
    case : str
        What it had begun.
    skipped : str
        Why it did nothing, if so.
    """

    rows: dict[str, Row]
    findings: list[str]
    case: str
    skipped: str


def read(path: Path) -> Saved:
    """Return what a part has saved."""
    content = path.read_bytes() if path.exists() else b""
    if not content:
        return Saved({}, [], "", "")
    size = int.from_bytes(content[:4], "little")
    saved = json.loads(content[4 : 4 + size]) if size else {"rows": {}, "findings": [], "skipped": ""}
    half = _STATE_BYTES // 2
    size = int.from_bytes(content[half : half + 4], "little")
    case = content[half + 4 : half + 4 + size].decode("ascii", "backslashreplace")
    rows = {name: Row(*counts) for name, counts in saved["rows"].items()}
    return Saved(rows, saved["findings"], case, saved["skipped"])
