"""Caches: what a text or parts may say, which heads a rank holds, what is refused.

Tests of: paged.caches, paged.planes.
"""

from __future__ import annotations

import pytest

import fastindex.paged as fp
from fastindex.errors import ArgumentTypeError, FastIndexError, ParseError, UnsupportedError

POOL = "bf16[num_blocks=8,2,kv_heads={heads},block_size=16,head_dim=64]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bf16[8,2,kv_heads=4,block_size=16,head_dim=64]", "the dimension of size 8 without a name"),
        ("bf16[num_blocks=8,heads=4,block_size=16,head_dim=64]", "dimension 'heads'"),
        ("bf16[num_blocks=8,kv=3,block_size=16,head_dim=64]", "kv has two values"),
        ("bf16[num_blocks=8,kv_heads=4,head_dim=64]", "a block_size and a head_dim"),
        ("bf16[num_blocks=0,block_size=16,head_dim=64]", "at least one element"),
        ("(bf16[4], bf16[4])", "a cache is an array"),
    ],
)
def test_texts_that_are_no_caches(text: str, message: str) -> None:
    with pytest.raises(FastIndexError, match=message):
        fp.Cache(text)


def test_texts_that_are_no_layouts() -> None:
    with pytest.raises(ParseError):
        fp.Cache("bf16[num_blocks=8,block_size=16,head_dim=x]")
    with pytest.raises(ParseError):
        fp.Cache("what")


def test_tiles_that_leave_no_places() -> None:
    with pytest.raises(UnsupportedError, match="merges dimensions"):
        fp.Cache("bf16[num_blocks=8,block_size=16,head_dim=64]{2,1,0:T(*,8)}")
    with pytest.raises(UnsupportedError, match="a tile cuts num_blocks"):
        fp.Cache("bf16[num_blocks=8,block_size=16,head_dim=64]{2,1,0:T(4,2,8)}")
    with pytest.raises(UnsupportedError, match="whole bytes of them lie along head_dim"):
        fp.Cache("u4[num_blocks=8,block_size=16,head_dim=64]{1,2,0:E(4)}")


@pytest.mark.parametrize(
    ("heads", "placement", "expected"),
    [
        (8, {}, range(8)),
        (2, {"tp": (4, 1)}, range(2, 4)),
        (1, {"tp": (4, 3), "total_kv_heads": 4}, range(3, 4)),
        (1, {"tp": (8, 5), "total_kv_heads": 4}, range(2, 3)),
        (1, {"tp": (8, 7), "total_kv_heads": 1}, range(1)),
    ],
)
def test_heads_of_a_rank(heads: int, placement: dict[str, object], expected: range) -> None:
    assert fp.Cache(POOL.format(heads=heads), **placement).heads == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("heads", "placement", "message"),
    [
        (1, {"tp": (8, 0)}, "give total_kv_heads"),
        (2, {"tp": (8, 0), "total_kv_heads": 4}, "are 1 a rank"),
        (2, {"tp": (3, 0), "total_kv_heads": 8}, "by even shares"),
        (2, {"tp": (4, 4)}, "the rank must be"),
        (2, {"tp": (0, 0)}, "the rank must be"),
        (2, {"cp": (2, -1)}, "the rank must be"),
        (2, {"cp": (2, 0), "interleave": 5}, "interleave must divide the block size"),
        (2, {"null_block": 8}, "null_block 8 is not one"),
    ],
)
def test_placements_that_do_not_fit(heads: int, placement: dict[str, object], message: str) -> None:
    with pytest.raises(FastIndexError, match=message):
        fp.Cache(POOL.format(heads=heads), **placement)  # type: ignore[arg-type]


def test_placed_is_another_rank_of_the_same_pool() -> None:
    cache = fp.Cache(POOL.format(heads=2))
    assert cache.placed(tp=(4, 2)).heads == range(4, 6)
    assert cache.placed(tp=(4, 2)).nbytes == cache.nbytes
    assert "tp=(4, 2)" in repr(cache.placed(tp=(4, 2)))


def test_parts() -> None:
    parts = [fp.Part("data", "u8[block_size=64,head_dim=128]"), fp.Part("scale", "f32[block_size=64,head_dim=1]", 8192)]
    cache = fp.Cache(parts, num_layers=2, num_blocks=3, layer_stride=3 * 8448, block_stride=8448)
    assert (list(cache.planes), cache.nbytes, cache.page_bytes) == (["data", "scale"], 2 * 3 * 8448, 8448)
    assert fp.byte_offset(cache, layer=1, kv="scale", slot=65) == 3 * 8448 + 8448 + 8192 + 4


