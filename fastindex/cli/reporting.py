"""The command `report`: what the buffers of a program cost."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

import fastindex
from fastindex.cli.group import notice
from fastindex.cli.options import PATH

#: The most lines of HLO that are named as unreadable.
_MOST_PROBLEMS = 20
_ROWS_OF_A_PAGE = 500


@click.command(short_help="Which buffers of a program are padded, and why.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
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
@click.option("--html", type=PATH, metavar="OUT", help="Write a page with a timeline and a table to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def report(
    files: tuple[str, ...],
    top: int | None,
    sort: Any,
    all_results: bool,
    names: bool,
    html: str | None,
    as_json: bool,
) -> None:
    """Report the buffers of HLO modules: how much is padding, why, where from, and the cheapest way to avoid it.

    FILE is HLO text, a folder of dumps, a buffer assignment, a log with an out-of-memory message, or - for stdin.
    """
    if "-" in files and len(files) > 1:
        raise click.UsageError("stdin (-) cannot be combined with files")
    if html is not None and not html.lower().endswith(".html"):
        raise click.UsageError(f"--html writes HTML, and {html!r} is not named so; end the name in .html")
    source: Any = sys.stdin.buffer if files == ("-",) else [Path(file) for file in files]
    found = fastindex.report(source, instruction_results=all_results, show_progress=True)
    if html is not None:
        from fastindex.files.writing import write_file

        write_file(html, found.html(sort, top or _ROWS_OF_A_PAGE).encode())
        notice(f"wrote {html}")
    if as_json:
        click.echo(json.dumps(found.to_json(sort, top)))
    elif html is None:
        from rich.console import Console

        width = None if sys.stdout.isatty() else 110
        found.print(Console(file=sys.stdout, width=width), sort, top, names)
    for problem in found.problems[:_MOST_PROBLEMS]:
        click.echo(f"fastindex: {problem}", err=True)
    if len(found.problems) > _MOST_PROBLEMS:
        click.echo(f"fastindex: {len(found.problems) - _MOST_PROBLEMS} more lines could not be read", err=True)
