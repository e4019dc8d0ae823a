"""What a relayout of 10 TiB costs on 100 workers: its Dask graph, built here, and the bytes that it moves.

    python benchmarks/scale_graph.py                                             # 10 TiB, 100 workers
    python benchmarks/scale_graph.py --tib 0.0005 --workers 2 --chunk-mib 1 --run   # small, run to check the counts

Two cases: tiles of the same rows, where each task needs one place of the source, and tiles of the transposed array,
where each needs all of it. Bytes between workers are counted from the graph: of W workers, one in W pieces stays where
it is. ``--run`` runs the graph on worker processes of this machine, and counts what the loopback device carries, which
is all pieces, those that a worker sends to itself included.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np

import fastindex as fi

# asv imports every module of this folder; this one is a script that needs the extras.
with contextlib.suppress(ModuleNotFoundError):
    import dask
    import dask.array as da
    from distributed import Client, LocalCluster


def loopback_bytes() -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    raise RuntimeError("no loopback device")


def is_shuffle(layer: Any) -> bool:
    return type(layer).__name__ == "P2PRechunkLayer"


def pieces_of(layer: Any) -> tuple[int, int]:
    """How many pieces a shuffle moves, and how large they are on average, in elements."""
    count = math.prod(len(a) + len(b) - 1 for a, b in zip(layer.chunks_input, layer.chunks, strict=True))
    return count, math.prod(map(sum, layer.chunks)) // count


def describe(name: str, lazy: Any, workers: int, began: float) -> None:
    graph = lazy.__dask_graph__()
    built = time.perf_counter() - began
    size = len(pickle.dumps(graph, protocol=5))
    began = time.perf_counter()
    (optimized,) = dask.optimize(lazy)
    tasks = dict(optimized.__dask_graph__())
    expanded = time.perf_counter() - began
    shuffles = [layer for layer in graph.layers.values() if is_shuffle(layer)]
    print(
        f"{name}: {lazy.nbytes / 2**40:.4g} TiB in {lazy.npartitions} chunks of {lazy.chunksize[0] * 4 / 2**20:.0f} MiB"
    )
    print(f"  built in {built:.1f} s, {size / 2**20:.1f} MiB pickled; {len(tasks)} tasks after {expanded:.1f} s")
    moved = 0.0
    for layer in shuffles:
        count, elements = pieces_of(layer)
        moved += math.prod(map(sum, layer.chunks)) * 4 * (1 - 1 / workers)
        print(f"  shuffle: {count} pieces of {elements * 4 / 2**10:.0f} KiB")
    print(f"  between workers: {moved / 2**40:.4g} TiB, {moved / workers / 2**30:.4g} GiB into each")
    kept = sum(math.prod(map(sum, layer.chunks)) * 4 for layer in shuffles) / max(len(shuffles), 1)
    print(f"  on the disk of each, until the shuffle is over: {kept / workers / 2**30:.4g} GiB")


def lazy_relayout(rows: int, columns: int, chunk_bytes: int, target: str) -> Any:
    source = f"f32[{rows},{columns}]"
    per_chunk = max(chunk_bytes // (32 * columns), 1) * 8 * columns
    buffer = da.zeros(rows * columns, dtype=np.float32, chunks=per_chunk)
    return fi.relayout(buffer, source, f"f32[{rows},{columns}]{target}")


def run(name: str, lazy: Any, workers: int) -> None:
    local = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0")
    with local as cluster, Client(cluster) as client:
        before = loopback_bytes()
        sizes = lazy.map_blocks(lambda block: np.array([block.nbytes]), dtype=np.int64, chunks=(1,))
        assert int(sizes.sum().compute()) == lazy.nbytes
        carried = (loopback_bytes() - before) / 2**20
        peaks = ", ".join(f"{peak / 2**20:.0f} MiB" for peak in client.run(peak_bytes).values())
        print(f"  run: {carried:.0f} MiB over the loopback device; peak memory of the workers {peaks}")


def peak_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tib", type=float, default=10)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--chunk-mib", type=int, default=128)
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args()
    side = math.sqrt(options.tib * 2**40 / 4)
    rows = columns = math.ceil(side / 128) * 128
    for name, target in (("same rows", "{1,0:T(8,128)}"), ("transposed", "{0,1:T(8,128)}")):
        # Dask puts chunks together up to its limit before they are shuffled.
        method = "p2p" if name == "transposed" else None
        with dask.config.set({"array.rechunk.method": method, "array.chunk-size": options.chunk_mib << 20}):
            began = time.perf_counter()
            lazy = lazy_relayout(rows, columns, options.chunk_mib << 20, target)
            describe(f"f32[{rows},{columns}] to {target}, {name}", lazy, options.workers, began)
            if options.run:
                run(name, lazy, options.workers)


if __name__ == "__main__":
    main()
