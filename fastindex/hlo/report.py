"""The report of HLO modules: which buffers there are, which are padded, why, and what would avoid it."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastindex.errors import FastIndexError
from fastindex.hlo.module_uses import module_uses
from fastindex.hlo.modules import Module, ModuleReader
from fastindex.hlo.report_text import print_report, summary
from fastindex.hlo.scanner import Problem
from fastindex.hlo.shape_table import ShapeTable
from fastindex.hlo.sources import HloSource, TextSource, open_sources, scan_source
from fastindex.hlo.uses import Counted, ModuleUse, ShapeUse, SortKey, Uses

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, repr=False)
class Report(Uses):
    """The buffers of an HLO module, or of several, and what they cost.

    The attributes are those of its parts: `uses`, a row for each shape of a module; `modules`; `problems`.
    """

    def summary(self) -> str:
        """Return the sums in a few lines."""
        return summary(self)

    def print(self, console: Console, sort: SortKey = "waste", top: int | None = None, all_names: bool = False) -> None:
        """Print the summary and the table of shapes to a rich console."""
        print_report(self, console, sort, top, all_names)

    def text(self, sort: SortKey = "waste", top: int | None = 20, width: int = 110, all_names: bool = False) -> str:
        """Return the summary and the table of shapes as plain text.

        Parameters
        ----------
        sort : {"waste", "bytes", "count", "ratio"}
        top : int or None
            How many shapes; None for all.
        width : int
            Of a line, in characters.
        all_names : bool
            Name all instructions of a row, not only the first.
        """
        from rich.console import Console

        console = Console(width=width, color_system=None, file=io.StringIO())
        with console.capture() as captured:
            print_report(self, console, sort, top, all_names)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(self.text())}</pre>"


def report(source: HloSource, *, instruction_results: bool = False, show_progress: bool = False) -> Report:
    """Report the buffers of HLO modules: how much of them is padding, why, where from, and what would avoid it.

    Results that get memory count, each once: not those inside fusions and reducers, nor those that are other
    names of a buffer (bitcasts, tuples and their elements, loop carries, updates in place, donated arguments).
    For a scheduled module, `Report.peak_nbytes` estimates the most memory in use at one time.

    Parameters
    ----------
    source : str, bytes, path, binary file, or iterable of paths
        HLO text as ``compiled.as_text()``, ``--xla_dump_to`` and JAX print it. A path is a file or a folder
        of dumps; of a module dumped at several stages, the last one is taken.
    instruction_results : bool
        Count the result of every instruction of every computation, tuples split into their leaves. That is not
        the memory in use: results share memory, and fused ones never exist.
    show_progress : bool
        Show a progress bar on stderr where that is a terminal.

    Returns
    -------
    Report

    Raises
    ------
    FastIndexError
        No HLO text: binary data, another language, no instruction. Broken lines do not raise, nor does one
        file of many; they are in `Report.problems`.
    OSError
        A file that cannot be read.

    Notes
    -----
    The rules and their sources in XLA are the table of ``fastindex/hlo/flow_rules.py``.

    Examples
    --------
    >>> import fastindex as fi
    >>> hlo = '''HloModule m, is_scheduled=true
    ... ENTRY e {
    ...   p = f32[1000,3]{1,0:T(8,128)} parameter(0)
    ...   n = f32[1000,3]{1,0:T(8,128)} negate(p)
    ...   ROOT r = f32[3000]{0:T(1024)} reshape(n)
    ... }'''
    >>> r = fi.report(hlo)
    >>> r.total_nbytes, r.total_logical_nbytes, r.peak_nbytes
    (1036288, 36000, 1036288)
    >>> r.uses[0].change.description
    'swap the two minor dimensions'
    """
    collector = _Collector("instruction results" if instruction_results else "buffers")
    sources = open_sources(source)
    with _progress(sources, show_progress) as advance:
        for item in sources:
            try:
                collector.read(item, advance)
            except (FastIndexError, OSError) as error:
                if len(sources) == 1:
                    raise
                collector.failed(item, error)
    return collector.report(tuple(item.name for item in sources if item.name))


class _Collector:
    """Adds up modules as they are read."""

    def __init__(self, counted: Counted) -> None:
        self._counted = counted
        self._table = ShapeTable()
        self._modules: list[ModuleUse] = []
        self._uses: list[ShapeUse] = []
        self._problems: list[Problem] = []
        self._labels: dict[str, int] = {}
        self._source = TextSource("", iter(()), None)
        self._errors: list[Exception] = []

    def read(self, source: TextSource, advance: Callable[[int], None]) -> None:
        """Read one text and add its modules."""
        self._source = source
        reader = ModuleReader(self._add)
        scanner = scan_source(source, reader, advance)
        reader.finish()
        self._problems += scanner.problems

    def failed(self, source: TextSource, error: Exception) -> None:
        """Note a file that cannot be read, among others that can."""
        self._errors.append(error)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self._problems.append(Problem(0, reason, "", source.name))

    def report(self, sources: tuple[str, ...]) -> Report:
        """Return the report of all that was read.

        Raises
        ------
        FastIndexError, OSError
            Nothing was read.
        """
        if not self._modules and self._errors:
            raise self._errors[0]
        return Report(
            tuple(sorted(self._uses, key=ShapeUse.waste_key, reverse=True)),
            sum(module.instruction_count for module in self._modules),
            tuple(sorted(self._problems, key=lambda problem: (problem.source, problem.line))),
            sources,
            tuple(self._modules),
            self._counted,
        )

    def _add(self, module: Module) -> None:
        use, rows = module_uses(
            module, self._table, self._counted, self._label(module.name), self._source, self._problems
        )
        self._modules.append(use)
        self._uses += rows

    def _label(self, name: str) -> str:
        number = self._labels[name] = self._labels.get(name, 0) + 1
        return name if number == 1 else f"{name} ({number})"


@contextlib.contextmanager
def _progress(sources: list[TextSource], wanted: bool) -> Iterator[Callable[[int], None]]:
    if not (wanted and sys.stderr.isatty()):
        yield lambda nbytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    known = [item.nbytes for item in sources]
    total = None if None in known else sum(size or 0 for size in known)
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading HLO", total=total)
        yield lambda nbytes: bar.advance(task, nbytes)
