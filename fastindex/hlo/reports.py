"""Report on HLO modules: their buffers, the padding in them, its causes, and changes that avoid it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastindex.hlo.collecting import Collector
from fastindex.hlo.presentation import Printed, text_of
from fastindex.hlo.read.sources import HloSource
from fastindex.hlo.report_html import fragment, page
from fastindex.hlo.report_text import print_report, summary
from fastindex.hlo.rows import ShapeUse, SortKey, Uses

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, repr=False)
class Report(Printed, Uses):
    """The buffers of one or more HLO modules, and their memory cost.

    See `uses` (one row per shape and module), `modules` and `problems`.
    """

    def summary(self) -> str:
        """Return the totals in a few lines."""
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
            Maximum number of shapes; None for all.
        width : int
            Line width, in characters.
        all_names : bool
            List all instructions of a row, not only the first few.
        """
        return text_of(lambda console: self.print(console, sort, top, all_names), width)

    def html(self, sort: SortKey = "waste", top: int | None = 500) -> str:
        """Return an offline HTML page with the totals, the memory use over the schedule, and a sortable table."""
        return page(self, sort, top)

    def _repr_html_(self) -> str:
        return fragment(self, top=50)


def report(source: HloSource, *, instruction_results: bool = False, show_progress: bool = False) -> Report:
    """Report the buffers of HLO modules: size, padding, its cause and origin, and changes that would avoid it.

    Each buffer counts once. Results inside fusions and reducers do not count, nor do aliases of a buffer (bitcasts,
    tuples, loop carries, in-place updates, donated arguments). For a scheduled module, `Report.peak_nbytes` estimates
    the peak memory use.

    Parameters
    ----------
    source : str, bytes, path, binary file, iterable of paths, or jax.stages.Compiled or Lowered
        HLO text as ``--xla_dump_to`` and JAX print it, a ``*-buffer-assignment.txt``, a ``*-memory-usage-report.txt``,
        or a log with an out-of-memory message; ``*.hlo.pb`` and profiles (``*.xplane.pb``), which require jaxlib
        (``pip install 'fastindex[jax]'``). Each may be compressed with gzip, xz or zstd. A path is a file or a folder
        of dumps; of a folder, the last stage of each module is read. XLA's own numbers are used where available.
    instruction_results : bool
        Count the result of every instruction, with tuples split into their leaves. The sum is not the memory in use.
    show_progress : bool
        Show a progress bar on stderr if that is a terminal.

    Returns
    -------
    Report

    Raises
    ------
    FastIndexError
        No HLO text was found. Broken lines, and unreadable files among others, do not raise; see `Report.problems`.
    ArgumentTypeError
        The argument is a function that is not compiled, or not a program at all.
    OSError
        A file cannot be read.

    Notes
    -----
    The rules and their sources in XLA are listed in ``fastindex/hlo/flow_rules.py``.

    Examples
    --------
    >>> import fastindex as fi
    >>> hlo = '''HloModule m, is_scheduled=true
    ... ENTRY e {
    ...   p = f32[1000,3]{1,0:T(8,128)} parameter(0)
    ...   n = f32[1000,3]{1,0:T(8,128)} negate(p)
    ...   ROOT r = f32[3000]{0:T(1024)} reshape(n)
    ... }'''
    >>> r = fi.hlo.report(hlo)
    >>> r.total_nbytes, r.total_logical_nbytes, r.peak_nbytes
    (1036288, 36000, 1036288)
    >>> r.uses[0].change.description
    'swap the two minor dimensions and use T(4,128)'
    """
    collector = Collector("instruction results" if instruction_results else "buffers")
    sources = collector.read_all(source, show_progress)
    return Report(
        tuple(sorted(collector.uses, key=ShapeUse.waste_key, reverse=True)),
        sum(module.instruction_count for module in collector.modules),
        collector.sorted_problems(),
        tuple(item.name for item in sources if item.name),
        tuple(collector.modules),
        collector.counted,
    )
