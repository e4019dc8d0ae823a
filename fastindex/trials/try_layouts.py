"""Layouts that avoid copies, proved by the compiler: variants of a program compiled and compared, the worse refused."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastindex.errors import FastIndexError
from fastindex.terminal import is_terminal
from fastindex.trials.compilers import Compiler, LocalCompiler, TopologyCompiler
from fastindex.trials.jax_programs import flat_program, flat_shardings, loops_of
from fastindex.trials.results import TriedLayouts
from fastindex.trials.search import Notify, Search
from fastindex.trials.variants import Limits


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
    show_progress: bool = True,
) -> TriedLayouts:
    """Compile a program with other layouts, and say which avoid copies without costing more elsewhere.

    The program is compiled as it is; with the layouts that XLA chooses itself (``Layout.AUTO``); with its choice for
    one argument at a time, a donated one together with its result; with ``with_layout_constraint`` on what loops carry,
    where copies stand at a loop; and with those that help together. A variant that needs more memory is refused,
    whatever it saves. Nothing runs.

    Parameters
    ----------
    function : callable
        What `jax.jit` would be given; not jitted with layouts or shardings of its own.
    *arguments : arrays, jax.ShapeDtypeStruct, or containers of them
        Only their shapes and dtypes matter.
    topology : str, optional
        A TPU that need not be there, such as ``"v5e:2x2"``, ``"v4:2x2x1"``, ``"v5p:2x2x1"``, ``"v6e:2x2"`` or
        ``"tpu7x:2x2x1"``, compiled for by libtpu in a child process (``pip install 'fastindex[tpu]'``). Without one,
        the devices that JAX has.
    donate_argnums, static_argnums : int or sequence of int
        As `jax.jit` takes them.
    in_shardings, out_shardings : optional
        As `jax.jit` takes them, `jax.sharding.NamedSharding` for programs on several devices. For a topology, only the
        mesh and the partition count, not the devices. Results over several devices keep their layouts unless
        `out_shardings` says where they go.
    argument_growth, peak_growth : float
        By which part the bytes of the arguments, and the peak of memory, may grow before a variant is refused.
    most_compilations : int
        At most so many variants are compiled.
    show_progress : bool
        Show a progress bar on stderr if that is a terminal.

    Returns
    -------
    TriedLayouts

    Raises
    ------
    FastIndexError
        The program as it is does not compile, an argument is out of range, or libtpu is missing.
    KeyboardInterrupt
        The search was interrupted; no process is left behind.

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
        compiler = TopologyCompiler(program, topology, shardings, leaves)
    with compiler, _progress(most_compilations, show_progress) as notify:
        search = Search(compiler, program, Limits(argument_growth, peak_growth), most_compilations, notify)
        base = search.run(lambda: loops_of(program))
        best = search.best(base)
    return TriedLayouts(program, tuple(search.trials), base, best, shardings, donated, search.ran_out)


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
