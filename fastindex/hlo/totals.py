"""Totals of a report: of a module, of a memory space, and of all; the peak, and the memory that XLA assigned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from fastindex.errors import FastIndexError
from fastindex.hlo.divisions import Division
from fastindex.hlo.presentation import Problem, Record, json_of
from fastindex.hlo.rows import ShapeUse

#: What is counted: buffers, or the results of all instructions.
Counted = Literal["buffers", "instruction results"]
#: Source of the peak.
Basis = Literal["estimate", "memory analysis", "buffer assignment", "memory usage report", "out-of-memory message"]


@dataclass(frozen=True, slots=True)
class AssignedMemory:
    """Memory that XLA assigned, in bytes, summed by purpose.

    Attributes
    ----------
    arguments, outputs, temporaries, constants : int
        An allocation that is both an argument and an output counts as both.
    aliased : int
        Bytes of outputs that reuse the memory of arguments.
    total : int
        All allocations, each counted once; without thread-local ones, such as the scalars of a reducer.
    other_spaces : tuple of (int, int)
        Number and total of each other memory space, where the assignment itself is known.
    """

    arguments: int
    outputs: int
    temporaries: int
    constants: int
    aliased: int
    total: int
    other_spaces: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak memory use of a module in one memory space.

    Attributes
    ----------
    nbytes, logical_nbytes : int
        Bytes in use, and bytes of elements among them.
    basis : str
        "estimate": from the live ranges of the buffers. Otherwise the source of XLA's own number.
    instruction, computation : str
        The instruction at the peak, and its computation; "" if unknown.
    step, steps : int
        Its position in the schedule, and the length of the schedule.
    timeline : tuple of (int, int, int)
        Step, bytes and bytes of elements at the maximum of each interval of the schedule; estimated.
    assigned : AssignedMemory or None
        XLA's totals, if known.
    estimate_nbytes : int
        The estimate, if `nbytes` is XLA's number; else 0.
    temporary_nbytes : int
        Bytes of the estimate other than arguments, outputs and constants.
    """

    nbytes: int
    logical_nbytes: int
    basis: Basis = "estimate"
    instruction: str = ""
    computation: str = ""
    step: int = 0
    steps: int = 0
    timeline: tuple[tuple[int, int, int], ...] = ()
    assigned: AssignedMemory | None = None
    estimate_nbytes: int = 0
    temporary_nbytes: int = 0

    @property
    def wasted_nbytes(self) -> int:
        """Bytes of padding at the peak."""
        return self.nbytes - self.logical_nbytes


@dataclass(frozen=True, slots=True)
class ModuleUse:
    """Totals of one module.

    Attributes
    ----------
    label : str
        Its name, with a number if several modules of a report share the name.
    source : str
        File name, or "".
    stage : str
        Compilation stage at which it was dumped, from the file name; or "".
    instruction_count, buffer_count : int
    nbytes, logical_nbytes : int
        Sums over all its buffers, index tables included.
    table_nbytes : int
        Bytes of the index tables of tuples; part of the sums and of the peak, but not listed as rows.
    partition_count : int
        Number of devices over which arrays are partitioned; sizes are per device.
    peak : Peak or None
        Peak in memory space 0; None if the module is not scheduled.
    notes : tuple of str
        Remarks for the reader.
    space_peaks : tuple of (int, Peak)
        Peaks of the other memory spaces that contain more than flags.
    division : Division or None
        Division of its arguments over devices; None if they have no shardings.
    """

    label: str
    source: str = ""
    stage: str = ""
    instruction_count: int = 0
    buffer_count: int = 0
    nbytes: int = 0
    logical_nbytes: int = 0
    table_nbytes: int = 0
    partition_count: int = 1
    peak: Peak | None = None
    notes: tuple[str, ...] = ()
    space_peaks: tuple[tuple[int, Peak], ...] = ()
    division: Division | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        peak = self.peak
        assigned = peak.assigned if peak else None
        return {
            "module": self.label,
            "source": self.source or None,
            "stage": self.stage or None,
            "instruction_count": self.instruction_count,
            "buffer_count": self.buffer_count,
            "total_nbytes": self.nbytes,
            "total_logical_nbytes": self.logical_nbytes,
            "wasted_nbytes": self.nbytes - self.logical_nbytes,
            "table_nbytes": self.table_nbytes,
            "num_partitions": self.partition_count,
            "peak_nbytes": peak.nbytes if peak else None,
            "peak_logical_nbytes": peak.logical_nbytes if peak else None,
            "peak_basis": peak.basis if peak else None,
            "peak_instruction": (peak.instruction or None) if peak else None,
            "peak_computation": (peak.computation or None) if peak else None,
            "assigned": assigned
            and {
                "argument_nbytes": assigned.arguments,
                "output_nbytes": assigned.outputs,
                "temporary_nbytes": assigned.temporaries,
                "constant_nbytes": assigned.constants,
                "aliased_nbytes": assigned.aliased,
                "total_nbytes": assigned.total,
            },
            "notes": json_of(self.notes),
            "division": json_of(self.division),
        }


@dataclass(frozen=True, slots=True)
class MemorySpaceUse(Record):
    """Totals of the buffers in one memory space.

    Attributes
    ----------
    memory_space, count, nbytes, logical_nbytes : int
    peak_nbytes : int or None
        Highest peak of a module; None if no module is scheduled.
    """

    memory_space: int
    count: int
    nbytes: int
    logical_nbytes: int
    peak_nbytes: int | None = None


def totals_of(uses: Iterable[ShapeUse]) -> tuple[int, int, int]:
    """Return the number of the buffers in rows, their bytes, and the bytes of their elements."""
    count = nbytes = logical_nbytes = 0
    for use in uses:
        count += use.count
        nbytes += use.count * use.nbytes
        logical_nbytes += use.count * use.logical_nbytes
    return count, nbytes, logical_nbytes


