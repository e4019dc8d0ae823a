"""Fuzzed pieces of HLO, modules of broken structure, buffer assignments, memory reports and out-of-memory messages.

Whatever the text: a report whose totals are the sums of its rows, or a FastIndexError, soon.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import fastindex as fi
from fastindex.hlo.flow.liveness import UNIT_NBYTES
from tests.cases import hlo_structures as structures
from tests.cases.damage import damaged
from tests.faults.tally import Tally

_DATA = Path(__file__).resolve().parents[1] / "data" / "hlo"
#: No piece of some kilobytes takes longer.
_MOST_SECONDS = 2.0
_LONGEST_OTHER = 6000
_LONGEST_MODULE = 16000


def run(tally: Tally) -> None:
    """Fuzz pieces until the time is over."""
    modules = [path.read_text() for path in sorted(_DATA.rglob("*.txt")) if _is_module(path)]
    lines = [_parts_of(text) for text in modules]
    others = [path.read_text() for path in sorted(_DATA.rglob("*.txt")) if not _is_module(path)]
    others += _messages()
    others = [text for text in others if len(text) <= _LONGEST_OTHER]
    wholes = [structures.taken_apart(text) for text in modules if len(text) <= _LONGEST_MODULE]
    small = [structures.taken_apart(text) for text in structures.SMALL]
    while tally.going():
        for _ in range(50):
            kind = tally.random.random()
            if kind < 0.5:
                row, text = "pieces of HLO", _piece(tally.random, *tally.random.choice(lines))
            elif kind < 0.9:
                row = "modules of HLO"
                source = tally.random.choice(small if tally.random.random() < 0.8 else wholes)
                text = structures.damaged_structure(tally.random, source)
            else:
                row, text = "pieces of other dumps and messages", tally.random.choice(others)
            if tally.random.random() < (0.1 if row == "modules of HLO" else 0.95):
                text = damaged(tally.random, text, 3)
            with tally.in_time(row, repr(text), _MOST_SECONDS):
                _try(tally, row, text)
        tally.save()


def _is_module(path: Path) -> bool:
    with open(path) as file:
        return file.read(9) == "HloModule"


def _messages() -> list[str]:
    return [entry for entry in _strings(json.loads((_DATA / "out_of_memory.json").read_text())) if len(entry) > 100]


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [entry for part in value for entry in _strings(part)] if isinstance(value, list) else []


def _parts_of(text: str) -> tuple[str, list[str], list[str]]:
    """The header, the instructions, and whole computations of a module."""
    head, _, rest = text.partition("\n")
    instructions = [line for line in rest.splitlines() if " = " in line and len(line) < 1500]
    computations = [part for part in rest.split("\n\n") if "{" in part and len(part) < 1500]
    return head[:600], instructions, computations


def _piece(source: Random, head: str, instructions: list[str], computations: list[str]) -> str:
    parts = [head if source.random() < 0.3 else "HloModule m, is_scheduled=true"]
    if computations and source.random() < 0.4:
        parts.append(source.choice(computations))
    body = [source.choice(instructions) for _ in range(source.randint(1, 5))]
    return "\n".join([*parts, "ENTRY e {", *body, "}"])


def _try(tally: Tally, row: str, text: str) -> None:
    tally.begin(repr(text))
    tally.count(row)
    try:
        report = fi.hlo.report(text, instruction_results=tally.random.random() < 0.3)
        if report.total_nbytes != sum(use.nbytes * use.count for use in report.uses) + report.table_nbytes:
            tally.find(row, f"total {report.total_nbytes} is not the sum of the rows of {text!r}")
        # Buffers of a TPU take whole units of its heap, and only its layouts have tiles.
        holes = UNIT_NBYTES * report.buffer_count if ":T(" in text else 0
        # Of an assignment with lines missing, XLA's own peak is more than what is left.
        if row == "modules of HLO" and (report.peak_nbytes or 0) > report.total_nbytes + holes:
            tally.find(row, f"a peak of {report.peak_nbytes}, above the total, of {text!r}")
        if min((report.total_nbytes, report.total_logical_nbytes, report.wasted_nbytes)) < 0:
            tally.find(row, f"a negative total of {text!r}")
        detailed = tally.random.random() < 0.02
        if detailed:
            json.dumps(report.to_json("waste", None))
            report.html("waste", 50)
        _try_copies(tally, row, text, detailed)
    except fi.FastIndexError:
        tally.count(row, 0, 1)
    except Exception as error:
        tally.find(row, f"{type(error).__name__}: {error} for {text!r}")


def _try_copies(tally: Tally, row: str, text: str, detailed: bool) -> None:
    """List the copies of a text of which a report was made; only one without a module is refused."""
    try:
        table = fi.hlo.layout_copies(text)
    except fi.FastIndexError as error:
        if row == "modules of HLO":
            tally.find(row, f"a report, but no copies: {error}: of {text!r}")
        return
    if any(item.nbytes_read < 0 or item.nbytes_written < 0 for item in table.rows(all_moves=True)):
        tally.find(row, f"a copy of negative size in {text!r}")
    if detailed:
        json.dumps(table.to_json(all_moves=True))
        table.text(top=None, all_moves=True)
        table.html()
