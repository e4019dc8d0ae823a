"""`explain` and `draw`: caches, transfers and block tables in words and pictures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.core.integers import counted
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.index.box_nests import table_nests
from fastindex.paged.caches import Cache, check_cache
from fastindex.paged.descriptors import runs_of
from fastindex.paged.planes import Numbers, Plane
from fastindex.paged.tables import BlockTable
from fastindex.paged.transfers import plane_pairs, transfer_of
from fastindex.show.picture import Drawing, text_of
from fastindex.show.scenes import COLOUR_COUNT, Cell, Panel, Scene
from fastindex.show.svg import svg_of
from fastindex.terminal import shows_colours

#: Maximum number of rows, and of columns, of a picture.
_MOST_CELLS = 16


def explain(source: Cache, target: Cache | None = None) -> str:
    """Describe a cache, or the differences between two caches and the cost of moving blocks between them.

    Parameters
    ----------
    source : Cache
    target : Cache, optional

    Raises
    ------
    FastIndexError
        The caches do not hold the same layers, planes or elements.

    Examples
    --------
    >>> import fastindex.paged as fp
    >>> text = "bf16[num_blocks=8,2,kv_heads={},block_size={},head_dim=64]"
    >>> source, target = fp.Cache(text.format(4, 16)), fp.Cache(text.format(2, 64), tp=(2, 1))
    >>> print(fp.explain(source, target))
    source: 1 layer, 8 blocks of 16 tokens, heads 0..3 of 4; k, v: 64 x bf16 a head and token
            in memory, major first: num_blocks, kv, kv_heads, block_size, head_dim
    target: 1 layer, 8 blocks of 64 tokens, heads 2..3 of 4; k, v: 64 x bf16 a head and token
            in memory, major first: num_blocks, kv, kv_heads, block_size, head_dim
    blocks: 4 source blocks become 1 target block
    heads: 2..3 move; the target lacks none
    runs: 4 for each source block of a layer, from 2048 to 2048 bytes
    """
    check_cache(source, "source")
    if target is None:
        return "\n".join(_lines("cache", source))
    check_cache(target, "target")
    plane_pairs(source, target)
    lines = [*_lines("source", source), *_lines("target", target), _blocks(source.block_size, target.block_size)]
    lines.append(_shared_heads(source, target))
    if not set(source.heads).isdisjoint(target.heads):
        lines.append(_runs(source._alone, target._alone))
    return "\n".join(lines)


def _runs(source: Cache, target: Cache) -> str:
    tokens, blocks = math.lcm(source.block_size, target.block_size), []
    for cache in (source, target):
        count = tokens // cache.block_size
        if count > cache.num_blocks:
            return f"runs: {tokens} tokens, which both divide, do not fit a pool"
        # Blocks that are not adjacent in memory, where the pool allows it.
        blocks.append(np.arange(count) * (2 if 2 * count <= cache.num_blocks + 1 else 1))
    found = runs_of(transfer_of(source, target, blocks[0], blocks[1], tokens))
    each = found.count / len(blocks[0]) / source.num_layers
    return f"runs: {each:.3g} for each source block of a layer, from {found.nbytes.min()} to {found.nbytes.max()} bytes"


def _lines(name: str, cache: Cache) -> list[str]:
    heads = f"heads {_span(cache.heads)} of {cache.total_kv_heads}"
    kinds: dict[str, list[str]] = {}
    for plane in cache.planes.values():
        kinds.setdefault(f"{plane.head_dim} x {plane.element_type}", []).append(plane.name)
    elements = "; ".join(f"{', '.join(names)}: {kind} a head and token" for kind, names in kinds.items())
    sizes = f"{counted(cache.num_layers, 'layer')}, {counted(cache.num_blocks, 'block')} of {cache.block_size} tokens"
    cp = f", tokens of rank {cache.cp[1]} of {cache.cp[0]}" if cache.cp[0] > 1 else ""
    order = ", ".join(memory_order(cache))
    return [f"{name}: {sizes}{cp}, {heads}; {elements}", f"{' ' * len(name)}  in memory, major first: {order}"]


def memory_order(cache: Cache) -> list[str]:
    """Return the names of the axes by stride, most major first; an axis that tiles split appears more than once.

    Examples
    --------
    >>> memory_order(Cache("bf16[num_blocks=8,kv_heads=4,block_size=16,head_dim=64]{3,2,1,0:T(16,8)}"))
    ['num_blocks', 'kv_heads', 'head_dim', 'block_size', 'head_dim']
    """
    planes = list(cache.planes.values())
    first = planes[0]
    halves = np.array([int(plane.layer_offsets[0]) for plane in planes if plane.element_type == first.element_type])
    tables: dict[str, Numbers] = {
        "layers": first.layer_offsets,
        "num_blocks": np.arange(min(cache.num_blocks, 2)) * first.block_stride,
        "kv": halves,
        "kv_heads": first.head_offsets,
        "block_size": first.token_offsets,
        "head_dim": first.dim_offsets,
    }
    steps = []
    for name, table in tables.items():
        loops = table_nests(table, np.arange(len(table)))[0].loops
        steps += [(abs(loop.source_stride), name) for loop in loops if loop.size > 1]
    return [name for _, name in sorted(steps, key=lambda step: -step[0])]


def _blocks(here: int, there: int) -> str:
    if here == there:
        return f"blocks: both have {here} tokens"
    whole = math.lcm(here, there)
    return f"blocks: {counted(whole // here, 'source block')} become {counted(whole // there, 'target block')}"


def _shared_heads(source: Cache, target: Cache) -> str:
    moving = range(max(source.heads.start, target.heads.start), min(source.heads.stop, target.heads.stop))
    missing = [head for head in target.heads if head not in source.heads]
    lacks = f"lacks {', '.join(map(str, missing))}, which other ranks hold" if missing else "lacks none"
    return f"heads: {_span(moving) + ' move' if moving else 'none is common'}; the target {lacks}"


def _span(heads: range) -> str:
    return f"{heads.start}..{heads.stop - 1}" if len(heads) > 1 else f"{heads.start}"


# Pictures


class PagePicture(Drawing):
    """Picture of a page or of a block table: displayed by notebooks, exported with `svg` and `text`."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def svg(self) -> str:
        """Return an SVG document that follows the reader's colour scheme.

        Examples
        --------
        >>> draw(Cache("u8[num_blocks=2,kv_heads=2,block_size=2,head_dim=8]")).svg()[:4]
        '<svg'
        """
        return svg_of(self.scene)

    def text(self, colour: bool | None = None, width: int | None = None) -> str:
        """Return the picture as lines of text, of any `width`; by default, coloured if stdout is a terminal.

        Examples
        --------
        >>> text = draw(Cache("u8[num_blocks=2,kv_heads=2,block_size=2,head_dim=8]")).text(colour=False)
        >>> text.splitlines()[5].split()
        ['0', '│', '0', '16│']
        """
        return text_of(self.scene, shows_colours() if colour is None else colour)


