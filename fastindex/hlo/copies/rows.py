"""The rows of a table of copies, and their sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastindex.core.shape import Shape
from fastindex.hlo.copies.kinds import CopyKind


@dataclass(frozen=True, slots=True)
class CopyRow:
    """An instruction that moves data.

    Attributes
    ----------
    instruction, computation, opcode : str
    kind : str
        "layout": a copy to another order, tiles or width of elements. "reshape", "transpose": one that moves elements,
        which XLA prints as ``bitcast`` where nothing moves. "element type": a copy that changes the type of the
        elements, and maybe the layout. "memory space": the same layout elsewhere. "same layout": the same layout in
        the same memory space, for a loop's carry, a branch or a donated buffer.
    source, result : Shape
        Before and after.
    nbytes_read, nbytes_written : int
        Padding included. Inside a fusion: of the operands of the fusion that it comes from, and of the results of the
        fusion that it goes to, because what lies between has no buffers.
    trips : int or None
        How often it runs; None for once in each trip of a loop whose trips are not known.
    estimated_cycles : int or None
        XLA's estimate; None where there is none, or where it is a placeholder.
    measured_nanoseconds : int or None
        From a profile: the time of all trips in one run of the program, the mean over its runs. Of an asynchronous copy
        on a TPU, from start to done. Inside a fusion that does nothing else, that of the fusion.
    fusion : str
        The fusion that it is part of, or "".
    is_alone : bool
        Whether its bytes move for it alone and are added up: it is in no fusion, or in one that does nothing else. Of
        copies that follow each other in such a fusion, the first.
    origin, wanted_by : str
        In words, where the layout of the operand comes from, and who wants the other.
    argument : int or None
        The number of the argument that it comes from.
    argument_path : str
        The name of that argument, such as ``params['q']``.
    chain : tuple of str
        The instructions between its operand and where the layout comes from, nearest first.
    is_invariant : bool
        Whether it copies the same data in every trip of the innermost loop around it.
    at_loop : bool
        Whether it runs in a loop, or copies what a loop carries.
    op_name, source_file, source_line : str, str, int
        Where it comes from in the program: its own metadata, or else those of an instruction that wants the result.
    step, steps : int
        When it first runs, in steps of the schedule, and how many there are.
    line : int
        The line of the HLO text.
    module : str
        The label of the module.
    """

    instruction: str
    computation: str
    opcode: str
    kind: CopyKind
    source: Shape
    result: Shape
    nbytes_read: int
    nbytes_written: int
    trips: int | None = 1
    estimated_cycles: int | None = None
    fusion: str = ""
    is_alone: bool = True
    origin: str = ""
    wanted_by: str = ""
    argument: int | None = None
    argument_path: str = ""
    chain: tuple[str, ...] = ()
    is_invariant: bool = False
    at_loop: bool = False
    op_name: str = ""
    source_file: str = ""
    source_line: int = 0
    step: int = 0
    steps: int = 0
    line: int = 0
    module: str = ""
    measured_nanoseconds: int | None = None

    @property
    def moved_nbytes(self) -> int:
        """Bytes read and written in all trips; in one trip if their number is not known."""
        return (self.nbytes_read + self.nbytes_written) * (1 if self.trips is None else self.trips)

    @property
    def is_avoidable(self) -> bool:
        """Whether another layout could avoid it: it moves its bytes alone, and not within one layout."""
        return self.is_alone and self.kind not in ("same layout", "memory space")

    @property
    def source_text(self) -> str:
        """The file and the line, or ""."""
        return f"{self.source_file}:{self.source_line}" if self.source_file else ""

    @property
    def argument_text(self) -> str:
        """The argument and its name, or ""."""
        if self.argument is None:
            return ""
        return f"argument {self.argument}" + (f", {self.argument_path}" if self.argument_path else "")

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "instruction": self.instruction,
            "computation": self.computation,
            "opcode": self.opcode,
            "kind": self.kind,
            "source": str(self.source),
            "result": str(self.result),
            "nbytes_read": self.nbytes_read,
            "nbytes_written": self.nbytes_written,
            "trips": self.trips,
            "estimated_cycles": self.estimated_cycles,
            "measured_nanoseconds": self.measured_nanoseconds,
            "in_fusion": self.fusion or None,
            "is_alone": self.is_alone,
            "op_name": self.op_name or None,
            "source_file": self.source_file or None,
            "source_line": self.source_line or None,
            "origin": self.origin,
            "wanted_by": self.wanted_by,
            "argument": self.argument,
            "argument_path": self.argument_path or None,
            "chain": list(self.chain),
            "is_invariant": self.is_invariant,
            "at_loop": self.at_loop,
            "step": self.step,
            "line": self.line or None,
            "module": self.module or None,
        }


@dataclass(frozen=True, slots=True)
class CopySum:
    """The sum of several copies.

    Attributes
    ----------
    label : str
        What they have in common.
    count : int
        Instructions that stand alone, or are all that their fusion does.
    nbytes_read, nbytes_written : int
        By these, in all trips; in one trip where their number is not known.
    fused_count : int
        Instructions inside other fusions, whose bytes the fusion would mostly move anyway; they are not in the sums.
    unknown_trips_count : int
        Instructions of which the number of trips is not known.
    measured_nanoseconds : int or None
        The time of those of `count` that a profile measured, in one run of the program; None if it measured none.
    """

    label: str
    count: int
    nbytes_read: int
    nbytes_written: int
    fused_count: int
    unknown_trips_count: int
    measured_nanoseconds: int | None = None

    @property
    def moved_nbytes(self) -> int:
        """Bytes read and written."""
        return self.nbytes_read + self.nbytes_written

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "label": self.label,
            "count": self.count,
            "nbytes_read": self.nbytes_read,
            "nbytes_written": self.nbytes_written,
            "fused_count": self.fused_count,
            "unknown_trips_count": self.unknown_trips_count,
            "measured_nanoseconds": self.measured_nanoseconds,
        }


def sum_of(label: str, rows: Iterable[CopyRow]) -> CopySum:
    """Add up rows."""
    rows = list(rows)
    alone = [row for row in rows if row.is_alone]
    measured = [row.measured_nanoseconds for row in alone if row.measured_nanoseconds is not None]
    return CopySum(
        label,
        len(alone),
        sum(row.nbytes_read * (1 if row.trips is None else row.trips) for row in alone),
        sum(row.nbytes_written * (1 if row.trips is None else row.trips) for row in alone),
        len(rows) - len(alone),
        sum(row.trips is None for row in rows),
        sum(measured) if measured else None,
    )


def sums_by(rows: Iterable[CopyRow], label_of: Callable[[CopyRow], str]) -> tuple[CopySum, ...]:
    """Add up rows by a label, the greatest sum first; rows without a label are left out."""
    grouped: dict[str, list[CopyRow]] = {}
    for row in rows:
        label = label_of(row)
        if label:
            grouped.setdefault(label, []).append(row)
    sums = [sum_of(label, group) for label, group in grouped.items()]
    return tuple(sorted(sums, key=lambda item: (-item.moved_nbytes, -item.count, item.label)))


@dataclass(frozen=True, slots=True)
class CopyTotals:
    """The sums of a table of copies.

    Attributes
    ----------
    all : CopySum
    avoidable : CopySum
        Of the rows that another layout could avoid.
    by_kind, by_line, by_argument : tuple of CopySum
        The greatest sum first. By line of the program, and by argument that is copied.
    """

    all: CopySum
    avoidable: CopySum
    by_kind: tuple[CopySum, ...]
    by_line: tuple[CopySum, ...]
    by_argument: tuple[CopySum, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the sums for JSON."""
        return {
            "all": self.all.to_json(),
            "avoidable": self.avoidable.to_json(),
            "by_kind": [item.to_json() for item in self.by_kind],
            "by_line": [item.to_json() for item in self.by_line],
            "by_argument": [item.to_json() for item in self.by_argument],
        }


def totals_of(rows: Iterable[CopyRow]) -> CopyTotals:
    """Add up rows in every way."""
    rows = tuple(rows)
    return CopyTotals(
        sum_of("all", rows),
        sum_of("avoidable", (row for row in rows if row.is_avoidable)),
        sums_by(rows, lambda row: row.kind),
        sums_by(rows, lambda row: row.source_text),
        sums_by(rows, lambda row: row.argument_text),
    )
