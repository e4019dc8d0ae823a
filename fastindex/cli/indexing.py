"""The commands `index` and `paged`: places of elements in buffers, and of tokens in the caches of serving engines."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import click

import fastindex
from fastindex.cli.group import FORCE, JSON, OUT_PATH, PATH, ProgressBar, integer, main
from fastindex.errors import FastIndexError

if TYPE_CHECKING:
    from fastindex.paged.caches import Cache
    from fastindex.paged.descriptors import Runs


_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?(?::(-?\d+)?)?")


@main.command(context_settings={"ignore_unknown_options": True}, short_help="Coordinates to slots, and back.")
@click.argument("shape")
@click.argument("numbers", nargs=-1, metavar="[I J ...]")
@click.option(
    "--linear",
    "slot",
    metavar="[N]",
    is_flag=False,
    flag_value="",
    help="Reverse: the element in slot N, or FIRST:END.",
)
@click.option(
    "--unit",
    type=click.Choice(["slot", "byte", "bit"]),
    default="slot",
    show_default=True,
    help="Unit of positions in the buffer.",
)
@click.option("--runs", "as_runs", is_flag=True, help="Print the contiguous runs of the window: start and length.")
@click.option("--tile", "level", type=int, metavar="LEVEL", help="Print the tile at that level, and the place in it.")
@click.option("--mark-padding", is_flag=True, help="With --linear: padding gives -1 in every coordinate.")
@click.option("--input", "source", type=PATH, help="Read a .npy file: coordinates (rank, ...), or slots with --linear.")
@click.option("--output", "target", type=OUT_PATH, help="Write the answers to this file.")
@FORCE
@click.option("--sharding", help="How SHAPE is divided over devices; print the device and the slot in its buffer.")
def index(numbers: tuple[str, ...], **options: Any) -> None:
    """Print the slot of the element I J ... of SHAPE, or with --linear the element in slot N, or in N:M.

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


@main.command(short_help="Paged caches: describe one, map tokens to slots, count the descriptors of a transfer.")
@click.argument("cache")
@click.argument("position", nargs=-1, type=int)
@click.option("--blocks", help="The blocks of a request, such as 3,7,9, for POSITION and --to.")
@click.option("--to", "target", help="Another cache: the differences, and the descriptors that move a request there.")
@click.option("--to-blocks", help="The blocks of the request in that cache.")
@click.option("--tokens", type=int, help="Number of tokens of the request; by default as many as its blocks hold.")
@click.option("--draw", is_flag=True, help="Draw where each token and head of a page begins.")
@JSON
def paged(
    cache: str,
    position: tuple[int, ...],
    blocks: str | None,
    target: str | None,
    to_blocks: str | None,
    tokens: int | None,
    draw: bool,
    as_json: bool,
) -> None:
    """Describe CACHE: a shape with named dimensions, or an engine, its name for a layout, and sizes.

    \b
    fastindex paged 'vllm LBNHC num_blocks=4096 kv_heads=8 block_size=16 head_dim=128'
    fastindex paged 'bf16[num_blocks=8,2,kv_heads=4,block_size=16,head_dim=64]' --blocks 3,7 0 15 16
    fastindex paged 'vllm LBNHC num_blocks=99 kv_heads=8 block_size=16 head_dim=128' --blocks 4,2,7,1
        --to 'vllm LBHNC num_blocks=99 kv_heads=4 block_size=64 head_dim=128 tp=2/1' --to-blocks 5
    """
    from fastindex import paged as fp

    found = _cache_of(cache)
    if draw and (position or target is not None or as_json):
        raise click.UsageError("--draw is for CACHE alone, without POSITION, --to and --json")
    if position:
        slots = _slots(found, _numbers(blocks, "--blocks"), position, tokens)
        click.echo(json.dumps({"slots": slots}) if as_json else "\n".join(map(str, slots)))
        return
    if target is None:
        for option, value in (("--blocks", blocks), ("--to-blocks", to_blocks), ("--tokens", tokens)):
            if value is not None:
                raise click.UsageError(f"{option} is for POSITION or --to: give the positions of tokens, or a target")
        if as_json:
            click.echo(json.dumps(_sizes(found)))
        else:
            click.echo(fp.draw(found).text() if draw else fp.explain(found))
        return
    other = _cache_of(target)
    runs = None
    if blocks is not None or to_blocks is not None:
        runs = fp.runs(found, other, _numbers(blocks, "--blocks"), _numbers(to_blocks, "--to-blocks"), tokens)
    if as_json:
        click.echo(json.dumps({"source": _sizes(found), "target": _sizes(other), "runs": runs and _counts(runs)}))
        return
    click.echo(fp.explain(found, other))
    if runs is not None:
        counts = _counts(runs)
        click.echo(
            f"request: {counts['count']} descriptors, {counts['strided']} strided rows, {counts['nbytes']} bytes, "
            f"from {counts['smallest']} to {counts['largest']} bytes each"
        )


