"""Find layouts that avoid copies by compiling variants of a program; worse variants are rejected.

The compiler's choice for all arrays is tried, single changes, and combinations that help further.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from fastindex.core.element_types import ElementType
from fastindex.core.foreign_arrays import JaxLayout
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.hlo.copies.layout_copies import layout_copies
from fastindex.hlo.copies.rows import CopyRow
from fastindex.hlo.modules import Module
from fastindex.hlo.reports import report
from fastindex.terminal import is_terminal
from fastindex.trials.compilers import CompileError, Compiler, LocalCompiler, TopologyCompiler
from fastindex.trials.jax_programs import (
    AUTO,
    FlatProgram,
    Loop,
    Wanted,
    flat_program,
    flat_shardings,
    loops_of,
    memory_kind,
    named_spec,
)
from fastindex.trials.results import Asked, Limits, Trial, TriedLayouts, Variant

_AS_IT_IS = "as it is"
#: JAX's names for the arguments of a program compiled by `fastindex.trials.jax_programs`.
_LEAF = re.compile(r'op_name="leaves\[(\d+)\]"')
#: Called with the number of finished compilations, and the name of the next variant.
_Notify = Callable[[int, str], None]


def try_layouts(
    function: Callable[..., Any],
    *arguments: Any,
    topology: str | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    in_shardings: Any = None,
    out_shardings: Any = None,
    argument_growth: float = 0.05,
    peak_growth: float = 0.01,
    most_compilations: int = 40,
    time_limit: float = 600.0,
    show_progress: bool = True,
) -> TriedLayouts:
    """Compile a program with other layouts, and report which avoid copies without costing more elsewhere.

    These variants are compiled: the unchanged program; the layouts that XLA chooses (``Layout.AUTO``); XLA's choice for
    one argument at a time, a donated one together with its result; ``with_layout_constraint`` on loop carries, if there
    are copies at a loop; combinations that help; and, if copies remain, the two minor dimensions swapped, for each
    argument and result with as many elements as an array that is copied. A variant that needs more memory is
    rejected, whatever it saves. Nothing is executed.

    Parameters
    ----------
    function : callable
        A function as for `jax.jit`; not one already jitted with layouts or shardings.
    *arguments : arrays, jax.ShapeDtypeStruct, or containers of them
        Only their shapes and dtypes are used.
    topology : str, optional
        Description of a TPU, which need not be present, such as ``"v5e:2x2"``, ``"v4:2x2x1"``, ``"v5p:2x2x1"``,
        ``"v6e:2x2"`` or ``"tpu7x:2x2x1"``. libtpu compiles for it in a child process
        (``pip install 'fastindex[tpu]'``). Default: the devices that JAX has.
    donate_argnums, static_argnums : int or sequence of int
        As for `jax.jit`.
    in_shardings, out_shardings : optional
        As for `jax.jit`; `jax.sharding.NamedSharding` for programs on several devices. With a topology, the mesh and
        the partition are used, but not the devices. On several devices, results keep their layouts unless
        `out_shardings` places them. Arrays with a ``memory_kind`` of the host always keep theirs.
    argument_growth, peak_growth : float
        Fraction by which the bytes of the arguments, and the peak of device memory, may grow before a variant is
        rejected. Growth of the core's own memory, or of the host's, is only reported.
    most_compilations : int
        Limit on the number of compilations.
    time_limit : float
        With a topology: seconds that libtpu may take for a variant before it is killed and the variant rejected.
    show_progress : bool
        Show a progress bar on stderr if that is a terminal.

    Returns
    -------
    TriedLayouts

    Raises
    ------
    FastIndexError
        The unchanged program does not compile, an argument is out of range, or libtpu is missing.
    KeyboardInterrupt
        The search was interrupted; the child process is ended first.

    Examples
    --------
    With JAX and libtpu installed::

        import jax, jax.numpy as jnp, fastindex as fi

        def step(cache, x): ...

        tried = fi.hlo.try_layouts(step, cache, x, topology="v5e:2x2", donate_argnums=0)
        print(tried)
        jax.jit(step, in_shardings=tried.best.formats, donate_argnums=0)
    """
    if most_compilations < 1:
        raise FastIndexError(f"most_compilations must be at least 1, got {most_compilations}")
    if not time_limit > 0:
        raise FastIndexError(f"time_limit must be above 0 seconds, got {time_limit!r}")
    static = _numbers(static_argnums, len(arguments), "static_argnums")
    donated = _numbers(donate_argnums, len(arguments), "donate_argnums")
    program = flat_program(function, arguments, static)
    shardings = (
        flat_shardings(in_shardings, program.rebuild, len(program.avals)),
        flat_shardings(out_shardings, program.rebuild_result, len(program.results)),
    )
    leaves = [number for number, owner in enumerate(program.owners) if owner in donated]
    compiler: Compiler
    if topology is None:
        compiler = LocalCompiler(program, shardings, leaves)
    else:
        compiler = TopologyCompiler(program, topology, shardings, leaves, time_limit)
    with compiler, _progress(most_compilations, show_progress) as notify:
        limits = Limits(argument_growth, peak_growth)
        search = _Search(compiler, program, limits, most_compilations, notify, _free(shardings))
        base = search.run(lambda: loops_of(program))
        best = search.best(base)
    asked = Asked(program, shardings, donated, static)
    return TriedLayouts(asked, tuple(search.trials), base, best, search.ran_out)


def _free(shardings: tuple[Sequence[Any], Sequence[Any]]) -> tuple[list[bool], list[bool]]:
    """Return which arguments and results can be given a layout.

    Arrays in host memory cannot, nor can results without a sharding if other arrays have one.
    """
    several = any(named_spec(sharding) is not None for sharding in (*shardings[0], *shardings[1]))
    inputs = [memory_kind(sharding) is None for sharding in shardings[0]]
    outputs = [(not several or named_spec(each) is not None) and memory_kind(each) is None for each in shardings[1]]
    return inputs, outputs


def _numbers(given: int | Sequence[int], count: int, name: str) -> tuple[int, ...]:
    numbers = (given,) if isinstance(given, int) else tuple(given)
    for number in numbers:
        if not -count <= number < count:
            raise FastIndexError(f"{name} has {number}, and there are {count} arguments")
    return tuple(number % count for number in numbers)


@contextlib.contextmanager
def _progress(most: int, wanted: bool) -> Iterator[_Notify]:
    if not (wanted and is_terminal(sys.stderr)):
        yield lambda done, name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("compiling {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=most)
        yield lambda done, name: bar.update(task, completed=done, description=name)


class _Reported:
    """A compiled program with the interface that `fastindex.hlo.report` expects."""

    def __init__(self, text: str, memory: dict[str, int]) -> None:
        self._text = text
        self._memory = SimpleNamespace(**memory)

    def as_text(self) -> str:
        return self._text

    def memory_analysis(self) -> Any:
        return self._memory


class _Search:
    """Compiles variants of one program and records their costs."""

    def __init__(
        self,
        compiler: Compiler,
        program: FlatProgram,
        limits: Limits,
        most_compilations: int,
        notify: _Notify,
        free: tuple[Sequence[bool], Sequence[bool]],
    ) -> None:
        # Whether each argument and each result can be given a layout.
        self._free_inputs, self._free_results = free
        self._compiler = compiler
        self._program = program
        self._limits = limits
        self._left = most_compilations
        self._notify = notify
        self._known: dict[Variant, Trial] = {}
        self.trials: list[Trial] = []
        self.ran_out = False

    def run(self, loops: Callable[[], list[Loop]]) -> Trial:
        """Run the search; return the trial of the unchanged program.

        Parameters
        ----------
        loops : callable
            Returns the loops of the program; called only if they are needed.

        Raises
        ------
        CompileError
            The unchanged program does not compile.
        """
        none = self._variant()
        base = self._try(_AS_IT_IS, none)
        if base is None or base.table is None:
            raise CompileError(base.refused if base is not None else "no compilation is allowed")
        if base.moved_nbytes:
            inputs, outputs = (
                tuple(AUTO if free else None for free in side) for side in (self._free_inputs, self._free_results)
            )
            auto = self._try("AUTO for all", Variant(inputs, outputs), base)
            singles = list(self._singles(base, auto.inputs, auto.outputs)) if auto is not None else []
            if any(row.at_loop for row in base.rows):
                singles += _loop_changes(base, loops(), none)
            self._combine(base, singles)
            if self.best(base).moved_nbytes:
                for name, variant in self._singles(base, *self._swapped(base)):
                    self._try(name, variant, base)
            best = self.best(base)
            if best is auto:
                # Explicit layouts are easier to use than AUTO; prefer them if no more copies remain.
                self._try("the layouts that AUTO chose", self._pinned(base, best), base)
        return base

    def best(self, base: Trial) -> Trial:
        """Return the accepted trial that moves the fewest bytes; among equals, the one with the fewest changes."""
        allowed = [trial for trial in self.trials if not trial.refused and trial.table is not None]
        return min(allowed, key=lambda trial: (*_cost(trial), *_changes(trial, base)), default=base)

    def _pinned(self, base: Trial, auto: Trial) -> Variant:
        """Return a variant that requests the layouts chosen by the compiler explicitly."""
        inputs, outputs = (
            tuple(new if can and new != old else None for new, old, can in zip(*side, strict=True))
            for side in (
                (auto.inputs, base.inputs, self._free_inputs),
                (auto.outputs, base.outputs, self._free_results),
            )
        )
        return Variant(inputs, outputs)

    def _variant(self) -> Variant:
        return Variant((None,) * len(self._program.avals), (None,) * len(self._program.results))

    def _try(self, name: str, variant: Variant, base: Trial | None = None) -> Trial | None:
        """Compile a variant; return None if the limit is reached, and a rejected trial if it does not compile."""
        known = self._known.get(variant)
        if known is not None:
            return known
        if self._left <= 0:
            self.ran_out = True
            return None
        self._left -= 1
        self._notify(len(self.trials), name)
        try:
            compiled = self._compiler.compile(variant.inputs, variant.outputs, variant.constraints)
        except CompileError as error:
            trial = Trial(name, variant, refused=f"does not compile: {error}")
        else:
            text = _named(compiled.text, self._program.paths)
            found = report(_Reported(text, compiled.memory))
            peaks = tuple((space.memory_space, space.peak_nbytes or 0) for space in found.memory_spaces)
            trial = Trial(
                name,
                variant,
                layout_copies(text),
                compiled.memory.get("argument_size_in_bytes", 0),
                found.peak_nbytes or 0,
                peaks,
                tuple(compiled.inputs),
                tuple(compiled.outputs),
                _aliases_of(text),
            )
            if base is not None:
                trial = replace(
                    trial, refused=self._limits.refusal(trial, base), remark=self._limits.remark(trial, base)
                )
        self._known[variant] = trial
        self.trials.append(trial)
        return trial

    def _swapped(self, base: Trial) -> list[list[JaxLayout | None]]:
        """Return arguments' and results' layouts with the two minor dimensions swapped.

        Only for arrays with as many elements as one that is copied: others are unlikely to be the cause.
        """
        counts = {row.result.element_count for row in base.rows if row.result.is_array}
        return [
            [
                layout._replace(minor_to_major=(*layout.minor_to_major[1::-1], *layout.minor_to_major[2:]))
                if layout is not None and math.prod(array.shape) in counts
                else None
                for layout, array in zip(layouts, arrays, strict=True)
            ]
            for layouts, arrays in ((base.inputs, self._program.avals), (base.outputs, self._program.results))
        ]

    def _singles(
        self, base: Trial, inputs: Sequence[JaxLayout | None], outputs: Sequence[JaxLayout | None]
    ) -> Iterator[tuple[str, Variant]]:
        """Yield the given layout for one argument at a time (with its result if donated), then for each result."""
        none = self._variant()
        partners = _donated_results(base)
        arguments = [
            i
            for i, layout in enumerate(inputs)
            if self._free_inputs[i] and layout is not None and layout != base.inputs[i]
        ]
        copied = {row.argument for row in base.rows}
        paired: set[int] = set()
        for number in sorted(arguments, key=lambda number: number not in copied):
            layout = inputs[number]
            if layout is None:
                continue
            results = list(none.outputs)
            for result in partners.get(number, ()):
                results[result] = layout if self._free_results[result] else None
                paired.add(result)
            with_result = " and its result" if partners.get(number) else ""
            name = f"argument {number}, {self._program.paths[number]}{with_result}: {_layout_words(layout)}"
            yield name, replace(none, inputs=_at(none.inputs, number, layout), outputs=tuple(results))
        for number, layout in enumerate(outputs):
            free = self._free_results[number]
            if free and layout is not None and layout != base.outputs[number] and number not in paired:
                name = f"result {number}: {_layout_words(layout)}"
                yield name, replace(none, outputs=_at(none.outputs, number, layout))

    def _combine(self, base: Trial, singles: list[tuple[str, Variant]]) -> None:
        """Try each change separately, then add to the best one those that improve it."""
        alone = [(trial, variant) for name, variant in singles if (trial := self._try(name, variant, base)) is not None]
        helpful = sorted(
            ((trial, variant) for trial, variant in alone if trial.table is not None),
            key=lambda pair: (bool(pair[0].refused), _cost(pair[0])),
        )
        if len(helpful) < 2:
            return
        current, merged = helpful[0]
        # Changes may help only in combination, so start even if each is rejected because it moves no less.
        for trial, variant in helpful[1:]:
            if current.moved_nbytes == 0 and not current.refused:
                break
            both = merged.merged(variant)
            found = self._try(f"{current.name}; {trial.name}", both, base)
            if found is None:
                break
            if not found.refused and (current.refused or _cost(found) < _cost(current)):
                current, merged = found, both


def _layout_words(layout: JaxLayout) -> str:
    """Return a layout in XLA's notation.

    Examples
    --------
    >>> _layout_words(JaxLayout((0, 1), ((8, 128),), 0))
    '{0,1:T(8,128)}'
    """
    tiles = "".join(f"({','.join(map(str, tile))})" for tile in layout.tiles)
    order = ",".join(map(str, layout.minor_to_major))
    return "{" + order + (f":T{tiles}" if tiles else "") + "}"


def _named(text: str, paths: Sequence[str]) -> str:
    """Rename the arguments in the text of a flat program as in the original: ``params['q']``, not ``leaves[3]``."""

    def name(found: re.Match[str]) -> str:
        number = int(found[1])
        if number >= len(paths):
            return found[0]
        path = paths[number]
        return 'op_name="' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'

    return _LEAF.sub(name, text)


def _at(items: Sequence[Wanted], number: int, item: Wanted) -> tuple[Wanted, ...]:
    return (*items[:number], item, *items[number + 1 :])


def _cost(trial: Trial) -> tuple[int, int, int]:
    return trial.moved_nbytes, trial.argument_nbytes, trial.peak_nbytes


def _changes(trial: Trial, base: Trial) -> tuple[int, bool]:
    """Return the number of changed layouts; the compiler's choice for all ranks last among equals."""
    differ = sum(new != old for new, old in zip(trial.inputs, base.inputs, strict=False))
    differ += sum(new != old for new, old in zip(trial.outputs, base.outputs, strict=False))
    differ += len(trial.variant.constraints)
    return differ, AUTO in trial.variant.inputs


