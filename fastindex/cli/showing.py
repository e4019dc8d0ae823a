"""The commands that describe and draw: `info`, `show` and `explore` for layouts, `shard` for sharded arrays.

Also those about programs: `report`, the cost of their buffers, and `copies`, the moves that layouts cause.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

import fastindex
from fastindex.cli.group import FORCE, JSON, OUT_PATH, PATH, check_ending, main, write_document
from fastindex.cli.moving import checkpoint_text
from fastindex.show.spelling import aligned, visible
from fastindex.terminal import shows_colours

_MOST_ROWS = 64
_SVG = click.option("--svg", type=OUT_PATH, help="Write the picture to this file instead.")


@main.command(short_help="Sizes, strides and padding of a shape.")
@click.argument("shape")
@JSON
def info(shape: str, as_json: bool) -> None:
    """Print sizes, strides and padding of SHAPE, and what each dimension costs.

    If SHAPE is a folder that `pack` has written from a checkpoint, list its arrays.
    """
    if shape.endswith(os.sep) or os.path.isdir(shape):
        click.echo(visible(checkpoint_text(shape, as_json)))
        return
    from fastindex.show.sentences import explain
    from fastindex.show.sentences import info as numbers

    click.echo(json.dumps(numbers(shape)) if as_json else explain(shape))


@main.command(short_help="Draw a layout: elements, tiles, memory order.")
@click.argument("shape")
@click.argument("destination", required=False)
@_SVG
@click.option("--html", type=OUT_PATH, help="Write an interactive page to this file instead; it needs no network.")
@FORCE
def show(shape: str, destination: str | None, svg: str | None, html: str | None, force: bool) -> None:
    """Draw SHAPE: the array with the slot of each element, tiles, padding, and the memory in order.

    With DESTINATION, a second layout of the same array, draw where the elements move.
    """
    check_ending("--svg", svg, "svg")
    check_ending("--html", html, "html")
    from fastindex.show.picture import Picture

    picture = Picture(*(fastindex.Shape.parse(text) for text in (shape, destination) if text is not None))
    if svg is None and html is None:
        click.echo(picture.text(), color=True)
    if svg is not None:
        write_document(svg, picture.svg(), force)
    if html is not None:
        write_document(html, picture.html(), force)


@main.command(short_help="Which device holds which part of an array.")
@click.argument("shape")
@click.argument("sharding")
@click.option("--devices", "device_count", type=int, help="Number of devices, if SHARDING does not determine it.")
@click.option("--dimensions", nargs=2, type=int, help="The two dimensions to draw, rows first; default: the last two.")
@click.option("--tiles", is_flag=True, help="Draw the tiles within the parts, in SVG.")
@_SVG
@FORCE
@JSON
def shard(
    shape: str,
    sharding: str,
    device_count: int | None,
    dimensions: tuple[int, int] | None,
    tiles: bool,
    svg: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Print which device holds which part of SHAPE under SHARDING: in words, as a table, and as a picture.

    \b
    fastindex shard 'f32[17,1024]{1,0:T(8,128)}' '{devices=[8,1]<=[8]}'
    fastindex shard 'bf16[64,64]' "{mesh['x'=2,'y'=4], [{'x'}, {'y'}]}" --svg parts.svg
    """
    parsed, divided = fastindex.Shape.parse(shape), fastindex.sharding.Sharding.parse(sharding)
    from fastindex.sharding.transfers import shards_of

    if device_count is None and divided.device_count is None:
        raise fastindex.FastIndexError(f"{divided} does not say how many devices there are; give --devices")
    parts = shards_of(parsed, divided, divided.checked_device_count(device_count))
    if as_json:
        names = ("device", "tile_index", "start", "stop", "nbytes", "logical_nbytes")
        found = {
            "shape": str(parsed),
            "sharding": str(divided),
            "device_count": len(parts),
            "shard_shape": str(divided.shard_shape(parsed)),
            "shards": [{name: getattr(part, name) for name in names} for part in parts],
        }
        click.echo(json.dumps(found))
        return
    from fastindex.show.shard_picture import ShardPicture

    picture = ShardPicture(parsed, divided, len(parts), dimensions or None, tiles)
    if svg is not None:
        check_ending("--svg", svg, "svg")
        write_document(svg, picture.svg(), force)
        return
    from fastindex.show.sentences import sharding_sentences

    click.echo("\n".join([*sharding_sentences(parsed, divided), "", *_table(parts), "", picture.text()]), color=True)


