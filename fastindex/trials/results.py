"""What trying layouts has found: a table of variants, the best one, its layouts, and the code that asks for them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from fastindex.core.jax_layouts import JaxLayout
from fastindex.core.notebooks import ShownInNotebooks
from fastindex.show.copy_sentences import shared_origins_text
from fastindex.show.spelling import bytes_text
from fastindex.trials.jax_programs import FlatProgram, jax_format
from fastindex.trials.variants import Trial

if TYPE_CHECKING:
    from rich.table import Table


class _Code:
    """Prints as code within a container."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


@dataclass(frozen=True, repr=False)
class Best:
    """The best variant, and how to ask for it.

    Attributes
    ----------
    trial : Trial
        Its numbers, and `Trial.table` with its copies.
    base : Trial
        The program as it is.
    """

    trial: Trial
    base: Trial
    _program: FlatProgram
    _shardings: tuple[Sequence[Any], Sequence[Any]]
    _donated: tuple[int, ...]

    @property
    def name(self) -> str:
        """What it changes, in words."""
        return self.trial.name

    @property
    def is_changed(self) -> bool:
        """Whether it is another one than the program as it is."""
        return self.trial is not self.base

    @property
    def layouts(self) -> Any:
        """The layouts of the arguments that it changes, in the structure of the arguments without static ones.

        None where JAX's default stays. A `fastindex.core.jax_layouts.JaxLayout` has `minor_to_major` and `tiles`.
        """
        return self._program.rebuild(self._changed(self.trial.inputs, self.base.inputs))

    @property
    def formats(self) -> Any:
        """What `jax.jit` takes as ``in_shardings``: a ``Format`` for each argument that changes, None for the others.

        Formats without a sharding of yours are for the first device of JAX.
        """
        return self._program.rebuild(self._formats(self.trial.inputs, self.base.inputs, self._shardings[0]))

    @property
    def result_formats(self) -> Any:
        """What `jax.jit` takes as ``out_shardings``."""
        return self._program.rebuild_result(self._formats(self.trial.outputs, self.base.outputs, self._shardings[1]))

    @property
    def code(self) -> str:
        """The lines of JAX that ask for these layouts; "" if nothing changes."""
        inputs = self._changed(self.trial.inputs, self.base.inputs)
        outputs = self._changed(self.trial.outputs, self.base.outputs)
        lines = []
        if any(inputs) or any(outputs):
            lines.append("from jax.experimental.layout import Format, Layout")
            parts = [f"in_shardings={_structure(self._program.rebuild, inputs)}"] if any(inputs) else []
            parts += [f"out_shardings={_structure(self._program.rebuild_result, outputs)}"] if any(outputs) else []
            if self._donated:
                parts.append(f"donate_argnums={self._donated}")
            lines.append(f"jax.jit({self._program.function.__name__}, {', '.join(parts)})")
        for (loop, element), order in self.trial.variant.constraints:
            lines.append("from jax.experimental.layout import Layout, with_layout_constraint")
            lines.append(f"# at the beginning of the body of loop {loop}, on element {element} of what it carries:")
            lines.append(f"x = with_layout_constraint(x, Layout({order}))")
        return "\n".join(dict.fromkeys(lines))

    def _changed(self, after: Sequence[JaxLayout | None], before: Sequence[JaxLayout | None]) -> list[JaxLayout | None]:
        return [new if new != old else None for new, old in zip(after, before, strict=True)]

    def _formats(
        self, after: Sequence[JaxLayout | None], before: Sequence[JaxLayout | None], shardings: Sequence[Any]
    ) -> list[Any]:
        import jax

        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        changed = self._changed(after, before)
        return [
            sharding if layout is None else jax_format(layout, here if sharding is None else sharding)
            for layout, sharding in zip(changed, shardings, strict=True)
        ]


def _structure(rebuild: Callable[[Sequence[Any]], Any], layouts: Sequence[JaxLayout | None]) -> str:
    items = []
    for layout in layouts:
        if layout is None:
            items.append(_Code("None"))
            continue
        parts = [str(layout.minor_to_major[::-1])]
        parts += [str(layout.tiles)] if layout.tiles else []
        # JAX compares layouts, and the compiler's has the width of packed elements.
        bits = layout.element_size_in_bits
        parts += [f"sub_byte_element_size_in_bits={bits}"] if bits else []
        items.append(_Code(f"Format(Layout({', '.join(parts)}), sharding)"))
    return repr(rebuild(items))


@dataclass(frozen=True, repr=False)
class TriedLayouts(ShownInNotebooks):
    """The variants of a program that were compiled; made by `fastindex.hlo.try_layouts`.

    Attributes
    ----------
    trials : tuple of Trial
        In the order in which they were compiled; the first is the program as it is.
    ran_out : bool
        Whether more variants would have been compiled if `most_compilations` allowed it.
    """

    _program: FlatProgram
    trials: tuple[Trial, ...]
    _base: Trial
    _best: Trial
    _shardings: tuple[Sequence[Any], Sequence[Any]]
    _donated: tuple[int, ...]
    ran_out: bool

    @property
    def base(self) -> Trial:
        """The program as it is."""
        return self._base

    @property
    def best(self) -> Best:
        """The variant that moves least and is not refused; the program as it is if there is none."""
        return Best(self._best, self._base, self._program, self._shardings, self._donated)

    @property
    def refused(self) -> tuple[Trial, ...]:
        """The variants that are worse, each with the reason in `Trial.refused`."""
        return tuple(trial for trial in self.trials if trial.refused)

    @property
    def advice(self) -> tuple[str, ...]:
        """What layouts cannot mend in the best variant, but a change of the program may."""
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
        """Return the table, the best variant, and the code that asks for it."""
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
        for title in ("copies", "moved", "arguments", "peak", "by memory space"):
            table.add_column(title, justify="right", no_wrap=title != "by memory space")
        table.add_column("what changed, and why it is refused", overflow="fold")
        for cells in self._cells():
            table.add_row(*cells)
        return table

    def _cells(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for trial in self.trials:
            verdict = "best: " if trial is self._best else ""
            words = f"{verdict}{trial.name}" + (f"; refused: {trial.refused}" if trial.refused else "")
            if trial.table is None:
                rows.append(("", "", "", "", "", words))
                continue
            spaces = ",\n".join(f"S({space}) {bytes_text(nbytes)}" for space, nbytes in trial.space_peaks if nbytes)
            numbers = trial.moved_nbytes, trial.argument_nbytes, trial.peak_nbytes
            rows.append((str(trial.copy_count), *map(bytes_text, numbers), spaces, words))
        return rows

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        titles = ("copies", "moved", "arguments", "peak", "by memory space", "what changed, and why it is refused")
        head = "".join(f"<th>{title}</th>" for title in titles)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in self._cells()
        )
        lines = escape("\n".join(self._conclusion()))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><pre>{lines}</pre>"
