"""Files: what they hold, and that a target appears whole or not at all.

Tests of: jobs.layout_jobs, moving.memory_maps, jobs.input_files, jobs.reading, jobs.writing.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi
from fastindex.jobs import layout_jobs
from fastindex.jobs.input_files import Bytes, InputFile, open_input
from fastindex.jobs.reading import StoredArray, stored_array, stored_buffer
from fastindex.jobs.writing import OutputFile, header_for, npy_header, write_file
from fastindex.moving import memory_maps
from tests.cases.hangs import HANG_SECONDS


def content_of(stored: StoredArray) -> Bytes:
    """All bytes of an array: as one box, which has to be what `whole` returns."""
    content = np.full(stored.shape.nbytes, 0x55, np.uint8)
    stored.read(tuple(range(size) for size in stored.shape.dimensions), content)
    np.testing.assert_array_equal(content, stored.whole())
    return content


def array_in(path: Path, text: str) -> np.ndarray:
    """The logical array that a file holds for a shape, in the order of its dimensions."""
    shape = fi.Shape.parse(text)
    stored = stored_array(open_input(str(path)), shape)
    values = content_of(stored).view(shape.element_type.numpy_dtype)
    order = stored.shape.layout.minor_to_major
    if order == tuple(range(shape.rank)):
        return values.reshape(shape.dimensions, order="F")
    return values.reshape(shape.dimensions)


# Reading


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i8", ">u2", "|b1", "<c8", ">c16", "<f2"])
def test_a_numpy_file_of_a_numpy_type(tmp_path: Path, dtype: str, fortran: bool) -> None:
    numbers = np.arange(24).reshape(2, 3, 4) % 7
    array = (numbers % 2 == 0 if dtype == "|b1" else numbers).astype(dtype)
    element_type = fi.ElementType.from_numpy_dtype(array.dtype)
    for version in ((1, 0), (2, 0), (3, 0)):
        with open(tmp_path / "a.npy", "wb") as file:
            np.lib.format.write_array(file, np.asfortranarray(array) if fortran else array, version)
        np.testing.assert_array_equal(array_in(tmp_path / "a.npy", f"{element_type}[2,3,4]"), array)


@pytest.mark.parametrize("name", ["bf16", "f8e4m3fn", "f8e5m2", "s4", "u4", "s2", "f4e2m1fn"])
def test_a_numpy_file_of_a_type_that_numpy_does_not_name(tmp_path: Path, name: str) -> None:
    dtype = fi.ElementType.of(name).numpy_dtype
    array = np.array([[0, 1, -2], [1, 0, 1]]).astype(np.float32 if name != "u4" else np.uint8).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    found = array_in(tmp_path / "a.npy", f"{name}[2,3]")
    assert found.dtype == dtype
    assert found.tobytes() == array.tobytes()
    # The output can be loaded, as bits without a name.
    (tmp_path / "b.npy").write_bytes(npy_header(dtype, array.shape) + array.tobytes())
    loaded = np.load(tmp_path / "b.npy")
    assert loaded.dtype == np.dtype(f"V{dtype.itemsize}")
    np.testing.assert_array_equal(loaded.view(dtype), array)


def test_bits_as_unsigned_integers(tmp_path: Path) -> None:
    array = np.array([1.5, -2.0, 0.1], ml_dtypes.bfloat16)
    np.save(tmp_path / "a.npy", array.view(np.uint16))
    np.testing.assert_array_equal(array_in(tmp_path / "a.npy", "bf16[3]"), array)
    np.save(tmp_path / "a.npy", array.view(np.uint16).astype(">u2"))
    np.testing.assert_array_equal(array_in(tmp_path / "a.npy", "bf16[3]"), array)


@pytest.mark.parametrize(("name", "values"), [("s4", range(-8, 8)), ("u4", range(16)), ("s2", range(-2, 2))])
def test_small_integers_in_bytes(tmp_path: Path, name: str, values: range) -> None:
    dtype = fi.ElementType.of(name).numpy_dtype
    numbers = np.array(values)
    np.save(tmp_path / "a.npy", numbers.astype(np.int8))
    assert array_in(tmp_path / "a.npy", f"{name}[{len(values)}]").tobytes() == numbers.astype(dtype).tobytes()
    for outside in (values.start - 1, values.stop):
        np.save(tmp_path / "a.npy", np.array([0, outside], np.int8))
        message = rf"a.npy: {name} holds integers from {values.start} to {values.stop - 1}, got {outside} at \(1,\)"
        with pytest.raises(fi.FastIndexError, match=message):
            array_in(tmp_path / "a.npy", f"{name}[2]")


def test_raw_bytes(tmp_path: Path) -> None:
    path = tmp_path / "raw.bin"
    np.arange(6, dtype=np.float32).tofile(path)
    np.testing.assert_array_equal(array_in(path, "f32[2,3]"), np.arange(6).reshape(2, 3))
    shape = fi.Shape.parse("f32[5]{0:T(2)}")
    assert content_of(stored_buffer(open_input(str(path)), shape)).tobytes() == path.read_bytes()


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<u1", "<i1", "V1"])
def test_buffers_in_numpy_files(tmp_path: Path, dtype: str) -> None:
    values = np.arange(6, dtype=np.float32)
    stored = values.astype(dtype) if dtype[1:] == "f4" else values.view(np.uint8).view(dtype)
    np.save(tmp_path / "a.npy", stored)
    found = content_of(stored_buffer(open_input(str(tmp_path / "a.npy")), fi.Shape.parse("f32[5]{0:T(2)}")))
    assert found.tobytes() == values.tobytes()


def test_empty_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((0, 3), np.float32))
    assert array_in(tmp_path / "a.npy", "f32[0,3]").shape == (0, 3)
    (tmp_path / "raw").touch()
    assert array_in(tmp_path / "raw", "f32[0,3]").shape == (0, 3)


@pytest.mark.parametrize(
    ("stored", "text", "error", "message"),
    [
        (np.zeros((2, 3), np.float64), "f32[2,3]", TypeError, "float64.*needs float32; convert it first"),
        (
            np.zeros((2, 3), np.float32),
            "bf16[2,3]",
            TypeError,
            "needs bfloat16 .V2 in a .npy file, or its bits as uint16",
        ),
        (np.zeros((2, 3), np.int16), "bf16[2,3]", TypeError, "int16"),
        (np.zeros((2, 3), np.uint32), "f32[2,3]", TypeError, "uint32"),
        (np.zeros((3, 2), np.float32), "f32[2,3]", ValueError, r"\(3, 2\).*\(2, 3\)"),
        (np.zeros(6, np.float32), "f32[2,3]", ValueError, r"\(6\).*\(2, 3\)"),
        (np.zeros((2, 3), "V4"), "f32[2,3]", TypeError, "needs float32"),
        (np.array([[None]]), "f32[1,1]", ValueError, "Python objects or records"),
        (np.zeros(2, [("a", "f4")]), "f32[2]", ValueError, "Python objects or records"),
    ],
)
def test_another_array_than_the_shape(
    tmp_path: Path, stored: np.ndarray, text: str, error: type[Exception], message: str
) -> None:
    np.save(tmp_path / "a.npy", stored, allow_pickle=True)
    with pytest.raises(error, match=message):
        array_in(tmp_path / "a.npy", text)


def header_of(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + (len(text) + 1).to_bytes(2, "little") + text.encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a .npy file"),
        (b"\x93NUM", "is not a .npy file"),
        (b"nonsense, nothing else", "is not a .npy file"),
        (npy_header(np.dtype("f4"), (2, 3))[:40], "is not a .npy file"),
        (npy_header(np.dtype("f4"), (2, 3)) + bytes(23), "cut short: float32 of .2, 3. takes 24 bytes.*23 follow it"),
        (npy_header(np.dtype("f4"), (2**40, 2**40)), "cut short"),
        (header_of("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 3: 4}"), "keys that are not strings"),
        (header_of("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), b'x': 4}"), "keys that are not strings"),
        (b"\x93NUMPY\x04\x00" + bytes(100), "has version 4.0 of NumPy's format"),
        (header_of("{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (2,)}"), "an array of numbers is needed"),
    ],
)
def test_files_that_are_no_numpy_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(fi.FastIndexError, match=message):
        open_input(str(tmp_path / "a.npy"))


def test_sizes_of_raw_files(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(bytes(23))
    with pytest.raises(fi.FastIndexError, match=r"takes 24 bytes .6 elements., .* has 23"):
        array_in(path, "f32[2,3]")
    with pytest.raises(fi.FastIndexError, match=r"takes 32 bytes .8 slots., .* has 23"):
        stored_buffer(open_input(str(path)), fi.Shape.parse("f32[2,3]{1,0:T(2,2)}"))
    path.write_bytes(npy_header(np.dtype("f4"), (2, 3)) + bytes(24))
    with pytest.raises(fi.FastIndexError, match=r"whose name has to end in \.npy"):
        array_in(path, "f32[2,3]")


def test_a_buffer_has_one_dimension(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    with pytest.raises(fi.FastIndexError, match="pack takes the array itself"):
        stored_buffer(open_input(str(tmp_path / "a.npy")), fi.Shape.parse("f32[2,3]{1,0:T(2,2)}"))


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_input(str(tmp_path / "nothing"))
    with pytest.raises(IsADirectoryError):
        open_input(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(fi.FastIndexError, match="not a regular file"):
        open_input(str(tmp_path / "pipe"))


def test_released_pages_come_back(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    data.tofile(tmp_path / "raw")
    file = open_input(str(tmp_path / "raw"))
    with OutputFile(str(tmp_path / "out"), len(data)) as output:
        output.data[:] = file.data
        file.release()
        output.release()
        np.testing.assert_array_equal(file.data, data)
        np.testing.assert_array_equal(output.data, data)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "out", np.uint8), data)


# Sources that change


def in_a_process(program: str, folder: Path) -> str:
    """What a program prints that works on memory maps whose files go away; without a mend, it would die."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=HANG_SECONDS).stdout


