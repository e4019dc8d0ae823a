"""The sums of a module: its buffers, the memory in use at its peak, and what XLA assigned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fastindex.hlo.divisions import Division

#: Where the peak comes from.
Basis = Literal["estimate", "memory analysis", "buffer assignment", "memory usage report", "out-of-memory message"]


@dataclass(frozen=True, slots=True)
class AssignedMemory:
    """The memory that XLA assigned, in bytes: the sums of its allocations by purpose.

    Attributes
    ----------
    arguments, outputs, temporaries, constants : int
        An allocation that is both an argument and an output counts as both.
    aliased : int
        The part of the outputs that reuses the memory of arguments.
    total : int
        All allocations, each once; not those of a thread, such as the scalars of a reducer.
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
        Everything in memory, and its elements alone.
    basis : str
        "estimate": from the live ranges of the buffers in the schedule. Otherwise the source of XLA's own number.
    instruction, computation : str
        What runs at the peak; "" if unknown.
    step, steps : int
        Its position in the schedule, and the length of the schedule.
    timeline : tuple of (int, int, int)
        Step, bytes, bytes of elements: the maximum in each stretch of the schedule, estimated.
    assigned : AssignedMemory or None
        XLA's sums, if known.
    estimate_nbytes : int
        The estimate, if `nbytes` is XLA's number.
    temporary_nbytes : int
        The part of the estimate that is not arguments, outputs or constants.
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
    """The sums of one module.

    Attributes
    ----------
    label : str
        Its name, numbered if several modules of a report share it.
    source : str
        The file, or "".
    stage : str
        The stage of compilation at which it was dumped, from the name of the file; or "".
    instruction_count, buffer_count : int
    nbytes, logical_nbytes : int
        Of all its buffers, and the index table.
    table_nbytes : int
        Of the tables of tuples; they are in the sums and the peak, and no rows.
    partition_count : int
        Over how many devices the arrays are divided; the sizes are those of one.
    peak : Peak or None
        None if the module is not scheduled.
    notes : tuple of str
        Remarks for the reader.
    space_peaks : tuple of (int, Peak)
        The other memory spaces with more than flags in them, and the estimated peak of each.
    division : Division or None
        How its arguments are divided over devices; None if they have no shardings.
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
            "notes": list(self.notes),
            "division": self.division.to_json() if self.division else None,
        }
