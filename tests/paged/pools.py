"""Random pools of pages: as slow caches of the oracle, and as the caches that they describe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import fastindex.paged as fp
from tests.oracles.paged_places import SlowCache

DTYPES = {1: "u8", 2: "bf16", 4: "f32"}
Random = np.random.Generator


def random_pool(random: Random, sizes: dict[str, int], width: int) -> SlowCache:
    """A pool of these sizes in a random order, perhaps with an axis split in two, padding, or a tile."""
    axes = [(name, size) for name, size in sizes.items() if size > 1 or random.random() < 0.5]
    names = {name for name, _ in axes}
    axes += [(name, sizes[name]) for name in ("num_blocks", "block_size", "head_dim") if name not in names]
    random.shuffle(axes)
    order = [(str(name), int(size)) for name, size in axes]
    used = {}
    choice = random.random()
    if choice < 0.25:
        order = split(random, order)
    elif choice < 0.4:
        for axis in ("kv_heads", "head_dim"):
            order, used = padded(random, order, used, axis)
    tile = None
    if random.random() < 0.25 and order[-1][0] not in ("num_blocks", "layers"):
        rows = 1 if order[-2][0] == "num_blocks" else int(random.integers(1, 4))
        tile = rows, int(random.integers(1, 5))
        if choice < 0.25:
            tile = None
    return SlowCache(order, width, used, tile)


def split(random: Random, order: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Put the minor digit of an axis elsewhere, behind its major digit."""
    at = int(random.integers(len(order)))
    name, size = order[at]
    factors = [f for f in range(2, size) if size % f == 0]
    if not factors or name == "num_blocks":
        return order
    factor = int(random.choice(factors))
    later = int(random.integers(at + 1, len(order) + 1))
    return [*order[:at], (name, size // factor), *order[at + 1 : later], (name, factor), *order[later:]]


def padded(
    random: Random, order: list[tuple[str, int]], used: dict[str, int], axis: str
) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """Give an axis more elements than are used."""
    more = int(random.integers(0, 3))
    sizes = dict(order)
    if axis not in sizes or not more:
        return order, used
    return [(n, s + more if n == axis else s) for n, s in order], {**used, axis: sizes[axis]}


def cache_of(slow: SlowCache) -> fp.Cache:
    """The cache that a slow one describes."""
    options = {"total_kv_heads": slow.total_heads} if slow.total_heads is not None else {}
    return fp.Cache(
        slow.text(DTYPES[slow.width]),
        kv_heads=slow.used.get("kv_heads"),
        head_dim=slow.used.get("head_dim"),
        tp=slow.tp,
        cp=slow.cp,
        interleave=slow.interleave,
        **options,
    )


def placed(slow: SlowCache, **options: object) -> SlowCache:
    """The same pool of another rank."""
    return replace(slow, **options)  # type: ignore[arg-type]
