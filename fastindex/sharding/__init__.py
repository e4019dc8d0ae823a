"""How arrays are divided over devices: shardings as frozen values, text and protos, what each device holds, moves."""

from __future__ import annotations

from fastindex.lazy import lazy_names

# The public names; `__init__.pyi` tells type checkers the same.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.sharding.resharding": ("ReshardPlan", "plan_reshard"),
        "fastindex.sharding.sharded_arrays": ("shard", "unshard"),
        "fastindex.sharding.indices": ("shard_index", "shards", "unshard_index"),
        "fastindex.sharding.placement": ("Shard",),
        "fastindex.sharding.sharding": ("Sharding",),
    },
)
