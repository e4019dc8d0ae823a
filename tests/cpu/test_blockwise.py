"""Relayout block by block: the same bytes as all at once, and no more pages in use than allowed."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fastindex as fi
from fastindex.cpu.blockwise import Bytes, Surroundings, block_sizes, relayout_in_blocks, written_bytes
from fastindex.lowering.relayout_loops import Loop, Nest, relayout_loops
from tests.cases import strategies


def moved(source: fi.Shape, destination: fi.Shape, data: Bytes, block_bytes: int) -> tuple[Bytes, list[int]]:
    """What a relayout in blocks writes, and what each block says it has written."""
    written = np.full(destination.nbytes, 0xAA, np.uint8)
    reported: list[int] = []
    around = Surroundings(block_bytes, lambda size: np.full(size, 0x55, np.uint8), reported.append)
    relayout_in_blocks(source, destination, data, written, around)
    return written, reported


def check(pair: tuple[object, object], block_bytes: int) -> int:
    source, destination = (fi.Shape.parse(str(shape)) for shape in pair)
    data = np.random.default_rng(0).integers(0, 256, source.nbytes, dtype=np.uint8)
    found, reported = moved(source, destination, data, block_bytes)
    np.testing.assert_array_equal(found, fi.relayout(data, source, destination).view(np.uint8), f"{pair}")
    assert sum(reported) == written_bytes(source, destination)
    return len(reported)


@pytest.mark.parametrize(("block_bytes", "count"), [(1, 3), (200_000, 20), (1 << 20, 40)])
def test_small_arrays(block_bytes: int, count: int) -> None:
    blocks = sum(check(strategies.random_pair(seed), block_bytes) for seed in strategies.seeds(count))
    assert blocks > count


@pytest.mark.parametrize("block_bytes", [400_000, 2 << 20])
def test_larger_arrays(block_bytes: int) -> None:
    for seed in strategies.seeds(15, skip=block_bytes % 7):
        check(strategies.medium_pair(seed), block_bytes)


@pytest.mark.parametrize("text", ["[64,96]{0,1:E(4)}", "[63,95]{0,1:E(4)}", "[64,96]{0,1:T(8,16)E(4)}", "[64,96]{0,1}"])
def test_packed_elements(text: str) -> None:
    for source in ("s4[64,96]{1,0:E(4)}", "s4[64,96]"):
        assert check((source.replace("64,96", text[1:6]), "s4" + text), 100_000) >= 1


@pytest.mark.parametrize("bits", [16, 24, 32, 64])
def test_wide_elements(bits: int) -> None:
    check(("pred[50,70]", f"pred[50,70]{{0,1:T(8,8)E({bits})}}"), 100_000)
    check((f"pred[50,70]{{0,1:T(8,8)E({bits})}}", "pred[50,70]"), 100_000)


def test_against_numpy() -> None:
    """An oracle of its own: a transpose into tiles."""
    array = np.random.default_rng(1).integers(0, 2**32, (300, 500), dtype=np.uint32)
    padded = np.full((304, 512), 0, np.uint32)
    padded[:300, :500] = array
    expected = padded.reshape(38, 8, 4, 128).transpose(0, 2, 1, 3).copy()
    source, destination = fi.Shape.parse("u32[300,500]{0,1}"), fi.Shape.parse("u32[300,500]{1,0:T(8,128)}")
    found, reported = moved(source, destination, array.T.copy().reshape(-1).view(np.uint8), 1 << 19)
    assert len(reported) > 4
    np.testing.assert_array_equal(found, expected.reshape(-1).view(np.uint8))


def pages(start: int, loops: list[tuple[int, int]], width: int, page: int) -> int:
    """Bytes of the pages that a box touches, one by one."""
    offsets = np.zeros(1, np.int64)
    for size, stride in loops:
        offsets = (offsets[:, None] + np.arange(size) * stride * width).reshape(-1)
    first = (offsets + start) // page
    return len(np.unique(np.concatenate([first, (offsets + start + width - 1) // page]))) * page


def nests() -> list[tuple[Nest, int]]:
    found = []
    for source, destination in (
        ("f32[700,900]", "f32[700,900]{0,1}"),
        ("f32[700,900]{0,1}", "f32[700,900]{1,0:T(8,128)}"),
        ("bf16[600,1000]", "bf16[600,1000]{1,0:T(8,128)(2,1)}"),
        ("u8[64,48,200]", "u8[64,48,200]{0,2,1}"),
        ("c128[30,40,50]", "c128[30,40,50]{0,1,2}"),
    ):
        shape = fi.Shape.parse(source)
        loops = relayout_loops(shape, fi.Shape.parse(destination))
        assert loops is not None
        found += [(nest, shape.element_type.nbytes) for nest in loops.copies]
    return found


@pytest.mark.parametrize("block_bytes", [300_000, 1 << 20, 1 << 30])
def test_blocks_touch_no_more_than_they_may(block_bytes: int) -> None:
    for nest, width in nests():
        sizes = block_sizes(nest, True, width, block_bytes)
        sides = [
            [(size, getattr(loop, stride)) for size, loop in zip(sizes, nest.loops, strict=True)]
            for stride in ("source_stride", "destination_stride")
        ]
        touched = pages(60_000, sides[0], width, 64 << 10) + pages(4_000, sides[1], width, 4 << 10)
        assert touched <= max(block_bytes, 2 * (64 + 4) << 10)
        assert all(1 <= size <= loop.size for size, loop in zip(sizes, nest.loops, strict=True))
        if block_bytes == 1 << 30:
            assert math.prod(sizes) == nest.element_count


def test_a_transpose_gets_long_runs_on_both_sides() -> None:
    transpose = Nest((Loop(1 << 17, 1, 1 << 17), Loop(1 << 17, 1 << 17, 1)))
    read, written = block_sizes(transpose, True, 4, 256 << 20)
    assert 4 * read >= 32 << 10
    assert 4 * written >= 2 << 10


def test_layouts_of_different_arrays_are_refused() -> None:
    with pytest.raises(fi.FastIndexError, match="keeps the array"):
        written_bytes(fi.Shape.parse("f32[3]"), fi.Shape.parse("f32[4]"))
    with pytest.raises(fi.UnsupportedError):
        written_bytes(fi.Shape.parse("f32[3]"), fi.Shape.parse("f32[3]{0:E(12)}"))
