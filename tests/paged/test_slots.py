"""Slot mappings against loops in Python, with and without kernels, and every bound.

Tests of: paged.places, paged.kernel, paged.numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fastindex.paged as fp
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError
from fastindex.runtime import first_answer
from tests.cases.strategies import seeds


def by_counting(
    table: Any, positions: Any, starts: Any, size: int, cp: tuple[int, int] = (1, 0), interleave: int = 1, pad: int = -1
) -> list[int]:
    """The engines' rule, token by token."""
    slots = [pad] * len(positions)
    for request in range(len(starts) - 1):
        for token in range(starts[request], starts[request + 1]):
            position = int(positions[token])
            if position // interleave % cp[0] != cp[1]:
                continue
            local = position // (interleave * cp[0]) * interleave + position % interleave
            slots[token] = int(table[request][local // size]) * size + local % size
    return slots


@pytest.fixture(params=["kernels", "NumPy"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether kernels answer or NumPy does."""
    by_numpy = request.param == "NumPy"
    monkeypatch.setattr("fastindex.paged.places.indices_by_numpy", lambda count: by_numpy)
    if not by_numpy:
        first_answer.load_kernels()
    return str(request.param)


def random_batch(random: np.random.Generator) -> dict[str, Any]:
    """A batch whose tokens count on, or jump about, in any integer types."""
    size, requests, columns = (
        int(random.choice([1, 3, 5, 16, 48, 320])),
        int(random.integers(1, 6)),
        int(random.integers(1, 9)),
    )
    ranks = int(random.integers(1, 4))
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    interleave = int(random.choice(divisors))
    table = random.permutation(requests * columns + 3)[: requests * columns].reshape(requests, columns)
    parts = []
    for _ in range(requests):
        limit = columns * size * ranks
        count = int(random.integers(0, 300))
        if random.random() < 0.5:
            first = int(random.integers(0, max(limit - count, 1)))
            parts.append(np.arange(first, min(first + count, limit)))
        else:
            parts.append(random.integers(0, limit, count))
    return {
        "table": table.astype(random.choice(["int32", "int64", "uint16"])),
        "positions": np.concatenate([*parts, np.zeros(int(random.integers(0, 5)), int)]).astype(
            random.choice(["int32", "int64", "uint8" if limit < 256 else "int32"])
        ),
        "starts": np.concatenate([[0], np.cumsum([len(p) for p in parts])]),
        "size": size,
        "cp": (ranks, int(random.integers(ranks))),
        "interleave": interleave,
    }


@pytest.mark.parametrize("seed", seeds(120))
def test_random_batches_as_by_counting(seed: int, engine: str) -> None:
    random = np.random.default_rng(seed)
    case = random_batch(random)
    expected = by_counting(
        case["table"], case["positions"], case["starts"], case["size"], case["cp"], case["interleave"], -7
    )
    options = {"block_size": case["size"], "cp": case["cp"], "interleave": case["interleave"], "pad": -7}
    found = fp.slot_mapping(case["table"], case["positions"], case["starts"], **options)
    assert found.tolist() == expected, f"seed {seed}"
    out = np.zeros(2 * len(found), np.int64)[::2]
    assert fp.slot_mapping(case["table"], case["positions"], case["starts"], **options, out=out) is out
    assert out.tolist() == expected
    wrong = random.integers(0, len(found), 3) if case["starts"][-1] == len(found) > 0 else []
    positions = case["positions"].astype(np.int64)
    positions[wrong] = random.choice([-1, 10**6, 2**40], len(wrong))
    marked = fp.slot_mapping(case["table"], positions, case["starts"], **options, mode="mark")
    assert marked.tolist() == [-7 if i in wrong else slot for i, slot in enumerate(expected)], f"seed {seed}"


@pytest.mark.parametrize("cp", [(1, 0), (2, 1)])
def test_many_tokens_on_threads(cp: tuple[int, int]) -> None:
    """So many that results go past the cache, in chunks that begin within requests and within lines."""
    size, columns, lengths = 16, 9000, np.array([100_001, 0, 140_000, 7, 1_000_000])
    lengths = np.minimum(lengths, columns * size * cp[0])
    random = np.random.default_rng(5)
    table = random.permutation(5 * columns).reshape(5, columns).astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in lengths])
    positions[1000:3000] = random.integers(0, 100_000, 2000)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    request = np.repeat(np.arange(5), lengths)
    local = positions // cp[0]
    expected = np.where(positions % cp[0] == cp[1], table[request, local // size].astype(int) * size + local % size, -1)
    memory = np.empty(len(positions) + 3, np.int64)
    for threads, first in ((1, 0), (2, 1), (3, 3)):
        out = memory[first : first + len(positions)]
        fp.slot_mapping(table, positions, starts, block_size=size, cp=cp, out=out, threads=threads)
        np.testing.assert_array_equal(out, expected)


TABLE = fp.BlockTable([[3, 0, 9], [5, 4, 1]], block_size=4, lengths=[10, 8], num_blocks=8, null_block=0)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([0, -1, 0], "token 1, of request 0, has position -1, and the request has 10 tokens"),
        ([0, 10, 0], "token 1, of request 0, has position 10, and the request has 10 tokens"),
        (np.array([0, 2**63 + 5, 0], np.uint64), "has position 9223372036854775813, and the request has 10 tokens"),
        ([0, 1, 8], "token 2, of request 1, has position 8, and the request has 8 tokens"),
        ([0, 4, 0], "token 1, of request 0, is in column 1, which holds the null block 0"),
        ([0, 8, 0], "token 1, of request 0, is in column 2, whose block 9 is out of bounds for the 8 blocks"),
    ],
)
def test_bounds_name_request_and_token(positions: Any, message: str, engine: str) -> None:
    with pytest.raises(OutOfBoundsError, match=message):
        fp.slot_mapping(TABLE, positions, [0, 2, 3])
    marked = fp.slot_mapping(TABLE, positions, [0, 2, 3], mode="mark")
    wrong = 2 if "token 2" in message else 1
    assert marked[wrong] == -1
    assert marked[0] == 12


@pytest.mark.parametrize("length", [48, 37, 20, 17])
@pytest.mark.parametrize("first", [0, 3, 15])
def test_positions_that_count_on_past_a_bound(first: int, length: int, engine: str) -> None:
    """Into the null block, into one outside the pool, and past the end of the request within a block."""
    for blocks in ([3, 2, 1], [3, 1, 9], [4, 5, 6]):
        table = fp.BlockTable([blocks], block_size=16, lengths=[length], num_blocks=8, null_block=2)
        positions = np.arange(first, 48)
        found = fp.slot_mapping(table, positions, [0, len(positions)], mode="mark")
        good = [p < length and blocks[p // 16] not in (2, 9) for p in positions]
        expected = [blocks[p // 16] * 16 + p % 16 if g else -1 for p, g in zip(positions, good, strict=True)]
        assert found.tolist() == expected
        if not all(good):
            with pytest.raises(OutOfBoundsError, match=f"token {good.index(False)}, of request 0"):
                fp.slot_mapping(table, positions, [0, len(positions)])


def test_null_blocks_that_kernels_split(engine: str) -> None:
    """Every part of a null block is one; the blocks around it are not."""
    table = fp.BlockTable([[3, 1, 2]], block_size=12, null_block=1).kernel_blocks(3).kernel_blocks(2)
    for positions in (np.arange(36), np.random.default_rng(0).permutation(36)):
        found = fp.slot_mapping(table, positions, [0, 36], mode="mark")
        expected = [-1 if 12 <= p < 24 else p % 12 + (24 if p >= 24 else 36) for p in positions.tolist()]
        assert found.tolist() == expected
    with pytest.raises(OutOfBoundsError, match="token 1, of request 0, is in column 9, which holds the null block 9"):
        fp.slot_mapping(table, [0, 19], [0, 2])


def test_negative_blocks_without_a_pool(engine: str) -> None:
    with pytest.raises(OutOfBoundsError, match="block -3 is out of bounds for a pool of blocks from 0 on"):
        fp.slot_mapping([[-3]], [0], [0, 1], block_size=4)
    with pytest.raises(OutOfBoundsError, match=f"block {2**62}"):
        fp.slot_mapping([[2**62]], [0], [0, 1], block_size=4)


def test_slots_beyond_32_bits(engine: str) -> None:
    found = fp.slot_mapping(np.array([[2**31 - 1]], np.int32), [15], [0, 1], block_size=16)
    assert found.tolist() == [2**35 - 1]


@pytest.mark.parametrize("columns", [0, 1])
def test_rows_without_blocks(columns: int, engine: str) -> None:
    """Nothing is read beyond a table that is too narrow."""
    table = np.zeros((1, columns), np.int32)
    with pytest.raises(OutOfBoundsError, match=f"the request has {4 * columns} tokens"):
        fp.slot_mapping(table, [0, 4], [0, 2], block_size=4)
    assert fp.slot_mapping(table, [0, 4], [0, 0], block_size=4).tolist() == [-1, -1]
    assert fp.slot_mapping(table, [], [0, 0], block_size=4).tolist() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_start_loc": [0, 3]}, "one entry more than the 2 requests"),
        ({"query_start_loc": [0, 4, 3]}, "counts up from 0 to at most the 3"),
        ({"query_start_loc": [1, 2, 3]}, "counts up from 0"),
        ({"query_start_loc": [0, 2, 4]}, "at most the 3 positions"),
        ({"positions": [[0, 1, 2]]}, "positions has one dimension"),
        ({"block_size": 16}, "block_size 16 is not the 4"),
        ({"block_table": [[1]]}, "block_size is needed"),
        ({"interleave": 3}, "interleave must divide"),
        ({"cp": (2, 2)}, "the rank must be"),
        ({"cp": (2**30, 1)}, "are longer than the"),
        ({"threads": 0}, "threads must be"),
        ({"mode": "clip"}, "'raise' or 'mark'"),
        ({"out": np.zeros(4, np.int64)}, "out must have the shape"),
    ],
)
def test_arguments_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    arguments = {"block_table": TABLE, "positions": [0, 1, 2], "query_start_loc": [0, 2, 3]}
    with pytest.raises(FastIndexError, match=message):
        fp.slot_mapping(**{**arguments, **change})


def test_what_is_no_integer() -> None:
    with pytest.raises(ArgumentTypeError, match="positions must hold integers"):
        fp.slot_mapping(TABLE, [0.5], [0, 1, 1])
    with pytest.raises(ArgumentTypeError, match="out must be an int64 array"):
        fp.slot_mapping(TABLE, [0], [0, 1, 1], out=np.zeros(1, np.int32))
    positions = np.arange(3)
    with pytest.raises(FastIndexError, match="out overlaps an input"):
        fp.slot_mapping(TABLE, positions, [0, 2, 3], out=positions)
