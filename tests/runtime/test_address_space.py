"""Limits of address space (``ulimit -v``): one line where the compiler does not fit, and answers without it.

Tests of: runtime.first_answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fastindex as fi
from fastindex.runtime.first_answer import check_address_space

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's limits and /proc/self/statm")

TILED = "f32[3000,2000]{0,1:T(8,128)}"
LIMIT_BYTES = 400_000 << 10


def limited(folder: Path, *words: str) -> tuple[int, str, str]:
    import resource

    # NumPy's library takes addresses for a thread on each processor.
    done = subprocess.run(
        [sys.executable, "-m", "fastindex", *words],
        cwd=folder,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES)),
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.in_turn(seconds=0.4)
@pytest.mark.parametrize(
    "line", [f"pack in out --shape {TILED}", f"index {TILED} --input in.npy --output out.npy", "warmup"]
)
def test_too_little_for_the_compiler(tmp_path: Path, line: str) -> None:
    """LLVM itself would end the process, and the loader would blame a missing library."""
    with open(tmp_path / "in", "wb") as file:
        file.truncate(24_000_000)
    np.save(tmp_path / "in.npy", np.zeros((2, 2_000_000), np.int64))
    status, printed, errors = limited(tmp_path, *line.split())
    assert (status, printed) == (1, "")
    assert errors.startswith("fastindex: not enough memory: the compiler of kernels takes ")
    assert errors.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "in.npy"]


@pytest.mark.in_turn(seconds=0.7)
def test_what_needs_no_compiler_works(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(bytes(96))
    assert limited(tmp_path, "index", TILED, "8", "1") == (0, f"{fi.linear_index(TILED, (8, 1))}\n", "")
    assert limited(tmp_path, "pack", "in", "out", "--shape", "f32[4,6]{1,0:T(2,3)}") == (0, "", "")
    assert (tmp_path / "out").stat().st_size == 96


def test_the_room_is_what_the_limit_leaves() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    if before[0] == resource.RLIM_INFINITY:
        check_address_space(1 << 60)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    # Tests may have a limit themselves.
    room = 512 << 20 if before[1] == resource.RLIM_INFINITY else min(512 << 20, before[1] - mapped)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (mapped + room, before[1]))
        check_address_space(room // 2)
        with pytest.raises(MemoryError, match=f"takes {room * 3 // 2 >> 20} MiB of addresses"):
            check_address_space(room * 3 // 2)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
