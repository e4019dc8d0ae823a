"""Variants of a program's layouts, the results of compiling them, and the best one with the JAX code to request it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from fastindex.core.foreign_arrays import JaxLayout
from fastindex.hlo.copies.layout_copies import LayoutCopies
from fastindex.hlo.copies.rows import CopyRow, shared_origins_text
from fastindex.hlo.divisions import HOST_SPACE
from fastindex.hlo.presentation import Printed, TableRow, text_table
from fastindex.show.spelling import bytes_text
from fastindex.trials.compilers import Constraints
from fastindex.trials.jax_programs import FlatProgram, Wanted, jax_format, memory_kind

#: Growth of core memory below this many bytes is not reported.
_MENTIONED = 1 << 16
#: Growth of device memory that is always allowed, however small the program: two tuple tables on a TPU.
_TABLES = 1 << 15
_TITLES = ("copies", "moved", "arguments", "device memory", "other memory", "change, and why it is refused")


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


class _Code:
    """A string whose repr is the string itself, to print as code within a container."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


@dataclass(frozen=True)
class Asked:
    """The arguments of the search, normalized.

    Attributes
    ----------
    program : FlatProgram
    shardings : (sequence, sequence)
        Shardings of the flat arguments and results; None where none was given.
    donated, static : tuple of int
    """

    program: FlatProgram
    shardings: tuple[Sequence[Any], Sequence[Any]]
    donated: tuple[int, ...]
    static: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Best:
    """The best variant, and how to request it.

    Attributes
    ----------
    trial : Trial
        Its numbers; `Trial.table` lists its remaining copies.
    base : Trial
        The unchanged program.
    """

    trial: Trial
    base: Trial
    _asked: Asked

    @property
    def name(self) -> str:
        """Description of its changes."""
        return self.trial.name

    @property
    def is_changed(self) -> bool:
        """Whether it differs from the unchanged program."""
        return self.trial is not self.base

    @property
    def layouts(self) -> Any:
        """Changed layouts of arguments, in the structure of the non-static arguments; None where JAX's default remains.

        A `fastindex.core.foreign_arrays.JaxLayout` has `minor_to_major` and `tiles`.
        """
        pairs = zip(self.trial.inputs, self.base.inputs, strict=True)
        return self._asked.program.rebuild([new if new != old else None for new, old in pairs])

    @property
    def formats(self) -> Any:
        """Value of ``in_shardings`` for `jax.jit`: a ``Format`` for changed arguments, your shardings for the others.

        A format without a sharding of yours is for JAX's first device. If ``Layout.AUTO`` is best, arrays have to be
        placed according to ``compiled.input_formats``.
        """
        return self._asked.program.rebuild(_formats(self.trial.variant.inputs, self._asked.shardings[0]))

    @property
    def result_formats(self) -> Any:
        """Value of ``out_shardings`` for `jax.jit`."""
        return self._asked.program.rebuild_result(_formats(self.trial.variant.outputs, self._asked.shardings[1]))

    @property
    def code(self) -> str:
        """Lines of JAX that request these layouts; "" if nothing changes.

        In them, ``sharding`` stands for the device of the program, and ``mesh`` for the mesh of your shardings.
        """
        lines = []
        variant, asked = self.trial.variant, self._asked
        if any(variant.inputs) or any(variant.outputs):
            lines.append("from jax.experimental.layout import Format, Layout")
            parts = []
            for name, wanted, shardings, rebuild in (
                ("in_shardings", variant.inputs, asked.shardings[0], asked.program.rebuild),
                ("out_shardings", variant.outputs, asked.shardings[1], asked.program.rebuild_result),
            ):
                if any(wanted) or any(sharding is not None for sharding in shardings):
                    parts.append(f"{name}={_structure(rebuild, wanted, shardings)}")
            if "NamedSharding(" in "".join(parts):
                lines.append("from jax.sharding import NamedSharding, PartitionSpec")
            for name, numbers in (("donate_argnums", asked.donated), ("static_argnums", asked.static)):
                parts += [f"{name}={numbers}"] if numbers else []
            lines.append(f"jax.jit({asked.program.function.__name__}, {', '.join(parts)})")
        for (loop, element), order in variant.constraints:
            lines.append("from jax.experimental.layout import Layout, with_layout_constraint")
            lines.append(f"# at the beginning of the body of loop {loop}, on element {element} of what it carries:")
            lines.append(f"x = with_layout_constraint(x, Layout({order}))")
        return "\n".join(dict.fromkeys(lines))


