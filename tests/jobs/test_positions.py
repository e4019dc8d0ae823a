"""Files by positions, and every file job on a system that lacks what only Linux has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fastindex.jobs.positions import free_bytes, read_at, write_at


@pytest.mark.parametrize("lacking", [(), ("preadv", "pwritev", "statvfs")])
def test_bytes_at_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: tuple[str, ...]) -> None:
    for name in lacking:
        monkeypatch.delattr(os, name)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        write_at(file, memoryview(b"later"), 7)
        write_at(file, memoryview(b"sooner"), 0)
        found = bytearray(20)
        assert read_at(file, memoryview(found), 3) == 9
        assert found[:9] == b"ner\0later"
        assert read_at(file, memoryview(found), 12) == 0
    finally:
        os.close(file)
    assert (free_bytes(str(tmp_path)) is None) is bool(lacking)
    assert free_bytes(str(tmp_path / "missing")) is None


#: Takes away what macOS or Windows has not, then runs commands; numpy and numba have been imported by then.
ELSEWHERE = """
import builtins, ctypes, mmap, os, signal, sys
import click.testing, ml_dtypes, numba, numpy, rich.progress
for name in ("preadv", "pwritev", "pread", "pwrite", "posix_fallocate", "statvfs", "O_CLOEXEC", "O_TMPFILE",
             "O_DIRECTORY", "O_NOFOLLOW", "sched_getaffinity", "posix_fadvise"):
    delattr(os, name)
if sys.argv[1] == "win32":
    for name in ("fchmod", "register_at_fork", "sysconf", "getuid"):
        delattr(os, name)
    for name in ("SIGHUP", "SIGBUS", "SIGQUIT"):
        delattr(signal, name)
    sys.modules["fcntl"] = sys.modules["resource"] = None
true_library, true_open = ctypes.PyDLL, open
ctypes.PyDLL = lambda name=None, *rest, **more: true_library(name, *rest, **more) if name else 1 / 0
def open_elsewhere(name, *rest, **more):
    if str(name).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", name)
    return true_open(name, *rest, **more)
builtins.open = open_elsewhere
sys.platform = sys.argv[1]
import fastindex.cli.commands
for line in sys.stdin.read().splitlines():
    result = click.testing.CliRunner().invoke(fastindex.cli.commands.main, line.split(" "), standalone_mode=False)
    print(result.exit_code, result.output.splitlines()[:1], result.exception)
"""


def elsewhere(system: str, commands: str) -> list[str]:
    """Return a line for each command: its exit status, the first line that it printed, what it raised."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, system], input=commands, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.in_turn(seconds=0.8)
def test_file_jobs_on_macos(tmp_path: Path) -> None:
    shape, tiles = "f32[37,300]{1,0}", "f32[37,300]{1,0:T(8,128)}"
    array = np.arange(37 * 300, dtype=np.float32).reshape(37, 300)
    np.save(tmp_path / "array.npy", array)
    (tmp_path / "back.npy").write_bytes(b"the file that was there before")
    commands = f"""pack {tmp_path}/array.npy {tmp_path}/packed --shape {tiles}
relayout {tmp_path}/packed {tmp_path}/plain --from {tiles} --to {shape} --max-memory 1GiB
unpack {tmp_path}/packed {tmp_path}/back.npy --shape {tiles}
index {shape} 1 2
report {Path(__file__).parents[1]}/data/hlo/centred_v5e.txt"""
    for line in elsewhere("darwin", commands):
        assert line.startswith("0 "), line
    assert (tmp_path / "plain").read_bytes() == array.tobytes()
    assert np.array_equal(np.load(tmp_path / "back.npy"), array)
    assert sorted(os.listdir(tmp_path)) == ["array.npy", "back.npy", "packed", "plain"]


@pytest.mark.in_turn(seconds=2)
def test_windows_reads_and_reports_and_refuses_the_rest(tmp_path: Path) -> None:
    tiles = "f32[37,300]{1,0:T(8,128)}"
    np.save(tmp_path / "array.npy", np.zeros((37, 300), np.float32))
    done = f"""info {tiles}
show {tiles}
index {tiles} 1 2
shard {tiles} {{devices=[2,1]<=[2]}}
report {Path(__file__).parents[1]}/data/hlo/centred_v5e.txt"""
    for line in elsewhere("win32", done):
        assert line.startswith("0 "), line
    refused = f"""pack {tmp_path}/array.npy {tmp_path}/packed --shape {tiles}
relayout {tmp_path}/array.npy {tmp_path}/plain --from {tiles} --to f32[37,300]
index {tiles} 1:3 2 --output {tmp_path}/slots.npy
show {tiles} --svg {tmp_path}/picture.svg"""
    for line in elsewhere("win32", refused):
        assert line.startswith("1 "), line
        assert "fastindex converts indices, moves arrays and writes files on Linux and macOS; on Windows" in line
    assert sorted(os.listdir(tmp_path)) == ["array.npy"]
