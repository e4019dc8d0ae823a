"""Two worker processes: the same answers, kernels that are warm, and a worker that is killed.

Tests of: dask.warming, dask.chunks.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from tests.cases import strategies
from tests.cases.hangs import HANG_SECONDS
from tests.dask.chunked import Chunked
from tests.oracles import reference
from tests.oracles.comparison import differences_in_packing, differences_in_relayout

dask = pytest.importorskip("dask", reason="dask is not installed; pip install 'fastindex[dask]'")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed", reason="distributed is not installed; pip install 'fastindex[dask]'")

import fastindex.dask  # noqa: E402

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        dask.config.set({"distributed.admin.tick.interval": "1h"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", memory_limit="1GiB"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.register_plugin(fastindex.dask.WarmUp())
        yield client


def loaded_kernels() -> int:
    from fastindex.runtime import machine_code

    return len(machine_code.loaded_kernels())


def test_workers_are_warm(client: Any) -> None:
    counts = client.run(loaded_kernels)
    assert len(counts) == 2
    assert min(counts.values()) > 40


def test_random_arrays(client: Any) -> None:
    for seed in strategies.seeds(20):
        package = Chunked(seed, dask.compute)
        shape = strategies.random_shape(seed)
        source, destination = strategies.random_pair(seed)
        assert differences_in_packing(shape, seed, package=package) == [], f"seed {seed}"
        assert differences_in_relayout(source, destination, seed, package=package) == [], f"seed {seed}"


@pytest.mark.parametrize("element_type", ["bf16", "f8e5m2", "f8e4m3fn", "s4"])
def test_types_that_numpy_does_not_have_travel(client: Any, element_type: str) -> None:
    text = f"{element_type}[64,96]{{0,1}}"
    shape = fi.Shape.parse(text)
    values = np.arange(64 * 96).reshape(64, 96).astype(shape.element_type.numpy_dtype)
    with dask.config.set({"array.rechunk.method": "tasks"}):
        found = fi.pack(fi.unpack(da.from_array(values.reshape(-1), chunks=96), f"{element_type}[64,96]"), text)
        assert found.compute().tobytes() == values.T.tobytes()


@pytest.mark.parametrize("method", ["tasks", "p2p"])
def test_transposed_tiles(client: Any, method: str) -> None:
    """What travels between the workers travels whole, as tasks and from worker to worker."""
    import ml_dtypes

    values = np.arange(200 * 300).reshape(200, 300).astype(ml_dtypes.bfloat16)
    source, destination = "bf16[200,300]{1,0:T(8,128)(2,1)}", "bf16[200,300]{0,1:T(8,128)(2,1)}"
    buffer = da.from_array(fi.pack(values, source), chunks=10_000)
    with dask.config.set({"array.rechunk.method": method}):
        found = fi.relayout(buffer, source, destination).compute()
    cells = reference.slots(reference.parse(destination))
    expected = np.array([0 if cell is None else values[cell] for cell in cells], ml_dtypes.bfloat16)
    assert found.tobytes() == expected.tobytes()


def test_errors_come_back_as_they_are(client: Any) -> None:
    with pytest.raises(fi.OutOfBoundsError, match=r"coordinate 33 at position 33 is out of bounds"):
        fi.linear_index("f32[33,5]", (da.arange(40, chunks=8), 0)).compute()


def held(block: Any, folder: str) -> Any:
    """Each worker computes one block, and holds its second one until there is a file: however slow a machine is."""
    first, second = (Path(folder, f"{when}-{os.getpid()}") for when in ("first", "second"))
    if first.exists():
        second.touch()
        while not Path(folder, "go").exists():
            time.sleep(0.01)
    first.touch()
    return block


def test_a_worker_that_is_killed(client: Any, tmp_path: Path) -> None:
    """The other one, and the one that takes its place, do its work again."""
    values = np.arange(512 * 640, dtype=np.float32).reshape(512, 640)
    source, destination = "f32[512,640]", "f32[512,640]{0,1:T(8,128)}"
    buffer = da.from_array(values.reshape(-1), chunks=8 * 640).map_blocks(held, str(tmp_path), dtype=np.float32)
    with dask.config.set({"array.rechunk.method": "tasks"}):
        future = client.compute(fi.relayout(buffer, source, destination))
    victim = min(client.run(os.getpid).values())
    while not (tmp_path / f"second-{victim}").exists():
        time.sleep(0.01)
    os.kill(victim, signal.SIGKILL)
    (tmp_path / "go").touch()
    assert future.result(timeout=HANG_SECONDS).tobytes() == fi.pack(values, destination).tobytes()
