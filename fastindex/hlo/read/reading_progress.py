"""Read several HLO texts with a progress bar."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from fastindex.errors import FastIndexError
from fastindex.hlo.read.opening import opened
from fastindex.hlo.read.printing import Printer
from fastindex.hlo.read.sources import TextSource
from fastindex.terminal import is_terminal


def read_each(
    sources: list[TextSource], read: Callable[[TextSource, Callable[[int], None]], None], show_progress: bool
) -> list[tuple[TextSource, Exception]]:
    """Read all sources; return those that could not be read, with their errors. For a single source, raise instead.

    Raises
    ------
    FastIndexError
        The only source is not HLO.
    OSError
        The only file cannot be read.
    """
    failed: list[tuple[TextSource, Exception]] = []
    with _progress(sources, show_progress) as advance, Printer() as printer:
        for item in sources:
            try:
                for text in opened(item, printer):
                    try:
                        read(text, advance)
                    except (FastIndexError, OSError) as error:
                        if text.profile is None:
                            raise
                        # The profile may contain other modules: continue with them.
                        failed.append((text, error))
            except (FastIndexError, OSError) as error:
                if len(sources) == 1:
                    raise
                failed.append((item, error))
    return failed


@contextlib.contextmanager
def _progress(sources: list[TextSource], wanted: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr if that is a terminal; yield the function that advances it by a byte count."""
    if not (wanted and is_terminal(sys.stderr)):
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
