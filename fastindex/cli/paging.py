"""The command `paged`: caches of serving engines, the slots of tokens, and the descriptors of a transfer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fastindex.cli.group import main
from fastindex.cli.options import JSON
from fastindex.errors import FastIndexError

if TYPE_CHECKING:
    from fastindex.paged.caches import Cache
    from fastindex.paged.descriptors import Runs


@main.command(short_help="Paged caches: describe one, map tokens to slots, count the descriptors of a transfer.")
@click.argument("cache")
@click.argument("position", nargs=-1, type=int)
@click.option("--blocks", help="The blocks of a request, such as 3,7,9: what POSITION and --to are about.")
@click.option("--to", "target", help="Another cache: what differs, and the descriptors that move a request there.")
@click.option("--to-blocks", help="The blocks of the request there.")
@click.option("--tokens", type=int, help="How many tokens of the request there are; else all that its blocks hold.")
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
    """Describe CACHE: a text whose dimensions are named, or an engine, its name of a layout, and sizes.

    \b
    fastindex paged 'vllm LBNHC num_blocks=4096 kv_heads=8 block_size=16 head_dim=128'
    fastindex paged 'bf16[num_blocks=8,2,kv_heads=4,block_size=16,head_dim=64]' --blocks 3,7 0 15 16
    fastindex paged 'vllm LBNHC num_blocks=99 kv_heads=8 block_size=16 head_dim=128' --blocks 4,2,7,1
        --to 'vllm LBHNC num_blocks=99 kv_heads=4 block_size=64 head_dim=128 tp=2/1' --to-blocks 5
    """
    from fastindex import paged as fp

    found = _cache_of(cache)
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
    from fastindex.paged.caches import Cache

    words = text.split()
    pairs = [word for word in words if "=" in word and "[" not in word]
    options: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        options[name] = _value(name, value, text)
    others = [word for word in words if word not in pairs]
    try:
        if len(others) == 2 and "[" not in text:
            return Cache.preset(others[0], others[1], **options)
        return Cache(" ".join(others), **options)
    except TypeError as error:
        raise FastIndexError(f"{text!r}: {str(error).rpartition('.')[2]}") from None


def _value(name: str, value: str, text: str) -> Any:
    if name == "dtype":
        return value
    parts = value.split("/") if name in ("tp", "cp") else [value]
    if not all(part.isdecimal() for part in parts):
        shape = "SIZE/RANK" if name in ("tp", "cp") else "a number"
        raise FastIndexError(f"{name} is {shape}, got {value!r} in {text!r}")
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
