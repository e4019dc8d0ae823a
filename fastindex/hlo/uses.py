"""What a report holds: rows of equal shapes, where they come from, and the sums of each module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fastindex.advice.changes import Change, cheapest_change
from fastindex.advice.padding import PaddingStep, describe_step, main_cause
from fastindex.errors import FastIndexError
from fastindex.hlo.divisions import Division
from fastindex.hlo.jax_advice import cost_text, jax_lines
from fastindex.hlo.scanner import Problem
from fastindex.hlo.shape_table import array_of
from fastindex.shapes.shape import Shape

SortKey = Literal["waste", "bytes", "count", "ratio"]
SORT_KEYS: tuple[SortKey, ...] = ("waste", "bytes", "count", "ratio")
#: What is counted: buffers, or the results of all instructions.
Counted = Literal["buffers", "instruction results"]
#: Where the peak comes from.
Basis = Literal["estimate", "buffer assignment", "memory usage report", "out-of-memory message"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer comes from.

    Attributes
    ----------
    instruction, computation : str
        The instruction that defines it, and the computation that holds it.
    role : str
        "argument", "output", "constant" or "temporary"; of an out-of-memory message its allocation type; "" where
        all instructions are counted.
    op_name : str
        The operation of the program, as the metadata has it; or "".
    source_file, source_line : str, int
        The line of the program; "" and 0 where the metadata has none.
    line : int
        The line of the HLO text.
    at_peak : bool
        Whether the buffer is there at the peak of its memory space; False where no peak is known.
    sharding : str
        Of an argument: how it is divided among devices, as written; or "".
    """

    instruction: str
    computation: str = ""
    role: str = ""
    op_name: str = ""
    source_file: str = ""
    source_line: int = 0
    line: int = 0
    at_peak: bool = False
    sharding: str = ""

    @property
    def source_text(self) -> str:
        """The file and the line, or ""."""
        return f"{self.source_file}:{self.source_line}" if self.source_file else ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return {
            "instruction": self.instruction,
            "computation": self.computation,
            "role": self.role or None,
            "op_name": self.op_name or None,
            "source_file": self.source_file or None,
            "source_line": self.source_line or None,
            "line": self.line or None,
            "at_peak": self.at_peak,
            "sharding": self.sharding or None,
        }


