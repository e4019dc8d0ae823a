"""Time a relayout of a Zarr store through workers of limited memory, beside a copy and dask.array's own transpose.

    python benchmarks/zarr_relayout.py --gib 16 --folder /scratch --workers 2 --worker-memory 1GiB

The source is the buffer of ``u32[n,n]``, stored as bytes in chunks of 32 MiB without compression. The copy writes the
same chunks to another store, by the same workers; the relayout is ``fastindex relayout --workers``, to
``u32[n,n]{0,1:T(8,128)}``; dask.array reads the same numbers as an array of (n, n), transposes it, and writes it in
chunks of the same size. The folder needs room for three such arrays at a time: source, target, and what is between
workers. A million random places of each result are checked, and its size.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fastindex as fi

# asv imports every module of this folder; this one is a script that needs the extras.
with contextlib.suppress(ModuleNotFoundError):
    import dask
    import dask.array as da
    import zarr
    from distributed import Client, LocalCluster
    from distributed.scheduler import KilledWorker

CHUNK_BYTES = 32 << 20
SEEDS = np.random.default_rng(16)


def values_at(numbers: Any) -> Any:
    """The value of each element, from its number: nothing that a cache or a codec could guess."""
    return (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)).astype(np.uint32)


def make_source(path: Path, n: int) -> None:
    stored = zarr.create_array(
        str(path),
        shape=(4 * n * n,),
        chunks=(CHUNK_BYTES,),
        dtype="u1",
        compressors=None,
        attributes={"fastindex_shape": f"u32[{n},{n}]"},
    )
    for begin in range(0, n * n, CHUNK_BYTES // 4):
        values = values_at(np.arange(begin, min(begin + CHUNK_BYTES // 4, n * n)))
        stored[4 * begin : 4 * begin + values.nbytes] = values.view(np.uint8)


def check(buffer: Any, shape: str, n: int) -> None:
    """Compare places of a buffer, whole stretches at a time, with what belongs there."""
    slots = buffer.shape[0] // 4
    assert slots == fi.Shape.parse(shape).slot_count
    for begin in SEEDS.integers(0, slots - 4096, 256):
        found = buffer[4 * begin : 4 * (begin + 4096)].view(np.uint32)
        row, column = fi.multi_index(shape, np.arange(begin, begin + 4096), padding="mark")
        expected = np.where(row < 0, 0, values_at(row * n + column))
        assert (found == expected).all(), (shape, begin)


def timed(name: str, call: Callable[[], None]) -> None:
    os.sync()
    began = time.perf_counter()
    call()
    os.sync()
    print(f"{name:28} {time.perf_counter() - began:8.1f} s", flush=True)


def with_workers(options: argparse.Namespace, call: Callable[[], None]) -> None:
    cluster = LocalCluster(
        n_workers=options.workers,
        threads_per_worker=1,
        memory_limit=options.worker_memory,
        dashboard_address="127.0.0.1:0",
        local_directory=str(options.folder),
    )
    with cluster, Client(cluster):
        call()


def copy(folder: Path) -> None:
    source = zarr.open_array(str(folder / "source.zarr"), mode="r")
    target = zarr.create_array(
        str(folder / "copy.zarr"), shape=source.shape, chunks=source.chunks, dtype="u1", compressors=None
    )
    da.from_array(source, chunks=source.chunks).store(target, lock=False)


def transpose(folder: Path, n: int) -> None:
    source = zarr.open_array(str(folder / "logical.zarr"), mode="r")
    turned = da.from_array(source, chunks=source.chunks).T.rechunk(source.chunks)
    target = zarr.create_array(
        str(folder / "turned.zarr"), shape=(n, n), chunks=source.chunks, dtype="u4", compressors=None
    )
    turned.store(target, lock=False)
    for row in SEEDS.integers(0, n, 64):
        assert (target[row] == values_at(np.arange(n) * n + row)).all()


def relayout(options: argparse.Namespace, source: str, target: str) -> None:
    total = options.workers * dask.utils.parse_bytes(options.worker_memory)
    paths = [str(options.folder / name) for name in ("source.zarr", "packed.zarr")]
    workers = ["--workers", str(options.workers), "--max-memory", str(total)]
    command = [sys.executable, "-m", "fastindex", "relayout", *paths, "--from", source, "--to", target, *workers]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--worker-memory", default="1GiB")
    options = parser.parse_args()
    n = round(math.sqrt(options.gib * 2**30 / 4) / 1024) * 1024
    folder = options.folder = options.folder / "zarr_relayout"
    folder.mkdir(parents=True)
    source, target = f"u32[{n},{n}]", f"u32[{n},{n}]{{0,1:T(8,128)}}"
    print(f"{source}, {4 * n * n / 2**30:.2f} GiB, {options.workers} workers of {options.worker_memory} each")
    try:
        timed("making the source", lambda: make_source(folder / "source.zarr", n))
        timed("copy", lambda: with_workers(options, lambda: copy(folder)))
        shutil.rmtree(folder / "copy.zarr")
        timed("relayout into tiles", lambda: relayout(options, source, target))
        check(zarr.open_array(str(folder / "packed.zarr"), mode="r"), target, n)
        shutil.rmtree(folder / "packed.zarr")
        # The same bytes, as an array: a folder of chunks with other metadata.
        rows = max(CHUNK_BYTES // (4 * n), 1)
        zarr.create_array(
            str(folder / "logical.zarr"), shape=(n, n), chunks=(rows, n), dtype="u4", compressors=None, overwrite=True
        )
        chunks = folder / "logical.zarr" / "c"
        for number in range(-(-n // rows)):
            (chunks / str(number)).mkdir(parents=True)
            os.rename(folder / "source.zarr" / "c" / str(number), chunks / str(number) / "0")
        try:
            timed("dask.array's own transpose", lambda: with_workers(options, lambda: transpose(folder, n)))
        except KilledWorker as error:
            print(f"dask.array's own transpose does not end: its workers need more memory. {error}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
