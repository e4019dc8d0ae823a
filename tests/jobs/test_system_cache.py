"""Jobs leave the system's cache as it was: what was cached stays, what was not does not come in; and bytes stay right.

Tests of: jobs.input_files, jobs.positions, jobs.writing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import fastindex as fi
from fastindex.jobs import input_files, positions
from fastindex.jobs import writing as written_behind
from fastindex.jobs.input_files import open_input
from fastindex.jobs.layout_jobs import relayout_file
from fastindex.jobs.positions import can_read_once, expect_order, read_at, release_written
from fastindex.jobs.reading import stored_buffer
from fastindex.jobs.writing import OutputFile, WrittenBehind
from tests.cases import strategies
from tests.oracles import reference

PAGE = mmap.PAGESIZE
#: Enough for a job in a process that other tests have left large: the limit counts the process too.
MEMORY = 64 << 30


class Silent:
    def start(self, total: int) -> None: ...
    def advance(self, count: int) -> None: ...


def is_cached(path: Path) -> np.ndarray:
    """Whether each page of a file is in the system's cache. Reading would change that, even without waiting."""
    mapped = np.memmap(path, np.uint8, mode="r")
    found = np.zeros(-(-len(mapped) // PAGE), np.uint8)
    address, nbytes = ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(len(mapped))
    assert ctypes.CDLL(None).mincore(address, nbytes, ctypes.c_void_p(found.ctypes.data)) == 0
    return found & 1 != 0


def uncached_file(path: Path, nbytes: int) -> np.ndarray:
    """Write a file and have the system forget it; skip where it does not, as in a file system in memory."""
    content = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    with path.open("wb") as file:
        file.write(content.tobytes())
        file.flush()
        os.fsync(file.fileno())
    with path.open("rb") as file:
        if not can_read_once(file.fileno()):
            pytest.skip("this system cannot read without caching")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if is_cached(path).any():
        pytest.skip("this file system keeps its files in memory")
    return content


@pytest.mark.in_turn(seconds=0.5)
@pytest.mark.parametrize("segment", [32 << 10, 4 << 20])
def test_reading_leaves_the_cache_as_it_was(tmp_path: Path, segment: int) -> None:
    # The system, too, reads ahead and drops pages, the more the busier the machine is: one quiet moment is enough.
    for attempt in range(4):
        before, after = cached_before_and_after_reading(tmp_path / f"source{attempt}", segment)
        # Where reads that go on meet, the system has read ahead.
        if before[2048 : 2048 + 256].all() and after[2048 : 2048 + 256].all() and after[:1024].mean() < 0.3:
            return
    pytest.fail(f"cached before: {before[2048 : 2048 + 256].mean()}, after: {after[:1024].mean()} of what was not")


def cached_before_and_after_reading(path: Path, segment: int) -> tuple[np.ndarray, np.ndarray]:
    """Read a file of which one mebibyte is cached; return which pages were before, and which are after."""
    content = uncached_file(path, 16 << 20)
    with path.open("rb") as file:
        file.seek(8 << 20)
        file.read(1 << 20)
    before = is_cached(path)
    file_ = open_input(str(path))
    starts = range(0, len(content), segment)
    found = np.empty(len(content), np.uint8)
    file_.read_segments([(start, segment) for start in starts], segment, found)
    np.testing.assert_array_equal(found, content)
    return before, is_cached(path)


def test_a_relayout_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    content = uncached_file(tmp_path / "source", 32 << 20)
    plain, tiled = fi.Shape.parse("u32[2048,4096]"), fi.Shape.parse("u32[2048,4096]{1,0:T(8,128)}")
    relayout_file(str(tmp_path / "source"), str(tmp_path / "out"), plain, tiled, Silent(), MEMORY)
    tiles = content.view(np.uint32).reshape(256, 8, 32, 128).transpose(0, 2, 1, 3)
    assert (tmp_path / "out").read_bytes() == tiles.tobytes()
    assert is_cached(tmp_path / "source").mean() < 0.3


@pytest.mark.parametrize("seed", strategies.rotating_seeds(12))
@pytest.mark.parametrize("once", [True, False])
def test_boxes_of_any_two_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, once: bool) -> None:
    """With every segment read on its own by several threads, and everything written released at once."""
    monkeypatch.setattr(input_files, "_LEAST_READ_ONCE", 1)
    monkeypatch.setattr(input_files, "can_read_once", can_read_once if once else lambda file: False)
    monkeypatch.setattr(written_behind, "PART_BYTES", 1)
    pair = strategies.random_pair(seed)
    source, target = (fi.Shape.parse(str(shape)) for shape in pair)
    noise = np.random.default_rng(seed).integers(0, 256, source.nbytes, dtype=np.uint8)
    data = reference.relayout(noise.tobytes(), pair[0], pair[0], fill=1)
    (tmp_path / "source").write_bytes(data)
    try:
        relayout_file(str(tmp_path / "source"), str(tmp_path / "out"), source, target, Silent(), MEMORY)
    except fi.UnsupportedError:
        return
    assert (tmp_path / "out").read_bytes() == reference.relayout(data, *pair)


def test_a_file_that_shrinks_while_segments_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "_LEAST_READ_ONCE", 1)
    path = tmp_path / "source"
    path.write_bytes(bytes(1 << 16))
    stored = stored_buffer(open_input(str(path)), fi.Shape.parse("u8[256,256]"))
    os.truncate(path, 1 << 15)
    into = np.empty(1 << 15, np.uint8)
    with pytest.raises(fi.FastIndexError, match="has become shorter while it was read"):
        stored.read((range(256), range(128)), into)


