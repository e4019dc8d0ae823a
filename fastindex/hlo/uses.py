"""Rows and totals of a whole report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fastindex.errors import FastIndexError
from fastindex.hlo.module_sums import ModuleUse, Peak
from fastindex.hlo.problems import Problem
from fastindex.hlo.rows import ShapeUse

SortKey = Literal["waste", "bytes", "count", "ratio"]
SORT_KEYS: tuple[SortKey, ...] = ("waste", "bytes", "count", "ratio")
#: What is counted: buffers, or the results of all instructions.
Counted = Literal["buffers", "instruction results"]

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


@dataclass(frozen=True, slots=True)
class MemorySpaceUse:
    """Totals of the buffers in one memory space.

    Attributes
    ----------
    memory_space, count, nbytes, logical_nbytes : int
    peak_nbytes : int or None
        Highest estimated peak of a module; None if no module is scheduled.
    """

    memory_space: int
    count: int
    nbytes: int
    logical_nbytes: int
    peak_nbytes: int | None = None


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
        return sum(use.count * use.nbytes for use in self.uses) + self.table_nbytes

    @property
    def total_logical_nbytes(self) -> int:
        """Bytes of the elements of all buffers, and of index tables."""
        return sum(use.count * use.logical_nbytes for use in self.uses) + self.table_nbytes

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
        return sum(use.count for use in self.uses)

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
        return tuple(
            MemorySpaceUse(
                space,
                sum(use.count for use in uses),
                sum(use.count * use.nbytes for use in uses) + (0 if space else self.table_nbytes),
                sum(use.count * use.logical_nbytes for use in uses) + (0 if space else self.table_nbytes),
                peaks.get(space),
            )
            for space, uses in sorted(spaces.items())
        )

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
            "total_nbytes": self.total_nbytes,
            "total_logical_nbytes": self.total_logical_nbytes,
            "table_nbytes": self.table_nbytes,
            "wasted_nbytes": self.wasted_nbytes,
            "peak_nbytes": self.peak_nbytes,
            "peak_logical_nbytes": self.peak_logical_nbytes,
            "counted": self.counted,
            "units": UNITS,
            "instruction_count": self.instruction_count,
            "buffer_count": self.buffer_count,
            "modules": [module.to_json() for module in self.modules],
            "memory_spaces": [
                {
                    "memory_space": space.memory_space,
                    "count": space.count,
                    "nbytes": space.nbytes,
                    "logical_nbytes": space.logical_nbytes,
                    "peak_nbytes": space.peak_nbytes,
                }
                for space in self.memory_spaces
            ],
            "notes": list(self.notes),
            "problems": [
                {
                    "source": problem.source,
                    "line": problem.line,
                    "message": problem.message,
                    "text": problem.text,
                }
                for problem in self.problems
            ],
            "sources": list(self.sources),
        }
