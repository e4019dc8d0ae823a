"""Paged caches beside what engines do by hand, and beside a copy, in one run.

    python -m benchmarks.paged [--threads N] [--rounds N]

Slots beside NumPy's expression; runs beside the loops of SGLang's and Mooncake's connectors (`np.diff`, `np.split`,
`tolist`); copies beside PyTorch's `index_select`, `permute` and `contiguous` where it is installed, and NumPy's take. A
fraction of copy is the time of a copy that reads and writes as many bytes, with as many threads, divided by the time.
The fastest round of each counts. Every result is compared with the rival's before anything is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import fastindex.paged as fp
from benchmarks.copy_ceiling import copies
from benchmarks.formats import fastest
from benchmarks.measure import machine, touched_bytes, use_processors

Run = Callable[[], Any]

LAYERS, HEADS, DIM = 32, 8, 128


class Job(NamedTuple):
    """What is measured: ours, rivals, and the bytes read or written by each side of a copy, 0 where none compares."""

    name: str
    ours: Run
    rivals: dict[str, Run]
    copied_bytes: int


def slots(threads: int, tokens: int = 1 << 24, requests: int = 64) -> Iterator[Job]:
    """A batch of whole requests, and one of positions in any order."""
    random = np.random.default_rng(0)
    each, size = tokens // requests, 16
    table = random.permutation(requests * -(-each // size)).reshape(requests, -1).astype(np.int32)
    starts = np.arange(requests + 1) * each
    request = np.repeat(np.arange(requests), each)
    out = touched_bytes(8 * tokens).view(np.int64)
    in_order = np.tile(np.arange(each), requests)
    for name, positions in (("in order", in_order), ("in any order", random.integers(0, each, tokens))):

        def ours(positions: Any = positions) -> Any:
            return fp.slot_mapping(table, positions, starts, block_size=size, out=out, threads=threads)

        def by_numpy(positions: Any = positions) -> Any:
            return table[request, positions // size] * np.int64(size) + positions % size

        if not np.array_equal(ours(), by_numpy()):
            raise AssertionError("the slots differ")
        yield Job(f"{tokens} slots, {name}", ours, {"NumPy": by_numpy}, 8 * tokens)


def joined_by_engines(source: Any, target: Any) -> list[tuple[list[int], list[int]]]:
    """What SGLang and Mooncake do: lists of blocks that follow each other on both sides."""
    breaks = np.where((np.diff(source) != 1) | (np.diff(target) != 1))[0] + 1
    parts = zip(np.split(source, breaks), np.split(target, breaks), strict=True)
    return [(a.tolist(), b.tolist()) for a, b in parts]


def runs(blocks: int = 1 << 20) -> Iterator[Job]:
    """A million runs: of one layer, and of 32 layers with keys and values; and of single heads."""
    random = np.random.default_rng(0)
    one = fp.Cache(f"bf16[num_blocks={2 * blocks},2,kv_heads={HEADS},block_size=16,head_dim={DIM}]")
    ids = [random.permutation(2 * blocks)[:blocks] for _ in range(2)]
    found = fp.runs(one, one, *ids)
    yield Job(
        f"{found.count} runs, one a block",
        lambda: fp.runs(one, one, *ids),
        {"engines": lambda: joined_by_engines(*ids)},
        0,
    )
    few = blocks // (2 * LAYERS)
    many = fp.Cache(f"bf16[layers={LAYERS},2,num_blocks={2 * few},block_size=16,kv_heads={HEADS},head_dim={DIM}]")
    part = [random.permutation(2 * few)[:few] for _ in range(2)]
    found = fp.runs(many, many, *part)

    def by_engines() -> Any:
        joined = joined_by_engines(*part)
        page = many.page_bytes // 2
        return [
            (layer * page + a[0] * page, layer * page + b[0] * page, len(a) * page)
            for layer in range(2 * LAYERS)
            for a, b in joined
        ]

    yield Job(f"{found.count} runs, of {LAYERS} layers", lambda: fp.runs(many, many, *part), {"engines": by_engines}, 0)
    nhd = fp.Cache.vllm(
        "flashinfer_nhd", num_layers=LAYERS, num_blocks=few, kv_heads=HEADS, block_size=16, head_dim=DIM
    )
    hnd = fp.Cache.vllm(
        "flashinfer_hnd", num_layers=LAYERS, num_blocks=few, kv_heads=HEADS, block_size=64, head_dim=DIM
    )
    split = random.permutation(few)[: few // 128 * 4], random.permutation(few)[: few // 128]
    count = fp.runs(nhd, hnd, *split).count
    loops = {"loops": lambda: head_by_head(few, *split)}
    yield Job(f"{count} runs of one head and token", lambda: fp.runs(nhd, hnd, *split), loops, 0)


def head_by_head(blocks: int, source: Any, target: Any) -> list[tuple[int, int, int]]:
    """Descriptors of NHD pages of 16 tokens for HND pages of 64, by loops over everything."""
    row, found = 2 * DIM, []
    here, there = 2 * 16 * HEADS * row, 2 * 64 * HEADS * row
    for layer in range(LAYERS):
        for number, block in enumerate(source.tolist()):
            start, end = (layer * blocks + block) * here, (layer * blocks + int(target[number // 4])) * there
            for half in range(2):
                for token in range(16):
                    for head in range(HEADS):
                        read = start + ((half * 16 + token) * HEADS + head) * row
                        written = end + ((half * HEADS + head) * 64 + number % 4 * 16 + token) * row
                        found.append((read, written, row))
    return found


class Move(NamedTuple):
    """A move between two caches: their orders, tokens of a block, and dimensions that become others."""

    name: str
    source: str
    target: str
    sizes: tuple[int, int]
    heads: int = HEADS


MOVES = (
    Move("whole blocks", "flashinfer_hnd", "flashinfer_hnd", (16, 16)),
    Move("NHD to HND", "flashinfer_nhd", "flashinfer_hnd", (16, 16)),
    Move("128 to 16 tokens a block, HND", "flashinfer_hnd", "flashinfer_hnd", (128, 16)),
    Move("16 to 64 tokens a block, NHD to HND", "flashinfer_nhd", "flashinfer_hnd", (16, 64)),
)


def moves(threads: int, nbytes: int = 64 << 20) -> Iterator[Job]:
    """Copies of 64 MiB of random blocks."""
    random = np.random.default_rng(0)
    tokens = nbytes // (2 * 2 * HEADS * DIM)
    for move in MOVES:
        pools, caches, ids = [], [], []
        for order, size in zip((move.source, move.target), move.sizes, strict=True):
            blocks = 2 * tokens // size
            caches.append(fp.Cache.vllm(order, num_blocks=blocks, kv_heads=HEADS, block_size=size, head_dim=DIM))
            pools.append(touched_bytes(caches[-1].nbytes).view(np.int16))
            ids.append(random.permutation(blocks)[: tokens // size])
        pools[0][:] = random.integers(0, 2**15, len(pools[0]))

        def ours(caches: Any = caches, pools: Any = pools, ids: Any = ids) -> Any:
            fp.copy(*caches, *pools, *ids, threads=threads)
            return pools[1]

        rivals = rivals_of(move, pools, ids)
        expected = ours().copy()
        for name, run in rivals.items():
            pools[1][:] = 0
            run()
            if not np.array_equal(pools[1], expected):
                raise AssertionError(f"{name} of {move.name} differs")
        yield Job(f"{move.name}, {nbytes >> 20} MiB", ours, rivals, nbytes)


def rivals_of(move: Move, pools: list[Any], ids: list[Any]) -> dict[str, Run]:
    """What people write: select, permute, make contiguous, put back; by PyTorch and by NumPy."""
    shapes, to_hnd = [], move.source != move.target
    for order, size in zip((move.source, move.target), move.sizes, strict=True):
        inner = (size, HEADS, DIM) if order.endswith("nhd") else (HEADS, size, DIM)
        shapes.append((-1, 2, *inner))
    here, there = (pool.reshape(shape) for pool, shape in zip(pools, shapes, strict=True))
    small, large = move.sizes
    rivals: dict[str, Run] = {}

    def by_numpy() -> None:
        there[ids[1]] = _arranged(np.take(here, ids[0], axis=0), small, large, to_hnd, "transpose")

    rivals["NumPy"] = by_numpy
    try:
        import torch
    except ImportError:
        return rivals
    tensors = [torch.from_numpy(array) for array in (here, there, *ids)]

    def by_torch() -> None:
        picked = tensors[0].index_select(0, tensors[2])
        tensors[1].index_copy_(0, tensors[3], _arranged(picked, small, large, to_hnd, "permute").contiguous())

    rivals["torch"] = by_torch
    return rivals


def _arranged(picked: Any, small: int, large: int, to_hnd: bool, permute: str) -> Any:
    if to_hnd and small == large:
        return getattr(picked, permute)(0, 1, 3, 2, 4)
    if to_hnd:
        joined = picked.reshape(-1, large // small, 2, small, HEADS, DIM)
        return getattr(joined, permute)(0, 2, 4, 1, 3, 5).reshape(-1, 2, HEADS, large, DIM)
    if small > large:
        parts = picked.reshape(-1, 2, HEADS, small // large, large, DIM)
        return getattr(parts, permute)(0, 3, 1, 2, 4, 5).reshape(-1, 2, HEADS, large, DIM)
    return picked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    use_processors(arguments.threads)
    try:
        import torch

        torch.set_num_threads(arguments.threads)
    except ImportError:
        print("PyTorch is not installed: its columns are left out")
    print(machine())
    print("| | ms | of copy | times the rivals |\n| --- | --: | --: | --- |")
    for job in (*slots(arguments.threads), *runs(), *moves(arguments.threads)):
        rivals = {"ours": job.ours}
        if job.copied_bytes:
            rivals |= copies(job.copied_bytes, arguments.threads)
        found = fastest(rivals, arguments.rounds)
        others = fastest(job.rivals, max(arguments.rounds // 5, 2))
        ceiling = min((seconds for name, seconds in found.items() if name != "ours"), default=None)
        of_copy = "" if ceiling is None else f"{ceiling / found['ours']:.2f}"
        beside = ", ".join(f"{name} {seconds / found['ours']:.1f}" for name, seconds in others.items())
        print(f"| {job.name} | {found['ours'] * 1e3:.2f} | {of_copy} | {beside} |", flush=True)


if __name__ == "__main__":
    main()
