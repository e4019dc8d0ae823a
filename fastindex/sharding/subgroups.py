"""Canonical form of a tile assignment with subgroups: last dimensions that do not partition the array.

Source: ``HloSharding::PartialTile`` and ``HloSharding::Subgroup`` in ``xla/hlo/ir/hlo_sharding.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastindex.sharding.device_order import DeviceOrder

#: Types of subgroup dimensions, in canonical order.
SUBGROUP_TYPES = ("manual", "unreduced", "replicated")

Assignment = tuple[str, tuple[int, ...], DeviceOrder | None, tuple[str, ...]]


def canonical_assignment(
    dimensions: Sequence[int], order: DeviceOrder, types: Sequence[str], of_mesh: bool = False
) -> Assignment:
    """Return kind, dimensions, order and subgroup types as XLA writes them.

    Subgroups of the same type are merged, ordered as manual, unreduced, replicated, and those of size 1 are dropped. If
    the array is not partitioned and all remaining subgroups have the same type, that type is the kind of the sharding.
    With an unreduced subgroup, XLA decides this before it drops size 1:
    ``{devices=[1,1,3]<=[3] last_tile_dims={replicated, unreduced}}`` stays
    ``{devices=[1,3]<=[3] last_tile_dims={unreduced}}`` and keeps its devices. A mesh keeps them anyway, and its text
    does not tell the role of axes of size 1.
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
    same = set(types) if "unreduced" in kept and not of_mesh else set(kept or types)
    if math.prod(dimensions[:rank]) == 1 and len(same) == 1:
        return same.pop(), (), None, ()
    permutation += [d for d in range(rank, len(dimensions)) if d not in permutation]
    order = order.transposed(dimensions, permutation)
    if kept[-1:] == ["replicated"]:
        order = order.sorted_within(sizes[-1])
    return "tiled", tuple(sizes), order, tuple(kept)
