"""Moves of random requests between pages without access: a read or a write outside a pool ends this process.

python -m tests.paged.fenced_copies begin|end|touch
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from unittest import mock

import numpy as np

import fastindex.paged as fp
from fastindex.arrays.arrays import described
from fastindex.paged import page_passes
from fastindex.runtime import first_answer
from tests.kernels.fenced_relayouts import FencedMemory
from tests.paged.pools import cache_of
from tests.paged.test_descriptors import has_common_head, random_transfer


def main(where: str, count: int = 150) -> None:
    memory = FencedMemory(at_end=where != "begin")
    first_answer.load_kernels()
    if where == "touch":
        # A cache that is longer than its pool: what the fences are there to catch.
        cache = fp.Cache("bf16[num_blocks=4,2,block_size=16,kv_heads=4,head_dim=64]")
        with mock.patch(
            "fastindex.paged.copies.address_of_pool", lambda cache, pool, *_: (pool.ctypes.data, [described(pool)])
        ):
            fp.copy(cache, cache, memory(64, 0), memory(cache.nbytes, 0), [0], [3])
        return
    moved = 0
    for seed in range(count):
        source, target, here, there, tokens = random_transfer(np.random.default_rng(seed))
        if not has_common_head(source, target):
            continue
        pools = memory(source.nbytes, 0), memory(target.nbytes, 0)
        caches = cache_of(source), cache_of(target)
        with ExitStack() as patches:
            if seed % 2:
                # As large transfers move: past the cache.
                patches.enter_context(mock.patch.object(page_passes, "_KEPT", page_passes._STREAMED))
            page_passes._compiled.cache_clear()
            fp.copy(*caches, *pools, here, there, tokens, tail="zero")
        slots = np.arange(caches[0].num_blocks * caches[0].block_size)
        chunk = fp.gather(caches[0], pools[0], slots=slots)
        fp.scatter(caches[0], pools[0], chunk, slots[::-1].copy())
        moved += 1
    for columns in (1, 5):
        table = memory(4 * columns, 0).view(np.int32)
        table[:] = np.arange(columns)
        positions = memory(8 * 16 * columns, 0).view(np.int64)
        positions[:] = np.arange(16 * columns)
        out = memory(8 * 16 * columns, 0).view(np.int64)
        fp.slot_mapping(table, positions, [0, 16 * columns], block_size=16, out=out)
        positions[:] += 7
        fp.slot_mapping(table, positions, [0, 16 * columns], block_size=16, out=out, mode="mark")
    sys.stdout.write(f"{moved} moves\n")


if __name__ == "__main__":
    main(sys.argv[1])
