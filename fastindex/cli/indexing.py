"""The command `index`: from coordinates and windows to slots and back, for one element or a file of them."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import click

import fastindex
from fastindex.cli.group import main
from fastindex.cli.options import FORCE, OUT_PATH, PATH, integer
from fastindex.cli.output import ProgressBar

_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?(?::(-?\d+)?)?")


@main.command(context_settings={"ignore_unknown_options": True}, short_help="Coordinates to slots, and back.")
@click.argument("shape")
@click.argument("numbers", nargs=-1, metavar="[I J ...]")
@click.option(
    "--linear", "slot", metavar="[N]", is_flag=False, flag_value="", help="Back: the element in slot N, or FIRST:END."
)
@click.option(
    "--unit",
    type=click.Choice(["slot", "byte", "bit"]),
    default="slot",
    show_default=True,
    help="What places in the buffer are counted in.",
)
@click.option("--runs", "as_runs", is_flag=True, help="Print the contiguous runs of the window: start and length.")
@click.option("--tile", "level", type=int, metavar="LEVEL", help="Print the tile of that level, and the place in it.")
@click.option("--mark-padding", is_flag=True, help="With --linear: padding gives -1 in every coordinate.")
@click.option("--input", "source", type=PATH, help="Read a .npy file: coordinates (rank, ...), or slots with --linear.")
@click.option("--output", "target", type=OUT_PATH, help="Write the answers to this file.")
@FORCE
@click.option("--sharding", help="How SHAPE is divided over devices; print the device and the slot in its buffer.")
def index(numbers: tuple[str, ...], **options: Any) -> None:
    """Print the slot in which the element I J ... of SHAPE lives, or with --linear the element in slot N, or in N:M.

    With slices such as 100:108 or ... among I J ..., they are a window: one line for each row of its last dimension.

    \b
    fastindex index 'f32[3,5]{1,0:T(2,2)}' 2 3 --unit byte
    fastindex index 'f32[3,5]{1,0:T(2,2)}' 1: 0:4:2
    fastindex index 'f32[3,5]{1,0:T(2,2)}' --runs : 2:
    fastindex index 'f32[3,5]{1,0:T(2,2)}' --tile 0 2 3
    fastindex index 'f32[64,64]' --sharding '{devices=[2,4]<=[8]}' 40 9
    fastindex index 'f32[3,5]{1,0:T(2,2)}' --linear 17
    fastindex index 'f32[3,5]{1,0:T(2,2)}' --linear 32:64:4 --unit byte --mark-padding
    fastindex index 'f32[3,5]{1,0:T(2,2)}' --input coordinates.npy --output slots.npy
    fastindex index 'f32[3,5]{1,0:T(2,2)}' --linear --mark-padding --input slots.npy --output coordinates.npy
    """
    options["shape"] = fastindex.Shape.parse(options["shape"])
    if options["sharding"] is not None:
        _print_device(_entries(numbers), options)
        return
    _check_options(numbers, options)
    if options["slot"] is not None and options["source"] is None:
        _print_elements(numbers, options)
    elif options["source"] is not None:
        _convert_file(options)
    else:
        _print_places(_entries(numbers), options)


def _print_device(entries: list[Any], options: dict[str, Any]) -> None:
    others = [options[name] for name in ("slot", "source", "target", "level")]
    if any(other is not None for other in others) or options["as_runs"] or options["unit"] != "slot":
        raise click.UsageError(
            "--sharding takes coordinates, and none of --linear, --input and --output, --runs, --tile and --unit"
        )
    if not all(isinstance(entry, int) for entry in entries):
        raise click.UsageError("--sharding takes the coordinates of one element, not a window")
    shape, sharding = options["shape"], options["sharding"]
    device, place = fastindex.sharding.shard_index(shape, sharding, entries)
    click.echo(f"device {device}, slot {place} of {fastindex.sharding.Sharding.parse(sharding).shard_shape(shape)}")


def _check_options(numbers: tuple[str, ...], options: dict[str, Any]) -> None:
    source, target, slot = options["source"], options["target"], options["slot"]
    if source is not None and target is None:
        raise click.UsageError("--input and --output go together")
    if source is not None and (numbers or slot):
        raise click.UsageError("give numbers or --input, not both")
    if target is not None and source is None and slot is not None:
        raise click.UsageError("--linear with --output needs --input")
    if options["mark_padding"] and slot is None:
        raise click.UsageError("--mark-padding is for --linear")
    others = [name for name, on in (("--linear", slot is not None), ("--input", source is not None)) if on]
    kinds = [name for name, on in (("--runs", options["as_runs"]), ("--tile", options["level"] is not None)) if on]
    if len(kinds) + len(others) > 1 and kinds:
        raise click.UsageError(f"{' and '.join([*kinds, *others])} do not go together")
    if kinds and target is not None:
        raise click.UsageError(f"{kinds[0]} prints; it does not write --output")
    if options["level"] is not None and options["unit"] != "slot":
        raise click.UsageError("--tile counts elements; leave --unit out")


def _convert_file(options: dict[str, Any]) -> None:
    from fastindex.jobs.layout_jobs import linear_index_file, multi_index_file

    shape, unit, force = options["shape"], options["unit"], options["force"]
    with ProgressBar("converting indices") as progress:
        if options["slot"] is None:
            linear_index_file(options["source"], options["target"], shape, progress, unit, force)
        else:
            padding = "mark" if options["mark_padding"] else "raise"
            multi_index_file(options["source"], options["target"], shape, progress, unit, padding, force)


def _print_elements(numbers: tuple[str, ...], options: dict[str, Any]) -> None:
    from fastindex.arrays.index_arguments import slice_numbers
    from fastindex.index.programs import count_of_units

    slot = options["slot"]
    places = _entries((slot, *numbers) if slot else numbers)
    if not places or Ellipsis in places:
        raise click.UsageError("--linear needs slots, N or FIRST:END, or --input with a file of slots")
    padding = "mark" if options["mark_padding"] else "raise"
    shape, unit = options["shape"], options["unit"]
    count = count_of_units(shape, unit)
    ranges = [slice_numbers(place, count, "--linear") if isinstance(place, slice) else [place] for place in places]
    asked = ranges if any(isinstance(place, slice) for place in places) else [places]
    # Convert all before the first line is printed: one may be an error.
    found = [fastindex.multi_index(shape, one, padding, unit=unit) for one in asked]
    for one, coordinates in zip(asked, found, strict=True):
        rows = zip(*(part.tolist() for part in coordinates), strict=True) if coordinates else [()] * len(one)
        _echo_lines(" ".join(map(str, row)) for row in rows)


def _print_places(entries: list[Any], options: dict[str, Any]) -> None:
    shape, unit = options["shape"], options["unit"]
    is_window = not all(isinstance(entry, int) for entry in entries)
    if options["as_runs"]:
        start, length = fastindex.runs(shape, tuple(entries) or None, unit=unit)
        _echo_lines(f"{first} {count}" for first, count in zip(start.tolist(), length.tolist(), strict=True))
    elif options["level"] is not None:
        found = fastindex.tile_index(shape, tuple(entries), options["level"])
        columns = [[part.reshape(-1).tolist() for part in half] for half in found]
        for tile, within in zip(zip(*columns[0], strict=True), zip(*columns[1], strict=True), strict=True):
            click.echo(f"tile {' '.join(map(str, tile))} within {' '.join(map(str, within))}")
    elif options["target"] is not None:
        from fastindex.jobs.layout_jobs import window_file

        window_file(options["target"], shape, tuple(entries), unit, options["force"])
    elif not is_window:
        click.echo(_place_text(shape, entries, unit))
    else:
        places = fastindex.linear_index(shape, tuple(entries), unit=unit)
        if places.ndim == 0:
            click.echo(str(places))
            return
        rows = product(*map(range, places.shape[:-1]))
        _echo_lines(" ".join(map(str, places[row].tolist())) for row in rows)


def _echo_lines(lines: Any) -> None:
    for line in lines:
        click.echo(line)


def _entries(texts: tuple[str, ...]) -> list[Any]:
    return [_entry(text) for text in texts]


def _entry(text: str) -> Any:
    if text == "...":
        return Ellipsis
    found = _SLICE.fullmatch(text)
    if found is not None:
        return slice(*(None if part is None else integer(part) for part in found.groups()))
    if text.lstrip("-").isdigit() and not text.startswith("--"):
        return integer(text)
    if text.startswith("-"):
        raise click.NoSuchOption(text)
    raise click.UsageError(
        f"{text!r} is not an integer; write the coordinates separated by spaces: 2 3, or slices for a window: 0:2 3"
    )


def _place_text(shape: fastindex.Shape, coordinates: list[int], unit: str) -> str:
    from fastindex.core.sizes import axes_of
    from fastindex.core.tiles import slot_of
    from fastindex.index.programs import bits_of_unit
    from fastindex.xla.shape_queries import index_in_bounds

    if not index_in_bounds(shape, coordinates):
        # This raises the error that describes them.
        return str(fastindex.linear_index(shape, coordinates, unit=unit))
    return str(slot_of(axes_of(shape), coordinates) * shape.element_bits // bits_of_unit(shape, unit))
