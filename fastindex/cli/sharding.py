"""The command `shard`: which device holds which part of an array."""

from __future__ import annotations

import json

import click

import fastindex
from fastindex.cli.group import notice
from fastindex.cli.options import FORCE, OUT_PATH

_MOST_ROWS = 64


@click.command(short_help="Which device holds which part of an array.")
@click.argument("shape")
@click.argument("sharding")
@click.option("--devices", "device_count", type=int, help="How many devices there are, where SHARDING does not say it.")
@click.option("--dimensions", nargs=2, type=int, help="The two dimensions to draw, rows first; else the last two.")
@click.option("--tiles", is_flag=True, help="Draw the tiles within the parts, in SVG.")
@click.option("--svg", type=OUT_PATH, help="Write the picture to this file instead.")
@FORCE
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
    parts = _parts(parsed, divided, device_count)
    if as_json:
        click.echo(json.dumps(_numbers(parsed, divided, parts)))
        return
    from fastindex.show.shard_picture import ShardPicture

    picture = ShardPicture(parsed, divided, len(parts), dimensions or None, tiles)
    if svg is not None:
        if not svg.lower().endswith(".svg"):
            raise click.UsageError(f"--svg writes SVG, and {svg!r} is not named so; end the name in .svg")
        from fastindex.jobs.writing import write_file

        write_file(svg, picture.svg().encode(), force)
        notice(f"wrote {svg}")
        return
    from fastindex.show.sentences import sharding_sentences

    click.echo("\n".join(sharding_sentences(parsed, divided)))
    click.echo()
    click.echo("\n".join(_table(parts)))
    click.echo()
    click.echo(picture.text(), color=True)


def _parts(
    shape: fastindex.Shape, sharding: fastindex.sharding.Sharding, device_count: int | None
) -> list[fastindex.sharding.Shard]:
    from fastindex.sharding.placement import shards_of

    return shards_of(shape, sharding, sharding.checked_device_count(device_count))


def _numbers(
    shape: fastindex.Shape, sharding: fastindex.sharding.Sharding, parts: list[fastindex.sharding.Shard]
) -> dict[str, object]:
    names = ("device", "tile_index", "start", "stop", "nbytes", "logical_nbytes")
    return {
        "shape": str(shape),
        "sharding": str(sharding),
        "device_count": len(parts),
        "shard_shape": str(sharding.shard_shape(shape)),
        "shards": [{name: getattr(part, name) for name in names} for part in parts],
    }


def _table(parts: list[fastindex.sharding.Shard]) -> list[str]:
    rows = [("device", "elements", "bytes", "padding")]
    for part in parts[:_MOST_ROWS]:
        spans = ", ".join(f"{a}:{b}" for a, b in zip(part.start, part.stop, strict=True))
        padding = part.nbytes - part.logical_nbytes
        share = f"{padding} ({100 * padding / part.nbytes:.0f}%)" if part.nbytes else "0"
        elements = f"[{spans}]" if part.logical_nbytes or not part.nbytes else "none"
        rows.append((str(part.device), elements, str(part.nbytes), share))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        f"{row[0]:>{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}".rstrip()
        for row in rows
    ]
    if len(parts) > _MOST_ROWS:
        lines.append(f"... and {len(parts) - _MOST_ROWS} more; --json has all")
    return lines
