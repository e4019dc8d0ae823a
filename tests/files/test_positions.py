"""Files by positions, and every file job on a system that lacks what only Linux has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fastindex.files.positions import free_bytes, read_at, write_at


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
import ctypes, mmap, os, signal, sys
import click.testing, ml_dtypes, numba, numpy, rich.progress
for name in ("preadv", "pwritev", "pread", "pwrite", "posix_fallocate", "fchmod", "statvfs", "O_CLOEXEC", "O_TMPFILE",
             "O_DIRECTORY", "O_NOFOLLOW", "sched_getaffinity", "register_at_fork", "sysconf", "getuid"):
    delattr(os, name)
for name in ("SIGHUP", "SIGBUS", "SIGQUIT"):
    delattr(signal, name)
sys.modules["fcntl"] = sys.modules["resource"] = None
true_library = ctypes.PyDLL
ctypes.PyDLL = lambda name=None, *rest, **more: true_library(name, *rest, **more) if name else 1 / 0
sys.platform = "win32" if sys.argv[1] == "win32" else "darwin"
import fastindex.cli.commands
for line in sys.stdin.read().splitlines():
    result = click.testing.CliRunner().invoke(fastindex.cli.commands.main, line.split(" "), standalone_mode=False)
    assert result.exit_code == 0, (line, result.output, result.exception)
"""


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_file_jobs_elsewhere(tmp_path: Path, system: str) -> None:
    shape, tiles = "f32[37,300]{1,0}", "f32[37,300]{1,0:T(8,128)}"
    array = np.arange(37 * 300, dtype=np.float32).reshape(37, 300)
    np.save(tmp_path / "array.npy", array)
    (tmp_path / "back.npy").write_bytes(b"the file that was there before")
    commands = f"""pack {tmp_path}/array.npy {tmp_path}/packed --shape {tiles}
relayout {tmp_path}/packed {tmp_path}/plain --from {tiles} --to {shape} --max-memory 1GiB
unpack {tmp_path}/packed {tmp_path}/back.npy --shape {tiles}
index {shape} 1 2
report {Path(__file__).parents[1]}/data/hlo/centred_v5e.txt"""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, system], input=commands, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plain").read_bytes() == array.tobytes()
    assert np.array_equal(np.load(tmp_path / "back.npy"), array)
    assert sorted(os.listdir(tmp_path)) == ["array.npy", "back.npy", "packed", "plain"]
