"""The commands `pack`, `unpack` and `relayout`: files from one layout to another."""

from __future__ import annotations

import click

import fastindex
from fastindex.cli.options import DEVICE, PATH, byte_size
from fastindex.cli.progress import ProgressBar

#: The interpreter, NumPy and the kernels take about 100 MiB; the rest is for blocks of data.
_LEAST_MEMORY = 128 << 20


@click.command(short_help="Lay an array out.")
@click.argument("source", metavar="IN", type=PATH)
@click.argument("target", metavar="OUT", type=PATH)
@click.option("--shape", required=True, help="The array and its layout.")
def pack(source: str, target: str, shape: str) -> None:
    """Lay the array in IN out as SHAPE says, and write the physical buffer to OUT."""
    parsed = fastindex.Shape.parse(shape)
    from fastindex.files.jobs import pack_file

    with ProgressBar("packing") as progress:
        pack_file(source, target, parsed, progress)


@click.command(short_help="Read a laid-out buffer.")
@click.argument("source", metavar="IN", type=PATH)
@click.argument("target", metavar="OUT", type=PATH)
@click.option("--shape", required=True, help="The array and its layout.")
def unpack(source: str, target: str, shape: str) -> None:
    """Read the physical buffer in IN, laid out as SHAPE says, and write the array to OUT."""
    parsed = fastindex.Shape.parse(shape)
    from fastindex.files.jobs import unpack_file

    with ProgressBar("unpacking") as progress:
        unpack_file(source, target, parsed, progress)


@click.command(short_help="Move a buffer to another layout.")
@click.argument("source", metavar="IN", type=PATH)
@click.argument("target", metavar="OUT", type=PATH)
@click.option("--from", "source_shape", metavar="SHAPE", required=True, help="How the buffer in IN is laid out.")
@click.option("--to", "target_shape", metavar="SHAPE", required=True, help="How to lay it out in OUT.")
@click.option(
    "--max-memory",
    type=byte_size,
    metavar="SIZE",
    default="1GiB",
    show_default=True,
    help="What to have in memory at a time, this program included.",
)
@DEVICE
def relayout(source: str, target: str, source_shape: str, target_shape: str, max_memory: int, device: str) -> None:
    """Move the physical buffer in IN from one layout to another, and write it to OUT.

    Files may be larger than memory.
    """
    if device == "cpu" and max_memory < _LEAST_MEMORY:
        raise click.UsageError(
            f"--max-memory: {max_memory} bytes do not hold the program itself; give at least {_LEAST_MEMORY >> 20}MiB"
        )
    parsed = fastindex.Shape.parse(source_shape), fastindex.Shape.parse(target_shape)
    from fastindex.files.jobs import relayout_file

    with ProgressBar("relayout") as progress:
        relayout_file(source, target, *parsed, progress, max_memory, device)
