"""Variants of a program's layouts, and the results of compiling them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastindex.core.foreign_arrays import JaxLayout
from fastindex.hlo.copies.layout_copies import LayoutCopies
from fastindex.hlo.copies.rows import CopyRow
from fastindex.hlo.divisions import HOST_SPACE
from fastindex.show.spelling import bytes_text
from fastindex.trials.compilers import Constraints
from fastindex.trials.jax_programs import Wanted

#: Growth of core memory below this many bytes is not reported.
_MENTIONED = 1 << 16
#: Growth of device memory that is always allowed, however small the program: two tuple tables on a TPU.
_TABLES = 1 << 15


@dataclass(frozen=True, slots=True)
class Variant:
    """Requested layouts for a program.

    Attributes
    ----------
    inputs, outputs : tuple
        For each argument or result: a layout, "auto", or None for JAX's default.
    constraints : tuple
        Requested dimension orders for loop carries.
    """

    inputs: tuple[Wanted, ...]
    outputs: tuple[Wanted, ...]
    constraints: Constraints = ()

    def merged(self, other: Variant) -> Variant:
        """Return the combination of both changes; in a conflict, the other's layout is used."""
        constraints = {**dict(self.constraints), **dict(other.constraints)}
        return Variant(
            tuple(new if new is not None else old for old, new in zip(self.inputs, other.inputs, strict=True)),
            tuple(new if new is not None else old for old, new in zip(self.outputs, other.outputs, strict=True)),
            tuple(sorted(constraints.items())),
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """A variant that was compiled, with its costs.

    Attributes
    ----------
    name : str
        Description of the changes.
    variant : Variant
    table : LayoutCopies or None
        Copies of the compiled program; None if it does not compile.
    argument_nbytes : int
        Bytes of all arguments on one device, padding included.
    peak_nbytes : int
        Bytes of device memory that XLA assigns.
    space_peaks : tuple of (int, int)
        Peak of each memory space; except for device memory, estimated from live ranges.
    inputs, outputs : tuple of JaxLayout or None
        Layouts of the compiled program.
    aliases : tuple of (path, int)
        Pairs of results and arguments that share memory.
    refused : str
        Reason why it is worse than the unchanged program; or "".
    remark : str
        Growth of memory other than the device's: that of the core, or of the host; or "".
    """

    name: str
    variant: Variant
    table: LayoutCopies | None = None
    argument_nbytes: int = 0
    peak_nbytes: int = 0
    space_peaks: tuple[tuple[int, int], ...] = ()
    inputs: tuple[JaxLayout | None, ...] = ()
    outputs: tuple[JaxLayout | None, ...] = ()
    aliases: tuple[tuple[tuple[int, ...], int], ...] = ()
    refused: str = ""
    remark: str = ""

    @property
    def rows(self) -> tuple[CopyRow, ...]:
        """The copies that another layout could avoid."""
        return self.table.avoidable if self.table is not None else ()

    @property
    def copy_count(self) -> int:
        """Number of `rows`."""
        return len(self.rows)

    @property
    def layout_copy_count(self) -> int:
        """Number of `rows` that are copies, not reshapes or transposes."""
        return sum(row.opcode.startswith("copy") for row in self.rows)

    @property
    def moved_nbytes(self) -> int:
        """Bytes that `rows` read and write in all trips of loops; in one trip if the trip count is unknown."""
        return sum(row.moved_nbytes for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        return {
            "name": self.name,
            "copies": self.copy_count,
            "moved_nbytes": self.moved_nbytes,
            "argument_nbytes": self.argument_nbytes,
            "peak_nbytes": self.peak_nbytes,
            "space_peaks": {str(space): nbytes for space, nbytes in self.space_peaks},
            "refused": self.refused or None,
            "remark": self.remark or None,
        }


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits beyond which a variant is rejected, however few copies it has.

    Attributes
    ----------
    argument_growth, peak_growth : float
        Fraction by which the bytes of the arguments, and the peak of device memory, may grow.
    """

    argument_growth: float
    peak_growth: float

    def refusal(self, trial: Trial, base: Trial) -> str:
        """Return why a trial is rejected, or ""."""
        reasons = []
        if trial.moved_nbytes >= base.moved_nbytes:
            reasons.append(f"no less is moved, {bytes_text(base.moved_nbytes)} and {bytes_text(trial.moved_nbytes)}")
        for what, before, after, growth, more in (
            ("the arguments", base.argument_nbytes, trial.argument_nbytes, self.argument_growth, 0),
            ("device memory", base.peak_nbytes, trial.peak_nbytes, self.peak_growth, _TABLES),
        ):
            if after > before * (1 + growth) + more:
                times = f", {after / before:.3g} times" if before else ""
                reasons.append(f"{what} would grow from {bytes_text(before)} to {bytes_text(after)}{times}")
        return "; ".join(reasons)

    def remark(self, trial: Trial, base: Trial) -> str:
        """Return which memory besides the device's grows in a trial, or ""."""
        before = dict(base.space_peaks)
        grown = []
        for space, nbytes in trial.space_peaks:
            was = before.get(space, 0)
            if space and nbytes >= _MENTIONED and nbytes > was * (1 + self.peak_growth):
                name = f"S({space})" + (", the host's memory," if space == HOST_SPACE else "")
                grown.append(f"{name} grows from {bytes_text(was)} to {bytes_text(nbytes)}")
        return "; ".join(grown)
