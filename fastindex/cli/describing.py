"""The commands `info` and `show`: one shape in words and as a picture."""

from __future__ import annotations

import json

import click

import fastindex
from fastindex.cli.group import notice
from fastindex.cli.options import PATH


@click.command()
@click.argument("shape")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(shape: str, as_json: bool) -> None:
    """Print sizes, strides and padding of SHAPE, and what each dimension costs."""
    from fastindex.advice.sentences import explain
    from fastindex.advice.shape_numbers import info as numbers

    click.echo(json.dumps(numbers(shape)) if as_json else explain(shape))


@click.command()
@click.argument("shape")
@click.option("--svg", type=PATH, help="Write the picture to this file instead.")
def show(shape: str, svg: str | None) -> None:
    """Draw SHAPE: the array with the slot of each element, tiles, padding, and the memory in order."""
    if svg is not None and not svg.lower().endswith(".svg"):
        raise click.UsageError(f"--svg writes SVG, and {svg!r} is not named so; end the name in .svg")
    picture = fastindex.draw(shape)
    if svg is None:
        click.echo(picture.text(), color=True)
    else:
        from fastindex.files.writing import write_file

        write_file(svg, picture.svg().encode())
        notice(f"wrote {svg}")
