"""Zarr stores through two worker processes, by the command line and by its functions, against the slow reference.

Tests of: jobs.cluster_jobs, cli.clusters.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi
from tests.cases.hangs import HANG_SECONDS
from tests.oracles import reference

pytest.importorskip("dask", reason="dask is not installed; pip install 'fastindex[dask]'")
distributed = pytest.importorskip("distributed", reason="distributed is not installed; pip install 'fastindex[dask]'")
zarr = pytest.importorskip("zarr", reason="zarr is not installed; pip install 'fastindex[zarr]'")

from fastindex.cli import clusters  # noqa: E402
from fastindex.jobs import cluster_jobs  # noqa: E402
from tests.commands import run_command  # noqa: E402

pytestmark = pytest.mark.long

VALUES = np.random.default_rng(3).integers(0, 1000, (70, 90)).astype(np.float32)
PLAIN, TILED = "f32[70,90]", "f32[70,90]{0,1:T(8,128)}"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows, so that there are many."""
    monkeypatch.setattr(cluster_jobs, "_LEAST_TASK_BYTES", 4096)
    monkeypatch.setattr(cluster_jobs, "_MOST_TASK_BYTES", 4096)


class Written:
    total = done = 0

    def start(self, total: int) -> None:
        self.total = total

    def advance(self, count: int) -> None:
        self.done += count


def expected(text: str, values: Any = VALUES) -> bytes:
    cells = reference.slots(reference.parse(text))
    return np.array([0 if cell is None else values[cell] for cell in cells], values.dtype).tobytes()


def stored(path: Path, values: Any, chunks: Any, **options: Any) -> str:
    array = zarr.create_array(str(path), shape=values.shape, chunks=chunks, dtype=values.dtype, **options)
    array[...] = values
    return str(path)


@pytest.mark.parametrize("options", [{}, {"compressors": None}, {"shards": (32, 90)}], ids=["zstd", "plain", "shards"])
def test_pack_relayout_unpack(client: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    source = stored(tmp_path / "a.zarr", VALUES, (16, 45), **options)
    paths = [str(tmp_path / name) for name in ("b.zarr", "c.zarr", "d.zarr")]
    plain, tiled = fi.Shape.parse(PLAIN), fi.Shape.parse(TILED)
    progress = Written()
    cluster_jobs.pack_store(source, paths[0], plain, progress, client)
    assert progress.done == progress.total == plain.nbytes
    cluster_jobs.relayout_store(paths[0], paths[1], plain, tiled, Written(), client)
    cluster_jobs.unpack_store(paths[1], paths[2], tiled, Written(), client)
    for path, text in zip(paths, (PLAIN, TILED), strict=False):
        buffer = zarr.open_array(path, mode="r")
        assert (buffer[:].tobytes(), buffer.attrs["fastindex_shape"]) == (expected(text), str(fi.Shape.parse(text)))
        assert len(list((Path(path) / "c").iterdir())) > 3
        assert bool(buffer.compressors) == (options != {"compressors": None})
    np.testing.assert_array_equal(zarr.open_array(paths[2], mode="r")[:], VALUES)
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "b.zarr", "c.zarr", "d.zarr"]


@pytest.mark.parametrize("text", ["bf16[70,90]{1,0:T(8,128)(2,1)}", "s4[70,90]{0,1:T(4,3)E(4)}", "f32[0,4]", "u8[]"])
def test_any_buffer(client: Any, tmp_path: Path, text: str) -> None:
    """Buffers of types that Zarr does not have, of packed ones, and of none."""
    shape = fi.Shape.parse(text)
    turned = shape.with_layout(fi.Layout(shape.layout.minor_to_major[::-1]))
    noise = np.random.default_rng(1).integers(0, 256, shape.nbytes).astype(np.uint8)
    source = stored(tmp_path / "a.zarr", noise, (max(min(1000, shape.nbytes), 1),))
    target = str(tmp_path / "b.zarr")
    cluster_jobs.relayout_store(source, target, shape, turned, Written(), client)
    assert zarr.open_array(target, mode="r")[:].tobytes() == fi.relayout(noise, shape, turned).tobytes()