@dataclass(frozen=True, slots=True)
class ShapeUse:
    """The buffers of one shape in one module.

    Attributes
    ----------
    shape : Shape
        Not a tuple: tuples are split into their leaves.
    count : int
        How many buffers have it.
    nbytes, logical_nbytes : int
        Of one buffer, and of its elements alone.
    module : str
        The label of the module, as in `ModuleUse`.
    places : tuple of Place
        Where they come from, in the order of the text.
    readers : tuple of (str, Shape)
        Copies that read one of them into another layout: the instruction, and the shape it makes.
    """

    shape: Shape
    count: int
    nbytes: int
    logical_nbytes: int
    module: str = ""
    places: tuple[Place, ...] = ()
    readers: tuple[tuple[str, Shape], ...] = ()

    @property
    def padding_ratio(self) -> float:
        """Bytes of the buffer per byte of its elements."""
        return self.shape.padding_ratio

    @property
    def wasted_nbytes(self) -> int:
        """Bytes of padding in all the buffers of this shape."""
        return self.count * (self.nbytes - self.logical_nbytes)

    def waste_key(self) -> tuple[int, int]:
        """Return what rows are sorted by: the wasted bytes, then all bytes."""
        return self.wasted_nbytes, self.count * self.nbytes

    @property
    def peak_count(self) -> int:
        """How many of them are there at the peak of their memory space."""
        return sum(place.at_peak for place in self.places)

    @property
    def memory_space(self) -> int:
        """The memory space of the layout; 0 for what has no layout."""
        array = array_of(self.shape)
        return array.layout.memory_space if array is not None else 0

    @property
    def cause(self) -> PaddingStep | None:
        """The step of the layout that pads most."""
        array = array_of(self.shape)
        return main_cause(array) if array is not None and self.nbytes > self.logical_nbytes else None

    @property
    def cause_text(self) -> str:
        """The cause in words, or ""."""
        cause, array = self.cause, array_of(self.shape)
        return describe_step(array, cause) if cause is not None and array is not None else ""

    @property
    def change(self) -> Change | None:
        """The cheapest change of the layout that avoids most of the padding."""
        array = array_of(self.shape)
        return cheapest_change(array) if array is not None else None

    @property
    def jax_lines(self) -> tuple[str, ...]:
        """The change as lines of JAX; empty where there is none, or JAX has no line for it."""
        change, array = self.change, array_of(self.shape)
        if change is None or array is None:
            return ()
        return jax_lines(array, change, [place.role for place in self.places])

    @property
    def change_cost(self) -> str:
        """What the change costs where a consumer wants the old order, or ""."""
        change, array = self.change, array_of(self.shape)
        if change is None or array is None:
            return ""
        return cost_text(array, change, self.nbytes, self.readers)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON takes them; `UNITS` says what each number is for."""
        change = self.change
        return {
            "text": str(self.shape),
            "count": self.count,
            "nbytes": self.nbytes,
            "logical_nbytes": self.logical_nbytes,
            # JSON has no infinity: a buffer that is all padding has no ratio.
            "padding_ratio": self.padding_ratio if self.logical_nbytes or not self.nbytes else None,
            "wasted_nbytes": self.wasted_nbytes,
            "peak_count": self.peak_count,
            "memory_space": self.memory_space,
            "module": self.module or None,
            "cause": self.cause_text or None,
            "change": change
            and {
                "description": change.description,
                "text": str(change.shape),
                "saved_nbytes": change.saved_nbytes * self.count,
                "saved_at_peak_nbytes": change.saved_nbytes * self.peak_count,
                "jax": list(self.jax_lines),
                "cost": self.change_cost,
            },
            "instructions": [place.to_json() for place in self.places],
        }


#: Of every number in the JSON of a row: whether it is for one buffer or for all of the row.
UNITS = {
    "count": "all buffers of the row",
    "nbytes": "one buffer",
    "logical_nbytes": "one buffer",
    "padding_ratio": "one buffer",
    "wasted_nbytes": "all buffers of the row",
    "peak_count": "all buffers of the row",
    "change.saved_nbytes": "all buffers of the row",
    "change.saved_at_peak_nbytes": "the buffers of the row that are there at the peak",
    "total_nbytes": "all buffers of all modules",
    "total_logical_nbytes": "all buffers of all modules",
    "wasted_nbytes of the report": "all buffers of all modules",
    "peak_nbytes": "the module with the highest peak, memory space 0",
    "peak_logical_nbytes": "the module with the highest peak, memory space 0",
}


@dataclass(frozen=True, slots=True)
class MemorySpaceUse:
    """Sums over the buffers of one memory space.

    Attributes
    ----------
    memory_space, count, nbytes, logical_nbytes : int
    peak_nbytes : int or None
        The estimated peak of the module with the highest; None where no module is scheduled.
    """

    memory_space: int
    count: int
    nbytes: int
    logical_nbytes: int
    peak_nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class AssignedMemory:
    """What XLA assigned, in bytes: the sums of its allocations by what they are for.

    Attributes
    ----------
    arguments, outputs, temporaries, constants : int
        An allocation that is an argument and an output counts as both.
    aliased : int
        The part of the outputs that takes the memory of arguments.
    total : int
        All allocations, each once.
    """

    arguments: int
    outputs: int
    temporaries: int
    constants: int
    aliased: int
    total: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which a module has most memory in use, in one memory space.

    Attributes
    ----------
    nbytes, logical_nbytes : int
        All that is there, and the elements in it alone.
    basis : str
        "estimate": from the live ranges of the buffers in the schedule. Else XLA's own number.
    instruction, computation : str
        What runs at the peak; "" where it is not known.
    step, steps : int
        Its place in the schedule, and how many steps that has.
    timeline : tuple of (int, int, int)
        Step, bytes, bytes of elements: the most in each stretch of the schedule; estimated.
    assigned : AssignedMemory or None
        XLA's sums, where they are known.
    estimate_nbytes : int
        The estimate, where the number is XLA's.
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

    @property
    def wasted_nbytes(self) -> int:
        """Bytes of padding at the peak."""
        return self.nbytes - self.logical_nbytes


@dataclass(frozen=True, slots=True)
class ModuleUse:
    """The sums of one module.

    Attributes
    ----------
    label : str
        Its name, with a number where several modules of a report have it.
    source : str
        The file, or "".
    stage : str
        The stage of compilation at which it was dumped, as the name of the file says; or "".
    instruction_count, buffer_count : int
    nbytes, logical_nbytes : int
        Of all its buffers.
    partition_count : int
        How many devices share the arrays; the sizes are those of one.
    peak : Peak or None
        None for a module that is not scheduled.
    notes : tuple of str
        What a reader has to know about it.
    space_peaks : tuple of (int, Peak)
        The other memory spaces that hold more than flags, and the estimated peak in each.
    division : Division or None
        How its arguments are divided over devices; None where they have no shardings.
    """

    label: str
    source: str = ""
    stage: str = ""
    instruction_count: int = 0
    buffer_count: int = 0
    nbytes: int = 0
    logical_nbytes: int = 0
    partition_count: int = 1
    peak: Peak | None = None
    notes: tuple[str, ...] = ()
    space_peaks: tuple[tuple[int, Peak], ...] = ()
    division: Division | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
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
            "notes": list(self.notes),
            "division": self.division.to_json() if self.division else None,
        }


@dataclass(frozen=True)
class Uses:
    """The rows and sums of a report.

    Attributes
    ----------
    uses : tuple of ShapeUse
        By wasted bytes, the most first.
    instruction_count : int
    problems : tuple of Problem
        Lines and files that could not be read; the rest was.
    sources : tuple of str
        The files, if there were any.
    modules : tuple of ModuleUse
    counted : str
        "buffers", or "instruction results" where the results of all instructions are counted.
    notes : tuple of str
        What a reader has to know about all of it.
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
        """Bytes of all buffers, padding included, as if none shared memory with another."""
        return sum(use.count * use.nbytes for use in self.uses)

    @property
    def total_logical_nbytes(self) -> int:
        """Bytes of the elements of all buffers."""
        return sum(use.count * use.logical_nbytes for use in self.uses)

    @property
    def wasted_nbytes(self) -> int:
        """Bytes of padding in all buffers."""
        return self.total_nbytes - self.total_logical_nbytes

    @property
    def buffer_count(self) -> int:
        """How many buffers there are."""
        return sum(use.count for use in self.uses)

    @property
    def peak(self) -> Peak | None:
        """The highest peak of the modules; None where none is known."""
        return max((item.peak for item in self.modules if item.peak), key=lambda peak: peak.nbytes, default=None)

    @property
    def peak_nbytes(self) -> int | None:
        """Bytes in use at the highest peak, in memory space 0; None where no module is scheduled."""
        peak = self.peak
        return peak.nbytes if peak else None

    @property
    def peak_logical_nbytes(self) -> int | None:
        """Bytes of elements at the highest peak; None where no module is scheduled."""
        peak = self.peak
        return peak.logical_nbytes if peak else None

    @property
    def memory_spaces(self) -> tuple[MemorySpaceUse, ...]:
        """The sums by memory space."""
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
                sum(use.count * use.nbytes for use in uses),
                sum(use.count * use.logical_nbytes for use in uses),
                peaks.get(space),
            )
            for space, uses in sorted(spaces.items())
        )

    def sorted_uses(self, sort: SortKey = "waste", top: int | None = None) -> list[ShapeUse]:
        """Return the rows in another order, the greatest first, and only the first `top` of them.

        Raises
        ------
        FastIndexError
            No such order.
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
        """Return the report as JSON takes it; the totals are over all shapes, whatever `top` is."""
        return {
            "shapes": [use.to_json() for use in self.sorted_uses(sort, top)],
            "total_nbytes": self.total_nbytes,
            "total_logical_nbytes": self.total_logical_nbytes,
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