def _donated_results(base: Trial) -> dict[int, list[int]]:
    """Return the results that reuse the memory of each argument."""
    found: dict[int, list[int]] = {}
    for output, number in base.aliases:
        found.setdefault(number, []).append(output[0] if output else 0)
    return found


def _loop_changes(base: Trial, loops: list[Loop], none: Variant) -> Iterator[tuple[str, Variant]]:
    """Yield dimension orders for loop carries: those between which arrays of the same sizes are copied."""
    seen = set()
    rows = [row for row in base.rows if row.at_loop and row.opcode.startswith("copy")]
    for row in sorted(rows, key=lambda row: -row.moved_nbytes):
        for number, loop in enumerate(loops):
            for element, (dtype, sizes) in enumerate(loop.carries):
                for order in _orders(row, dtype, sizes):
                    if (number, element, order) not in seen:
                        seen.add((number, element, order))
                        where = f"loop {number}, element {element} of its carry"
                        name = f"{where}: order {{{','.join(map(str, order[::-1]))}}}"
                        yield name, replace(none, constraints=(((number, element), order),))


def _orders(row: CopyRow, dtype: str, sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    found: dict[tuple[int, ...], None] = {}
    for shape in (row.source, row.result):
        if shape.is_array and shape.dimensions == sizes and _same_type(shape, dtype) and len(sizes) > 1:
            found[shape.layout.major_to_minor] = None
    return list(found)


def _same_type(shape: Shape, dtype: str) -> bool:
    try:
        return shape.element_type == ElementType.from_dtype_name(dtype, "JAX")
    except FastIndexError:
        # For example random number keys.
        return False


def _aliases_of(text: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Return the pairs of results and arguments that share memory, from the header of a module."""
    header = text.split("\n", 1)[0]
    return tuple((output, number) for output, number, _ in Module(header=header).input_output_aliases())
