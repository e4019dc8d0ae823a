"""Calls of the system that fail, are interrupted, or do half of what is asked, under file jobs.

A library between the jobs and the C library makes them do so; `tests/faults/campaign.py` goes through all of them.
Tests of: jobs.positions, jobs.writing, jobs.input_files.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastindex.jobs import positions
from fastindex.jobs.positions import close_file, read_at, sync_folder, uninterrupted, write_at
from tests.faults.tally import read

ROOT = Path(__file__).resolve().parents[2]

needs_compiler = pytest.mark.skipif(
    not sys.platform.startswith("linux") or (shutil.which("cc") or shutil.which("gcc")) is None,
    reason="needs Linux and a C compiler; apt-get install gcc",
)


@pytest.mark.in_turn(seconds=13)
@needs_compiler
def test_each_kind_of_call_in_each_kind_of_job(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.faults.every_call", str(tmp_path / "tally")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    saved = read(tmp_path / "tally")
    assert (done.returncode, saved.findings, saved.skipped) == (0, [], ""), done.stderr
    tried = {row.removeprefix("failing calls one by one: ") for row in saved.rows}
    for call in ("open", "fallocate", "preadv", "pwritev", "fsync", "close", "linkat", "rename", "mmap"):
        assert {f"{call}, {name}" for name in ("EINTR", "EIO", "ENOSPC", "EDQUOT")} <= tried
    assert {"preadv, half", "pwritev, half"} <= tried
    assert sum(row.runs for row in saved.rows.values()) >= 258


@pytest.fixture(name="file")
def opened(tmp_path: Path) -> int:
    return os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)


@pytest.mark.parametrize("lacking", [(), ("preadv", "pwritev")])
def test_calls_that_do_a_part_are_repeated(
    monkeypatch: pytest.MonkeyPatch, file: int, lacking: tuple[str, ...]
) -> None:
    """As macOS has it, which refuses more than 2 GiB at once, and any system that does less than is asked."""
    most = 3
    for name in ("_MOST_AT_ONCE", "_MOST_UNDER_LOCK"):
        monkeypatch.setattr(positions, name, most)
    sizes = []
    for name in ("preadv", "pwritev"):
        real = getattr(os, name)

        def measured(file: int, buffers: list[memoryview], *rest: int, call: Any = real) -> Any:
            sizes.append(len(buffers[0]))
            return call(file, [buffers[0][:2]], *rest)

        monkeypatch.setattr(os, name, measured)
    for name in lacking:
        monkeypatch.delattr(os, name)
    content = bytes(range(50))
    write_at(file, memoryview(content), 5)
    found = bytearray(60)
    assert read_at(file, memoryview(found), 0) == 55
    assert found == bytes(5) + content + bytes(5)
    assert max(sizes, default=most) == most
    os.close(file)


def test_a_system_that_writes_nothing(monkeypatch: pytest.MonkeyPatch, file: int) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *arguments: 0)
    with pytest.raises(OSError, match="writes nothing"):
        write_at(file, memoryview(b"a"), 0)
    os.close(file)


def test_interrupted_calls(monkeypatch: pytest.MonkeyPatch, file: int) -> None:
    answers = [InterruptedError(errno.EINTR, "interrupted"), InterruptedError(errno.EINTR, "interrupted")]

    def call(number: int) -> int:
        if answers:
            raise answers.pop()
        return number

    assert uninterrupted(call, 7) == 7
    real = os.close

    def interrupted(number: int) -> None:
        real(number)
        raise InterruptedError(errno.EINTR, "interrupted")

    monkeypatch.setattr(os, "close", interrupted)
    # It is closed all the same: a second call could close a file of another thread.
    close_file(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    sync_folder(tmp_path)
    assert synced == [tmp_path.stat().st_ino]

    def fail_with(number: int) -> None:
        def fail(file: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fail)

    # A file system that has no such thing is no reason to fail.
    fail_with(errno.EINVAL)
    sync_folder(tmp_path)
    fail_with(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)
