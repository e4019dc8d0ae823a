"""The command `index`: from coordinates to slots and back, one element or a file of them."""

from __future__ import annotations

import click

import fastindex
from fastindex.cli.options import PATH
from fastindex.cli.progress import ProgressBar


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("shape")
@click.argument("numbers", nargs=-1, metavar="[I J ...]")
@click.option("--linear", "slot", metavar="[N]", is_flag=False, flag_value="", help="Back: the element in slot N.")
@click.option("--input", "source", type=PATH, help="Read a .npy file: coordinates (rank, ...), or slots with --linear.")
@click.option("--output", "target", type=PATH, help="Write the answers to this file.")
@click.option("--sharding", help="How SHAPE is divided over devices; print the device and the slot in its buffer.")
def index(
    shape: str,
    numbers: tuple[str, ...],
    slot: str | None,
    source: str | None,
    target: str | None,
    sharding: str | None,
) -> None:
    """Print the slot in which the element I J ... of SHAPE lives, or with --linear the element in slot N.

    \b
    fastindex index 'f32[3,5]{1,0:T(2,2)}' 2 3
    fastindex index 'f32[3,5]{1,0:T(2,2)}' --linear 17
    fastindex index 'f32[64,64]' --sharding '{devices=[2,4]<=[8]}' 40 9
    fastindex index 'f32[3,5]{1,0:T(2,2)}' --input coordinates.npy --output slots.npy
    fastindex index 'f32[3,5]{1,0:T(2,2)}' --linear --input slots.npy --output coordinates.npy
    """
    parsed = fastindex.Shape.parse(shape)
    if sharding is not None:
        if slot is not None or source is not None or target is not None:
            raise click.UsageError("--sharding takes coordinates, and none of --linear, --input and --output")
        device, place = fastindex.shard_index(parsed, sharding, _integers(numbers))
        click.echo(f"device {device}, slot {place} of {fastindex.Sharding.parse(sharding).shard_shape(parsed)}")
        return
    if source is None and target is None:
        if slot is None:
            click.echo(_slot_text(parsed, _integers(numbers)))
            return
        slots = _integers((slot, *numbers) if slot else numbers)
        if not slots:
            raise click.UsageError("--linear needs a slot, or --input with a file of slots")
        coordinates = fastindex.multi_index(parsed, slots)
        for place in range(len(slots)):
            click.echo(" ".join(str(part[place]) for part in coordinates))
        return
    if source is None or target is None:
        raise click.UsageError("--input and --output go together")
    if numbers or slot:
        raise click.UsageError("give numbers or --input, not both")
    from fastindex.files.jobs import linear_index_file, multi_index_file

    with ProgressBar("converting indices") as progress:
        convert = linear_index_file if slot is None else multi_index_file
        convert(source, target, parsed, progress)


def _integers(texts: tuple[str, ...]) -> list[int]:
    for text in texts:
        if text.startswith("--") or (text.startswith("-") and not text[1:].isdigit()):
            raise click.NoSuchOption(text)
    try:
        return [int(text) for text in texts]
    except ValueError:
        wrong = next(text for text in texts if not text.lstrip("-").isdigit())
        raise click.UsageError(f"{wrong!r} is not an integer; write the coordinates separated by spaces: 2 3") from None


def _slot_text(shape: fastindex.Shape, coordinates: list[int]) -> str:
    from fastindex.shapes.shape_sizes import axes_of
    from fastindex.tiling.scalar_index import slot_of
    from fastindex.xla.index_queries import index_in_bounds

    if not index_in_bounds(shape, coordinates):
        # It says what is wrong with them; it also loads the compiler, which takes time.
        return str(fastindex.linear_index(shape, coordinates))
    return str(slot_of(axes_of(shape), coordinates))
