"""Presets against the engines' own formulas, written out here, and their own code where it is installed.

An unpacked wheel on ``PYTHONPATH`` is enough. On 2026-11-27 vllm 0.33.0, tpu-inference 0.32.0 and lmcache 0.5.6 agreed.

Tests of: paged.presets.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import numpy as np
import pytest

import fastindex.paged as fp
from fastindex.errors import FastIndexError
from tests.paged.engines import vendor, vendor_source

L, B, H, N, D = 2, 3, 4, 32, 64
SIZES: Any = {"num_layers": L, "num_blocks": B, "kv_heads": H, "block_size": N, "head_dim": D}

Where = tuple[int, int, int, int, int, int]


def elements(cache: fp.Cache, count: int = 400, name: str = "k") -> Iterator[Where]:
    """Some elements of a cache: layer, half, block, head, token, dim; the last one too."""
    random = np.random.default_rng(0)
    bounds = cache.num_layers, len(cache.planes), cache.num_blocks, cache.kv_heads, cache.block_size
    dims = cache.planes[name].head_dim
    for _ in range(count):
        yield tuple(int(random.integers(bound)) for bound in (*bounds, dims))  # type: ignore[misc]
    yield tuple(bound - 1 for bound in (*bounds, dims))  # type: ignore[misc]


def dense(*pairs: tuple[int, int]) -> int:
    """The place in an array without gaps, for (index, size) of its dimensions."""
    place = 0
    for index, size in pairs:
        assert 0 <= index < size
        place = place * size + index
    return place


# y is the layer, k the half. Each formula gives the element of a pool of the type's width.
FORMULAS: dict[tuple[str, str], Callable[..., int]] = {
    ("vllm", "LBHNC"): lambda y, k, b, h, n, d: dense((y, L), (b, B), (h, H), (n, N), (k * D + d, 2 * D)),
    ("vllm", "LBNHC"): lambda y, k, b, h, n, d: dense((y, L), (b, B), (n, N), (h, H), (k * D + d, 2 * D)),
    ("vllm", "LHBNC"): lambda y, k, b, h, n, d: dense((y, L), (h, H), (b, B), (n, N), (k * D + d, 2 * D)),
    ("vllm", "BLHNC"): lambda y, k, b, h, n, d: dense((b, B), (y, L), (h, H), (n, N), (k * D + d, 2 * D)),
    ("vllm", "BLNHC"): lambda y, k, b, h, n, d: dense((b, B), (y, L), (n, N), (h, H), (k * D + d, 2 * D)),
    ("vllm", "BHLNC"): lambda y, k, b, h, n, d: dense((b, B), (h, H), (y, L), (n, N), (k * D + d, 2 * D)),
    ("vllm", "flash_attn"): lambda y, k, b, h, n, d: dense((y, L), (k, 2), (b, B), (n, N), (h, H), (d, D)),
    ("vllm", "flashinfer_nhd"): lambda y, k, b, h, n, d: dense((y, L), (b, B), (k, 2), (n, N), (h, H), (d, D)),
    ("vllm", "flashinfer_hnd"): lambda y, k, b, h, n, d: dense((y, L), (b, B), (k, 2), (h, H), (n, N), (d, D)),
    ("vllm", "rocm"): lambda y, k, b, h, n, d: (
        dense((y, L), (k, 2), (b, B), (h, H), (d // 8, D // 8), (n, N), (d % 8, 8))
        if k == 0
        else dense((y, L), (k, 2), (b, B), (h, H), (d, D), (n, N))
    ),
    ("vllm", "rocm_shuffle"): lambda y, k, b, h, n, d: (
        dense((y, L), (k, 2), (b, B), (h, H), (d // 8, D // 8), (n, N), (d % 8, 8))
        if k == 0
        else dense((y, L), (k, 2), (b, B), (h, H), (n // 8, N // 8), (d, D), (n % 8, 8))
    ),
    ("vllm", "cpu"): lambda y, k, b, h, n, d: dense((y, L), (b, B), (h, H), (k * N + n, 2 * N), (d, D)),
    ("vllm", "cpu_vector"): lambda y, k, b, h, n, d: dense(
        (y, L), (b, B), (h, H), (k, 2), (dense((n, N), (d, D)) if k else dense((d, D), (n, N)), N * D)
    ),
    ("vllm", "cpu_amx"): lambda y, k, b, h, n, d: dense(
        (y, L),
        (b, B),
        (h, H),
        (k, 2),
        (
            dense((d // 16, D // 16), (n // 2, N // 2), (d % 16, 16), (n % 2, 2))
            if k
            else dense((n // 16, N // 16), (d // 2, D // 2), (n % 16, 16), (d % 2, 2)),
            N * D,
        ),
    ),
    ("flashinfer", "NHD"): lambda y, k, b, h, n, d: dense((y, L), (b, B), (k, 2), (n, N), (h, H), (d, D)),
    ("flashinfer", "HND"): lambda y, k, b, h, n, d: dense((y, L), (b, B), (k, 2), (h, H), (n, N), (d, D)),
    ("sglang", "nhd"): lambda y, k, b, h, n, d: dense((k, 2), (y, L), (b * N + n, B * N), (h, H), (d, D)),
    ("sglang", "hnd"): lambda y, k, b, h, n, d: dense((k, 2), (y, L), (b, B), (h, H), (n, N), (d, D)),
    ("sglang", "layer_first"): lambda y, k, b, h, n, d: dense((k, 2), (y, L), (b * N + n, B * N), (h, H), (d, D)),
    ("sglang", "page_first"): lambda y, k, b, h, n, d: dense((k, 2), (b * N + n, B * N), (y, L), (h, H), (d, D)),
    ("sglang", "page_first_direct"): lambda y, k, b, h, n, d: dense((k, 2), (b, B), (y, L), (n, N), (h, H), (d, D)),
    ("sglang", "page_head"): lambda y, k, b, h, n, d: dense((k, 2), (b, B), (h, H), (n, N), (y, L), (d, D)),
    ("trtllm", "HND"): lambda y, k, b, h, n, d: dense((b, B), (y, L), (k, 2), (h, H), (n, N), (d, D)),
    ("trtllm", "NHD"): lambda y, k, b, h, n, d: dense((b, B), (y, L), (k, 2), (n, N), (h, H), (d, D)),
    ("gaudi", "hpu"): lambda y, k, b, h, n, d: dense((y, L), (k, 2), (b * N + n, B * N), (h, H), (d, D)),
    ("llama_cpp", "flash_attn"): lambda y, k, b, h, n, d: dense((y, L), (k, 2), (b, B), (n, N), (h * D + d, H * D)),
    ("llama_cpp", "v_transposed"): lambda y, k, b, h, n, d: dense(
        (y, L),
        (k, 2),
        (b, B),
        (dense((h * D + d, H * D), (n, N)) if k else dense((n, N), (h * D + d, H * D)), N * H * D),
    ),
    ("lmcache", "KV_2LTD"): lambda y, k, b, h, n, d: dense((k, 2), (y, L), (b * N + n, B * N), (h * D + d, H * D)),
    ("lmcache", "KV_T2D"): lambda y, k, b, h, n, d: dense((y, L), (b * N + n, B * N), (k, 2), (h * D + d, H * D)),
    ("lmcache", "NL_X_TWO_NB_BS_NH_HS"): lambda y, k, b, h, n, d: dense((y, L), (k, 2), (b, B), (n, N), (h, H), (d, D)),
    ("lmcache", "NL_X_NB_BS_NH_CS"): lambda y, k, b, h, n, d: dense((y, L), (b, B), (n, N), (h, H), (k * D + d, 2 * D)),
    ("lmcache", "NB_NL_TWO_BS_NH_HS"): lambda y, k, b, h, n, d: dense((b, B), (y, L), (k, 2), (n, N), (h, H), (d, D)),
}


@pytest.mark.parametrize(("engine", "layout"), FORMULAS)
def test_presets_as_the_engines_count(engine: str, layout: str) -> None:
    cache = getattr(fp.Cache, engine)(layout, **SIZES)
    assert cache.nbytes == 2 * 2 * L * B * H * N * D
    for where in elements(cache):
        layer, half, block, head, token, dim = where
        found = fp.byte_offset(cache, layer=layer, kv=half, head=head, slot=block * N + token, dim=dim)
        assert found == 2 * FORMULAS[engine, layout](*where), where


TPU = {
    # page, token, row of K and V heads, packed, lane
    "rpa_v3": (lambda h, k, n, d, p, heads: (n, (2 * h + k) // p, (2 * h + k) % p, d), 3, 80),
    "rpa_v3_64": (lambda h, k, n, d, p, heads: (n, h // p, h % p, 64 * k + d), 3, 64),
    "batched_rpa": (lambda h, k, n, d, p, heads: (2 * h + k, d // p, d % p, n), 3, 80),
}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f8e4m3fn"])
@pytest.mark.parametrize("layout", TPU)
def test_tpu_pages(layout: str, dtype: str) -> None:
    formula, heads, dims = TPU[layout]
    p = {"f32": 1, "bf16": 2, "f8e4m3fn": 4}[dtype]
    width = 4 // p
    up = lambda number, multiple: -(-number // multiple) * multiple  # noqa: E731
    if layout == "batched_rpa":
        shape: tuple[int, ...] = (B, 2 * heads, up(dims, 8 * p) // p, p, N)
    elif layout == "rpa_v3":
        shape = (B, N, up(2 * heads, p) // p, p, up(dims, 128))
    else:
        shape = (B, N, up(heads, p) // p, p, 128)
    sizes = {**SIZES, "num_layers": 1, "kv_heads": heads, "head_dim": dims, "dtype": dtype}
    cache = fp.Cache.tpu_inference(layout, **sizes)
    assert cache.nbytes == width * np.prod(shape)
    for _, half, block, head, token, dim in elements(cache):
        found = fp.byte_offset(cache, kv=half, head=head, slot=block * N + token, dim=dim)
        place = (block, *formula(head, half, token, dim, p, heads))
        assert found == width * np.ravel_multi_index(place, shape), (half, head, token, dim)


def test_mla_pages() -> None:
    assert fp.Cache.vllm("mla", **{**SIZES, "kv_heads": 1, "head_dim": 576}).page_bytes == N * 576 * 2
    cache = fp.Cache.tpu_inference("mla_v2", **{**SIZES, "kv_heads": 1, "head_dim": 576})
    assert cache.nbytes == L * B * N * 640 * 2
    assert fp.byte_offset(cache, layer=1, slot=33, dim=5) == ((B + 1) * N + 1) * 1280 + 10
    with pytest.raises(FastIndexError, match="packed 2 at a time, got 33"):
        fp.Cache.tpu_inference("mla_v2", **{**SIZES, "block_size": 33})


#: name of the plane -> (byte in the page of token t, element i), and how many elements; a page of N tokens.
ROWS: dict[str, tuple[int, dict[str, tuple[Callable[[int, int], int], int]]]] = {
    "fp8_ds_mla": (
        656 * N,
        {
            "data": (lambda t, i: 656 * t + i, 512),
            "scale": (lambda t, i: 656 * t + 512 + 4 * i, 4),
            "rope": (lambda t, i: 656 * t + 528 + 2 * i, 64),
        },
    ),
    "ds_v4": (
        -(-584 * N // 576) * 576,
        {
            "data": (lambda t, i: 576 * t + i, 448),
            "rope": (lambda t, i: 576 * t + 448 + 2 * i, 64),
            "scale": (lambda t, i: 576 * N + 8 * t + i, 7),
        },
    ),
    "ds_v4.1": (528 * N, {"data": (lambda t, i: 528 * t + i, 512), "scale": (lambda t, i: 528 * t + 512 + i, 16)}),
    "nvfp4_ds_mla": (
        352 * N,
        {
            "data": (lambda t, i: 352 * t + i, 256),
            "rope": (lambda t, i: 352 * t + 256 + i, 64),
            "scale": (lambda t, i: 352 * t + 320 + 8 * (i & 3) + (i >> 2), 32),
        },
    ),
    "dsa_indexer": (132 * N, {"data": (lambda t, i: 128 * t + i, 128), "scale": (lambda t, i: 128 * N + 4 * t, 1)}),
}


@pytest.mark.parametrize("layout", ROWS)
def test_rows_of_mixed_types(layout: str) -> None:
    page, planes = ROWS[layout]
    cache = fp.Cache.vllm(layout, **{**SIZES, "kv_heads": 1})
    assert cache.nbytes == L * B * page
    assert {name: plane.head_dim for name, plane in cache.planes.items()} == {n: p[1] for n, p in planes.items()}
    for name, (formula, count) in planes.items():
        for token, element in itertools.product((0, 1, 5, N - 1), range(count)):
            found = fp.byte_offset(cache, layer=1, kv=name, slot=2 * N + token, dim=element)
            assert found == (B + 2) * page + formula(token, element), (name, token, element)


def test_nvfp4_planes() -> None:
    """K data, K scales, V data, V scales, the last ones four tokens at a time."""
    cache = fp.Cache.vllm("nvfp4", **SIZES)
    data, scales = H * N * D // 2, H * N * D // 16
    assert (cache.page_bytes, cache.nbytes) == (2 * (data + scales), L * B * 2 * (data + scales))
    for head, token, scale in itertools.product(range(H), (0, 1, 5, N - 1), range(D // 16)):
        starts = {
            "k": (head * N + token) * D // 2 + 8 * scale,
            "k_scale": data + (head * N + token) * D // 16 + scale,
            "v": data + scales + (head * N + token) * D // 2 + 8 * scale,
            "v_scale": 2 * data + scales + head * N * D // 16 + token // 4 * 4 * (D // 16) + 4 * scale + token % 4,
        }
        for name, start in starts.items():
            dim = scale if "scale" in name else 16 * scale
            assert fp.byte_offset(cache, kv=name, head=head, slot=token, dim=dim) == start, name


def test_scales_of_each_token_and_head() -> None:
    cache = fp.Cache.vllm("token_head_scales", **SIZES, dtype="s8")
    row = 2 * D + 8
    for head, token in itertools.product(range(H), (0, 3, N - 1)):
        start = (token * H + head) * row
        found = [fp.byte_offset(cache, kv=name, head=head, slot=token) for name in ("k", "v", "k_scale", "v_scale")]
        assert found == [start, start + D, start + 2 * D, start + 2 * D + 4]


def test_names_that_there_are_not() -> None:
    with pytest.raises(FastIndexError, match=r"the layouts of vllm are LBHNC, .*; got 'NHD'"):
        fp.Cache.vllm("NHD", **SIZES)
    with pytest.raises(FastIndexError, match="the layouts of lmcache are"):
        fp.Cache.lmcache("NL_X_NB_BS", **SIZES)
    with pytest.raises(FastIndexError, match="engines with presets are vllm"):
        fp.Cache.preset("mooncake", "NHD", **SIZES)
    with pytest.raises(FastIndexError, match="needs block_size, head_dim"):
        fp.Cache.vllm("LBHNC", num_blocks=3)
    with pytest.raises(FastIndexError, match="kv_heads must be at least 1"):
        fp.Cache.vllm("LBHNC", **{**SIZES, "kv_heads": 0})
    for layout, change, message in (
        ("rocm", {"head_dim": 13}, "head_dim must be a multiple of 8, got 13"),
        ("rocm_shuffle", {"block_size": 12}, "block_size must be a multiple of 8, got 12"),
        ("cpu_amx", {"block_size": 24}, "block_size must be a multiple of 16, got 24"),
        ("nvfp4", {"block_size": 6}, "block_size must be a multiple of 4, got 6"),
        ("mla", {}, "vllm mla has one head, got kv_heads=4"),
        ("fp8_ds_mla", {}, "vllm fp8_ds_mla has one head, got kv_heads=4"),
    ):
        with pytest.raises(FastIndexError, match=message):
            fp.Cache.vllm(layout, **{**SIZES, **change})
    with pytest.raises(FastIndexError, match=r"the layouts of gaudi are hpu; got \['hpu'\]"):
        fp.Cache.gaudi(["hpu"], **SIZES)  # type: ignore[arg-type]
    with pytest.raises(FastIndexError, match="64 elements a head, got 80"):
        fp.Cache.tpu_inference("rpa_v3_64", **{**SIZES, "head_dim": 80})


# The engines' own code


def test_orders_of_vllm() -> None:
    space: dict[str, Any] = {}
    exec(compile(vendor_source("vllm", "v1/kv_cache_layout.py"), "vllm", "exec"), space)
    orders = space["KVCacheLayout"]
    assert issubclass(orders, Enum)
    sizes = {"L": L, "B": B, "H": H, "N": N, "C": 2 * D}
    for order in orders:
        cache = fp.Cache.vllm(order.name, **SIZES)
        memory = np.arange(np.prod([*sizes.values()])).reshape([[*sizes.values()][axis] for axis in order.stride_order])
        logical = memory.transpose(np.argsort(order.stride_order))
        for layer, half, block, head, token, dim in elements(cache, 100):
            found = fp.byte_offset(cache, layer=layer, kv=half, head=head, slot=block * N + token, dim=dim)
            assert found == 2 * logical[layer, block, head, token, half * D + dim]


def shape_function(path: str) -> Callable[..., tuple[int, ...]]:
    aligned = {"align_to": lambda a, b: -(-a // b) * b, "unsigned_align_to": lambda a, b: -(-a // b) * b}
    packing = {"get_dtype_packing": lambda dtype: 4 // dtype}
    return vendor("tpu_inference", path, "get_kv_cache_shape", **aligned, **packing).get_kv_cache_shape


@pytest.mark.parametrize(("dtype", "width"), [("f32", 4), ("bf16", 2), ("f8e4m3fn", 1)])
@pytest.mark.parametrize("heads", [1, 2, 3, 8])
def test_shapes_of_tpu_inference(dtype: str, width: int, heads: int) -> None:
    options: Any = {**SIZES, "num_layers": 1, "kv_heads": heads, "dtype": dtype}
    rpa = shape_function("kernels/ragged_paged_attention/v3/kernel.py")(B, N, heads, 80, width)
    assert fp.Cache.tpu_inference("rpa_v3", **{**options, "head_dim": 80}).nbytes == np.prod(rpa) * width
    rpa = shape_function("kernels/ragged_paged_attention/v3/kernel_hd64.py")(B, N, heads, 64, width)
    assert fp.Cache.tpu_inference("rpa_v3_64", **{**options, "head_dim": 64}).nbytes == np.prod(rpa) * width
    mla = shape_function("kernels/mla/v2/kernel.py")(B, N, 576, width)
    options = {**options, "kv_heads": 1, "head_dim": 576}
    assert fp.Cache.tpu_inference("mla_v2", **options).nbytes == np.prod(mla) * width


def test_names_of_lmcache() -> None:
    """Each name is a cache with the sizes in that order."""
    text = vendor_source("lmcache", "lmcache_native.pyi")
    names = set(re.findall(r"\b((?:NL|NB|TWO)_[A-Z_]+)\b", text))
    read = names - {"NL_X_NP_X_NB_BS_ONE_HS"}  # The planes of a layer differ in width, which the name does not say.
    assert len(read) >= 18
    for name in read:
        cache = fp.Cache.lmcache(name, **{**SIZES, "kv_heads": H if "NH" in name else 1})
        assert cache.num_blocks == B
        assert len(cache.planes) == (2 if {"TWO", "CS", "BSS"} & set(name.split("_")) else 1)
