"""Find layouts that avoid copies by compiling variants of a program; worse variants are rejected."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastindex.errors import FastIndexError
from fastindex.terminal import is_terminal
from fastindex.trials.compilers import Compiler, LocalCompiler, TopologyCompiler
from fastindex.trials.jax_programs import flat_program, flat_shardings, loops_of, memory_kind, named_spec
from fastindex.trials.results import Asked, Limits, TriedLayouts
from fastindex.trials.search import Notify, Search


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
    are copies at a loop; and combinations of changes that help. A variant that needs more memory is rejected, whatever
    it saves. Nothing is executed.

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
        search = Search(compiler, program, limits, most_compilations, notify, _free(shardings))
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
def _progress(most: int, wanted: bool) -> Iterator[Notify]:
    if not (wanted and is_terminal(sys.stderr)):
        yield lambda done, name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("compiling {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=most)
        yield lambda done, name: bar.update(task, completed=done, description=name)
