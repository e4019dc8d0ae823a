"""Memory maps larger than memory: the bytes of the slow reference, and a process that stays below its limit.

Tests of: moving.requests, moving.box_arrays, moving.memory_maps.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi
from fastindex.arrays.arrays import described
from fastindex.moving import box_arrays, memory_maps
from tests.cases import strategies
from tests.cases.hangs import HANG_SECONDS
from tests.moving.mapped_files import ENOUGH, Mapped
from tests.oracles.comparison import differences_in_packing, differences_in_relayout

ROOT = Path(__file__).resolve().parents[2]
PLAIN, TILED = "f32[70,300]", "f32[70,300]{0,1:T(8,128)}"


@pytest.fixture(name="small_pieces", params=[64, 3000])
def make_small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few rows, so that small arrays are many."""
    monkeypatch.setattr(box_arrays, "_AROUND_BYTES", request.param // 8)
    monkeypatch.setattr(box_arrays, "_PIECE_BYTES", request.param)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", strategies.rotating_seeds(24))
def test_any_layouts_and_strides(tmp_path: Path, seed: int) -> None:
    package = Mapped(seed, tmp_path)
    assert differences_in_packing(strategies.random_shape(seed), seed, package=package) == []
    assert differences_in_relayout(*strategies.random_pair(seed), seed, package=package) == []


@pytest.mark.sweep
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_many_layouts_and_strides(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 100):
        test_any_layouts_and_strides(tmp_path, seed)


def mapped(path: Path, array: np.ndarray, mode: Any = "r") -> np.ndarray:
    path.write_bytes(array.tobytes())
    return np.memmap(path, array.dtype, mode, shape=array.shape)


VALUES = np.random.default_rng(2).random((70, 300), np.float32)
PACKED = fi.pack(VALUES, TILED)


def test_what_comes_back(tmp_path: Path) -> None:
    """`out`, or a new array where there is none; with `fill`, and the dimensions in the order of memory."""
    values = mapped(tmp_path / "a", VALUES)
    assert fi.pack(values, TILED, -1, max_memory=ENOUGH).tobytes() == fi.pack(VALUES, TILED, -1).tobytes()
    found = fi.unpack(mapped(tmp_path / "b", PACKED), TILED, max_memory=ENOUGH)
    assert (found.shape, found.dtype, found.tobytes()) == (VALUES.shape, VALUES.dtype, VALUES.tobytes())
    out = np.memmap(tmp_path / "c", np.float32, "w+", shape=(300, 70))
    turned = fi.relayout(values, PLAIN, "f32[70,300]{0,1}", as_array=True, out=out, max_memory=ENOUGH)
    assert turned is out
    np.testing.assert_array_equal(np.fromfile(tmp_path / "c", np.float32).reshape(300, 70), VALUES.T)
    turned = np.memmap(tmp_path / "d", np.float32, "w+", shape=(70, 300), order="F")
    fi.pack(values, "f32[70,300]{0,1}", out=turned, max_memory=ENOUGH)
    np.testing.assert_array_equal(turned, VALUES)
    assert fi.pack([[1, 2], [3, 4]], "u8[2,2]{0,1}", max_memory=ENOUGH).tolist() == [1, 3, 2, 4]
    assert fi.relayout(b"abcd", "u8[2,2]", "u8[2,2]{0,1}", max_memory=ENOUGH).tobytes() == b"acbd"


@pytest.mark.parametrize("kind", ["plain", "copy-on-write", "shared without a file"])
def test_memory_that_is_nowhere_else_is_not_dropped(tmp_path: Path, kind: str) -> None:
    """Dropping the pages of private memory would lose what was written to it."""
    if kind == "plain":
        values, out = VALUES.copy(), np.zeros(PACKED.size, np.float32)
    elif kind == "copy-on-write":
        values = mapped(tmp_path / "a", np.zeros_like(VALUES), "c")
        out = mapped(tmp_path / "b", np.zeros_like(PACKED), "c")
    else:
        values = np.frombuffer(mmap.mmap(-1, VALUES.nbytes), np.float32).reshape(VALUES.shape)
        out = np.frombuffer(mmap.mmap(-1, PACKED.nbytes), np.float32)
    values[...] = VALUES
    fi.pack(values, TILED, out=out, max_memory=ENOUGH)
    assert out.tobytes() == PACKED.tobytes()
    assert values.tobytes() == VALUES.tobytes()
    if kind == "copy-on-write":
        assert set((tmp_path / "b").read_bytes()) == {0}


def test_where_the_system_does_not_say_what_is_a_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on systems other than Linux: every array counts whole, and nothing is dropped."""
    monkeypatch.setattr(box_arrays, "mappings_of", lambda array: None)
    values, out = mapped(tmp_path / "a", VALUES), np.memmap(tmp_path / "b", np.float32, "w+", shape=PACKED.shape)
    assert fi.pack(values, TILED, out=out, max_memory=ENOUGH).tobytes() == PACKED.tobytes()
    size = 20 << 30
    large, other = (np.memmap(tmp_path / name, np.uint8, "w+", shape=(size,)) for name in "cd")
    with pytest.raises(fi.FastIndexError, match="40960 MiB of arrays that are not shared memory maps, and a box"):
        fi.relayout(large, f"u8[{size}]", f"u8[{size}]{{0:T(128)}}", out=other, max_memory=1 << 30)
    monkeypatch.setattr(memory_maps, "_library", None)
    assert fi.pack(values, TILED, max_memory=ENOUGH).tobytes() == PACKED.tobytes()


def test_what_counts(tmp_path: Path) -> None:
    """New results count, shared maps do not, and what has been written counts once."""
    size = 4 << 20

    def count(array: np.ndarray, is_written: bool = True) -> int:
        record = described(array)
        return memory_maps.bytes_to_come(record, memory_maps.mappings_of(record), is_written)

    fresh = np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    assert (count(fresh), count(fresh, False)) == (size, 0)
    fresh[: size // 2] = 1
    assert count(fresh) <= size // 2
    fresh[:] = 1
    assert count(fresh) == 0
    assert count(mapped(tmp_path / "a", fresh)) == 0
    assert count(mapped(tmp_path / "b", fresh, "c"), False) == size
    assert count(np.zeros(0, np.uint8)) == 0


# What cannot be


def test_limits_and_arrays_that_cannot_be(tmp_path: Path) -> None:
    values = mapped(tmp_path / "a", VALUES, "r+")
    buffer = mapped(tmp_path / "b", PACKED, "r+")
    beside = np.memmap(tmp_path / "b", np.float32, "r")
    for error, text, call in [
        (fi.FastIndexError, "1000 bytes are too few for the program itself; give at least 167772160", 1000),
        (fi.ArgumentTypeError, "a number of bytes, must be an integer, got '1GiB'", "1GiB"),
        (fi.ArgumentTypeError, "a number of bytes, must be an integer, got True", True),
        (fi.ArgumentTypeError, "a number of bytes, must be an integer, got 1000000000.0", 1e9),
    ]:
        with pytest.raises(error, match=text):
            fi.pack(values, TILED, max_memory=call)
    with pytest.raises(fi.FastIndexError, match="out and the input are maps of the same bytes of a file"):
        fi.relayout(beside, TILED, TILED, out=buffer, max_memory=ENOUGH)
    with pytest.raises(fi.FastIndexError, match="overlaps the input"):
        fi.relayout(buffer, TILED, TILED, out=buffer, max_memory=ENOUGH)
    with pytest.raises(fi.FastIndexError, match="a buffer must be contiguous"):
        fi.unpack(np.zeros(2 * PACKED.size, np.float32)[::2], TILED, max_memory=ENOUGH)
    with pytest.raises(fi.FastIndexError, match="dimensions"):
        fi.pack(values.T, TILED, max_memory=ENOUGH)
    with pytest.raises(fi.FastIndexError, match="read-only"):
        fi.pack(values, TILED, out=np.memmap(tmp_path / "b", np.float32, "r"), max_memory=ENOUGH)
    with pytest.raises(fi.FastIndexError, match="keeps the array"):
        fi.relayout(buffer, TILED, "f32[300,70]", max_memory=ENOUGH)
    with pytest.raises(fi.FastIndexError, match="threads must be"):
        fi.relayout(buffer, TILED, PLAIN, max_memory=ENOUGH, threads=0)
    assert buffer.tobytes() == PACKED.tobytes()


def test_one_file_where_the_system_does_not_say_what_is_a_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_arrays, "mappings_of", lambda array: None)
    buffer = mapped(tmp_path / "b", PACKED, "r+")
    os.link(tmp_path / "b", tmp_path / "same")
    whole = (tmp_path / "b").open("r+b")
    nameless = [np.frombuffer(mmap.mmap(whole.fileno(), 0), np.float32) for _ in range(2)]
    for source, out in (
        (np.memmap(tmp_path / "b", np.float32, "r"), buffer),
        (np.asarray(np.memmap(tmp_path / "same", np.float32, "r")), buffer.view(np.ndarray)[:]),
        (nameless[0], nameless[1]),
        (nameless[0], buffer),
    ):
        with pytest.raises(fi.FastIndexError, match="out and the input are maps of the same bytes of a file"):
            fi.relayout(source, TILED, TILED, out=out, max_memory=ENOUGH)
    assert buffer.tobytes() == PACKED.tobytes()
    for source, out in (
        (nameless[0], np.zeros_like(PACKED)),
        (buffer, np.memmap(tmp_path / "c", np.float32, "w+", shape=PACKED.shape)),
    ):
        fi.relayout(source, TILED, TILED, out=out, max_memory=ENOUGH)
        assert out.tobytes() == PACKED.tobytes()
    whole.close()


def test_two_parts_of_one_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(VALUES.tobytes() + bytes(5000 + PACKED.nbytes))
    values = np.memmap(tmp_path / "a", np.float32, "r", shape=VALUES.shape)
    out = np.memmap(tmp_path / "a", np.float32, "r+", -(-VALUES.nbytes // 4096) * 4096, PACKED.shape)
    fi.pack(values, TILED, out=out, max_memory=ENOUGH)
    assert out.tobytes() == PACKED.tobytes()


class OnGpu:
    """What says that it is in GPU memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def test_the_gpu_is_bounded_elsewhere() -> None:
    for call in (
        lambda: fi.pack(OnGpu(), TILED, max_memory=ENOUGH),
        lambda: fi.unpack(OnGpu(), TILED, max_memory=ENOUGH),
        lambda: fi.relayout(OnGpu(), TILED, PLAIN, max_memory=ENOUGH),
    ):
        with pytest.raises(fi.UnsupportedError, match="relayout_through_device"):
            call()


@pytest.mark.in_turn(seconds=0.4)
@pytest.mark.parametrize("side", ["source", "out"])
def test_a_file_that_is_cut_short(tmp_path: Path, side: str) -> None:
    """The system would end the process; a full disk under a file with holes does the same."""
    program = f"""
import os
import numpy as np, fastindex as fi
source = np.memmap("source", np.float32, "w+", shape=(512, 1024))
out = np.memmap("out", np.float32, "w+", shape=(512 * 1024,))
os.truncate("{side}", 40960)
try:
    fi.pack(source, "f32[512,1024]{{0,1:T(8,128)}}", out=out, max_memory=1 << 30)
except OSError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    named = {"source": "a part of the input could not be read", "out": "a part of out could not be written"}[side]
    assert named in done.stdout


# The limit

#: Prints the most that the process has had in memory, in KiB: what the limit promises, however slow a machine is.
MEASURED = """
import re, sys
import numpy as np
import fastindex as fi
job, limit, shapes = sys.argv[1], int(sys.argv[2]) << 20, [fi.Shape.parse(text) for text in sys.argv[3:]]
is_logical = job == "pack", job == "unpack"
given, out = (
    np.memmap(path, shape.element_type.numpy_dtype, mode, shape=shape.dimensions)
    if logical
    else np.memmap(path, np.uint8, mode, shape=(shape.nbytes,))
    for path, mode, shape, logical in zip(("source", "out"), ("r", "w+"), shapes, is_logical)
)
given_shapes = shapes if job == "relayout" else [shapes[job == "pack"]]
getattr(fi, job)(given, *given_shapes, out=out, max_memory=limit)
print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""

BIG = "f32[8192,6144]"


@pytest.fixture(scope="module", name="large")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """192 MiB, each number another one."""
    path = tmp_path_factory.mktemp("large") / "source"
    np.arange(8192 * 6144, dtype=np.uint32).tofile(path)
    return path


@pytest.mark.in_turn(seconds=4)
@pytest.mark.parametrize(
    ("limit", "job", "read", "written"),
    [
        (160, "pack", BIG, BIG + "{0,1:T(8,128)}"),
        (160, "unpack", BIG + "{0,1:T(8,128)}", BIG),
        (160, "relayout", "s4[8192,49152]{1,0:E(4)}", "s4[8192,49152]{0,1:T(8,128)(8,1)E(4)}"),
        (512, "pack", BIG, BIG + "{0,1:T(8,128)}"),
    ],
)
def test_memory_stays_below_its_limit(
    large: Path, tmp_path: Path, limit: int, job: str, read: str, written: str
) -> None:
    os.link(large, tmp_path / "source")
    command = [sys.executable, "-c", MEASURED, job, str(limit), read, written]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) << 10 < limit << 20
    check(np.fromfile(large, np.uint8), np.fromfile(tmp_path / "out", np.uint8), read, written)


