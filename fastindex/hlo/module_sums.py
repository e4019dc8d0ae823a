"""Totals of a module: its buffers, its peak memory, and the memory that XLA assigned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fastindex.hlo.divisions import Division

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
    """

    arguments: int
    outputs: int
    temporaries: int
    constants: int
    aliased: int
    total: int


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
        Estimated peaks of the other memory spaces that contain more than flags.
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
            "notes": list(self.notes),
            "division": self.division.to_json() if self.division else None,
        }
