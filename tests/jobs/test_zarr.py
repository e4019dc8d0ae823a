"""Zarr stores in and out of the file jobs, against NumPy and TensorStore.

Tests of: jobs.zarr_arrays, jobs.zarr_stores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi
from fastindex.algebra.segments import box_segments, byte_segments
from fastindex.jobs import zarr_arrays
from fastindex.jobs.layout_jobs import pack_file, relayout_file, unpack_file
from fastindex.jobs.zarr_arrays import ATTRIBUTE, is_zarr, read_place, stored_zarr_buffer
from fastindex.terminal import NoProgress
from tests.cases.hangs import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 64 << 30


@pytest.fixture(name="zarr")
def zarr_python() -> Any:
    return pytest.importorskip("zarr")


@pytest.mark.skipif("zarr" in sys.modules, reason="zarr is there")
def test_without_zarr_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    shape = fi.Shape.parse("f32[2,3]{1,0:T(2,2)}")
    with pytest.raises(fi.UnsupportedError, match=r"pip install 'fastindex\[zarr\]'"):
        pack_file(str(tmp_path / "a.zarr"), str(tmp_path / "b"), shape, NoProgress(), MEMORY)


def test_what_is_a_store() -> None:
    assert [is_zarr(name) for name in ("a.zarr", "x/a.zarr/group/w", "a.npy", "zarr", "a.zarr.npy")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def stored(zarr: Any, path: Path, array: np.ndarray, **options: Any) -> str:
    made = zarr.create_array(str(path), shape=array.shape, dtype=array.dtype, **options)
    made[...] = array
    return str(path)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("f32[70,300]{1,0:T(8,128)}", {"chunks": (16, 100)}),
        ("f32[70,300]{0,1:T(8,128)}", {"chunks": (10, 30), "shards": (20, 90)}),
        ("f64[5,6,7]{0,2,1}", {"chunks": (2, 3, 4), "compressors": None}),
        ("s8[9,50]{1,0:T(4,16)(4,1)L(1000)}", {"chunks": (9, 50)}),
        ("u8[40]{0:PAD(50)PV(one)}", {"chunks": (7,)}),
        ("f32[4,6,20]{2,1,0:T(*,7)}", {"chunks": (1, 6, 20)}),
        ("f32[0,3]{1,0:T(2,2)}", {"chunks": (1, 1)}),
        ("f32[]{:T(4)}", {}),
    ],
)
def test_there_and_back(zarr: Any, tmp_path: Path, text: str, options: dict[str, Any]) -> None:
    shape = fi.Shape.parse(text)
    array = np.random.default_rng(0).integers(0, 100, shape.dimensions).astype(shape.element_type.numpy_dtype)
    source, packed, other, back = (str(tmp_path / name) for name in ("a.zarr", "b.zarr", "c.zarr", "d.zarr"))
    stored(zarr, tmp_path / "a.zarr", array, **options)
    pack_file(source, packed, shape, NoProgress(), MEMORY)
    buffer = zarr.open_array(packed, mode="r")
    assert buffer.attrs[ATTRIBUTE] == text
    assert np.asarray(buffer[...]).tobytes() == fi.pack(array, shape).tobytes()
    turned = fi.Shape(shape.element_type, shape.dimensions, fi.Layout(tuple(range(shape.rank))))
    relayout_file(packed, other, shape, turned, NoProgress(), MEMORY)
    assert np.asarray(zarr.open_array(other, mode="r")[...]).tobytes() == array.tobytes(order="F")
    unpack_file(other, back, turned, NoProgress(), MEMORY)
    found = zarr.open_array(back, mode="r")
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found[...], array)


def test_files_and_stores_mix(zarr: Any, tmp_path: Path) -> None:
    shape = fi.Shape.parse("f32[33,200]{1,0:T(8,128)}")
    array = np.random.default_rng(0).random(shape.dimensions, np.float32)
    np.save(tmp_path / "a.npy", array)
    pack_file(str(tmp_path / "a.npy"), str(tmp_path / "b.zarr"), shape, NoProgress(), MEMORY)
    unpack_file(str(tmp_path / "b.zarr"), str(tmp_path / "c.npy"), shape, NoProgress(), MEMORY)
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), array)


def test_no_chunk_is_written_twice(zarr: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor read by the one who writes it: every box is made of whole chunks."""
    monkeypatch.setattr("fastindex.jobs.zarr_arrays._CHUNK_BYTES", 20_000)
    events: Counter[tuple[str, str]] = Counter()
    store = zarr.storage.LocalStore

    def counted(name: str) -> Any:
        before = getattr(store, name)

        async def call(self: Any, key: str, *arguments: Any, **options: Any) -> Any:
            if ".partial" in str(self.root) and "/" in key:
                events[name, str(self.root) + key] += 1
            return await before(self, key, *arguments, **options)

        return call

    for name in ("get", "set"):
        monkeypatch.setattr(store, name, counted(name))
    array = np.random.default_rng(0).random((130, 520), np.float32)
    stored(zarr, tmp_path / "a.zarr", array, chunks=(50, 70))
    for number, tiled in enumerate(("f32[130,520]{1,0:T(8,128)}", "f32[130,520]{0,1:T(8,128)}")):
        shape = fi.Shape.parse(tiled)
        names = [str(tmp_path / f"{name}{number}.zarr") for name in "bc"]
        pack_file(str(tmp_path / "a.zarr"), names[0], shape, NoProgress(), MEMORY)
        unpack_file(names[0], names[1], shape, NoProgress(), MEMORY)
        np.testing.assert_array_equal(zarr.open_array(names[1], mode="r")[...], array)
    assert len(events) > 40
    assert {(name, count) for (name, _), count in events.items()} == {("set", 1)}


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_types_that_only_tensorstore_has(zarr: Any, tmp_path: Path, name: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    dtype = np.dtype(getattr(ml_dtypes, name))
    array = np.random.default_rng(0).integers(-8, 8, (100, 300)).astype(dtype)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a.zarr")}}
    chunks = tensorstore.ChunkLayout(chunk_shape=[32, 100])
    made = tensorstore.open(
        spec, create=True, dtype=getattr(tensorstore, name), shape=array.shape, chunk_layout=chunks, fill_value=1
    ).result()
    made[32:].write(array[32:]).result()
    array[:32] = 1
    shape = fi.Shape.parse(f"{fi.ElementType.from_numpy_dtype(dtype)}[100,300]{{1,0:T(8,128)}}")
    pack_file(str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr"), shape, NoProgress(), MEMORY)
    assert zarr.open_array(str(tmp_path / "b.zarr"))[:].tobytes() == fi.pack(array, shape).tobytes()
    unpack_file(str(tmp_path / "b.zarr"), str(tmp_path / "c.zarr"), shape, NoProgress(), MEMORY)
    spec["kvstore"]["path"] = str(tmp_path / "c.zarr")  # type: ignore[index]
    found = tensorstore.open(spec).result()
    assert found.dtype.name == name
    assert found.read().result().tobytes() == array.tobytes()


def test_links_do_not_lead_outside(zarr: Any, tmp_path: Path) -> None:
    array = np.zeros((4, 4), np.uint8)
    stored(zarr, tmp_path / "a.zarr", array, chunks=(2, 4), compressors=None)
    (tmp_path / "secret").write_bytes(b"12345678")
    chunk = tmp_path / "a.zarr" / "c" / "1" / "0"
    if chunk.exists():
        chunk.unlink()
    chunk.parent.mkdir(parents=True, exist_ok=True)
    chunk.symlink_to(tmp_path / "secret")
    with pytest.raises(fi.FastIndexError, match="leads outside the store"):
        pack_file(str(tmp_path / "a.zarr"), str(tmp_path / "b"), fi.Shape.parse("u8[4,4]"), NoProgress(), MEMORY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "secret"]


def test_what_cannot_be(zarr: Any, tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((20, 30), np.float32)
    source = stored(zarr, tmp_path / "a.zarr", array, chunks=(8, 8))
    shape = fi.Shape.parse("f32[20,30]{1,0:T(8,16)}")

    def fails(error: type[Exception], match: str, source: str, target: str, shape: fi.Shape = shape) -> None:
        before = sorted(tmp_path.iterdir())
        with pytest.raises(error, match=match):
            pack_file(source, str(tmp_path / target), shape, NoProgress(), MEMORY)
        assert sorted(tmp_path.iterdir()) == before

    fails(fi.FastIndexError, "exists; a store is not replaced", source, "a.zarr")
    fails(fi.FastIndexError, r"has the dimensions \(20, 30\)", source, "b.zarr", fi.Shape.parse("f32[30,20]"))
    fails(fi.ArgumentTypeError, "f32 is not cast to s32", source, "b.zarr", fi.Shape.parse("s32[20,30]"))
    fails(FileNotFoundError, "nothing", str(tmp_path / "nothing.zarr"), "b.zarr")
    for content, match in ((b"nonsense", "not an array of Zarr 3"), (b"{}", "not an array of Zarr 3")):
        (tmp_path / "bad.zarr").mkdir(exist_ok=True)
        (tmp_path / "bad.zarr" / "zarr.json").write_bytes(content)
        fails(fi.FastIndexError, match, str(tmp_path / "bad.zarr"), "b.zarr")
    metadata = json.loads((tmp_path / "a.zarr" / "zarr.json").read_bytes())
    # As zarr-python 3.4 writes it, with array.rectilinear_chunks.
    configuration = {"kind": "inline", "chunk_shapes": [[8, 12], [30]]}
    metadata["chunk_grid"] = {"name": "rectilinear", "configuration": configuration}
    (tmp_path / "bad.zarr" / "zarr.json").write_text(json.dumps(metadata))
    fails(fi.UnsupportedError, "the chunk grid 'rectilinear'; only regular grids", str(tmp_path / "bad.zarr"), "b.zarr")
    (tmp_path / "a.zarr" / "c" / "1" / "1").write_bytes(b"damaged")
    fails(fi.FastIndexError, "cannot be read", source, "b.zarr")
    buffer = stored(zarr, tmp_path / "p.zarr", np.zeros(20, np.uint8), chunks=(8,), attributes={ATTRIBUTE: "u8[20]{0}"})
    with pytest.raises(fi.FastIndexError, match=r"is a buffer of u8\[20\]\{0\}, not of"):
        unpack_file(buffer, str(tmp_path / "q.npy"), fi.Shape.parse("u8[20]{0:T(4)}"), NoProgress(), MEMORY)


#: Prints the most that the process has had in memory, in KiB: what the limit promises, however slow a machine is.
MEASURED = """
import atexit
from pathlib import Path
from fastindex.cli.commands import main
atexit.register(lambda: print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]))
main()
"""


@pytest.mark.parametrize("limit", [160, 512])
def test_memory_stays_below_its_limit(zarr: Any, tmp_path: Path, limit: int) -> None:
    shape = "f32[8192,6144]{0,1:T(8,128)}"
    array = zarr.create_array(str(tmp_path / "a.zarr"), shape=(8192, 6144), chunks=(1024, 1024), dtype=np.float32)
    array[...] = np.arange(8192 * 6144, dtype=np.float32).reshape(8192, 6144)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for job, names in (("pack", ("a.zarr", "b.zarr")), ("unpack", ("b.zarr", "c.zarr"))):
        paths = [str(tmp_path / name) for name in names]
        command = [sys.executable, "-c", MEASURED, job, *paths, "--shape", shape, "--max-memory", f"{limit}MiB"]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) << 10 < limit << 20
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "c.zarr"))[...], array[...])