def _table(parts: list[fastindex.sharding.Shard]) -> list[str]:
    rows = [("device", "elements", "bytes", "padding")]
    for part in parts[:_MOST_ROWS]:
        spans = ", ".join(f"{a}:{b}" for a, b in zip(part.start, part.stop, strict=True))
        padding = part.nbytes - part.logical_nbytes
        share = f"{padding} ({100 * padding / part.nbytes:.0f}%)" if part.nbytes else "0"
        elements = f"[{spans}]" if part.logical_nbytes or not part.nbytes else "none"
        rows.append((str(part.device), elements, str(part.nbytes), share))
    lines = aligned(rows, "><>>")
    if len(parts) > _MOST_ROWS:
        lines.append(f"... and {len(parts) - _MOST_ROWS} more; --json has all")
    return lines


@main.command(short_help="A live page that draws the shape you type.")
@click.argument("shape", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on; any free one by default.")
@click.option("--browser/--no-browser", default=True, help="Open the page in a browser.")
def explore(shape: str | None, port: int, browser: bool) -> None:
    """Serve a live page on this machine's loopback address: type a shape, see where its elements live.

    Ctrl-C ends it. It needs the extra: pip install 'fastindex[explore]'.
    """
    query = ""
    if shape is not None:
        query = "?" + urlencode({"shape": str(fastindex.Shape.parse(shape))})
    from fastindex.show.explorer import serve

    def announce(address: str) -> None:
        click.echo(f"{address}{query}")
        if browser:
            click.launch(f"{address}{query}")

    try:
        serve(port, announce)
    except ImportError as error:
        raise click.ClickException(f"{error}; pip install 'fastindex[explore]'") from None


#: The most lines of HLO that are reported as unreadable.
_MOST_PROBLEMS = 20
_ROWS_OF_A_PAGE = 500
#: Width of output to a file or a pipe, unless COLUMNS is set.
_WIDTH = 110
_TOP = f"Print the first N {{}}.  [default: {_MOST_ROWS}; in pages {_ROWS_OF_A_PAGE}, in JSON all]"
_FILES = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
_HTML = click.option(
    "--html", type=OUT_PATH, metavar="OUT", help="Write a page with a timeline and a table to this file."
)


@main.command(short_help="Which buffers of a program are padded, and why.")
@_FILES
@click.option("--top", type=click.IntRange(min=1), metavar="N", help=_TOP.format("shapes"))
@click.option(
    "--sort",
    type=click.Choice(["waste", "bytes", "count", "ratio"]),
    default="waste",
    show_default=True,
    help="Sort order.",
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
    from fastindex.hlo.report_views import report_text

    found = fastindex.hlo.report(_source_of(files, html), instruction_results=all_results, show_progress=True)
    if html is not None:
        write_document(html, found.html(sort, top or _ROWS_OF_A_PAGE), force)
    if as_json:
        click.echo(json.dumps(found.to_json(sort, top)))
    elif html is None:
        text = report_text(found, sort, top or _MOST_ROWS, _width(), names, shows_colours())
        _print_table(text, top, len(found.uses))
    _print_problems(found.problems)


@main.command(short_help="What a program copies because of layouts, and why.")
@_FILES
@click.option("--top", type=click.IntRange(min=1), metavar="N", help=_TOP.format("rows"))
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
    from fastindex.hlo.copies.layout_copies import copies_text

    found = fastindex.hlo.layout_copies(_source_of(files, html), show_progress=True)
    if html is not None:
        write_document(html, found.html(top or _ROWS_OF_A_PAGE, all_moves), force)
    if as_json:
        click.echo(json.dumps(found.to_json(top, all_moves)))
    elif html is None:
        text = copies_text(found, top or _MOST_ROWS, _width(), all_moves, shows_colours())
        _print_table(text, top, len(found.rows(all_moves)))
    _print_problems(found.problems)


def _source_of(files: tuple[str, ...], html: str | None) -> Any:
    if "-" in files and len(files) > 1:
        raise click.UsageError("stdin (-) cannot be combined with files")
    if "" in files:
        raise click.UsageError("'' names no file")
    check_ending("--html", html, "html")
    return sys.stdin.buffer if files == ("-",) else [Path(file) for file in files]


def _width() -> int:
    return shutil.get_terminal_size((_WIDTH, 0)).columns


def _print_table(text: str, top: int | None, count: int) -> None:
    """Print a table; if it is cut by default, say how to get all of it."""
    more = f"; --top {count} prints all, --json has all" if top is None and count > _MOST_ROWS else ""
    click.echo(text + more, color=True)


def _print_problems(problems: Sequence[object]) -> None:
    for problem in problems[:_MOST_PROBLEMS]:
        click.echo(f"fastindex: {problem}", err=True)
    if len(problems) > _MOST_PROBLEMS:
        click.echo(f"fastindex: {len(problems) - _MOST_PROBLEMS} more lines could not be read", err=True)