@pytest.mark.in_turn(seconds=0.3)
@pytest.mark.parametrize("size", [0, 1, 5000, 3 << 12])
@pytest.mark.parametrize("suffix", [".bin", ".npy"])
def test_a_source_that_shrinks_is_an_error(tmp_path: Path, size: int, suffix: str) -> None:
    """By default, whoever reads a map beyond the end of its file dies of SIGBUS."""
    np.save(tmp_path / "source.npy", np.arange(1 << 17, dtype=np.float64))
    (tmp_path / "source.npy").rename(tmp_path / f"source{suffix}")
    program = f"""
import os, threading
import fastindex
from fastindex.jobs.input_files import open_input
file = open_input("source{suffix}")
def read():
    for _ in range(3):
        assert file.data.sum(dtype="u8") < 2**40
try:
    with file.unchanged():
        threads = [threading.Thread(target=read) for _ in range(3)]
        os.truncate("source{suffix}", {size})
        for thread in threads: thread.start()
        read()
        for thread in threads: thread.join()
except fastindex.FastIndexError as error:
    print(error)
"""
    assert in_a_process(program, tmp_path) == f"source{suffix} changed while it was read; nothing was written\n"


def test_other_faults_still_end_the_process(tmp_path: Path) -> None:
    """The handler looks after the maps that are watched; those of others do what they did before."""
    program = """
import mmap, os
import numpy as np
from fastindex.jobs.input_files import open_input
for name in ("ours", "other"):
    open(name, "wb").write(bytes(1 << 20))
file = open_input("ours")
with open("other", "rb") as opened:
    other = np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
os.truncate("other", 0)
with file.unchanged():
    os.write(1, b"reached ")
    other.sum()
os.write(1, b"and survived")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, timeout=HANG_SECONDS)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, b"reached ")


def test_handlers_are_as_they_were_before(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGBUS)
    write_file(str(tmp_path / "source"), bytes(5000))
    files = open_input(str(tmp_path / "source")), open_input(str(tmp_path / "source"))
    with files[0].unchanged(), files[1].unchanged():
        assert memory_maps._before is not None
    assert memory_maps._before is None
    assert signal.getsignal(signal.SIGBUS) == before


@pytest.mark.parametrize("how", ["a byte", "appended", "the same bytes later"])
def test_a_source_that_is_written_to_is_an_error(tmp_path: Path, how: str) -> None:
    source = tmp_path / "source.npy"
    np.save(source, np.arange(6, dtype=np.float32))
    os.utime(source, ns=(0, 0))
    file = open_input(str(source))
    content = source.read_bytes()

    def change() -> None:
        with file.unchanged():
            source.write_bytes({"a byte": content[:-1] + b"x", "appended": content + b"x"}.get(how, content))

    with pytest.raises(fi.FastIndexError, match=r"source.npy changed while it was read"):
        change()


def test_a_source_whose_time_was_set_back_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(100))
    before = source.stat()
    file = open_input(str(source))

    def change() -> None:
        with file.unchanged():
            while source.stat().st_ctime_ns == before.st_ctime_ns:
                source.write_bytes(b"x" * 100)
                os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(fi.FastIndexError, match="changed while it was read"):
        change()
    assert source.stat().st_mtime_ns == before.st_mtime_ns


def test_a_source_that_shrinks_while_it_is_opened(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(100))
    found = InputFile(str(source), os.open(source, os.O_RDONLY))
    os.truncate(source, 50)
    with pytest.raises(fi.FastIndexError, match="has become shorter while it was read"):
        found.mapped()


def test_a_source_that_is_replaced_stays_what_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"before")
    file = open_input(str(source))
    with file.unchanged():
        write_file(str(source), b"afterwards")
        assert file.data.tobytes() == b"before"


def test_a_job_on_a_changing_source_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(24))
    os.utime(source, ns=(0, 0))
    target.write_bytes(b"before")

    class Changes:
        def start(self, total: int) -> None:
            source.write_bytes(bytes(16))

        def advance(self, count: int) -> None:
            pass

    shape = fi.Shape.parse("f32[2,3]{0,1}")
    for job in (
        lambda: layout_jobs.pack_file(str(source), str(target), shape, Changes()),
        lambda: layout_jobs.unpack_file(str(source), str(target), shape, Changes()),
        lambda: layout_jobs.relayout_file(str(source), str(target), shape, shape, Changes()),
    ):
        source.write_bytes(bytes(24))
        os.utime(source, ns=(0, 0))
        with pytest.raises(fi.FastIndexError, match="changed while it was read"):
            job()
        assert target.read_bytes() == b"before"
        assert names(tmp_path) == ["source", "target"]


# Writing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("dimensions", [(), (0,), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, ml_dtypes.int4, np.bool_])
def test_headers_are_those_of_numpy(tmp_path: Path, dtype: type, dimensions: tuple[int, ...]) -> None:
    array = np.zeros(dimensions, dtype)
    np.save(tmp_path / "a.npy", array)
    content = (tmp_path / "a.npy").read_bytes()
    assert npy_header(array.dtype, dimensions) + array.tobytes() == content


def test_a_name_tells_what_a_file_is() -> None:
    dtype = np.dtype("f4")
    assert header_for("a.npy", dtype, (2,)) == npy_header(dtype, (2,))
    assert header_for("a.bin", dtype, (2,)) == b""


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    with OutputFile(str(target), 3, b"head") as output:
        assert not target.exists()
        output.data[:] = (1, 2, 3)
    assert target.read_bytes() == b"head\1\2\3"
    assert names(tmp_path) == ["out.bin"]
    write_file(str(target), b"")
    assert target.read_bytes() == b""


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "out.bin"
    target.write_bytes(b"before")

    def fail() -> None:
        with OutputFile(str(target), 3) as output:
            output.data[:] = 1
            raise error

    with pytest.raises(error):
        fail()
    assert target.read_bytes() == b"before"
    assert names(tmp_path) == ["out.bin"]


def test_modes_and_links_stay(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "target").write_bytes(b"before")
    (folder / "target").chmod(0o640)
    (tmp_path / "link").symlink_to(folder / "target")
    write_file(str(tmp_path / "link"), b"after")
    assert (tmp_path / "link").is_symlink()
    assert (folder / "target").read_bytes() == b"after"
    assert stat.S_IMODE((folder / "target").stat().st_mode) == 0o640
    before = os.umask(0o027)
    try:
        write_file(str(tmp_path / "new"), b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert names(folder) == ["target"]


def test_targets_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_file(str(tmp_path), b"x")
    ends = os.pipe()
    for name in ("/dev/null", f"/dev/fd/{ends[1]}"):
        with pytest.raises(fi.FastIndexError, match="not a regular file"):
            write_file(name, b"x")
    for end in ends:
        os.close(end)
    with pytest.raises(FileNotFoundError) as caught:
        write_file(str(tmp_path / "nothing" / "x"), b"x")
    assert caught.value.filename == str(tmp_path / "nothing" / "x")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        write_file(str(tmp_path / "file" / "x"), b"x")
    write_file(str(tmp_path / ("n" * 250)), b"x")


@contextmanager
def most_bytes_of_a_file(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_room_shows_at_the_start(tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    target.write_bytes(b"before")
    with most_bytes_of_a_file(1 << 20), pytest.raises(OSError, match="takes 2097152 bytes"):
        OutputFile(str(target), 2 << 20).__enter__()
    assert target.read_bytes() == b"before"
    assert names(tmp_path) == ["out.bin"]


@pytest.mark.parametrize("call", ["posix_fallocate", "fsync", "replace"])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    target = tmp_path / "out.bin"
    target.write_bytes(b"before")

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match=r"No space left on device; it takes 7 bytes, .* are free") as caught:
        write_file(str(target), b"content")
    assert caught.value.filename == str(target)
    assert target.read_bytes() == b"before"
    assert names(tmp_path) == ["out.bin"]


@pytest.mark.parametrize("before", [None, b"before"])
def test_a_folder_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None) -> None:
    target = tmp_path / "out.bin"
    if before is not None:
        target.write_bytes(before)
    real, seen = os.fsync, []

    def fail(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            seen.append(target.read_bytes())
            raise OSError(errno.EIO, "Input/output error")
        real(file)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        write_file(str(target), b"content")
    assert seen == [b"content"]
    assert names(tmp_path) == ([] if before is None else ["out.bin"])
    assert before is None or target.read_bytes() == before


def test_a_file_system_that_cannot_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    content = bytes(range(256)) * (5 << 12) + b"end"
    write_file(str(tmp_path / "out"), content)
    assert (tmp_path / "out").read_bytes() == content
