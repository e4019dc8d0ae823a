"""Elements to bytes and back, of texts, parts and ranks.

Tests of: paged.places.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fastindex.paged as fp
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError
from tests.cases.strategies import seeds
from tests.oracles.paged_places import SlowCache
from tests.paged.pools import cache_of, random_pool

CACHE = fp.Cache("bf16[layers=2,num_blocks=8,2,kv_heads=4,block_size=16,head_dim=64]")


def every_element(slow: SlowCache) -> list[tuple[int, ...]]:
    axes = ("layers", "num_blocks", "kv", "kv_heads", "block_size", "head_dim")
    return list(itertools.product(*(range(slow.count(axis)) for axis in axes)))


@pytest.mark.parametrize("seed", seeds(40))
def test_random_pools_as_by_counting(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = {
        "layers": 2,
        "num_blocks": 3,
        "kv": int(random.integers(1, 3)),
        "kv_heads": 2,
        "block_size": 4,
        "head_dim": 6,
    }
    slow = random_pool(random, sizes, int(random.choice([1, 2, 4])))
    cache = cache_of(slow)
    elements = every_element(slow)
    expected = np.array([slow.byte(where) for where in elements])  # type: ignore[arg-type]
    layer, block, kv, head, token, dim = np.array(elements).T
    slot = block * cache.block_size + token
    found = fp.byte_offset(cache, layer=layer, kv=kv, head=head, slot=slot, dim=dim)
    np.testing.assert_array_equal(found, expected, err_msg=f"seed {seed}: {cache}")
    assert cache.nbytes == slow.nbytes
    back = fp.element_at(cache, found + slow.width - 1)
    np.testing.assert_array_equal(back, [layer, kv, head, slot, dim], err_msg=f"seed {seed}: {cache}")
    bytes_held = set((found[:, None] + np.arange(slow.width)).reshape(-1).tolist())
    everything = fp.element_at(cache, np.arange(cache.nbytes), padding="mark")
    assert set(np.flatnonzero(everything.layer >= 0).tolist()) == bytes_held


def test_padding_slots_are_errors_or_marked() -> None:
    with pytest.raises(OutOfBoundsError, match="slot -1 at position 1"):
        fp.byte_offset(CACHE, slot=[0, -1])
    assert fp.byte_offset(CACHE, slot=[0, -1], mode="mark").tolist() == [0, -1]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"layer": 2}, "layer 2 is out of bounds for the 2 of"),
        ({"kv": 2}, "kv 2"),
        ({"head": [0, 4]}, "head 4 at position 1"),
        ({"slot": 128}, "slot 128"),
        ({"dim": 64}, "dim 64"),
        ({"dim": -1}, "dim -1"),
    ],
)
def test_bounds(index: dict[str, object], message: str) -> None:
    with pytest.raises(OutOfBoundsError, match=message):
        fp.byte_offset(CACHE, **{"slot": 0, **index})  # type: ignore[arg-type]


def test_bytes_outside_and_in_padding() -> None:
    padded = fp.Cache([fp.Part("", "u8[block_size=4,head_dim=5]")], num_blocks=2, block_stride=24)
    with pytest.raises(OutOfBoundsError, match="byte 48 at position 1"):
        fp.element_at(padded, [0, 48])
    with pytest.raises(OutOfBoundsError, match=r"byte 20 .*holds no element"):
        fp.element_at(padded, 20)
    assert fp.element_at(padded, [19, 20, 24], padding="mark").slot.tolist() == [3, -1, 4]


def test_what_is_no_integer_or_no_plane() -> None:
    with pytest.raises(ArgumentTypeError, match="slot must hold integers"):
        fp.byte_offset(CACHE, slot=0.5)
    with pytest.raises(FastIndexError, match="has the planes k, v, got 'scale'"):
        fp.byte_offset(CACHE, slot=0, kv="scale")
    with pytest.raises(FastIndexError, match="'raise' or 'mark'"):
        fp.byte_offset(CACHE, slot=0, mode="clip")
    assert fp.byte_offset(CACHE, slot=0, kv="v") == fp.byte_offset(CACHE, slot=0, kv=1)


ROW = "{dtype}[block_size=64,head_dim={padded}]"


def test_rows_of_mixed_types() -> None:
    """The 656 bytes of a token: 512 of fp8, 4 scales of f32, 64 elements of bf16."""
    row = [
        fp.Part("data", ROW.format(dtype="f8e4m3fn", padded=656), 0),
        fp.Part("scale", ROW.format(dtype="f32", padded=164), 512),
        fp.Part("rope", ROW.format(dtype="bf16", padded=328), 528),
    ]
    with pytest.raises(FastIndexError, match="share byte 512 of a page"):
        fp.Cache(row, num_blocks=2, block_stride=64 * 656)
    row = [fp.Part(p.name, p.text, p.offset, used) for p, used in zip(row, (512, 4, 64), strict=True)]
    cache = fp.Cache(row, num_blocks=2, block_stride=64 * 656)
    assert cache.nbytes == 2 * 64 * 656
    assert [plane.head_dim for plane in cache.planes.values()] == [512, 4, 64]
    slot, dim = 64 + 3, 2
    start = (64 + 3) * 656
    offsets = [fp.byte_offset(cache, slot=slot, dim=dim, kv=name) for name in cache.planes]
    assert offsets == [start + 2, start + 512 + 8, start + 528 + 4]
    assert fp.element_at(cache, offsets[2] + 1) == (0, 2, 0, slot, dim)


def test_elements_of_four_bits() -> None:
    cache = fp.Cache("u4[num_blocks=2,kv_heads=2,block_size=4,head_dim=8]{3,2,1,0:E(4)}")
    assert cache.nbytes == 64
    assert fp.byte_offset(cache, slot=1, head=1, dim=[0, 1, 2]).tolist() == [20, 20, 21]
    assert fp.element_at(cache, 21) == (0, 0, 1, 1, 2)


def test_places_beyond_32_bits() -> None:
    cache = fp.Cache("bf16[layers=64,num_blocks=65536,2,kv_heads=8,block_size=16,head_dim=128]")
    last = fp.byte_offset(cache, layer=63, kv=1, head=7, slot=65536 * 16 - 1, dim=127)
    assert last == cache.nbytes - 2 > 2**37
    assert fp.element_at(cache, last) == (63, 1, 7, 65536 * 16 - 1, 127)