def test_what_a_store_has_to_hold(client: Any, tmp_path: Path) -> None:
    source = stored(tmp_path / "a.zarr", VALUES, (16, 45))
    buffer = stored(tmp_path / "b.zarr", np.zeros(70 * 90 * 4, np.uint8), 999, attributes={"fastindex_shape": PLAIN})
    target = str(tmp_path / "c.zarr")
    tiled, pack = fi.Shape.parse(TILED), cluster_jobs.pack_store
    for call, text in [
        (
            lambda: cluster_jobs.pack_store(source, target, fi.Shape.parse("s32[70,90]"), Written(), client),
            "f32 is not cast to s32",
        ),
        (
            lambda: cluster_jobs.pack_store(source, target, fi.Shape.parse("f32[90,70]"), Written(), client),
            "dimensions",
        ),
        (
            lambda: pack(source, target, fi.Shape.parse("bf16[70,90]"), Written(), client, "no"),
            "needs bfloat16, or its bits as uint16",
        ),
        (lambda: cluster_jobs.relayout_store(buffer, target, tiled, tiled, Written(), client), "is a buffer of f32"),
        (lambda: cluster_jobs.unpack_store(source, target, tiled, Written(), client), "one dimension"),
    ]:
        with pytest.raises(fi.FastIndexError, match=text):
            call()
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "b.zarr"]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
def test_types_that_zarr_python_lacks(client: Any, tmp_path: Path, name: str) -> None:
    """Their bits travel as they are, and the store says what they are."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = np.random.default_rng(5).integers(-8, 8, (70, 90)).astype(dtype)
    kind = fi.ElementType.from_numpy_dtype(dtype)
    tiled = fi.Shape.parse(f"{kind}[70,90]{{0,1:T(8,128)}}")
    paths = [str(tmp_path / name) for name in ("a.zarr", "b.zarr", "c.zarr", "d.zarr")]
    stored(tmp_path / "a.zarr", fi.pack(values, tiled).view(np.uint8), 1000)
    cluster_jobs.unpack_store(paths[0], paths[1], tiled, Written(), client)
    assert json.loads((tmp_path / "b.zarr" / "zarr.json").read_text())["data_type"] == name
    cluster_jobs.pack_store(paths[1], paths[2], tiled, Written(), client)
    assert zarr.open_array(paths[2], mode="r")[:].tobytes() == expected(str(tiled), values)
    stored(tmp_path / "d.zarr", values.view(f"u{dtype.itemsize}"), (20, 33))
    cluster_jobs.pack_store(paths[3], str(tmp_path / "e.zarr"), tiled, Written(), client)
    assert zarr.open_array(str(tmp_path / "e.zarr"), mode="r")[:].tobytes() == expected(str(tiled), values)
    if tensorstore := sys.modules.get("tensorstore"):
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": paths[1]}}
        found = tensorstore.open(spec).result()
        assert (found.dtype.name, found.read().result().tobytes()) == (name, values.tobytes())


def test_links_do_not_lead_outside(client: Any, tmp_path: Path) -> None:
    """Whoever reads: the store's metadata is read here, its chunks by workers."""
    source = stored(tmp_path / "a.zarr", np.ones((70, 90), np.float32), (70, 90), compressors=None)
    chunk = tmp_path / "a.zarr" / "c" / "0" / "0"
    chunk.rename(tmp_path / "secret")
    chunk.symlink_to(tmp_path / "secret")
    with pytest.raises(fi.FastIndexError, match="leads outside the store"):
        cluster_jobs.pack_store(source, str(tmp_path / "b.zarr"), fi.Shape.parse(TILED), Written(), client)
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "secret"]


def fail(*arguments: Any, **options: Any) -> Any:
    raise OSError("disk full")


def test_a_failure_leaves_nothing(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = stored(tmp_path / "a.zarr", VALUES, (16, 45))
    target = str(tmp_path / "b.zarr")
    with monkeypatch.context() as patched:
        patched.setattr(cluster_jobs, "write_block", fail)
        with pytest.raises(OSError, match="disk full"):
            cluster_jobs.pack_store(source, target, fi.Shape.parse(TILED), Written(), client)
    assert os.listdir(tmp_path) == ["a.zarr"]
    cluster_jobs.pack_store(source, target, fi.Shape.parse(TILED), Written(), client)
    with pytest.raises(fi.FastIndexError, match="is not replaced"):
        cluster_jobs.pack_store(source, target, fi.Shape.parse(TILED), Written(), client)
    assert zarr.open_array(target, mode="r")[:].tobytes() == expected(TILED)


def run(*arguments: str) -> Any:
    return run_command(arguments)


def test_the_command_line(client: Any, tmp_path: Path) -> None:
    source = stored(tmp_path / "a.zarr", VALUES.reshape(-1).view(np.uint8), 4000)
    for options in (("--workers", "2"), ("--scheduler", client.scheduler.address)):
        target = str(tmp_path / f"b{options[0]}.zarr")
        found = run("relayout", source, target, "--from", PLAIN, "--to", TILED, *options)
        assert (found.exit_code, found.output) == (0, "")
        assert zarr.open_array(target, mode="r")[:].tobytes() == expected(TILED)
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "b--scheduler.zarr", "b--workers.zarr"]


