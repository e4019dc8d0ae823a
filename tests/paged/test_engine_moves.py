"""Splits, descriptors, copies and pools against the engines' own code, where their packages are installed.

On 2026-11-28 vllm 0.33.0, sglang 0.5.23, lmcache 0.5.6 and tpu-inference 0.32.0 agreed.

Tests of: paged.transfers, paged.descriptors, paged.copies, paged.presets.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex.paged as fp
from tests.paged.engines import Random, for_seeds, upto, vendor


def random_bytes(random: Random, count: int) -> Any:
    return random.integers(0, 256, count).astype(np.uint8)


# vLLM: a decode rank that reads from prefill ranks by NIXL


def nixl_worker(path: str, **state: Any) -> Any:
    """The functions of vLLM's worker that make descriptors."""
    methods = [
        "_compute_desc_ids",
        "_build_local_splits_from_plan",
        "_fa_desc_replicated",
        "_is_region_replicated",
        "_pack_strided_descs",
        "_block_strided_descs",
        "_strided_desc_starts",
        "_build_fa_local",
        "_build_fa_remote",
        "get_mapped_blocks",
        "_map_block_ids_for_block_size_ratio",
        "_logical_to_kernel_block_ids",
    ]
    space: dict[str, Any] = {
        "_is_attention_spec": lambda kind: kind == "full",
        "_is_ssm_spec": lambda kind: kind == "state",
    }
    space |= {"get_representative_spec_type": lambda spec: spec, "TPMapping": None, "_SHARED_REGION_GROUP_ID": -1}
    found = vendor("vllm", path, *(f"NixlBaseConnectorWorker.{name}" for name in methods), **space)
    return type("Worker", (), {**vars(found), **state})()