def _formats(wanted: Sequence[Wanted], shardings: Sequence[Any]) -> list[Any]:
    return [jax_format(each, sharding) for each, sharding in zip(wanted, shardings, strict=True)]


def _structure(rebuild: Callable[[Sequence[Any]], Any], wanted: Sequence[Wanted], shardings: Sequence[Any]) -> str:
    items = []
    for each, sharding in zip(wanted, shardings, strict=True):
        where = _sharding_code(sharding)
        if each is None:
            items.append(_Code("None" if sharding is None else where))
        elif isinstance(each, str):
            items.append(_Code(f"Format(Layout.AUTO, {where})"))
        else:
            parts = [str(each.minor_to_major[::-1])]
            parts += [str(each.tiles)] if each.tiles else []
            # JAX compares layouts, and the compiler's layouts include the width of packed elements.
            bits = each.element_size_in_bits
            parts += [f"sub_byte_element_size_in_bits={bits}"] if bits else []
            items.append(_Code(f"Format(Layout({', '.join(parts)}), {where})"))
    return repr(rebuild(items))


def _sharding_code(sharding: Any) -> str:
    """Return a sharding as code, with placeholder names for the mesh and the device."""
    if not hasattr(sharding, "spec"):
        return "sharding"
    kind = memory_kind(sharding)
    in_memory = f", memory_kind={kind!r}" if kind else ""
    return f"NamedSharding(mesh, PartitionSpec({', '.join(map(repr, sharding.spec))}){in_memory})"


@dataclass(frozen=True, repr=False)
class TriedLayouts(Printed):
    """The compiled variants of a program; made by `fastindex.hlo.try_layouts`.

    Attributes
    ----------
    trials : tuple of Trial
        In order of compilation; the first is the unchanged program.
    ran_out : bool
        Whether `most_compilations` cut the search short.
    """

    _asked: Asked
    trials: tuple[Trial, ...]
    _base: Trial
    _best: Trial
    ran_out: bool

    @property
    def base(self) -> Trial:
        """The unchanged program."""
        return self._base

    @property
    def best(self) -> Best:
        """The accepted variant that moves the fewest bytes; the unchanged program if no variant is accepted."""
        return Best(self._best, self._base, self._asked)

    @property
    def refused(self) -> tuple[Trial, ...]:
        """The rejected variants, each with the reason in `Trial.refused`."""
        return tuple(trial for trial in self.trials if trial.refused)

    @property
    def advice(self) -> tuple[str, ...]:
        """Advice on copies that remain in the best variant, and may be avoided by changing the program."""
        origins = [
            (row.instruction, row.origin.split(" writes ")[0], row.op_name)
            for row in self._best.rows
            if " writes " in row.origin
        ]
        return tuple(shared_origins_text(origins))

    def to_json(self) -> dict[str, Any]:
        """Return the table for JSON."""
        return {
            "trials": [trial.to_json() for trial in self.trials],
            "best": self._best.name,
            "code": self.best.code,
            "advice": list(self.advice),
            "ran_out": self.ran_out,
        }

    def text(self, width: int = 110) -> str:
        """Return the table, the best variant, and the code to request it."""
        rows: list[TableRow] = [(cells, [("", words)]) for *cells, words in self._cells()]
        return "\n".join([*text_table(_TITLES, ">" * (len(_TITLES) - 1), rows, width), "", *self._conclusion()])

    def _conclusion(self) -> list[str]:
        best = self.best
        if not self._base.moved_nbytes:
            lines = ["no copies that another layout could avoid"]
        elif not best.is_changed:
            lines = ["best: no change; every variant moves as much data or takes more memory"]
        else:
            lines = [f"best: {best.name}", *best.code.splitlines()]
        if self.ran_out:
            lines.append(f"not all variants were compiled: {len(self.trials)} are the most allowed")
        return [*lines, *self.advice]

    def _cells(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for trial in self.trials:
            verdict = "best: " if trial is self._best else ""
            words = f"{verdict}{trial.name}" + (f"; refused: {trial.refused}" if trial.refused else "")
            words += f"; {trial.remark}" if trial.remark else ""
            if trial.table is None:
                rows.append(("", "", "", "", "", words))
                continue
            spaces = ", ".join(
                f"S({space}) {bytes_text(nbytes)}" for space, nbytes in trial.space_peaks if space and nbytes
            )
            numbers = trial.moved_nbytes, trial.argument_nbytes, trial.peak_nbytes
            rows.append((str(trial.copy_count), *map(bytes_text, numbers), spaces, words))
        return rows

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{title}</th>" for title in _TITLES)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in self._cells()
        )
        lines = escape("\n".join(self._conclusion()))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><pre>{lines}</pre>"
