"""Runs of transfers against the slow oracle: every byte, in the fewest runs, in each order.

Tests of: paged.descriptors, paged.transfers, paged.kernel, paged.numbers.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import fastindex.paged as fp
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError
from fastindex.runtime import first_answer
from tests.cases.strategies import seeds
from tests.oracles.paged_places import SlowCache, least_runs, pairs
from tests.paged.pools import cache_of, placed, random_pool


@pytest.fixture(params=["kernels", "NumPy"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether kernels answer or NumPy does."""
    use(monkeypatch, request.param)
    return str(request.param)


def use(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setattr("fastindex.paged.descriptors.indices_by_numpy", lambda count: engine == "NumPy")
    if engine == "kernels":
        first_answer.load_kernels()


def random_transfer(random: np.random.Generator) -> tuple[SlowCache, SlowCache, list[int], list[int], int]:
    """Two pools of one model, with other block sizes, orders, heads and context parallel ranks, and a request."""
    width = int(random.choice([1, 2, 4]))
    shared = {
        "layers": int(random.integers(1, 3)),
        "kv": int(random.integers(1, 3)),
        "head_dim": int(random.choice([1, 2, 4, 6])),
    }
    total = int(random.choice([1, 2, 4]))
    sides = []
    for _ in range(2):
        ranks = int(random.choice([1, 1, 2, 4]))
        sizes = {
            **shared,
            "num_blocks": int(random.integers(5, 9)),
            "kv_heads": max(1, total // ranks),
            "block_size": int(random.choice([1, 2, 3, 4, 6, 8])),
        }
        slow = random_pool(random, sizes, width)
        slow = placed(slow, tp=(ranks, int(random.integers(ranks))), total_heads=total)
        if random.random() < 0.3:
            divisors = [d for d in range(1, sizes["block_size"] + 1) if sizes["block_size"] % d == 0]
            slow = placed(slow, cp=(2, int(random.integers(2))), interleave=int(random.choice(divisors)))
        sides.append(slow)
    if random.random() < 0.4:
        # As moves between alike caches, whose blocks may be joined, are the most common ones.
        sides[1] = placed(sides[0], tp=sides[0].tp)
    if random.random() < 0.3:
        sides[1] = placed(sides[1], cp=sides[0].cp, interleave=sides[0].interleave)
        if sides[1].count("block_size") % sides[1].interleave:
            sides[1] = placed(sides[1], cp=(1, 0), interleave=1)
    most = min(side.count("num_blocks") * side.count("block_size") * side.cp[0] for side in sides)
    tokens = int(random.integers(0, most + 1))
    blocks = []
    for side in sides:
        ids = random.permutation(side.count("num_blocks"))
        blocks.append((np.sort(ids) if random.random() < 0.5 else ids).tolist())
    return sides[0], sides[1], blocks[0], blocks[1], tokens


def has_common_head(source: SlowCache, target: SlowCache) -> bool:
    return bool(set(source.heads()) & set(target.heads()))


def check(seed: int, order: str) -> bool:
    source, target, here, there, tokens = random_transfer(np.random.default_rng(seed))
    caches = cache_of(source), cache_of(target)
    if not has_common_head(source, target):
        with pytest.raises(FastIndexError, match="none is common"):
            fp.runs(*caches, here, there, tokens)
        return False
    moved = list(pairs(source, target, here, there, tokens))
    found = fp.runs(*caches, here, there, tokens, order=order)
    rows = list(zip(found.source.tolist(), found.target.tolist(), found.nbytes.tolist(), strict=True))
    context = f"seed {seed}: {caches[0]} to {caches[1]}, {here}, {there}, {tokens} tokens"
    if order == "requested":
        bytes_of = [(s + i, t + i) for s, t, n in rows for i in range(n)]
        assert sorted(bytes_of) == sorted(moved), context
        assert all(a[0] + a[2] != b[0] or a[1] + a[2] != b[1] for a, b in itertools.pairwise(rows)), context
        return True
    expected = least_runs(moved)
    if order == "target":
        expected.sort(key=lambda run: (run[1], run[0]))
    assert rows == expected, context
    assert (found.count, found.total_nbytes) == (len(expected), len(moved))
    return len(expected) > 1


@pytest.mark.parametrize("order", ["source", "target", "requested"])
def test_random_transfers_as_by_counting(order: str, engine: str) -> None:
    assert sum(check(seed, order) for seed in seeds(150)) > 60


@pytest.mark.sweep
def test_many_random_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(1000, 11_000):
        use(monkeypatch, "kernels" if seed % 4 else "NumPy")
        check(seed, ("source", "target", "source", "requested")[seed % 4])


POOL = "bf16[layers=2,num_blocks={blocks},2,kv_heads=2,block_size=4,head_dim=8]"
CACHE = fp.Cache(POOL.format(blocks=10), null_block=0)


def test_whole_pages_are_joined(engine: str) -> None:
    """Of each layer one run, where blocks follow each other on both sides."""
    pages = fp.Cache("bf16[layers=2,num_blocks=10,2,kv_heads=2,block_size=4,head_dim=8]")
    found = fp.runs(pages, pages, [6, 4, 5], [3, 1, 2])
    assert found.nbytes.tolist() == [3 * pages.page_bytes] * 2
    layer_in_block = fp.Cache(POOL.format(blocks=10).replace("]", "]{5,4,3,2,0,1}"))
    found = fp.runs(layer_in_block, layer_in_block, [6, 4, 5], [3, 1, 2])
    assert found.nbytes.tolist() == [6 * pages.page_bytes]
    assert fp.runs(pages, pages, [6, 4, 5], [3, 1, 2], order="requested").count == 4


def test_single_bytes_of_a_context_parallel_rank(engine: str) -> None:
    """Pieces of one byte, at places that are no blocks and do not ascend."""
    text = "u8[num_blocks=40,block_size=4,head_dim=1]"
    source, target = fp.Cache(text, cp=(2, 1)), fp.Cache(text)
    here, there = np.arange(20)[::-1], np.arange(40)
    found = fp.runs(source, target, here, there, 160)
    tokens = np.arange(1, 160, 2)
    begins = here[tokens // 2 // 4] * 4 + tokens // 2 % 4
    assert found.source.tolist() == np.sort(begins).tolist()
    assert found.target.tolist() == tokens[np.argsort(begins)].tolist()


def test_one_source_block_for_several_targets(engine: str) -> None:
    found = fp.runs(CACHE, CACHE, [5, 5, 6], [7, 1, 8])
    one = CACHE.page_bytes
    assert found.source.tolist() == [5 * one, 5 * one, 15 * one, 15 * one]
    assert found.target.tolist() == [1 * one, 7 * one, 11 * one, 17 * one]
    assert found.nbytes.tolist() == [one, 2 * one, one, 2 * one]


def test_nothing_to_move(engine: str) -> None:
    assert fp.runs(CACHE, CACHE, [], []).count == 0
    assert fp.runs(CACHE, CACHE, [1], [2], 0).total_nbytes == 0


@pytest.mark.parametrize(
    ("blocks", "tokens", "kind", "message"),
    [
        (([10], [1]), 4, OutOfBoundsError, r"source_blocks\[0\] is 10, out of bounds for the 10 blocks"),
        (([1, -1], [1, 2]), 8, OutOfBoundsError, r"source_blocks\[1\] is -1, out of bounds for the 10 blocks"),
        (([1], [10]), 4, OutOfBoundsError, r"target_blocks\[0\] is 10"),
        (([1, 2], [1, 0]), 8, FastIndexError, r"target_blocks\[1\] is 0, of the null block 0"),
        (([1, 2, 3], [4, 1, 4]), 12, FastIndexError, r"target_blocks\[2\] is 4, which an earlier entry"),
        (([1], [1, 2]), 5, FastIndexError, "5 tokens need 2 source_blocks of 4 tokens, got 1"),
        (([1, 2], [1]), 5, FastIndexError, "5 tokens need 2 target_blocks"),
        (([1, 2], [1]), None, FastIndexError, "hold 8 tokens and the target blocks 4; give num_tokens"),
        (([1], [1]), -1, FastIndexError, "num_tokens must be at least 0"),
        (([0.5], [1]), 4, ArgumentTypeError, "source_blocks must hold integers"),
    ],
)
def test_blocks_that_are_refused(blocks: Any, tokens: int | None, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        fp.runs(CACHE, CACHE, *blocks, tokens)


def test_blocks_beyond_the_tokens_are_not_looked_at() -> None:
    assert fp.runs(CACHE, CACHE, [1, 99], [2, 0], 4).total_nbytes == 2 * CACHE.page_bytes


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("bf16[num_blocks=9,2,kv_heads=2,block_size=4,head_dim=8]", "2 layers, the target 1"),
        ("bf16[layers=2,num_blocks=9,kv_heads=2,block_size=4,head_dim=8]", "the planes k, v and the target kv"),
        ("f32[layers=2,num_blocks=9,2,kv_heads=2,block_size=4,head_dim=8]", "are bf16 in the source and f32"),
        ("bf16[layers=2,num_blocks=9,2,kv_heads=2,block_size=4,head_dim=4]", "8 elements in the source, 4 there"),
    ],
)
def test_caches_of_other_models(other: str, message: str) -> None:
    with pytest.raises(FastIndexError, match=message):
        fp.runs(CACHE, fp.Cache(other), [1], [1])


def test_orders() -> None:
    with pytest.raises(FastIndexError, match="order must be"):
        fp.runs(CACHE, CACHE, [1], [1], order="memory")


@pytest.mark.parametrize("seed", seeds(20))
def test_strided_and_cut_runs_move_the_same_bytes(seed: int) -> None:
    source, target, here, there, tokens = random_transfer(np.random.default_rng(seed))
    if not has_common_head(source, target):
        pytest.skip("no common head")
    found = fp.runs(cache_of(source), cache_of(target), here, there, tokens)
    moved = sorted(pairs(source, target, here, there, tokens))
    rows = found.strided()
    assert len(rows.source) == len(rows.target) <= found.count
    strided = [
        (s + i * s_step + b, t + i * t_step + b)
        for (s, n, s_step, count), (t, m, t_step, times) in zip(rows.source.tolist(), rows.target.tolist(), strict=True)
        for i in range(count)
        for b in range(n if (n, count) == (m, times) else 0)
    ]
    assert sorted(strided) == moved
    cut = found.coalesced(3)
    assert cut.nbytes.max(initial=0) <= 3
    columns = (column.tolist() for column in (cut.source, cut.target, cut.nbytes))
    assert sorted((s + b, t + b) for s, t, n in zip(*columns, strict=True) for b in range(n)) == moved
    with pytest.raises(FastIndexError, match="max_bytes must be at least 1"):
        found.coalesced(0)
