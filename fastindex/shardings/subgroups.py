"""The canonical form of a tile assignment whose last dimensions do not divide the array.

Source: ``HloSharding::PartialTile`` and ``HloSharding::Subgroup`` in ``xla/hlo/ir/hlo_sharding.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastindex.shardings.device_order import DeviceOrder

#: What the last dimensions of a tile assignment can be, in canonical order.
SUBGROUP_TYPES = ("manual", "unreduced", "replicated")

Assignment = tuple[str, tuple[int, ...], DeviceOrder | None, tuple[str, ...]]


def canonical_assignment(dimensions: Sequence[int], order: DeviceOrder, types: Sequence[str]) -> Assignment:
    """Return kind, dimensions, order and subgroup types as XLA writes them.

    Subgroups of the same type are merged, in the order manual, unreduced, replicated, and those of size 1 are dropped.
    If the array is not divided and all remaining subgroups have the same type, that is the kind of the sharding. XLA
    checks this before it drops size 1, so it prints ``{devices=[1,2,1]<=[2] last_tile_dims={manual, replicated}}`` as
    a text that it reads back as ``{manual}``; here it is ``{manual}`` at once.
    """
    rank = len(dimensions) - len(types)
    sizes = list(dimensions[:rank])
    permutation = list(range(rank))
    kept: list[str] = []
    for kind in SUBGROUP_TYPES:
        members = [rank + i for i, name in enumerate(types) if name == kind and dimensions[rank + i] > 1]
        if members:
            permutation += members
            sizes.append(math.prod(dimensions[d] for d in members))
            kept.append(kind)
    if math.prod(dimensions[:rank]) == 1 and types and len(set(kept or types)) == 1:
        return (kept or types)[0], (), None, ()
    permutation += [d for d in range(rank, len(dimensions)) if d not in permutation]
    order = order.transposed(dimensions, permutation)
    if kept[-1:] == ["replicated"]:
        order = order.sorted_within(sizes[-1])
    return "tiled", tuple(sizes), order, tuple(kept)