def check(source: np.ndarray, out: np.ndarray, read: str, written: str) -> None:
    """Compare with NumPy's own transposes."""
    if read.startswith("s4"):
        tiles = out.reshape(6144, 64, 128, 4)
        for block in range(0, 6144, 512):
            column = source.reshape(8192, 24576)[:, 4 * block : 4 * block + 4]
            nibbles = np.stack([column & 15, column >> 4], -1).reshape(8192, 8)
            packed = nibbles[:, ::2] | nibbles[:, 1::2] << 4
            np.testing.assert_array_equal(tiles[block], packed.reshape(64, 128, 4))
        return
    given, found = source.view(np.uint32), out.view(np.uint32)
    if read.endswith("{0,1:T(8,128)}"):
        given, found = found, given
    tiles = found.reshape(768, 64, 8, 128)
    np.testing.assert_array_equal(tiles, given.reshape(64, 128, 768, 8).transpose(2, 0, 3, 1))


def test_types_of_ml_dtypes(tmp_path: Path) -> None:
    array = np.arange(4 * 6).reshape(4, 6).astype(ml_dtypes.bfloat16)
    found = fi.pack(mapped(tmp_path / "a", array).T, "bf16[6,4]{1,0:T(2,2)}", max_memory=ENOUGH)
    assert found.tobytes() == fi.pack(np.ascontiguousarray(array.T), "bf16[6,4]{1,0:T(2,2)}").tobytes()