def test_pack_and_unpack_on_the_command_line(client: Any, tmp_path: Path) -> None:
    source = stored(tmp_path / "a.zarr", VALUES, (16, 45))
    paths = [str(tmp_path / name) for name in ("b.zarr", "c.zarr")]
    there = ("--shape", TILED, "--scheduler", client.scheduler.address)
    assert run("pack", source, paths[0], *there).exit_code == 0
    assert run("unpack", *paths, *there).exit_code == 0
    assert zarr.open_array(paths[0], mode="r")[:].tobytes() == expected(TILED)
    np.testing.assert_array_equal(zarr.open_array(paths[1], mode="r")[:], VALUES)


def test_casts_on_the_command_line(client: Any, tmp_path: Path) -> None:
    """Elements are cast by the workers as by one process, and as ml_dtypes casts them."""
    values = VALUES * np.float32(1.003)
    source = stored(tmp_path / "a.zarr", values, (16, 45))
    brain = TILED.replace("f32", "bf16")
    cluster = ("--scheduler", client.scheduler.address)
    for number, options in enumerate((cluster, ())):
        packed, back, turned = (str(tmp_path / f"{name}{number}.zarr") for name in "bcd")
        assert run("pack", source, packed, "--shape", brain, *options).output == ""
        assert run("unpack", packed, back, "--shape", brain, "--dtype", "f64", *options).output == ""
        assert run("relayout", packed, turned, "--from", brain, "--to", PLAIN, *options).output == ""
        cast = values.astype(ml_dtypes.bfloat16)
        assert zarr.open_array(packed, mode="r")[:].tobytes() == expected(brain, cast)
        np.testing.assert_array_equal(zarr.open_array(back, mode="r")[:], cast.astype(np.float64))
        assert zarr.open_array(turned, mode="r")[:].tobytes() == cast.astype(np.float32).tobytes()
        refused = run("pack", source, str(tmp_path / "e.zarr"), "--shape", TILED.replace("f32", "s8"), *options)
        assert refused.exit_code == 1
        assert "f32 is not cast to s8" in refused.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("a.zarr", "b.bin", "--workers", "2"), "b.bin does not end in .zarr"),
        (("a.zarr", "b.zarr", "--workers", "2", "--scheduler", "tcp://x:1"), "give one of them"),
        (("a.zarr", "b.zarr", "--workers", "9", "--max-memory", "1GiB"), "too little for 9 workers"),
        (("a.zarr", "b.zarr", "--workers", "0"), "--workers"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], text: str) -> None:
    found = run("relayout", *arguments, "--from", PLAIN, "--to", TILED)
    assert found.exit_code == 2
    assert text in found.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_chunks_are_written(tmp_path: Path, number: int) -> None:
    """Sent to all processes, as a terminal does: nothing is left, neither the target's parts nor Dask's scratch."""
    values = np.zeros((3000, 2001), np.float32)
    stored(tmp_path / "a.zarr", values, (50, 2001))
    command = [sys.executable, "-m", "fastindex", "pack", "a.zarr", "b.zarr", "--shape", "f32[3000,2001]{0,1:T(8,128)}"]
    process = subprocess.Popen(
        [*command, "--workers", "2", "--max-memory", "2GiB"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    while process.poll() is None and not [*tmp_path.glob(".b.zarr.*.partial/c")]:
        time.sleep(0.005)
    os.killpg(process.pid, number)
    message = process.communicate()[1]
    # A job that was quick enough is done.
    assert process.returncode in (128 + number, 0)
    assert "Traceback" not in message
    assert sorted(os.listdir(tmp_path)) in (["a.zarr"], ["a.zarr", "b.zarr"])


WORKERS = ("--workers", "2", "--max-memory", "2GiB")


def small_disk(tmp_path: Path, size: str, *words: str) -> tuple[int, str, str]:
    """Run a command where `disk` is a separate, small one; return its status, what is left there, and stderr."""
    (tmp_path / "disk").mkdir()
    script = f'mount -t tmpfs -o size={size} none disk || exit 77; "$@"; status=$?; ls -A disk; exit $status'
    command = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-m", "fastindex", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this system does not allow mounts")
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root, to mount a small disk")
@pytest.mark.parametrize("size", ["8k", "300k", "2m"])
def test_a_full_disk(tmp_path: Path, size: str) -> None:
    """Under the scratch of the workers, or under the chunks."""
    stored(tmp_path / "a.zarr", np.random.default_rng(1).random((900, 1000), np.float32), (100, 1000))
    status, left, errors = small_disk(
        tmp_path, size, "pack", "a.zarr", "disk/b.zarr", "--shape", "f32[900,1000]{0,1:T(8,128)}", *WORKERS
    )
    assert (status, left) == (1, "")
    assert errors.count("\n") == 1
    assert errors.startswith("fastindex: disk") or "No space left on device" in errors, errors


def test_a_limit_of_file_sizes(tmp_path: Path) -> None:
    """Workers inherit it."""
    import resource

    stored(tmp_path / "a.zarr", np.random.default_rng(1).random((900, 1000), np.float32), (100, 1000))
    command = [sys.executable, "-m", "fastindex", "pack", "a.zarr", "b.zarr", "--shape", "f32[900,1000]{0,1:T(8,128)}"]
    done = subprocess.run(
        [*command, *WORKERS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
    )
    assert (done.returncode, done.stderr) == (1, "fastindex: b.zarr: File too large\n")
    assert os.listdir(tmp_path) == ["a.zarr"]


MASKS = """
import signal
from multiprocessing import util
from fastindex.cli.clusters import _cluster
started, before = [], util.spawnv_passfds
def spawn(path, arguments, files):
    if any("spawn_main" in str(one) for one in arguments):
        started.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
    return before(path, arguments, files)
util.spawnv_passfds = spawn
if __name__ == "__main__":
    import tempfile
    with tempfile.TemporaryDirectory() as scratch, _cluster(2, 1 << 30, scratch):
        print(started)
"""


def test_ctrl_c_reaches_no_worker(tmp_path: Path) -> None:
    """From their first moment on: they would print tracebacks of their imports."""
    (tmp_path / "masks.py").write_text(MASKS)
    done = subprocess.run([sys.executable, "masks.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[True, True]\n"


KILLED_AT_START = """
import threading, time
import psutil
from fastindex.__main__ import main
def kill():
    # The first worker, as soon as it is there.
    while True:
        for child in psutil.Process().children():
            try:
                if any("spawn_main" in word for word in child.cmdline()):
                    time.sleep(SECONDS)
                    child.kill()
                    print("killed", flush=True)
                    return
            except psutil.Error:
                pass
        time.sleep(0.001)
if __name__ == "__main__":
    threading.Thread(target=kill, daemon=True).start()
    main()
"""


@pytest.mark.parametrize("seconds", ["0", "0.3", "1", "1.8", "2.5"])
def test_a_worker_that_is_lost_while_it_starts(tmp_path: Path, seconds: str) -> None:
    stored(tmp_path / "a.zarr", VALUES, (16, 45))
    (tmp_path / "killed.py").write_text(KILLED_AT_START.replace("SECONDS", seconds))
    command = [sys.executable, "killed.py", "pack", "a.zarr", "b.zarr", "--shape", TILED, *WORKERS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
    # The later ones may find the job done.
    assert done.stdout == "killed\n" or (seconds != "0" and not done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert zarr.open_array(str(tmp_path / "b.zarr"), mode="r")[:].tobytes() == expected(TILED)
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "b.zarr", "killed.py"]


def test_a_worker_is_lost_that_the_cluster_had_not_heard_of() -> None:
    """A KeyError at the end, by Distributed's own cluster."""
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": "CRITICAL"}
    with clusters.cluster_type()(n_workers=1, **options) as cluster:
        cluster.scheduler_info["workers"].clear()


def test_a_lost_scheduler(tmp_path: Path) -> None:
    """It has no workers, so the job cannot be done before it is lost."""
    stored(tmp_path / "a.zarr", VALUES, (16, 45))
    file = tmp_path / "scheduler.json"
    with open(tmp_path / "log", "w") as log:
        words = ["--port", "0", "--scheduler-file", str(file), "--no-dashboard"]
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", *words]
        scheduler = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while scheduler.poll() is None and not (file.exists() and file.read_text().endswith("}")):
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        command = [sys.executable, "-m", "fastindex", "pack", "a.zarr", "b.zarr", "--shape", TILED]
        process = subprocess.Popen([*command, "--scheduler", address], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not [*tmp_path.glob(".b.zarr.*.partial")]:
            time.sleep(0.005)
    finally:
        scheduler.kill()
        scheduler.wait()
    errors = process.communicate(timeout=HANG_SECONDS)[1]
    assert process.returncode == 1
    assert errors.endswith(f"the scheduler at {address} was lost; nothing was written\n")
    assert errors.count("\n") == 1
    assert sorted(path.name for path in tmp_path.glob("*zarr*")) == ["a.zarr"]
    assert not [*tmp_path.glob(".b.zarr*")]
