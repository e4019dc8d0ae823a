"""The commands about programs: `report`, the cost of their buffers; `copies`, the moves that layouts cause."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

import fastindex
from fastindex.cli.group import main
from fastindex.cli.options import FORCE, JSON, OUT_PATH, PATH
from fastindex.cli.output import check_ending, write_document
from fastindex.terminal import is_terminal

if TYPE_CHECKING:
    from rich.console import Console

#: The most lines of HLO that are reported as unreadable.
_MOST_PROBLEMS = 20
_ROWS_OF_A_PAGE = 500
#: Width of output to a file or a pipe, unless COLUMNS is set.
_WIDTH = 110
_FILES = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
_HTML = click.option(
    "--html", type=OUT_PATH, metavar="OUT", help="Write a page with a timeline and a table to this file."
)


@main.command(short_help="Which buffers of a program are padded, and why.")
@_FILES
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Print only the first N shapes.")
@click.option(
    "--sort",
    type=click.Choice(["waste", "bytes", "count", "ratio"]),
    default="waste",
    show_default=True,
    help="What comes first.",
)
@click.option("--all", "all_results", is_flag=True, help="Count the results of all instructions, not only buffers.")
@click.option("--names", is_flag=True, help="Name all instructions of a shape, not only the first.")
@_HTML
@FORCE
@JSON
def report(
    files: tuple[str, ...],
    top: int | None,
    sort: Any,
    all_results: bool,
    names: bool,
    html: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Report the buffers of HLO modules: how much is padding, why, where from, and the cheapest way to avoid it.

    FILE is HLO text, a .hlo.pb, a folder of dumps, a buffer assignment, a profile (.xplane.pb), a log with an
    out-of-memory message, or - for stdin. Each may be compressed: gzip, xz, zstd.
    """
    found = fastindex.hlo.report(_source_of(files, html), instruction_results=all_results, show_progress=True)
    if html is not None:
        write_document(html, found.html(sort, top or _ROWS_OF_A_PAGE), force)
    if as_json:
        click.echo(json.dumps(found.to_json(sort, top)))
    elif html is None:
        found.print(_console(), sort, top, names)
    _print_problems(found.problems)


@main.command(short_help="What a program copies because of layouts, and why.")
@_FILES
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Print only the first N rows.")
@click.option("--all", "all_moves", is_flag=True, help="Also list plain moves between memory spaces.")
@_HTML
@FORCE
@JSON
def copies(
    files: tuple[str, ...], top: int | None, all_moves: bool, html: str | None, force: bool, as_json: bool
) -> None:
    """List what HLO modules move because of layouts: copies, reshapes, transposes; what each costs, and what needs it.

    FILE is HLO text, a .hlo.pb, a folder of dumps, a profile (.xplane.pb), which adds the times that were measured, or
    - for stdin. Each may be compressed: gzip, xz, zstd.
    """
    found = fastindex.hlo.layout_copies(_source_of(files, html), show_progress=True)
    if html is not None:
        write_document(html, found.html(top or _ROWS_OF_A_PAGE, all_moves), force)
    if as_json:
        click.echo(json.dumps(found.to_json(top, all_moves)))
    elif html is None:
        found.print(_console(), top, all_moves)
    _print_problems(found.problems)


def _source_of(files: tuple[str, ...], html: str | None) -> Any:
    if "-" in files and len(files) > 1:
        raise click.UsageError("stdin (-) cannot be combined with files")
    if "" in files:
        raise click.UsageError("'' names no file")
    check_ending("--html", html, "html")
    return sys.stdin.buffer if files == ("-",) else [Path(file) for file in files]


def _console() -> Console:
    """Return the console that prints tables to stdout."""
    from rich.console import Console

    class Printing(Console):
        def on_broken_pipe(self) -> NoReturn:
            """Raise the error for the common handler; rich would end the process itself."""
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    is_known = is_terminal(sys.stdout) or os.environ.get("COLUMNS", "").isdigit()
    return Printing(file=sys.stdout, width=None if is_known else _WIDTH)


def _print_problems(problems: Sequence[object]) -> None:
    for problem in problems[:_MOST_PROBLEMS]:
        click.echo(f"fastindex: {problem}", err=True)
    if len(problems) > _MOST_PROBLEMS:
        click.echo(f"fastindex: {len(problems) - _MOST_PROBLEMS} more lines could not be read", err=True)
