"""The commands `info` and `show`: one shape, or a checkpoint, in words and as a picture."""

from __future__ import annotations

import json
import os

import click

import fastindex
from fastindex.cli.checkpoints import checkpoint_text
from fastindex.cli.group import notice
from fastindex.cli.options import FORCE, OUT_PATH
from fastindex.show.spelling import visible


@click.command(short_help="Sizes, strides and padding of a shape.")
@click.argument("shape")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(shape: str, as_json: bool) -> None:
    """Print sizes, strides and padding of SHAPE, and what each dimension costs.

    Where SHAPE is a folder that `pack` has made of a checkpoint, print which arrays it holds.
    """
    if shape.endswith(os.sep) or os.path.isdir(shape):
        click.echo(visible(checkpoint_text(shape, as_json)))
        return
    from fastindex.show.sentences import explain
    from fastindex.show.sentences import info as numbers

    click.echo(json.dumps(numbers(shape)) if as_json else explain(shape))


@click.command(short_help="Draw a layout: elements, tiles, memory order.")
@click.argument("shape")
@click.argument("destination", required=False)
@click.option("--svg", type=OUT_PATH, help="Write the picture to this file instead.")
@click.option("--html", type=OUT_PATH, help="Write a page to point at to this file instead; it needs no network.")
@FORCE
def show(shape: str, destination: str | None, svg: str | None, html: str | None, force: bool) -> None:
    """Draw SHAPE: the array with the slot of each element, tiles, padding, and the memory in order.

    With DESTINATION, a second layout of the same array, draw where the elements move.
    """
    for option, name, ending in (("--svg", svg, "svg"), ("--html", html, "html")):
        if name is not None and not name.lower().endswith(f".{ending}"):
            raise click.UsageError(
                f"{option} writes {ending.upper()}, and {name!r} is not named so; end the name in .{ending}"
            )
    from fastindex.show.picture import Picture

    picture = Picture(*(fastindex.Shape.parse(text) for text in (shape, destination) if text is not None))
    if svg is None and html is None:
        click.echo(picture.text(), color=True)
    for name, document in ((svg, picture.svg), (html, picture.html)):
        if name is not None:
            from fastindex.jobs.writing import write_file

            write_file(name, document().encode(), force)
            notice(f"wrote {name}")
