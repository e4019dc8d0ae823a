"""The command `repack`: files from one named format to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastindex.cli.options import FORCE, MAX_MEMORY, OUT_PATH, PATH, check_memory, integer
from fastindex.cli.progress import ProgressBar


@click.command(short_help="Move quantised weights to another format.")
@click.argument("source", metavar="IN", type=PATH)
@click.argument("target", metavar="OUT", type=OUT_PATH)
@click.option("--from", "source_format", metavar="FORMAT", required=True, help="The format of IN, or plain.")
@click.option("--to", "target_format", metavar="FORMAT", required=True, help="The format of OUT, or plain.")
@click.option("--shape", required=True, metavar="KxN", help="The dimensions of the array, such as 4096x11008.")
@click.option("--bits", type=click.IntRange(1, 64), help="Bits of a code, or of an element.")
@click.option("--with", "parameters", metavar="NAME=VALUE", multiple=True, help="A parameter of a format.")
@MAX_MEMORY
@FORCE
def repack(
    source: str,
    target: str,
    source_format: str,
    target_format: str,
    shape: str,
    bits: int | None,
    parameters: tuple[str, ...],
    **limits: Any,
) -> None:
    """Read the array in IN, in one named format, and write it to OUT in another.

    Formats and their parameters are those of fastindex.weights.formats(); a name that ends in .json is a file of
    fastindex.weights.Discovery.to_json(). Files may be larger than memory where the
    same dimension is outermost in both formats.
    """
    check_memory(limits["max_memory"])
    sizes = [part.strip() for part in shape.lower().replace(",", "x").split("x")]
    if not all(part.isdecimal() for part in sizes):
        raise click.BadParameter(f"{shape!r} is not a shape; give sizes such as 4096x11008", param_hint="--shape")
    from fastindex.weights.repack_jobs import Formats, repack_file

    names = _format(source_format), _format(target_format)
    given = tuple(sorted(dict(_parameter(one) for one in parameters).items()))
    formats = Formats(names, tuple(integer(part) for part in sizes), bits, given)
    with ProgressBar("repack") as progress:
        repack_file(source, target, formats, progress, limits["max_memory"], limits["force"])


def _format(text: str) -> Any:
    """Return a format by its name, or the discovered one in a file."""
    from fastindex.patterns.named_formats import check_name
    from fastindex.weights.discovery import Discovery
    from fastindex.weights.safetensors_files import json_value

    if not text.endswith(".json"):
        check_name(text)
        return text
    return Discovery.from_json(json_value(Path(text).read_bytes(), text)).as_format(text)


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not a parameter; write it as activation_bits=8", param_hint="--with")
    numbers = value.strip("()").split(",")
    if all(number.strip().isdecimal() for number in numbers):
        found = tuple(integer(number) for number in numbers)
        return name, found if len(found) > 1 else found[0]
    return name, {"true": True, "false": False}.get(value.lower(), value)
