"""Caches from tensors: strides as they are, sizes that fit several orders, and moves between lists of tensors.

Tests of: paged.planes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fastindex.paged as fp
from fastindex.errors import ArgumentTypeError, FastIndexError

SIZES: Any = {"num_blocks": 5, "block_size": 4, "kv_heads": 3, "head_dim": 8}


def layers_of(shape: tuple[int, ...], count: int = 3) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.integers(0, 2**15, shape).astype(np.int16) for _ in range(count)]


def test_layers_as_tensors_of_their_own() -> None:
    layers = layers_of((5, 2, 4, 3, 8))
    cache = fp.Cache.from_tensors(layers, "num_blocks 2 block_size kv_heads head_dim")
    base = min(layer.ctypes.data for layer in layers)
    for number, layer in enumerate(layers):
        found = fp.byte_offset(cache, layer=number, kv=1, head=2, slot=4 * 4 + 3, dim=7)
        assert base + found == layer[4, 1, 3, 2, 7:].ctypes.data
    tokens = fp.gather(cache, layers, [4, 0], 6)
    for number, layer in enumerate(layers):
        flat = layer[[4, 0]].transpose(1, 0, 2, 3, 4).reshape(2, 8, 3, 8)
        np.testing.assert_array_equal(tokens[number], flat[:, :6])


@pytest.mark.parametrize("layers", [(24, 16, 0, 8), (12, 0, 15, 3), (0, 3)])
def test_elements_at_bytes_of_layers_in_any_order(layers: tuple[int, ...]) -> None:
    """Layers at descending addresses, at unequal distances, and with the blocks of another layer between their own."""
    memory = np.zeros(64, np.uint8)
    views = [memory[first : first + 6 : 2].reshape(3, 1, 1, 1) for first in layers]
    cache = fp.Cache.from_tensors(views, "num_blocks block_size kv_heads head_dim")
    for layer, slot in np.ndindex(len(layers), cache.num_blocks):
        byte = fp.byte_offset(cache, layer=layer, slot=slot)
        assert fp.element_at(cache, byte)[:4] == (layer, 0, 0, slot)


def test_pairs_of_keys_and_values() -> None:
    pairs = [tuple(layers_of((20, 3, 8), 2)) for _ in range(2)]
    cache = fp.Cache.from_tensors(pairs, "(num_blocks block_size) kv_heads head_dim", block_size=4)
    assert (list(cache.planes), cache.num_blocks, cache.num_layers) == (["k", "v"], 5, 2)
    tokens = fp.gather(cache, pairs, slots=[7, 19, 0])
    for number, pair in enumerate(pairs):
        for half in range(2):
            np.testing.assert_array_equal(tokens[number, half], pair[half][[7, 19, 0]])


def test_tensors_that_share_memory() -> None:
    """Rows of a byte every 4 bytes, blocks every 10: another tensor may lie in the gaps."""
    memory = np.zeros(64, np.uint8)
    held = {0, 4, 10, 14}
    for distance in range(20):
        views = [
            np.lib.stride_tricks.as_strided(memory[first:], (2, 2, 1, 1), (10, 4, 1, 1)) for first in (distance, 0)
        ]
        for tensors in (views, [tuple(views)]):
            if held & {distance + place for place in held}:
                with pytest.raises(FastIndexError, match="two tensors of a cache share memory"):
                    fp.Cache.from_tensors(tensors, "num_blocks block_size kv_heads head_dim")
            else:
                fp.Cache.from_tensors(tensors, "num_blocks block_size kv_heads head_dim")


def test_strides_are_taken_as_they_are() -> None:
    """HND in memory, NHD as a view; and a packed pair in the last dimension."""
    memory = layers_of((5, 3, 4, 16), 1)[0]
    view = memory.transpose(0, 2, 1, 3)
    cache = fp.Cache.from_tensors(view, "num_blocks block_size kv_heads (2 head_dim)")
    found = fp.byte_offset(cache, kv=1, head=2, slot=4 * 4 + 3, dim=5)
    assert found == memory[4, 2, 3, 8 + 5 :].ctypes.data - memory.ctypes.data
    target = fp.Cache("s16[num_blocks=6,2,block_size=4,kv_heads=3,head_dim=8]")
    moved = np.zeros(target.nbytes // 2, np.int16)
    fp.copy(cache, target, view, moved, [1, 3], [5, 0])
    expected = memory[[1, 3]].reshape(2, 3, 4, 2, 8).transpose(0, 3, 2, 1, 4)
    np.testing.assert_array_equal(moved.reshape(6, 2, 4, 3, 8)[[5, 0]], expected)
    fp.copy(target, cache, moved, view, [5], [2])
    np.testing.assert_array_equal(memory[2], memory[1])


@pytest.mark.parametrize(
    ("shape", "sizes", "axes"),
    [
        ((5, 2, 4, 3, 8), SIZES, "num_blocks 2 block_size kv_heads head_dim"),
        ((2, 5, 3, 4, 8), SIZES, "2 num_blocks kv_heads block_size head_dim"),
        ((5, 4, 3, 16), SIZES, "num_blocks block_size kv_heads (2 head_dim)"),
        ((5, 4, 6, 8), SIZES, "num_blocks block_size (2 kv_heads) head_dim"),
        ((5, 4, 8), {"num_blocks": 5, "block_size": 4, "head_dim": 8}, "num_blocks block_size head_dim"),
        ((20, 3, 8), SIZES, "(num_blocks block_size) kv_heads head_dim"),
    ],
)
def test_orders_that_follow_from_sizes(shape: tuple[int, ...], sizes: Any, axes: str) -> None:
    tensor = layers_of(shape, 1)[0]
    guessed, given = fp.Cache.from_tensors(tensor, **sizes), fp.Cache.from_tensors(tensor, axes, **sizes)
    for name, plane in given.planes.items():
        other = guessed.planes[name]
        for table in ("layer_offsets", "head_offsets", "token_offsets", "dim_offsets"):
            np.testing.assert_array_equal(getattr(plane, table), getattr(other, table))
        assert plane.block_stride == other.block_stride


@pytest.mark.parametrize(
    ("shape", "sizes", "message"),
    [
        ((5, 4, 4, 16), {**SIZES, "kv_heads": 4}, "may be 'num_blocks block_size kv_heads .* or 'num_blocks kv_heads"),
        ((5, 4, 4, 8), {**SIZES, "kv_heads": 2}, "may be .*; give axes"),
        ((5, 4, 7, 16), SIZES, r"no order of num_blocks=5, .* gives a tensor of \(5, 4, 7, 16\)"),
        ((5, 4, 3, 8), {"num_blocks": 5}, "give axes, such as"),
    ],
)
def test_sizes_that_fit_several_orders_or_none(shape: tuple[int, ...], sizes: Any, message: str) -> None:
    with pytest.raises(FastIndexError, match=message):
        fp.Cache.from_tensors(layers_of(shape, 1)[0], **sizes)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("num_blocks block_size head_dim", "name 3 dimensions"),
        ("num_blocks block_size heads head_dim", "'heads' of axes"),
        ("num_blocks block_size block_size head_dim", "name block_size twice"),
        ("num_blocks kv_heads layers head_dim", "do not name block_size"),
        ("num_blocks block_size kv_heads (kv head_dim)", "give sizes that divide it"),
        ("num_blocks block_size (2 kv_heads) head_dim", "is a dimension of 3; give sizes"),
    ],
)
def test_axes_that_do_not_fit(axes: str, message: str) -> None:
    with pytest.raises(FastIndexError, match=message):
        fp.Cache.from_tensors(layers_of((5, 4, 3, 16), 1)[0], axes)


def test_tensors_that_do_not_go_together() -> None:
    axes = "num_blocks block_size kv_heads head_dim"
    with pytest.raises(FastIndexError, match="same dimensions, strides and type"):
        fp.Cache.from_tensors([*layers_of((5, 4, 3, 8), 1), *layers_of((6, 4, 3, 8), 1)], axes)
    with pytest.raises(FastIndexError, match="one tensor a layer, or a pair"):
        fp.Cache.from_tensors([], axes)
    with pytest.raises(FastIndexError, match="overlap, or go backwards"):
        fp.Cache.from_tensors(np.broadcast_to(np.zeros((5, 4, 1, 8)), (5, 4, 3, 8)), axes)
    with pytest.raises(FastIndexError, match="num_blocks is 6, and axes"):
        fp.Cache.from_tensors(layers_of((5, 4, 3, 8), 1)[0], axes, num_blocks=6)
    with pytest.raises(ArgumentTypeError, match="no element type is stored as"):
        fp.Cache.from_tensors(np.zeros((5, 4, 3, 8), "U1"), axes)
    with pytest.raises(ArgumentTypeError, match="must be an array or bytes"):
        fp.Cache.from_tensors([1, 2], axes)


def test_other_tensors_than_the_cache_was_made_from() -> None:
    layers = layers_of((5, 4, 3, 8))
    cache = fp.Cache.from_tensors(layers, "num_blocks block_size kv_heads head_dim")
    with pytest.raises(FastIndexError, match="buffer must be the tensors that"):
        fp.gather(cache, layers_of((5, 4, 3, 8)), [0])
    with pytest.raises(FastIndexError, match="buffer must be the tensors that"):
        fp.gather(cache, layers[:2], [0])