def test_halves_of_a_named_part() -> None:
    part = fp.Part("scale", "f8e4m3fn[2,kv_heads=2,block_size=4,head_dim=4]")
    assert list(fp.Cache([part], num_blocks=2, block_stride=64).planes) == ["k_scale", "v_scale"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "give num_blocks and block_stride"),
        ({"num_blocks": 3, "block_stride": 8}, "overlap with a block_stride of 8 bytes"),
        ({"num_blocks": 0, "block_stride": 64}, "num_blocks must be at least 1"),
        ({"num_blocks": 3, "block_stride": 64, "num_layers": 2}, "several layers have a layer_stride"),
        (
            {"num_blocks": 3, "block_stride": 64, "num_layers": 2, "layer_stride": 100},
            "and a layer_stride of 100 bytes",
        ),
        ({"num_blocks": 3, "block_stride": 64, "num_layers": 2, "layer_stride": -999}, "layer_stride must be at least"),
        ({"num_blocks": 2**40, "block_stride": 2**23}, "do not fit int64"),
        ({"num_blocks": 3, "block_stride": 64, "kv_heads": 2}, "in the texts of parts"),
    ],
)
def test_parts_that_overlap_or_lack_sizes(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(FastIndexError, match=message):
        fp.Cache([fp.Part("", "u8[block_size=4,head_dim=16]")], **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (0, r"two elements of .* share byte 0 of a page"),
        (9, r"two elements of .* share byte 9 of a page"),
        (24, "those at byte 0 have 16 bytes, those at byte 24 16"),
        (47, "those at byte 0 have 16 bytes, those at byte 47 16"),
        (48, None),
        (81, "those at byte 0 have 16 bytes, those at byte 81 16"),
        (80, None),
    ],
)
def test_blocks_of_two_parts(offset: int, message: str | None) -> None:
    """Three blocks of one part, then those of the other, before the next layer begins at byte 96 or 128."""
    parts = [fp.Part("a", "u8[block_size=4,head_dim=4]"), fp.Part("b", "u8[block_size=4,head_dim=4]", offset)]
    sizes = {"num_blocks": 3, "block_stride": 16, "num_layers": 2, "layer_stride": 96 if offset < 80 else 128}
    if message is None:
        cache = fp.Cache(parts, **sizes)  # type: ignore[arg-type]
        places = {fp.byte_offset(cache, layer=y, kv=p, slot=range(12)).tobytes() for y in range(2) for p in "ab"}
        assert len(places) == 4
        return
    with pytest.raises(FastIndexError, match=message):
        fp.Cache(parts, **sizes)  # type: ignore[arg-type]


def test_what_is_no_part_or_has_no_page() -> None:
    with pytest.raises(ArgumentTypeError, match="from a text, or from parts"):
        fp.Cache(["u8[block_size=4,head_dim=16]"], num_blocks=1, block_stride=64)  # type: ignore[list-item]
    with pytest.raises(FastIndexError, match="describes one page"):
        fp.Cache([fp.Part("", "u8[num_blocks=2,block_size=4,head_dim=16]")], num_blocks=1, block_stride=64)
    one = fp.Part("a", "u8[block_size=1,head_dim=1]")
    with pytest.raises(FastIndexError, match="different names"):
        fp.Cache([one, fp.Part("a", "u8[block_size=1,head_dim=1]", 1)], num_blocks=1, block_stride=64)
    with pytest.raises(FastIndexError, match="the same layers, heads and tokens"):
        fp.Cache([one, fp.Part("b", "u8[block_size=2,head_dim=1]", 1)], num_blocks=1, block_stride=64)
    with pytest.raises(FastIndexError, match="in the text of a pool"):
        fp.Cache(POOL.format(heads=2), num_blocks=8)


def test_padding_of_a_text() -> None:
    cache = fp.Cache(POOL.format(heads=4), kv_heads=3, head_dim=60)
    assert (cache.kv_heads, cache.planes["k"].head_dim, cache.nbytes) == (3, 60, 8 * 2 * 4 * 16 * 64 * 2)
    for size in (0, 5):
        with pytest.raises(FastIndexError, match=f"kv_heads={size} must be from 1 to the 4"):
            fp.Cache(POOL.format(heads=4), kv_heads=size)
