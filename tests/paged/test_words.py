"""What `explain` and `draw` say of caches, transfers and tables.

Tests of: paged.words.
"""

from __future__ import annotations

import pytest

import fastindex.paged as fp
from fastindex.errors import FastIndexError

TEXT = "bf16[layers=2,num_blocks=40,2,kv_heads={heads},block_size={size},head_dim=64]{layout}"


def cache(heads: int, size: int, layout: str = "", **options: object) -> fp.Cache:
    return fp.Cache(TEXT.format(heads=heads, size=size, layout=layout), **options)  # type: ignore[arg-type]


def test_what_differs() -> None:
    words = fp.explain(cache(8, 16), cache(2, 48, "{5,3,4,2,1,0}", tp=(4, 3)))
    assert "blocks: 3 source blocks become 1 target block" in words
    assert "in memory, major first: layers, num_blocks, kv, block_size, kv_heads, head_dim" in words
    assert "heads: 6..7 move; the target lacks none" in words
    assert "runs: 64 for each source block of a layer, from 128 to 128 bytes" in words


def test_heads_that_a_rank_lacks() -> None:
    words = fp.explain(cache(2, 16, tp=(4, 1)), cache(8, 16))
    assert "heads: 2..3 move; the target lacks 0, 1, 4, 5, 6, 7, which other ranks hold" in words
    words = fp.explain(cache(2, 16, tp=(4, 1)), cache(2, 16, tp=(4, 2)))
    assert "heads: none is common; the target lacks 4, 5" in words
    assert "runs:" not in words


def test_alike_caches_take_a_run_a_block() -> None:
    words = fp.explain(cache(8, 16), cache(8, 16))
    assert "blocks: both have 16 tokens" in words
    assert f"runs: 1 for each source block of a layer, from {2 * 8 * 16 * 128} to" in words


def test_pools_that_are_too_small_for_a_sample() -> None:
    large = fp.Cache(TEXT.format(heads=8, size=81, layout=""))
    assert "1296 tokens, which both divide, do not fit a pool" in fp.explain(cache(8, 16), large)


def test_one_cache_with_context_parallelism() -> None:
    words = fp.explain(cache(8, 16, cp=(4, 2), interleave=8))
    assert words.startswith("cache: 2 layers, 40 blocks of 16 tokens, tokens of rank 2 of 4, heads 0..7 of 8")


def test_other_models_are_refused() -> None:
    with pytest.raises(FastIndexError, match="2 layers, the target 1"):
        fp.explain(cache(8, 16), fp.Cache("bf16[num_blocks=4,2,kv_heads=8,block_size=16,head_dim=64]"))


def test_a_page() -> None:
    picture = fp.draw(cache(4, 20))
    assert [panel.label for panel in picture.scene.panels] == ["k", "v"]
    assert picture.scene.panels[1].cells[3][2].slot == fp.byte_offset(cache(4, 20), kv=1, head=2, slot=3)
    assert len(picture.scene.panels[0].rows) == 16
    assert picture.scene.notes == ("4 more tokens",)
    assert "more tokens" in picture.text(colour=False)
    assert picture.svg() == picture._repr_html_()
    assert repr(picture) == picture.text(colour=False)


def test_a_table_is_coloured_by_request() -> None:
    table = fp.BlockTable([[1, 5], [3, 2]], block_size=16, lengths=[16, 20])
    cells = fp.draw(cache(4, 16), table).scene.panels[0].cells
    assert [[cell.text for cell in row] for row in cells] == [["1", ""], ["3", "2"]]
    assert [[cell.colour for cell in row] for row in cells] == [[0, -1], [1, 1]]
    with pytest.raises(FastIndexError, match="is not one of blocks of 20 tokens"):
        fp.draw(cache(4, 20), table)