def blocks_of(rows: Any) -> list[tuple[int, int]]:
    """The address and length of each block of strided descriptors."""
    return [(a + i * stride, length) for a, length, _, stride, count in rows.tolist() for i in range(count)]


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC"])
@for_seeds
def test_reads_of_a_decode_rank_of_vllm(seed: int, order: str) -> None:
    """Other ranks, other block sizes: descriptors, their bytes, and what is done to them after receipt."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(seed)
    total = int(random.choice([1, 2, 4, 8]))
    ranks, remote_ranks = (int(random.choice([1, 2, 4, 8])) for _ in range(2))
    ratio = int(random.choice([1, 1, 2, 4])) if ranks >= remote_ranks else 1
    (layers, small, dim), rank = upto(random, 3, 4, 5), int(random.integers(ranks))
    sizes: Any = {"num_layers": layers, "head_dim": dim, "dtype": "u8"}
    here, there = max(1, total // ranks), max(1, total // remote_ranks)
    local = fp.Cache.vllm(
        order, **sizes, num_blocks=7, kv_heads=here, block_size=small * ratio, tp=(ranks, rank), total_kv_heads=total
    )
    remote = [
        fp.Cache.vllm(
            "LBHNC",
            **sizes,
            num_blocks=30,
            kv_heads=there,
            block_size=small,
            tp=(remote_ranks, r),
            total_kv_heads=total,
        )
        for r in range(remote_ranks)
    ]
    received = int(random.integers(1, 4 * ratio + 1))
    needed = -(-received // ratio)
    local_ids, remote_ids = random.permutation(7)[:needed], random.permutation(30)[:received]

    pools = [random_bytes(random, cache.nbytes) for cache in remote]
    # Ranks that share a head hold the same bytes of it.
    for cache, pool in zip(remote, pools, strict=True):
        same = next(other for other in remote if other.heads == cache.heads)
        pool[:] = pools[remote.index(same)]
    before = random_bytes(random, local.nbytes)
    expected = before.copy()
    base, plan = "distributed/kv_transfer/kv_connector/v1/nixl/", TPTopology(ranks, rank, total)
    mapping = vendor(
        "vllm", base + "tp_mapping.py", "TPMapping", "compute_head_offset", "compute_tp_mapping", **plan.space
    )
    found = mapping.compute_tp_mapping(plan, remote_ranks, ("full",))
    stride, far = local.nbytes // layers, remote[0].nbytes // layers
    lengths = {"block_len_per_layer": [stride // 7] * layers, "block_stride_per_layer": [stride // 7] * layers}
    worker = nixl_worker(
        base + "base_worker.py",
        **lengths,
        transfer_topo=plan,
        device_id=0,
        _transfer_layer_region_indices=[],
        _region_is_mla=[],
        region_num_blocks=[7] * layers,
        _group_spec_types=("full",),
        _head_sharded_draft_regions=set(),
        num_regions=layers,
        region_group_ids=[0] * layers,
        _uses_region_group_mapping=False,
        _has_mamba=False,
        _transfer_layer_group_ids=[],
        _ple_region_index=None,
        _logical_num_blocks=7,
    )
    mine = worker._build_fa_local([stride * layer for layer in range(layers)], ratio)
    splits = [mine]
    if ranks < remote_ranks:
        splits = list(worker._build_local_splits_from_plan(found, mine, layers * 7 * ratio, ratio))
    ids = worker._map_block_ids_for_block_size_ratio([local_ids.tolist()], [remote_ids.tolist()], ratio)
    for rows, source in zip(splits, found.all_source_ranks, strict=True):
        meta = SimpleNamespace(
            kv_caches_base_addr=[far * layer for layer in range(layers)],
            region_num_blocks=[30] * layers,
            num_blocks=30,
            device_id=0,
            block_strides=[far // 30] * layers,
            engine_id="",
        )
        theirs = blocks_of(worker._build_fa_remote(found, meta, ratio))
        ends = [
            worker._compute_desc_ids(ids[0], 7, ratio, 1),
            worker._compute_desc_ids(ids[1], 30, None, 1, [30] * layers),
        ]
        near = blocks_of(rows)
        for to, begin in zip(*(end.tolist() for end in ends), strict=True):
            (put, length), (get, wide) = near[to], theirs[begin]
            assert length == wide
            expected[put : put + length] = pools[source][get : get + length]
    shape = (layers, 7, here, small * ratio, 2 * dim)
    caches = (
        torch.from_numpy(expected).reshape(shape)
        if order == "LBHNC"
        else torch.from_numpy(expected).reshape(layers, 7, small * ratio, here, 2 * dim).permute(0, 1, 3, 2, 4)
    )
    after = vendor(
        "vllm",
        "distributed/kv_transfer/kv_connector/utils.py",
        "kv_postprocess_blksize_on_receive",
        "kv_postprocess_blksize_and_layout_on_receive",
    )
    for cache in caches:
        if order != "LBHNC":
            after.kv_postprocess_blksize_and_layout_on_receive(cache, torch.from_numpy(local_ids), ratio)
        elif ratio > 1:
            after.kv_postprocess_blksize_on_receive(cache, torch.from_numpy(local_ids), ratio)
        if received % ratio:
            cache[local_ids[-1], :, received % ratio * small :].zero_()

    copied = before.copy()
    for source in found.all_source_ranks:
        fp.copy(remote[source], local, pools[source], copied, remote_ids, local_ids, received * small, tail="zero")
    np.testing.assert_array_equal(copied, expected, err_msg=f"seed {seed}")


class TPTopology(SimpleNamespace):
    """What vLLM's plan of ranks asks for."""

    def __init__(self, size: int, rank: int, heads: int) -> None:
        super().__init__(tp_size=size, tp_rank=rank, is_mla=False, total_num_kv_heads=heads)
        self.space = {
            "dataclass": dataclasses.dataclass,
            "_is_ssm_spec": lambda kind: False,
            "BlockIds": None,
            "TransferTopology": None,
            "KVCacheSpec": None,
        }

    def dcp_consumer_count(self, *sizes: int) -> int:
        return 1


@for_seeds
def test_kernel_blocks_of_vllm(seed: int) -> None:
    random = np.random.default_rng(seed)
    ratio, blocks = int(random.integers(1, 9)), random.permutation(50)[: int(random.integers(1, 12))]
    path = "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py"
    groups = [SimpleNamespace(kv_cache_spec="full")]
    worker = nixl_worker(path, kv_cache_config=SimpleNamespace(transfer_groups=groups))
    found = fp.BlockTable(blocks, block_size=16 * ratio).kernel_blocks(ratio).blocks
    assert found.tolist() == [list(each) for each in worker._logical_to_kernel_block_ids([blocks.tolist()], ratio)]
    assert found[0].tolist() == worker.get_mapped_blocks(blocks, ratio).tolist()