@pytest.mark.parametrize("lacking", ["preadv", "RWF_HIPRI", "posix_fadvise"])
def test_systems_that_lack_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    content = np.arange(1 << 16, dtype=np.uint8)
    (tmp_path / "source").write_bytes(content.tobytes())
    monkeypatch.delattr(os, lacking)
    file = open_input(str(tmp_path / "source"))
    found = np.empty(len(content), np.uint8)
    file.read_segments([(start, 1 << 14) for start in range(0, 1 << 16, 1 << 14)], 1 << 14, found)
    np.testing.assert_array_equal(found, content)
    with OutputFile(str(tmp_path / "out"), len(content)) as output:
        output._behind = WrittenBehind(100)
        output.write(0, content)
    assert (tmp_path / "out").read_bytes() == content.tobytes()


def test_a_kernel_without_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").write_bytes(b"content")
    monkeypatch.setattr(positions, "_DO_NOT_CACHE", 1 << 30)
    with (tmp_path / "source").open("rb") as file:
        assert not can_read_once(file.fileno())
        found = bytearray(7)
        assert read_at(file.fileno(), memoryview(found), 0) == 7
    assert open_input(str(tmp_path / "source")).data.tobytes() == found == b"content"


def test_advice_that_is_refused(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        expect_order(reading, False)
        release_written(writing)
    finally:
        os.close(reading)
        os.close(writing)


def test_parts_are_released_while_the_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    released, may_end = [], threading.Semaphore(0)

    def release(file: int) -> None:
        may_end.acquire()
        released.append(file)

    monkeypatch.setattr(written_behind, "release_written", release)
    behind = WrittenBehind(10)
    for count in (9, 1, 9):
        behind.wrote(3, count)
    assert released == []
    waiting = threading.Thread(target=behind.wrote, args=(3, 1))
    waiting.start()
    # A second part waits for the first.
    waiting.join(0.05)
    assert waiting.is_alive()
    may_end.release(2)
    waiting.join()
    behind.wait()
    assert released == [3, 3]


@pytest.mark.parametrize("error", [None, ValueError])
def test_a_file_is_closed_after_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
) -> None:
    """Otherwise the advice might go to another file that got the same number."""
    sizes = []

    def release(file: int) -> None:
        threading.Event().wait(0.05)
        sizes.append(os.fstat(file).st_size)

    monkeypatch.setattr(written_behind, "release_written", release)

    def write() -> None:
        with OutputFile(str(tmp_path / "out"), 5) as output:
            output._behind = WrittenBehind(5)
            output.write(0, np.arange(5, dtype=np.uint8))
            if error is not None:
                raise error

    if error is None:
        write()
    else:
        with pytest.raises(error):
            write()
    assert sizes == [5]
