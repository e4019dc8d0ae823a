"""Results of trying layouts: a table of variants, the best one, its layouts, and the JAX code to request them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from fastindex.core.notebooks import ShownInNotebooks
from fastindex.show.copy_sentences import shared_origins_text
from fastindex.show.spelling import bytes_text
from fastindex.trials.jax_programs import FlatProgram, Wanted, jax_format, memory_kind
from fastindex.trials.variants import Trial

if TYPE_CHECKING:
    from rich.table import Table


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
class TriedLayouts(ShownInNotebooks):
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
        from rich.console import Console

        stream = io.StringIO()
        console = Console(width=width, color_system=None, file=stream, force_jupyter=False, force_terminal=False)
        console.print(self._table())
        for line in self._conclusion():
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())

    def _conclusion(self) -> list[str]:
        best = self.best
        if not self._base.moved_nbytes:
            lines = ["no copies that another layout could avoid"]
        elif not best.is_changed:
            lines = ["best: leave it as it is; every variant moves no less, or costs more memory"]
        else:
            lines = [f"best: {best.name}", *best.code.splitlines()]
        if self.ran_out:
            lines.append(f"not all variants were compiled: {len(self.trials)} are the most allowed")
        return [*lines, *self.advice]

    def _table(self) -> Table:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for title in ("copies", "moved", "arguments", "device memory", "other memory"):
            table.add_column(title, justify="right", no_wrap=title != "other memory")
        table.add_column("what changed, and why it is refused", overflow="fold")
        for cells in self._cells():
            table.add_row(*cells)
        return table

    def _cells(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for trial in self.trials:
            verdict = "best: " if trial is self._best else ""
            words = f"{verdict}{trial.name}" + (f"; refused: {trial.refused}" if trial.refused else "")
            words += f"; {trial.remark}" if trial.remark else ""
            if trial.table is None:
                rows.append(("", "", "", "", "", words))
                continue
            spaces = ",\n".join(
                f"S({space}) {bytes_text(nbytes)}" for space, nbytes in trial.space_peaks if space and nbytes
            )
            numbers = trial.moved_nbytes, trial.argument_nbytes, trial.peak_nbytes
            rows.append((str(trial.copy_count), *map(bytes_text, numbers), spaces, words))
        return rows

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        titles = (
            "copies",
            "moved",
            "arguments",
            "device memory",
            "other memory",
            "what changed, and why it is refused",
        )
        head = "".join(f"<th>{title}</th>" for title in titles)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in self._cells()
        )
        lines = escape("\n".join(self._conclusion()))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><pre>{lines}</pre>"
