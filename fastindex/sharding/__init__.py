"""Shardings of arrays over devices: frozen values, text and protos, the shard on each device, and resharding."""

from __future__ import annotations

from fastindex.lazy import lazy_names

# The public names; keep in step with `__init__.pyi`.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.sharding.resharding": ("ReshardPlan", "plan_reshard", "shard", "unshard"),
        "fastindex.sharding.indices": ("shard_index", "shards", "unshard_index"),
        "fastindex.sharding.transfers": ("Shard",),
        "fastindex.sharding.sharding": ("Sharding",),
    },
)