SortKey = Literal["waste", "bytes", "count", "ratio"]
SORT_KEYS: tuple[SortKey, ...] = ("waste", "bytes", "count", "ratio")

#: Scope of each number in the JSON.
UNITS = {
    "count": "all buffers of the row",
    "nbytes": "one buffer",
    "logical_nbytes": "one buffer",
    "padding_ratio": "one buffer",
    "wasted_nbytes": "all buffers of the row",
    "peak_count": "all buffers of the row",
    "change.saved_nbytes": "all buffers of the row",
    "change.saved_at_peak_nbytes": "the buffers of the row that are there at the peak",
    "total_nbytes": "all buffers and index tables of all modules",
    "total_logical_nbytes": "all buffers and index tables of all modules",
    "table_nbytes": "the index tables of all modules",
    "wasted_nbytes of the report": "all buffers of all modules",
    "peak_nbytes": "the module with the highest peak, memory space 0",
    "peak_logical_nbytes": "the module with the highest peak, memory space 0",
}


#: Attributes of a report that are in its JSON under the same names.
_IN_JSON = (
    "total_nbytes", "total_logical_nbytes", "table_nbytes", "wasted_nbytes", "peak_nbytes", "peak_logical_nbytes",
    "counted", "instruction_count", "buffer_count", "modules", "memory_spaces", "notes", "problems", "sources",
)  # fmt: skip


@dataclass(frozen=True)
class Uses:
    """Rows and totals of a report.

    Attributes
    ----------
    uses : tuple of ShapeUse
        Sorted by wasted bytes, most first.
    instruction_count : int
    problems : tuple of Problem
        Lines and files that could not be read; the report covers the others.
    sources : tuple of str
        File names, if any.
    modules : tuple of ModuleUse
    counted : str
        "buffers", or "instruction results" if the results of all instructions are counted.
    notes : tuple of str
        Remarks on the whole report.
    """

    uses: tuple[ShapeUse, ...]
    instruction_count: int
    problems: tuple[Problem, ...] = ()
    sources: tuple[str, ...] = ()
    modules: tuple[ModuleUse, ...] = ()
    counted: Counted = "buffers"
    notes: tuple[str, ...] = ()

    @property
    def total_nbytes(self) -> int:
        """Bytes of all buffers and index tables, padding included; shared memory counts for every buffer in it."""
        return totals_of(self.uses)[1] + self.table_nbytes

    @property
    def total_logical_nbytes(self) -> int:
        """Bytes of the elements of all buffers, and of index tables."""
        return totals_of(self.uses)[2] + self.table_nbytes

    @property
    def table_nbytes(self) -> int:
        """Bytes of the index tables of tuples; part of the totals and peaks, but not listed as rows."""
        return sum(module.table_nbytes for module in self.modules)

    @property
    def wasted_nbytes(self) -> int:
        """Bytes of padding in all buffers."""
        return self.total_nbytes - self.total_logical_nbytes

    @property
    def buffer_count(self) -> int:
        """Number of buffers."""
        return totals_of(self.uses)[0]

    @property
    def peak(self) -> Peak | None:
        """The highest peak of the modules; None if none is known."""
        return max((item.peak for item in self.modules if item.peak), key=lambda peak: peak.nbytes, default=None)

    @property
    def peak_nbytes(self) -> int | None:
        """Bytes in use at the highest peak, in memory space 0; None if no module is scheduled."""
        peak = self.peak
        return peak.nbytes if peak else None

    @property
    def peak_logical_nbytes(self) -> int | None:
        """Bytes of elements at the highest peak; None if no module is scheduled."""
        peak = self.peak
        return peak.logical_nbytes if peak else None

    @property
    def memory_spaces(self) -> tuple[MemorySpaceUse, ...]:
        """Totals by memory space."""
        spaces: dict[int, list[ShapeUse]] = {}
        for use in self.uses:
            spaces.setdefault(use.memory_space, []).append(use)
        peaks: dict[int, int] = {}
        for space, peak in (pair for module in self.modules for pair in module.space_peaks):
            peaks[space] = max(peak.nbytes, peaks.get(space, 0))
        if self.peak_nbytes is not None:
            peaks[0] = self.peak_nbytes
        found = []
        for space, uses in sorted(spaces.items()):
            count, nbytes, logical_nbytes = totals_of(uses)
            tables = 0 if space else self.table_nbytes
            found.append(MemorySpaceUse(space, count, nbytes + tables, logical_nbytes + tables, peaks.get(space)))
        return tuple(found)

    def sorted_uses(self, sort: SortKey = "waste", top: int | None = None) -> list[ShapeUse]:
        """Return the first `top` rows in a given order, greatest first.

        Raises
        ------
        FastIndexError
            The sort key is unknown.
        """
        keys: dict[str, Callable[[ShapeUse], Any]] = {
            "waste": ShapeUse.waste_key,
            "bytes": lambda use: use.count * use.nbytes,
            "count": lambda use: use.count,
            "ratio": lambda use: use.padding_ratio,
        }
        if sort not in keys:
            raise FastIndexError(f"sort must be one of {', '.join(SORT_KEYS)}, got {sort!r}")
        return sorted(self.uses, key=keys[sort], reverse=True)[:top]

    def to_json(self, sort: SortKey = "waste", top: int | None = None) -> dict[str, Any]:
        """Return the report for JSON; the totals cover all shapes, whatever `top` is."""
        return {
            "shapes": [use.to_json() for use in self.sorted_uses(sort, top)],
            "units": UNITS,
            **{name: json_of(getattr(self, name)) for name in _IN_JSON},
        }