def draw(cache: Cache, block_table: BlockTable | None = None) -> PagePicture:
    """Draw a page with the byte offset of each token and head, or a block table coloured by request.

    Parameters
    ----------
    cache : Cache
    block_table : BlockTable, optional
        A table of blocks of this cache.

    Examples
    --------
    >>> table = BlockTable([[1, 0], [3, 2]], block_size=2, lengths=[2, 3])
    >>> draw(Cache("u8[num_blocks=4,block_size=2,head_dim=8]"), table).scene.panels[0].cells[1][0].text
    '3'
    """
    check_cache(cache, "cache")
    if block_table is None:
        panels = tuple(_page_panel(cache, plane) for plane in cache.planes.values())
        title = f"{', '.join(cache.planes)}: byte of a page where each token and head begins"
        notes = _left_out(cache.block_size, "tokens") + _left_out(cache.kv_heads, "heads")
        return PagePicture(Scene(title, title, panels, "token", "head", (), (), (), notes))
    if not isinstance(block_table, BlockTable):
        raise ArgumentTypeError(f"block_table must be a fastindex.paged.BlockTable, got {block_table!r:.200}")
    if block_table.block_size != cache.block_size:
        raise FastIndexError(f"{block_table} is not one of blocks of {cache.block_size} tokens, as {cache} has them")
    blocks = block_table.blocks
    title = f"{counted(len(blocks), 'request')} and the blocks of each"
    notes = _left_out(blocks.shape[0], "requests") + _left_out(blocks.shape[1], "columns")
    panel = _panel("", blocks, block_table.counts, 0)
    return PagePicture(Scene(title, title, (panel,), "request", "column", (), (), (), notes))


def _page_panel(cache: Cache, plane: Plane) -> Panel:
    start = min(int(other.layer_offsets[0]) for other in cache.planes.values())
    tokens = int(plane.layer_offsets[0]) - start + plane.token_offsets[:_MOST_CELLS, None]
    places = tokens + plane.head_offsets[:_MOST_CELLS]
    name = plane.name if len(cache.planes) > 1 else ""
    return _panel(name, places, np.full(len(places), places.shape[1]), 1)


def _panel(label: str, numbers: NDArray[Any], counts: Numbers, axis: int) -> Panel:
    """Return a panel of the first `counts` numbers of each row, coloured along an axis."""
    rows, columns = (range(min(size, _MOST_CELLS)) for size in numbers.shape)
    cells = tuple(
        tuple(
            Cell(int(numbers[r, c]), (r, c), (r, c)[axis] % COLOUR_COUNT, (), str(numbers[r, c]))
            if c < counts[r]
            else Cell(-1, None, -1, (), "")
            for c in columns
        )
        for r in rows
    )
    return Panel(label, tuple(rows), tuple(columns), cells)


def _left_out(count: int, what: str) -> tuple[str, ...]:
    return (f"{count - _MOST_CELLS} more {what}",) if count > _MOST_CELLS else ()