def _cache_of(text: str) -> Cache:
    """Return the cache for a text, or for an engine, a layout and sizes; either may have options ``name=value``."""
    from fastindex.paged.caches import Cache, PresetOptions

    end = max(text.rfind("]"), text.rfind("}")) + 1
    others, options = [], dict[str, Any]()
    for word in text[end:].split():
        name, sign, value = word.partition("=")
        if not sign:
            others.append(word)
        elif name not in PresetOptions.__annotations__ or name in options:
            known = ", ".join(PresetOptions.__annotations__)
            raise FastIndexError(f"{name!r} in {text!r} must be one of {known}, and given once")
        else:
            options[name] = _value(name, value, text)
    if end:
        return Cache(" ".join([text[:end], *others]), **options)
    if len(others) != 2:
        raise FastIndexError(
            f"a cache is a shape such as bf16[num_blocks=8,block_size=16,head_dim=64], or an engine, a layout and "
            f"sizes, such as vllm BLNHC num_blocks=8 block_size=16 head_dim=64; got {text!r}"
        )
    return Cache.preset(others[0], others[1], **options)


def _value(name: str, value: str, text: str) -> Any:
    if name == "dtype":
        return value
    parts = value.split("/")
    if len(parts) != 1 + (name in ("tp", "cp")) or not all(part.isdecimal() for part in parts):
        shape = "SIZE/RANK" if name in ("tp", "cp") else "a number"
        raise FastIndexError(f"{name} must be {shape}, got {value!r} in {text!r}")
    numbers = tuple(map(int, parts))
    return numbers if name in ("tp", "cp") else numbers[0]


def _numbers(text: str | None, option: str) -> list[int]:
    if text is None:
        raise click.UsageError(f"also give the blocks of the request: {option} 3,7,9")
    parts = [part.strip() for part in text.split(",")]
    if not all(part.lstrip("-").isdecimal() for part in parts):
        raise click.UsageError(f"{option} must be numbers separated by commas, got {text!r}")
    return [int(part) for part in parts]


def _slots(cache: Cache, blocks: Sequence[int], positions: Sequence[int], tokens: int | None) -> list[int]:
    from fastindex import paged as fp

    table = fp.BlockTable(
        [blocks],
        block_size=cache.block_size,
        lengths=None if tokens is None else [tokens],
        num_blocks=cache.num_blocks,
        null_block=cache.null_block,
    )
    options: Any = {"cp": cache.cp, "interleave": cache.interleave}
    slots: list[int] = fp.slot_mapping(table, positions, [0, len(positions)], **options).tolist()
    return slots


def _sizes(cache: Cache) -> dict[str, Any]:
    names = ("num_layers", "num_blocks", "kv_heads", "block_size", "nbytes", "page_bytes", "total_kv_heads")
    planes = {
        name: {"element_type": str(plane.element_type), "head_dim": plane.head_dim}
        for name, plane in cache.planes.items()
    }
    return {**{name: getattr(cache, name) for name in names}, "heads": [*cache.heads], "planes": planes}


def _counts(runs: Runs) -> dict[str, int]:
    return {
        "count": runs.count,
        "strided": len(runs.strided().source),
        "nbytes": runs.total_nbytes,
        "smallest": int(runs.nbytes.min(initial=runs.total_nbytes)),
        "largest": int(runs.nbytes.max(initial=0)),
    }
