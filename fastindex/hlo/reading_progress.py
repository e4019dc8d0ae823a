"""A progress bar while HLO is read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from fastindex.hlo.sources import TextSource
from fastindex.terminal import is_terminal


@contextlib.contextmanager
def reading_progress(sources: list[TextSource], wanted: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr, if that is a terminal; yield what receives the bytes read."""
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
