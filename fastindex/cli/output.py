"""What commands print besides results: progress, notices, errors and files that they write."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

import click

from fastindex.errors import cut_message
from fastindex.show.spelling import visible
from fastindex.terminal import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_PATIENCE_SECONDS = 1.0


class ProgressBar:
    """A bar on stderr. Nothing is shown if stderr is not a terminal, or for a job shorter than a second.

    Parameters
    ----------
    title : str
        Title of the bar.
    patience_seconds : float
        How long a job may take without a bar.
    """

    def __init__(self, title: str, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._title = title
        self._patience_seconds = patience_seconds
        self._total = 0
        self._done = 0
        self._began = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._is_wanted = is_terminal(sys.stderr)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, total: int) -> None:
        """Receive the total amount of work."""
        self._total = total
        self._began = time.monotonic()

    def advance(self, count: int) -> None:
        """Receive the amount of work done since the last call."""
        self._done += count
        if not self._is_wanted or time.monotonic() - self._began < self._patience_seconds:
            return
        if self._bar is None:
            self._show()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done)
            if self._done == self._total:
                # Stop it now: further output must not be printed into the bar.
                self._bar.stop()
                self._is_wanted = False

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._title, total=self._total)
        self._bar.start()


def notice(text: str) -> None:
    """Print a line to stderr if it is a terminal."""
    if is_terminal(sys.stderr):
        click.echo(text, err=True)


def check_ending(option: str, path: str | None, ending: str) -> None:
    """Raise an error for an output file that is not named after its format."""
    if path is not None and not path.lower().endswith(f".{ending}"):
        raise click.UsageError(
            f"{option} writes {ending.upper()}, and {path!r} is not named so; end the name in .{ending}"
        )


def write_document(path: str, text: str, force: bool) -> None:
    """Write a picture or a page to a file."""
    from fastindex.jobs.writing import write_file

    write_file(path, text.encode(), force)
    notice(f"wrote {path}")


def end(status: int) -> NoReturn:
    """End the process; pending output is not written again if that fails, which would change the status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(status)


def fail(message: str, status: int) -> NoReturn:
    """Print a line to stderr and end the process."""
    with suppress(OSError):
        click.echo(visible(cut_message(f"fastindex: {message}")), err=True)
    end(status)
