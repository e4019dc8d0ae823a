"""Predict which collective XLA's partitioner uses to change one sharding to another, for known patterns.

Source: ``PartitionedHlo::ReshardNoCache`` in ``xla/service/spmd/spmd_partitioner.cc``.
"""

from __future__ import annotations

import numpy as np

from fastindex.sharding.reshard_boxes import Boxes, Side


def collective_of(source: Side, target: Side, boxes: Boxes) -> str | None:
    """Return the name of the collective, "nothing" if no device needs any data, or None if the pattern is unknown.

    All-to-all, all-gather and collective-permute need even parts; for uneven parts, XLA gathers the whole array on
    every device and slices it.
    """
    before, after = source.part_counts, target.part_counts
    types = {*source.sharding.subgroup_types, *target.sharding.subgroup_types}
    if source.device_count != target.device_count or "maximal" in (source.sharding.kind, target.sharding.kind):
        return None
    messages = boxes.source_device != boxes.target_device
    if not messages.any():
        return "nothing" if before == after else "dynamic-slice"
    if types - {"replicated"}:
        return None
    if set(after) <= {1}:
        return "all-gather"
    if not (_even(source) and _even(target)):
        return "all-gather and dynamic-slice"
    if before == after:
        return "collective-permute"
    if all(a % b == 0 for a, b in zip(before, after, strict=True)):
        return "all-gather" if _closed_groups(boxes, source.device_count) else None
    changed = [d for d, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if len(changed) != 2 or source.holders.shape[1] > 1 or target.holders.shape[1] > 1:
        return None
    first, second = changed
    if before[first] * before[second] != after[first] * after[second]:
        return None
    if source.sharding.order is None or source.sharding.order.counter() is None:
        return "all-gather and dynamic-slice"
    return "all-to-all" if _closed_groups(boxes, source.device_count) else "collective-permute and all-to-all"


def _even(side: Side) -> bool:
    sizes = zip(side.part.dimensions, side.part_counts, side.shape.dimensions, strict=True)
    return all(part * count == size for part, count, size in sizes)


def _closed_groups(boxes: Boxes, count: int) -> bool:
    """Whether the devices that exchange data form groups within which every device sends to all others."""
    sends = np.zeros((count, count), np.bool_)
    sends[boxes.source_device, boxes.target_device] = True
    sends |= np.eye(count, dtype=np.bool_)
    if not np.array_equal(sends, sends.T):
        return False
    first = sends.argmax(axis=1)
    return bool((sends == sends[first]).all())
