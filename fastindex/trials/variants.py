"""Variants of a program's layouts, and what compiling one says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastindex.core.jax_layouts import JaxLayout
from fastindex.hlo.copies.layout_copies import LayoutCopies
from fastindex.hlo.copies.rows import CopyRow
from fastindex.hlo.divisions import HOST_SPACE
from fastindex.show.spelling import bytes_text
from fastindex.trials.compilers import Constraints
from fastindex.trials.jax_programs import Wanted

#: Less memory of a core is not worth a remark.
_MENTIONED = 1 << 16
#: Growth that is no reason, however small the program: two tables of tuples on a TPU.
_TABLES = 1 << 15


@dataclass(frozen=True, slots=True)
class Variant:
    """Layouts to compile a program with.

    Attributes
    ----------
    inputs, outputs : tuple
        For each argument and result: a layout, "auto", or None for JAX's default.
    constraints : tuple
        For values that loops carry: which order of dimensions.
    """

    inputs: tuple[Wanted, ...]
    outputs: tuple[Wanted, ...]
    constraints: Constraints = ()

    def merged(self, other: Variant) -> Variant:
        """Return both changes together; where both change the same, the other's."""
        constraints = {**dict(self.constraints), **dict(other.constraints)}
        return Variant(
            tuple(new if new is not None else old for old, new in zip(self.inputs, other.inputs, strict=True)),
            tuple(new if new is not None else old for old, new in zip(self.outputs, other.outputs, strict=True)),
            tuple(sorted(constraints.items())),
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """A variant that was compiled.

    Attributes
    ----------
    name : str
        What was changed, in words.
    variant : Variant
    table : LayoutCopies or None
        The copies of the compiled program; None if it does not compile.
    argument_nbytes : int
        Of all arguments of one device, padding included.
    peak_nbytes : int
        Of the memory of the device: what XLA assigns.
    space_peaks : tuple of (int, int)
        The peak in each memory space; but for the first, that of the device, estimated from live ranges.
    inputs, outputs : tuple of JaxLayout or None
        The layouts that the compiled program has.
    aliases : tuple of (path, int)
        Which result takes the memory of which argument.
    refused : str
        Why it is worse than the program as it is; or "".
    remark : str
        Which memory besides the device's it needs more of: that of the core, or of the host; or "".
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
        """The instructions that another layout could avoid."""
        return self.table.avoidable if self.table is not None else ()

    @property
    def copy_count(self) -> int:
        """How many these are."""
        return len(self.rows)

    @property
    def layout_copy_count(self) -> int:
        """How many of them are copies, not reshapes or transposes."""
        return sum(row.opcode.startswith("copy") for row in self.rows)

    @property
    def moved_nbytes(self) -> int:
        """Bytes that these read and write, in all trips of loops; in one trip where their number is not known."""
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
    """When a variant is worse than the program as it is, however few copies it has.

    Attributes
    ----------
    argument_growth, peak_growth : float
        By which part the bytes of the arguments, and those of device memory, may grow.
    """

    argument_growth: float
    peak_growth: float

    def refusal(self, trial: Trial, base: Trial) -> str:
        """Return why a trial is refused, or ""."""
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
        """Say which memory besides the device's a trial needs more of, or ""."""
        before = dict(base.space_peaks)
        grown = []
        for space, nbytes in trial.space_peaks:
            was = before.get(space, 0)
            if space and nbytes >= _MENTIONED and nbytes > was * (1 + self.peak_growth):
                name = f"S({space})" + (", the host's memory," if space == HOST_SPACE else "")
                grown.append(f"{name} grows from {bytes_text(was)} to {bytes_text(nbytes)}")
        return "; ".join(grown)
