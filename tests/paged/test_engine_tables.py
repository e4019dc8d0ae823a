"""Slots and tables against the engines' own code, where their packages are installed.

On 2026-11-28 vllm 0.33.0, sglang 0.5.23 and flashinfer-python 0.7.2 agreed.

Tests of: paged.places, paged.tables, paged.transfers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fastindex.paged as fp
from fastindex.paged.transfers import local_count
from tests.paged.engines import Pointer, Triton, for_seeds, upto, vendor
from tests.paged.test_slots import random_batch
from tests.paged.test_tables import random_table

TL = Triton()


# vLLM: slots and context parallel


def at_pointer(pointers: Pointer, dtype: object) -> Any:
    return pointers.array[pointers.offset]


@for_seeds
def test_slot_mappings_of_vllm(seed: int) -> None:
    case = random_batch(np.random.default_rng(seed))
    kernel = vendor("vllm", "v1/worker/block_table.py", "ComputeSlotMappingKernel.kernel", tl=TL).kernel
    table, starts, (ranks, rank) = case["table"].astype(np.int32), case["starts"], case["cp"]
    positions = case["positions"].astype(np.int64)
    slots = np.full(len(positions) + 5, 7, np.int64)
    arrays: tuple[Any, ...] = Pointer(starts), Pointer(positions), Pointer(table), table.shape[1], Pointer(slots)
    constants: tuple[Any, ...] = case["size"], ranks, rank, case["interleave"], -1, 1024
    TL.run(kernel, (len(table) + 1,), int(starts[-1]), len(slots), *arrays, *constants)
    options: Any = {"block_size": case["size"], "cp": case["cp"], "interleave": case["interleave"]}
    assert slots.tolist() == [*fp.slot_mapping(table, positions, starts, **options).tolist(), *[-1] * 5]

    name = "_compute_slot_mappings_kernel"
    kernel = getattr(vendor("vllm", "v1/worker/gpu/block_table.py", name, tl=TL, _load_ptr=at_pointer), name)
    slots[:] = 7
    order = np.random.default_rng(seed).permutation(len(table))
    tables = np.empty(1, object)
    tables[0] = Pointer(table)
    arrays = Pointer(order), Pointer(starts), Pointer(positions), Pointer(tables), Pointer([table.shape[1]])
    flags = Pointer([case["size"]]), Pointer([True]), Pointer([True])
    constants = Pointer(slots), len(slots), rank, ranks, case["interleave"], -1, 1024
    TL.run(kernel, (1, len(table) + 1), len(slots), *arrays, *flags, *constants)
    assert slots.tolist() == [*fp.slot_mapping(table[order], positions, starts, **options).tolist(), *[-1] * 5]


@for_seeds
def test_tokens_of_a_rank_as_vllm_counts(seed: int) -> None:
    torch = pytest.importorskip("torch")
    path = "v1/attention/backends/utils.py"
    count = vendor("vllm", path, "get_dcp_local_seq_lens", torch=torch).get_dcp_local_seq_lens
    random = np.random.default_rng(seed)
    lengths, (ranks, interleave) = random.integers(0, 3000, 20), upto(random, 9, 40)
    found = [[local_count(int(n), (ranks, rank), interleave) for rank in range(ranks)] for n in lengths]
    assert count(torch.from_numpy(lengths), ranks, None, interleave).tolist() == found


@for_seeds
def test_pages_shared_out_by_sglang(seed: int) -> None:
    """Logical pages of one physical page on each rank: context parallel with a turn of a page."""
    torch = pytest.importorskip("torch")
    placement = vendor(
        "sglang", "srt/mem_cache/page_interleave.py", "PageInterleavePlacement", PageShardSpec=None, torch=torch
    )
    size, ranks, columns = upto(np.random.default_rng(seed), 9, 5, 7)
    places = placement.PageInterleavePlacement(SimpleNamespace(page_size=size, shard_size=ranks))
    slots = torch.arange(size * ranks * columns)
    for rank in range(ranks):
        found = fp.slot_mapping(
            np.arange(columns)[None], slots.numpy(), [0, len(slots)], block_size=size, cp=(ranks, rank), interleave=size
        )
        assert found.tolist() == torch.where(places.local_mask(slots, rank), places.local_index(slots), -1).tolist()


@for_seeds
def test_tables_of_sglang(seed: int) -> None:
    torch = pytest.importorskip("torch")
    table = random_table(np.random.default_rng(seed))
    slots, size = table.to_slots(pad=0).astype(np.int32), table.block_size
    pages = vendor("sglang", "srt/mem_cache/common.py", "kv_to_page_indices").kv_to_page_indices
    again = fp.BlockTable.from_slots(slots, table.lengths, page_size=size)
    for request, length in enumerate(table.lengths):
        expected = pages(torch.from_numpy(slots[request, :length]), size).tolist()
        assert again.blocks[request, : len(expected)].tolist() == expected
    name = "create_flashinfer_kv_indices_triton"
    kernel = getattr(vendor("sglang", "kernels/ops/attention/kv_indices.py", name, tl=TL), name)
    order = np.random.default_rng(seed).permutation(len(slots))
    indptr = np.concatenate([[0], np.cumsum(table.lengths[order])])
    found = np.zeros(indptr[-1], np.int32)
    arrays = Pointer(slots), Pointer(order), Pointer(table.lengths[order]), Pointer(indptr)
    TL.run(kernel, (len(slots),), *arrays, None, Pointer(found), slots.shape[1])
    one = fp.BlockTable(slots, block_size=1, lengths=table.lengths)
    picked = fp.BlockTable(one.blocks[order], block_size=1, lengths=table.lengths[order])
    assert picked.to_csr().indices.tolist() == found.tolist()


# FlashInfer


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@for_seeds
def test_appends_of_flashinfer(seed: int, layout: str) -> None:
    """Lengths, positions and slots of new tokens by CSR tables, and the pool that they are written to."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(seed)
    table, (heads, dim) = random_table(random), upto(random, 3, 4)
    csr, size = table.to_csr(), table.block_size
    again = fp.BlockTable.from_csr(*csr, page_size=size)
    tensors = [torch.from_numpy(array) for array in csr]
    lengths = vendor("flashinfer", "page.py", "get_seq_lens", torch=torch).get_seq_lens(tensors[0], tensors[2], size)
    assert again.lengths.tolist() == lengths.tolist() == table.lengths.tolist()
    name = "get_batch_indices_positions_kernel"
    kernel = getattr(vendor("flashinfer", "triton/page.py", name, tl=TL), name)
    new = np.array([int(random.integers(0, n + 1)) for n in table.lengths])
    starts = np.concatenate([[0], np.cumsum(new)])
    request, positions = np.zeros(starts[-1], np.int32), np.zeros(starts[-1], np.int32)
    pointers = Pointer(starts), Pointer(table.lengths), Pointer(request), Pointer(positions)
    TL.run(kernel, (len(new),), *pointers, num_stages=2)
    blocks = table.blocks.size
    cache = fp.Cache.flashinfer(layout, num_blocks=blocks, kv_heads=heads, block_size=size, head_dim=dim, dtype="s32")
    pool = random.integers(0, 2**31, cache.nbytes // 4).astype(np.int32)
    expected = pool.copy()
    values = random.integers(0, 2**31, (1, 2, len(positions), heads, dim)).astype(np.int32)
    fp.scatter(cache, pool, values, fp.slot_mapping(again, positions, starts))
    name = "_append_paged_kv_cache_reference"
    append = getattr(vendor("flashinfer", "trace/templates/page.py", name), name)
    inner = (size, heads) if layout == "NHD" else (heads, size)
    paged = torch.from_numpy(expected).reshape(blocks, 2, *inner, dim)
    arrays = (torch.from_numpy(array) for array in (*values[0], request, positions))
    append(*arrays, paged, tensors[1], tensors[0], tensors[2], layout)
    np.testing.assert_array_equal(pool, expected)
