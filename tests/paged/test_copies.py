"""Copies against the slow oracle, byte by byte; memory that both sides share; tails, casts, chunks, buffers.

Tests of: paged.copies, paged.page_passes, paged.kernel, paged.numbers.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fastindex.paged as fp
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError, UnsupportedError
from fastindex.runtime import first_answer
from tests.cases.strategies import seeds
from tests.oracles.paged_places import SlowCache, pairs
from tests.paged.pools import cache_of
from tests.paged.test_descriptors import has_common_head, random_transfer


@pytest.fixture(params=["kernels", "NumPy"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether kernels copy or NumPy does."""
    use(monkeypatch, request.param)
    return str(request.param)


def use(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setattr("fastindex.paged.copies.bytes_by_numpy", lambda count: engine == "NumPy")
    if engine == "kernels":
        first_answer.load_kernels()


def random_bytes(random: np.random.Generator, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return random.integers(0, 256, count).astype(np.uint8)


@pytest.mark.parametrize("seed", seeds(120))
def test_random_copies_as_by_counting(seed: int, engine: str) -> None:
    random = np.random.default_rng(seed)
    source, target, here, there, tokens = random_transfer(random)
    if not has_common_head(source, target):
        pytest.skip("no common head")
    read, written = random_bytes(random, source.nbytes), random_bytes(random, target.nbytes)
    expected = written.copy()
    moved = list(pairs(source, target, here, there, tokens))
    if moved:
        begins, ends = np.array(moved).T
        expected[ends] = read[begins]
    caches = cache_of(source), cache_of(target)
    fp.copy(*caches, read, written, here, there, tokens, threads=int(random.integers(1, 4)))
    np.testing.assert_array_equal(written, expected, err_msg=f"seed {seed}: {caches[0]} to {caches[1]}")


@pytest.mark.parametrize("seed", seeds(60))
def test_copies_within_one_pool(seed: int, engine: str) -> None:
    """As if the source had been copied first: the same pool, or another view of the same memory."""
    random = np.random.default_rng(seed)
    source, target, here, there, tokens = random_transfer(random)
    if not has_common_head(source, target):
        pytest.skip("no common head")
    memory = random_bytes(random, max(source.nbytes, target.nbytes) + 64)
    shift = int(random.integers(0, 64)) if random.random() < 0.5 else 0
    views = memory[: source.nbytes], memory[shift : shift + target.nbytes]
    before, expected = memory.copy(), memory.copy()
    for begin, end in pairs(source, target, here, there, tokens):
        expected[shift + end] = before[begin]
    fp.copy(cache_of(source), cache_of(target), *views, here, there, tokens)
    np.testing.assert_array_equal(memory, expected, err_msg=f"seed {seed}")


@pytest.mark.in_turn(seconds=1.5)
@pytest.mark.parametrize("threads", [1, 2])
def test_large_copies_past_the_cache(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """NHD, 16 tokens a block, to half the heads of HND, 64 tokens a block: 24 MiB, against NumPy's own moves."""
    use(monkeypatch, "kernels")
    layers, blocks, tokens = 4, 400, 24 * 256 + 37
    text = "u2[layers={},num_blocks={},2,block_size=16,kv_heads=8,head_dim=128]".replace("u2", "bf16")
    source = fp.Cache(text.format(layers, blocks))
    half = "bf16[layers={},num_blocks={},2,kv_heads=4,block_size=64,head_dim=128]"
    target = fp.Cache(half.format(layers, 100), tp=(2, 1))
    random = np.random.default_rng(3)
    pool = random.integers(0, 2**16, source.nbytes // 2).astype(np.uint16)
    moved = np.zeros(target.nbytes // 2, np.uint16)
    here, there = random.permutation(blocks)[:387], random.permutation(100)[:97]
    fp.copy(source, target, pool, moved, here, there, tokens, threads=threads)
    arrays = pool.reshape(layers, blocks, 2, 16, 8, 128), moved.reshape(layers, 100, 2, 4, 64, 128)
    flat = arrays[0][:, here].transpose(0, 2, 1, 3, 4, 5).reshape(layers, 2, -1, 8, 128)[:, :, :tokens, 4:]
    expected = np.zeros_like(arrays[1])
    padded = np.zeros((layers, 2, 97 * 64, 4, 128), np.uint16)
    padded[:, :, :tokens] = flat
    expected[:, there] = padded.reshape(layers, 2, 97, 64, 4, 128).transpose(0, 2, 1, 4, 3, 5)
    np.testing.assert_array_equal(arrays[1], expected)


@pytest.mark.parametrize("seed", seeds(30))
def test_tails_are_zeroed(seed: int, engine: str) -> None:
    random = np.random.default_rng(seed)
    source, target, here, there, tokens = random_transfer(random)
    if not has_common_head(source, target) or source.cp != target.cp or source.interleave != target.interleave:
        pytest.skip("no common head, or tokens of other ranks in between")
    read, written = random_bytes(random, source.nbytes), random_bytes(random, target.nbytes)
    left = written.copy()
    fp.copy(cache_of(source), cache_of(target), read, left, here, there, tokens)
    fp.copy(cache_of(source), cache_of(target), read, written, here, there, tokens, tail="zero")
    held = [place for p in range(tokens) if (place := target.place_of(p)) is not None]
    expected = left.copy()
    if held:
        column, last = max(held)
        for token in range(last + 1, target.count("block_size")):
            for begin in elements_of(target, source, there[column], token):
                expected[begin : begin + target.width] = 0
    np.testing.assert_array_equal(written, expected, err_msg=f"seed {seed}")


def elements_of(target: SlowCache, source: SlowCache, block: int, token: int) -> list[int]:
    heads = [i for i, head in enumerate(target.heads()) if head in source.heads()]
    return [
        target.byte((layer, block, kv, head, token, dim))
        for layer in range(target.count("layers"))
        for kv in range(target.count("kv"))
        for head in heads
        for dim in range(target.count("head_dim"))
    ]


TEXT = "{dtype}[layers=3,num_blocks={blocks},2,{order},head_dim=32]"


@pytest.mark.parametrize(
    ("left", "right"), [("bf16", "f8e4m3fn"), ("f8e4m3fn", "bf16"), ("f32", "bf16"), ("bf16", "f16")]
)
@pytest.mark.parametrize("tokens", [32, 29])
def test_casts(left: str, right: str, tokens: int, engine: str) -> None:
    source = fp.Cache(TEXT.format(dtype=left, blocks=9, order="block_size=4,kv_heads=2"))
    target = fp.Cache(TEXT.format(dtype=right, blocks=5, order="kv_heads=2,block_size=8"))
    types = [next(iter(cache.planes.values())).element_type.numpy_dtype for cache in (source, target)]
    random = np.random.default_rng(1)
    values = (random.standard_normal(source.nbytes // types[0].itemsize) * 8).astype(types[0])
    moved = np.zeros(target.nbytes // types[1].itemsize, types[1])
    here, there = [3, 1, 8, 0, 2, 7, 4, 5], [4, 0, 2, 1]
    with pytest.raises(FastIndexError, match=f"are {left} in the source and {right}"):
        fp.copy(source, target, values, moved, here, there, tokens)
    fp.copy(source, target, values, moved, here, there, tokens, casting="unsafe")
    flat = values.reshape(3, 9, 2, 4, 2, 32)[:, here].transpose(0, 2, 1, 3, 4, 5).reshape(3, 2, 32, 2, 32)
    found = moved.reshape(3, 5, 2, 2, 8, 32)[:, there].transpose(0, 2, 1, 4, 3, 5).reshape(3, 2, 32, 2, 32)
    expected = flat[:, :, :tokens].astype(np.float32).astype(types[1])
    np.testing.assert_array_equal(
        found[:, :, :tokens].view(f"u{types[1].itemsize}"), expected.view(found.view(f"u{types[1].itemsize}").dtype)
    )
    assert not found[:, :, tokens:].astype(np.float32).any()


def test_casts_of_elements_with_gaps(engine: str) -> None:
    source = fp.Cache([fp.Part("scale", "f32[block_size=4,head_dim=2]", 0, 1)], num_blocks=2, block_stride=32)
    target = fp.Cache([fp.Part("scale", "bf16[block_size=4,head_dim=1]")], num_blocks=2, block_stride=8)
    values, moved = np.arange(16, dtype=np.float32), np.zeros(8, ml_dtypes.bfloat16)
    fp.copy(source, target, values, moved, [1], [0], casting="same_kind")
    assert moved.astype(int).tolist() == [8, 10, 12, 14, 0, 0, 0, 0]


def test_casts_that_a_rule_does_not_allow() -> None:
    source, target = (fp.Cache(TEXT.format(dtype=t, blocks=2, order="block_size=4")) for t in ("bf16", "s8"))
    buffers = np.zeros(source.nbytes, np.uint8), np.zeros(target.nbytes, np.uint8)
    with pytest.raises(ArgumentTypeError, match="casting='unsafe' allows it"):
        fp.copy(source, target, *buffers, [0], [1], casting="same_kind")
    with pytest.raises(FastIndexError, match="casting must be 'no'"):
        fp.copy(source, target, *buffers, [0], [1], casting="any")  # type: ignore[arg-type]


def test_parts_move_by_name(engine: str) -> None:
    """Data rows, then scales; and data and scale of each token together."""
    apart = fp.Cache(
        [fp.Part("data", "u8[block_size=4,head_dim=8]"), fp.Part("scale", "f32[block_size=4,head_dim=1]", 32)],
        num_layers=2,
        num_blocks=3,
        layer_stride=160,
        block_stride=50,
    )
    rows = fp.Cache(
        [fp.Part("scale", "f32[block_size=8,head_dim=3]", 8, 1), fp.Part("data", "u8[block_size=8,head_dim=12]", 0, 8)],
        num_layers=2,
        num_blocks=3,
        layer_stride=300,
        block_stride=100,
    )
    random = np.random.default_rng(0)
    pool, moved = random_bytes(random, apart.nbytes), np.zeros(rows.nbytes, np.uint8)
    fp.copy(apart, rows, pool, moved, [2, 0], [1], 7)
    for layer in range(2):
        for token in range(7):
            page = layer * 160 + (2, 0)[token // 4] * 50
            row = moved[layer * 300 + 100 + token * 12 :][:12]
            assert row[:8].tolist() == pool[page + token % 4 * 8 :][:8].tolist()
            assert row[8:].tolist() == pool[page + 32 + token % 4 * 4 :][:4].tolist()
    assert np.count_nonzero(moved) <= 2 * 7 * 12


# Chunks


@pytest.mark.parametrize("seed", seeds(60))
def test_chunks_as_by_counting(seed: int, engine: str) -> None:
    random = np.random.default_rng(seed)
    slow, _, blocks, _, tokens = random_transfer(random)
    cache = cache_of(slow)
    pool = random_bytes(random, slow.nbytes)
    held = [place for p in range(tokens) if (place := slow.place_of(p)) is not None]
    chunk = fp.gather(cache, pool, blocks, tokens)
    assert chunk.shape == (
        slow.count("layers"),
        slow.count("kv"),
        len(held),
        slow.count("kv_heads"),
        slow.count("head_dim"),
    )
    slots = [blocks[column] * cache.block_size + token for column, token in held]
    raw = chunk.view(np.uint8).reshape(*chunk.shape, slow.width)
    for layer, kv, t, head, dim in np.ndindex(*chunk.shape):
        column, token = held[t]
        begin = slow.byte((layer, blocks[column], kv, head, token, dim))
        assert raw[layer, kv, t, head, dim].tolist() == pool[begin : begin + slow.width].tolist(), f"seed {seed}"
    by_slots = fp.gather(cache, pool, slots=slots)
    np.testing.assert_array_equal(by_slots.view(np.uint8), chunk.view(np.uint8))
    skipped = np.array(slots) if random.random() < 0.5 else np.where(random.random(len(slots)) < 0.3, -1, slots)
    written = random_bytes(random, slow.nbytes)
    expected = written.copy()
    for layer, kv, t, head, dim in np.ndindex(*chunk.shape):
        if skipped[t] >= 0:
            begin = slow.byte((layer, skipped[t] // cache.block_size, kv, head, skipped[t] % cache.block_size, dim))
            expected[begin : begin + slow.width] = raw[layer, kv, t, head, dim]
    fp.scatter(cache, written, chunk, skipped.astype(np.int64))
    np.testing.assert_array_equal(written, expected, err_msg=f"seed {seed}: {cache}")


CACHE = fp.Cache("s32[num_blocks=4,2,block_size=2,kv_heads=1,head_dim=2]", null_block=0)
CHUNK = np.zeros((1, 2, 3, 1, 2), np.int32)


@pytest.mark.parametrize(
    ("slots", "kind", "message"),
    [
        ([2, 8, 3], OutOfBoundsError, r"slot_mapping\[1\] is 8, out of bounds for the 4 blocks"),
        (np.array([2, 2**64 - 2, 3], np.uint64), OutOfBoundsError, r"\[1\] is 18446744073709551614, out of"),
        ([2, -1, 2], FastIndexError, r"slot_mapping\[2\] is 2, which an earlier entry"),
        ([2, -1, 1], FastIndexError, r"slot_mapping\[2\] is 1, of the null block 0, which is never written"),
        ([2, 3], FastIndexError, "chunk has"),
        ([0.5, 1, 2], ArgumentTypeError, "slot_mapping must hold integers"),
    ],
)
def test_slots_that_are_refused(slots: Any, kind: type, message: str) -> None:
    pool = np.zeros(CACHE.nbytes // 4, np.int32)
    with pytest.raises(kind, match=message):
        fp.scatter(CACHE, pool, CHUNK, slots)
    assert not pool.any()


def test_chunks_of_another_type_or_of_strides(engine: str) -> None:
    pool = np.zeros(CACHE.nbytes // 4, np.int32)
    with pytest.raises(ArgumentTypeError, match=r"chunk for .* must be of dtype int32"):
        fp.scatter(CACHE, pool, CHUNK.astype(np.float32), [2, 3, 4])
    backwards = np.arange(12, dtype=np.int32)[::-1].reshape(1, 2, 3, 1, 2)
    fp.scatter(CACHE, pool, backwards, [2, 3, 4])
    np.testing.assert_array_equal(fp.gather(CACHE, pool, slots=[2, 3, 4]), backwards)
    with pytest.raises(FastIndexError, match=r"give a block_table and, .*; or give slots"):
        fp.gather(CACHE, pool, [1], slots=[1])
    with pytest.raises(FastIndexError, match=r"give a block_table and, .*; or give slots"):
        fp.gather(CACHE, pool)
    for tokens in (-1, 2**62, 2 * CACHE.block_size + 1):
        with pytest.raises(FastIndexError, match=f"from 0 to the .* that the blocks of block_table hold, got {tokens}"):
            fp.gather(CACHE, pool, [1, 2], tokens)
    with pytest.raises(OutOfBoundsError, match=r"block_table\[1\] is -1, out of bounds"):
        fp.gather(CACHE, pool, [1, -1])
    with pytest.raises(OutOfBoundsError, match=r"slots\[0\] is -1"):
        fp.gather(CACHE, pool, slots=[-1])


def test_a_chunk_that_lies_in_the_pool(engine: str) -> None:
    pool = np.arange(16, dtype=np.int32)
    cache = fp.Cache("s32[num_blocks=4,block_size=2,kv_heads=1,head_dim=2]")
    before = pool.copy().reshape(8, 2)
    fp.scatter(cache, pool, pool[:12].reshape(1, 1, 6, 1, 2), [1, 2, 3, 4, 5, 6])
    assert pool.reshape(8, 2)[1:7].tolist() == before[:6].tolist()


def test_planes_that_no_array_holds() -> None:
    parts = [fp.Part("data", "u8[block_size=4,head_dim=8]"), fp.Part("scale", "f32[block_size=4,head_dim=1]", 32)]
    cache = fp.Cache(parts, num_blocks=2, block_stride=48)
    with pytest.raises(UnsupportedError, match="differ in type or elements"):
        fp.gather(cache, np.zeros(96, np.uint8), [1])


def test_swapped_blocks(engine: str) -> None:
    cache = fp.Cache("s32[layers=2,num_blocks=6,2,block_size=2,kv_heads=2,head_dim=2]", null_block=0)
    random = np.random.default_rng(0)
    pool = random.integers(0, 99, cache.nbytes // 4).astype(np.int32)
    for moves in ([(1, 2), (2, 3), (3, 1)], [(5, 4), (4, 3)], [(1, 2), (1, 3)], [(2, 2)], [], np.zeros((0, 2), int)):
        expected = pool.reshape(2, 6, -1).copy()
        for begin, end in moves:
            expected[:, end] = pool.reshape(2, 6, -1)[:, begin]
        fp.swap_blocks(cache, pool, moves)
        np.testing.assert_array_equal(pool.reshape(2, 6, -1), expected)
    with pytest.raises(FastIndexError, match="names too"):
        fp.swap_blocks(cache, pool, [(1, 2), (3, 2)])
    with pytest.raises(FastIndexError, match="null block"):
        fp.swap_blocks(cache, pool, [(1, 0)])
    with pytest.raises(FastIndexError, match=r"pairs must be \(source, target\)"):
        fp.swap_blocks(cache, pool, [1, 2, 3, 4])


# Buffers


def test_buffers_that_are_refused() -> None:
    pool, other = np.zeros(CACHE.nbytes // 4, np.int32), np.zeros(CACHE.nbytes // 4, np.int32)
    arguments = [1], [2]
    with pytest.raises(FastIndexError, match=r"source_buffer of .* takes 128 bytes, got 124"):
        fp.copy(CACHE, CACHE, pool[1:], other, *arguments)
    with pytest.raises(FastIndexError, match="target_buffer must be contiguous"):
        fp.copy(CACHE, CACHE, pool, np.zeros(64, np.int32)[::2], *arguments)
    read_only = other.copy()
    read_only.flags.writeable = False
    with pytest.raises(FastIndexError, match="target_buffer is read-only"):
        fp.copy(CACHE, CACHE, pool, read_only, *arguments)
    with pytest.raises(FastIndexError, match="target_buffer is read-only"):
        fp.copy(CACHE, CACHE, pool, bytes(128), *arguments)
    with pytest.raises(ArgumentTypeError, match="target_buffer must be an array or bytes"):
        fp.copy(CACHE, CACHE, pool, [0] * 32, *arguments)
    with pytest.raises(FastIndexError, match="tail must be"):
        fp.copy(CACHE, CACHE, pool, other, *arguments, tail="fill")
    with pytest.raises(FastIndexError, match="threads must be"):
        fp.copy(CACHE, CACHE, pool, other, *arguments, threads=0)


def test_buffers_of_any_type_and_dimensions(engine: str) -> None:
    pool = np.arange(32, dtype=np.int32)
    moved = bytearray(128)
    fp.copy(CACHE, CACHE, pool.reshape(4, 2, 2, 1, 2).view(np.float32), memoryview(moved), [1, 2], [3, 1])
    expected = np.zeros((4, 8), np.int32)
    expected[[3, 1]] = pool.reshape(4, 8)[[1, 2]]
    assert np.frombuffer(moved, np.int32).tolist() == expected.reshape(-1).tolist()


def test_buffers_of_jax(engine: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    pool = jnp.arange(32, dtype=jnp.bfloat16)
    cache = fp.Cache("bf16[num_blocks=4,2,block_size=2,kv_heads=1,head_dim=2]")
    moved = np.zeros(32, ml_dtypes.bfloat16)
    fp.copy(cache, cache, pool, moved, [1], [3])
    assert moved[24:].astype(int).tolist() == list(range(8, 16))
    with pytest.raises(FastIndexError, match="read-only"):
        fp.copy(cache, cache, moved, pool, [1], [3])


def test_buffers_of_torch(engine: str) -> None:
    torch = pytest.importorskip("torch")
    pool = torch.arange(32).to(torch.bfloat16).reshape(4, 2, 2, 1, 2)
    cache = fp.Cache("bf16[num_blocks=4,2,block_size=2,kv_heads=1,head_dim=2]")
    moved = torch.zeros_like(pool)
    fp.copy(cache, cache, pool, moved, [1], [3])
    assert torch.equal(moved[3], pool[1])
    with pytest.raises(FastIndexError, match="must be contiguous"):
        fp.copy(cache, cache, pool, moved.transpose(0, 1), [1], [3])