@for_seeds
def test_nvfp4_planes_of_vllm(seed: int) -> None:
    """FlashInfer's pages of 4 bits, heads first: data and scales of K, then of V."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(seed)
    blocks, heads, tokens, dims = upto(random, 3, 3, 3, 3)
    tokens, dims = 4 * tokens, 64 * dims
    split = vendor("vllm", "utils/torch_utils.py", "nvfp4_split_data_scale", torch=torch).nvfp4_split_data_scale
    views = vendor("vllm", "v1/attention/backends/flashinfer.py", "_nvfp4_kv_views", nvfp4_split_data_scale=split)
    pool = torch.arange(blocks * 2 * heads * tokens * (dims // 2 + dims // 16), dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "view", lambda self, *_: self)
        data, scales, order = views._nvfp4_kv_views(pool.reshape(blocks, 2 * heads, tokens, -1), heads)
    assert order == "HND"
    cache = fp.Cache.vllm("nvfp4", num_blocks=blocks, kv_heads=heads, block_size=tokens, head_dim=dims)
    b, h, t, d = np.ix_(*(np.arange(n) for n in (blocks, heads, tokens, dims // 2)))
    slot = b * tokens + t
    for name, view in zip(("k", "v"), data, strict=True):
        assert (fp.byte_offset(cache, kv=name, head=h, slot=slot, dim=2 * d) == view.numpy()).all()
    assert (fp.byte_offset(cache, kv="k_scale", head=h, slot=slot, dim=d[..., : dims // 16]) == scales[0].numpy()).all()
    places = fp.byte_offset(cache, kv="v_scale", head=h, slot=slot, dim=d[..., : dims // 16])
    assert (np.sort(places.reshape(-1)) == np.sort(scales[1].numpy().reshape(-1))).all()


# SGLang


@for_seeds
def test_blocks_that_sglang_joins(seed: int) -> None:
    path = "srt/disaggregation/common/utils.py"
    joined = vendor("sglang", path, "group_concurrent_contiguous").group_concurrent_contiguous
    random = np.random.default_rng(seed)
    source, target = (random.permutation(12)[:9] for _ in range(2))
    if seed % 2:
        source[3:7] = np.arange(20, 24)
        target[2:6] = np.arange(20, 24)
    cache = fp.Cache("u8[num_blocks=24,block_size=3,head_dim=5]")
    found = fp.runs(cache, cache, source, target, order="requested")
    expected = [(a[0] * 15, b[0] * 15, len(a) * 15) for a, b in zip(*joined(source, target), strict=True)]
    assert list(zip(found.source.tolist(), found.target.tolist(), found.nbytes.tolist(), strict=True)) == expected


@for_seeds
def test_head_slices_of_sglang(seed: int) -> None:
    """Tokens and heads that Mooncake's sender sends from a prefill rank to a decode rank."""
    random = np.random.default_rng(seed)
    total, ranks, others = (int(random.choice([1, 2, 4, 8])) for _ in range(3))
    layers, size, dim = upto(random, 3, 4, 5)
    sizes: Any = {"num_layers": layers, "num_blocks": 9, "block_size": size, "head_dim": dim, "total_kv_heads": total}
    rank, other = int(random.integers(ranks)), int(random.integers(others))
    source = fp.Cache.sglang("nhd", **sizes, kv_heads=max(1, total // ranks), tp=(ranks, rank))
    target = fp.Cache.sglang("nhd", **sizes, kv_heads=max(1, total // others), tp=(others, other))
    if not set(source.heads) & set(target.heads):
        return
    path = "srt/disaggregation/common/staging_buffer.py"
    slices = vendor("sglang", path, "compute_head_slice_params").compute_head_slice_params
    begin, count, end, _ = slices(ranks, others, rank, other, total)
    pages = [random.permutation(9)[:4] for _ in range(2)]
    moved = []
    for layer, kv, block, token in itertools.product(range(layers), range(2), range(4), range(size)):
        rows = [
            fp.byte_offset(cache, layer=layer, kv=kv, head=head, slot=int(page[block]) * size + token)
            for cache, page, head in ((source, pages[0], begin), (target, pages[1], end))
        ]
        moved += [(int(rows[0]) + i, int(rows[1]) + i) for i in range(2 * dim * count)]
    found = fp.runs(source, target, pages[0], pages[1])
    columns = (column.tolist() for column in (found.source, found.target, found.nbytes))
    assert sorted((s + i, t + i) for s, t, n in zip(*columns, strict=True) for i in range(n)) == sorted(moved)


@for_seeds
def test_tokens_of_a_decode_rank_of_sglang(seed: int) -> None:
    path = "srt/disaggregation/common/utils.py"
    plan_of = vendor(
        "sglang", path, "DCPTokenTransferPlan", "build_dcp_token_transfer_plan", dataclasses=dataclasses, npt=np.typing
    )
    random = np.random.default_rng(seed)
    size, ranks, columns = upto(random, 6, 4, 5)
    rank, tokens = int(random.integers(ranks)), int(random.integers(0, columns * size * ranks + 1))
    here = random.permutation(40)[: columns * ranks]
    there = random.permutation(40)[:columns]
    plan = plan_of.build_dcp_token_transfer_plan(
        here, there, physical_page_size=size, dcp_size=ranks, dcp_rank=rank, num_kv_tokens=tokens
    )
    cache = fp.Cache(f"u8[num_blocks=40,block_size={size},head_dim=1]")
    found = fp.runs(cache, cache.placed(cp=(ranks, rank)), here, there, tokens, order="requested")
    rows = zip(found.source.tolist(), found.target.tolist(), found.nbytes.tolist(), strict=True)
    assert [(s + i, t + i) for s, t, n in rows for i in range(n)] == [
        *zip(plan.target_src_token_indices.tolist(), plan.target_dst_token_indices.tolist(), strict=True)
    ]


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
@for_seeds
def test_host_pools_of_sglang(seed: int, layout: str) -> None:
    """HiCache's addresses of pages, and its flat page."""
    torch = pytest.importorskip("torch")
    methods = ("get_page_buffer_meta", "get_data_page", "get_split_heads_page_buffer_meta")
    found = vendor("sglang", "srt/mem_cache/pool_host/mha.py", *(f"MHATokenToKVPoolHost.{m}" for m in methods))
    random = np.random.default_rng(seed)
    layers, pages, heads, size, dim = upto(random, 3, 5, 4, 4, 3)
    axes: dict[str, tuple[int, ...]] = {
        "layer_first": (2, layers, pages * size, heads, dim),
        "page_first": (2, pages * size, layers, heads, dim),
    }
    axes |= {
        "page_first_direct": (2, pages, layers, size, heads, dim),
        "page_head": (2, pages, heads, size, layers, dim),
    }
    pool = type("Pool", (), vars(found))()
    pool.kv_buffer = torch.arange(math.prod(axes[layout]), dtype=torch.int32).reshape(axes[layout])
    pool.layout, pool.page_size, pool.layer_num, pool.head_num, pool.head_dim = layout, size, layers, heads, dim
    pool.size, pool.dtype = pages * size, torch.int32
    cache = fp.Cache.sglang(
        layout, num_layers=layers, num_blocks=pages, kv_heads=heads, block_size=size, head_dim=dim, dtype="s32"
    )
    assert cache.nbytes == pool.kv_buffer.nbytes
    ids = random.permutation(pages)[: int(random.integers(1, pages + 1))]
    slots = (ids[:, None] * size + np.arange(size)).reshape(-1)
    pointers, nbytes = pool.get_page_buffer_meta(torch.from_numpy(slots))
    each = range(layers) if layout == "layer_first" else range(1)
    places = [fp.byte_offset(cache, layer=y, kv=kv, slot=int(i) * size) for i in ids for y in each for kv in range(2)]
    assert [pointer - pool.kv_buffer.data_ptr() for pointer in pointers] == places
    assert set(nbytes) == {cache.page_bytes * layers // 2 // len(each)}
    y, kv, h, t, d = np.ix_(*(np.arange(n) for n in (layers, 2, heads, size, dim)))
    page = fp.byte_offset(cache, layer=y, kv=kv, head=h, slot=int(ids[0]) * size + t, dim=d) // 4
    assert np.sort(page.reshape(-1)).tolist() == np.sort(pool.get_data_page(int(ids[0]) * size).numpy()).tolist()
    if layout == "page_head":
        pointers, _ = pool.get_split_heads_page_buffer_meta(torch.from_numpy(slots), heads)
        places = [
            fp.byte_offset(cache, kv=kv, head=h, slot=int(i) * size)
            for i in ids
            for h in range(heads)
            for kv in range(2)
        ]
        assert [pointer - pool.kv_buffer.data_ptr() for pointer in pointers] == places


# LMCache

FORMATS = [
    "NB_NL_TWO_BS_NH_HS",
    "NB_NL_TWO_NH_BS_HS",
    "NL_X_TWO_NB_BS_NH_HS",
    "NL_X_NB_TWO_BS_NH_HS",
    "NL_X_TWO_NB_NH_BS_HS",
    "NL_X_NB_TWO_NH_BS_HS",
    "TWO_X_NL_X_NBBS_NH_HS",
    "TWO_X_NL_X_NB_BS_NH_HS",
    "NL_X_NB_BS_HS",
    "NL_X_NB_BS_NH_CS",
    "NL_X_NB_NH_BS_CS",
    "NL_X_NB_NH_BS_TWO_HS",
    "NL_X_NB_BS_NH_TWO_HS",
    "NL_X_NB_BS_NH_HS",
    "NL_X_NBBS_ONE_HS",
    "NL_X_TWO_X_NB_BS_NH_HS",
]


def lmcache() -> Any:
    pytest.importorskip("torch")
    pytest.importorskip("lmcache")
    return pytest.importorskip("lmcache.lmcache_native"), pytest.importorskip("lmcache.v1.platform.torch_ops")


def pool_of_lmcache(random: Random, name: str) -> tuple[tuple[int, ...], Any, NDArray[np.int32]]:
    """Random sizes (layers, blocks, tokens of a block, heads, elements of a head), their cache, and a pool for it."""
    layers, blocks, size, heads, dim = upto(random, 3, 9, 5, 3, 4)
    heads = heads if "NH" in name else 1
    cache = fp.Cache.lmcache(
        name, num_layers=layers, num_blocks=blocks, kv_heads=heads, block_size=size, head_dim=dim, dtype="s32"
    )
    pool = random.integers(0, 2**31, cache.nbytes // 4).astype(np.int32)
    return (layers, blocks, size, heads, dim), cache, pool


@pytest.mark.parametrize("name", FORMATS)
@for_seeds
def test_blocks_of_lmcache(seed: int, name: str) -> None:
    """Blocks gathered to LMCache's objects, and back, in each of its formats."""
    native, ops = lmcache()
    import torch

    random = np.random.default_rng(seed)
    sizes, cache, pool = pool_of_lmcache(random, name)
    layers, blocks, size, heads, dim = sizes
    shape = native.PageBufferShapeDesc()
    wide = 2 * dim if "CS" in name or name.endswith("TWO_HS") else dim
    shape.kv_size, shape.nl, shape.nb, shape.bs, shape.nh, shape.hs = (
        len(cache.planes),
        layers,
        blocks,
        size,
        heads,
        wide,
    )
    shape.element_size = 4
    tensor = torch.from_numpy(pool)
    lists, _, inner = name.rpartition("_X_")
    counts = {
        "NL": layers,
        "NB": blocks,
        "TWO": 2,
        "BS": size,
        "NH": heads,
        "HS": dim,
        "CS": 2 * dim,
        "NBBS": blocks * size,
        "ONE": 1,
    }
    dims = [counts[each] for each in inner.split("_")]
    outer = [counts[each] for each in lists.split("_X_") if each]
    whole = tensor.reshape(*outer, *dims)
    paged = whole if not outer else list(whole) if len(outer) == 1 else [list(half) for half in whole]
    ids = random.permutation(blocks)[: int(random.integers(1, blocks + 1))]
    each = int(random.integers(1, 4))
    rows = heads * wide
    objects = [
        torch.zeros(
            (2, layers, each * size, rows) if wide == dim and len(cache.planes) == 2 else (layers, each * size, rows),
            dtype=torch.int32,
        )
        for _ in range(-(-len(ids) // each))
    ]
    kind = getattr(native.EngineKVFormat, name)
    move = ops.multi_layer_block_kv_transfer
    move(paged, objects, ids.tolist(), "cpu", native.TransferDirection.D2H, shape, each * size, kind, 0)
    chunk = fp.gather(cache, pool, ids)
    got = np.concatenate([one.numpy() for one in objects], axis=-2)[..., : len(ids) * size, :]
    # Ours: layers, planes, tokens, heads, dims.
    if got.ndim == 4:
        expected = got.transpose(1, 0, 2, 3).reshape(chunk.shape)
    else:
        expected = got.reshape(layers, len(ids) * size, heads, len(cache.planes), dim).transpose(0, 3, 1, 2, 4)
    np.testing.assert_array_equal(chunk, expected, err_msg=name)

    back = random.permutation(blocks)[: len(ids)]
    pool_again = pool.copy()
    move(paged, objects, back.tolist(), "cpu", native.TransferDirection.H2D, shape, each * size, kind, 0)
    fp.scatter(cache, pool_again, chunk, (back[:, None] * size + np.arange(size)).reshape(-1))
    np.testing.assert_array_equal(pool_again, pool, err_msg=name)


@pytest.mark.parametrize("name", ["NL_X_TWO_NB_BS_NH_HS", "NL_X_NB_TWO_BS_NH_HS", "NL_X_NB_BS_HS"])
@for_seeds
def test_slots_of_lmcache(seed: int, name: str) -> None:
    """Tokens by their slots, negative ones skipped."""
    native, ops = lmcache()
    import torch

    random = np.random.default_rng(seed)
    sizes, cache, pool = pool_of_lmcache(random, name)
    layers, blocks, size, heads, dim = sizes
    slots = random.permutation(blocks * size)[: int(random.integers(1, blocks * size + 1))]
    kept = random.random(len(slots)) < 0.7
    planes = len(cache.planes)
    chunk = torch.zeros((planes, layers, len(slots), heads * dim), dtype=torch.int32)
    kind = getattr(native.EngineKVFormat, name)
    mine = {
        "NL_X_TWO_NB_BS_NH_HS": (2, -1, heads * dim),
        "NL_X_NB_TWO_BS_NH_HS": (blocks, 2, size, -1),
        "NL_X_NB_BS_HS": (-1, dim),
    }
    paged = [layer.reshape(mine[name]) for layer in torch.from_numpy(pool).reshape(layers, -1)]
    arguments = torch.from_numpy(np.where(kept, slots, -1)), "cpu", blocks * size
    ops.multi_layer_kv_transfer(chunk, paged, *arguments, native.TransferDirection.D2H, kind, size)
    gathered = fp.gather(cache, pool, slots=slots[kept])
    expected = chunk.numpy()[:, :, kept].transpose(1, 0, 2, 3).reshape(gathered.shape)
    np.testing.assert_array_equal(gathered, expected)
    values = random.integers(0, 2**31, chunk.shape).astype(np.int32)
    again = pool.copy()
    ops.multi_layer_kv_transfer(torch.from_numpy(values), paged, *arguments, native.TransferDirection.H2D, kind, size)
    whole = values.transpose(1, 0, 2, 3).reshape(layers, planes, len(slots), heads, dim)
    fp.scatter(cache, again, whole, np.where(kept, slots, -1))
    np.testing.assert_array_equal(again, pool)


# tpu-inference


@pytest.mark.parametrize(("layout", "path"), [("rpa_v3", "kernel.py"), ("rpa_v3_64", "kernel_hd64.py")])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@for_seeds
def test_packing_of_tpu_inference(seed: int, dtype: Any, layout: str, path: str) -> None:
    jnp, jax = pytest.importorskip("jax.numpy"), pytest.importorskip("jax")
    width = np.dtype(dtype).itemsize
    align = {"align_to": lambda a, b: -(-a // b) * b, "get_dtype_packing": lambda dtype: 4 // width}
    merge = vendor(
        "tpu_inference", f"kernels/ragged_paged_attention/v3/{path}", "merge_kv", jnp=jnp, jax=jax, **align
    ).merge_kv
    random = np.random.default_rng(seed)
    blocks, heads, size, dim = upto(random, 3, 5, 4, 200)
    dim = 64 if layout == "rpa_v3_64" else dim
    k, v = (random.integers(0, 4, (blocks * size, heads, dim)).astype(dtype) for _ in range(2))
    expected = np.asarray(merge(jnp.asarray(k), jnp.asarray(v)))
    kind = {4: "f32", 2: "bf16", 1: "f8e4m3fn"}[width]
    cache = fp.Cache.tpu_inference(layout, num_blocks=blocks, kv_heads=heads, block_size=size, head_dim=dim, dtype=kind)
    pool = np.zeros(cache.nbytes // width, dtype)
    fp.scatter(cache, pool, np.stack([k, v])[None], np.arange(blocks * size))
    np.testing.assert_array_equal(pool.view(f"u{width}"), expected.reshape(-1).view(f"u{width}"))