@pytest.mark.parametrize("chunk", [1000, 4096, 5000, 65536])
def test_chunks_are_decoded_once_for_the_segments_in_them(
    zarr: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """All of 512 rows, and 128: then segments are single tiles, several to a chunk."""
    shape = fi.Shape.parse("f32[512,96]{0,1:T(8,128)}")
    buffer = np.random.default_rng(0).integers(0, 256, shape.nbytes, dtype=np.uint8)
    path = stored(zarr, tmp_path / "a.zarr", buffer, chunks=(chunk,), attributes={ATTRIBUTE: str(shape)})
    reads = []

    def counted(array: Any, place: tuple[slice, ...]) -> Any:
        reads.append(place)
        return read_place(array, place)

    monkeypatch.setattr(zarr_arrays, "read_place", counted)
    source = stored_zarr_buffer(path, shape)
    for rows, columns in ((range(512), range(96)), (range(128, 256), range(96)), (range(384, 512), range(8, 48))):
        segments = list(byte_segments(shape, (rows, columns)))
        expected = np.concatenate([buffer[start : start + nbytes] for start, nbytes in segments])
        touched = {at // chunk for start, nbytes in segments for at in range(start, start + nbytes)}
        found = np.zeros_like(expected)
        del reads[:]
        source.read((rows, columns), found)
        assert np.array_equal(found, expected)
        assert len(reads) <= len(touched) + 2 * len(box_segments(shape, (rows, columns)))


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    """A file of gzip whose end is missing."""
    zarr = pytest.importorskip("zarr")
    path, target = tmp_path / "a.zarr", tmp_path / "b.zarr"
    zarr.create_array(path, shape=(70, 90), chunks=(16, 45), dtype="f4", compressors=zarr.codecs.GzipCodec())[...] = 1
    chunk = path / "c" / "2" / "1"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    shape = fi.Shape.parse("f32[70,90]{0,1:T(8,128)}")
    with pytest.raises(fi.FastIndexError, match=rf"the chunk c/2/1 of {path} cannot be read"):
        pack_file(str(path), str(target), shape, NoProgress(), MEMORY)
    assert not target.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of the system")
@pytest.mark.parametrize("job", ["pack", "unpack", "relayout"])
@pytest.mark.parametrize("most_bytes", [0, 100, 30_000])
def test_a_limit_of_file_sizes(zarr: Any, tmp_path: Path, job: str, most_bytes: int) -> None:
    """For the metadata, and for a chunk: the line names the target, and nothing is left."""
    import resource

    shape = "f32[300,200]"
    given = np.random.default_rng(1).random((300, 200), np.float32)
    stored(zarr, tmp_path / "a.zarr", given if job == "pack" else given.reshape(-1).view(np.uint8))
    options = ["--from", shape, "--to", shape + "{0,1}"] if job == "relayout" else ["--shape", shape]
    done = subprocess.run(
        [sys.executable, "-m", "fastindex", job, "a.zarr", "b.zarr", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes)),
    )
    assert (done.returncode, done.stderr) == (1, "fastindex: b.zarr: File too large\n")
    assert os.listdir(tmp_path) == ["a.zarr"]


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root, to mount a small disk")
@pytest.mark.parametrize("size", ["4k", "60k"])
def test_a_full_disk(zarr: Any, tmp_path: Path, size: str) -> None:
    given = np.random.default_rng(1).random((300, 200), np.float32)
    stored(zarr, tmp_path / "a.zarr", given)
    (tmp_path / "disk").mkdir()
    words = [sys.executable, "-m", "fastindex", "pack", "a.zarr", "disk/b.zarr", "--shape", "f32[300,200]"]
    # A mount that no other process sees, and that ends with the shell.
    script = f'mount -t tmpfs -o size={size} none disk || exit 77; "$@"; status=$?; ls -A disk; exit $status'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *words], cwd=tmp_path, capture_output=True, text=True
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this system does not allow mounts")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "fastindex: disk/b.zarr: No space left on device\n"
