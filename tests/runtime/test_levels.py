"""Kernels that another machine compiled: for a level of instructions, loaded where a processor has them.

Tests of: runtime.levels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fastindex as fi
from fastindex.moving import warmup
from fastindex.runtime import machine_code
from fastindex.runtime.levels import LEVELS, level_of
from fastindex.runtime.machine import Target
from tests.cases.hangs import HANG_SECONDS

#: What a copy, an index conversion and a cast run; casts and shuffles depend on instructions.
KERNELS = ("run_plain", "run_passes", "copy 1 0", "run_program", "cast 1 0", "swap digits 16 1")
#: Loads from a folder what it can, and says what it compiled and where it found it.
LOADED = """
import json, sys
from pathlib import Path
from fastindex.runtime import first_answer, machine_code
first_answer.COMPILED_FOLDER = Path(sys.argv[1])
from fastindex.moving.warmup import every_kernel
import numpy as np
import fastindex as fi
kernels = every_kernel(16)
for name in sys.argv[2:]:
    machine_code.address(kernels[name])
found = [len(machine_code.compiled_kernels()), "numba" in sys.modules]
values = np.arange(1 << 21, dtype=np.uint32)
is_exact = np.array_equal(fi.unpack(fi.pack(values, "u32[2097152]"), "u32[2097152]"), values)
slots = fi.linear_index("u32[2048,1024]{0,1}", np.divmod(values.astype(np.int64), 1024))
is_exact &= np.array_equal(slots, values % 1024 * 2048 + values // 1024)
print(json.dumps([*found, bool(is_exact)]))
"""


def compiled_for(name: str, folder: Path) -> None:
    folder.mkdir()
    finished: list[str] = []
    warmup._compile_elsewhere(KERNELS, 1, finished.append, [name, str(folder)], level_of(name).variables)
    assert finished == [*KERNELS]
    assert len(list(folder.iterdir())) == len(KERNELS)


def loaded(folder: Path, empty: Path, **variables: str) -> list[object]:
    """How many kernels a process compiles that finds nothing but a folder, whether it imports Numba, and is exact."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(folder), *KERNELS],
        env={**os.environ, "NUMBA_CACHE_DIR": str(empty), **variables},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout))


@pytest.mark.skipif(
    not LEVELS["x86-64-v3"].runs_on(machine_code.target()[0].partition("-")[0], machine_code.features()),
    reason="this processor has fewer instructions than x86-64-v3",
)
@pytest.mark.in_turn(seconds=15)
def test_a_process_that_finds_kernels_of_its_level_compiles_nothing(tmp_path: Path) -> None:
    compiled_for("x86-64-v3", tmp_path / "v3")
    assert loaded(tmp_path / "v3", tmp_path / "empty") == [0, False, True]
    # What is damaged is ignored: nothing else is there, so it is compiled.
    for path in (tmp_path / "v3").iterdir():
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    assert loaded(tmp_path / "v3", tmp_path / "other") == [len(KERNELS), True, True]


@pytest.mark.in_turn(seconds=25)
@pytest.mark.parametrize("name", ["aarch64", "x86-64-v4"])
def test_kernels_of_another_level_are_objects_for_it_and_are_not_loaded_here(name: str, tmp_path: Path) -> None:
    # Not asked of `runs_on`, which this tests.
    if {"aarch64": "neon", "x86-64-v4": "avx512f"}[name] in machine_code.features():
        pytest.skip("this processor is one of that level")
    compiled_for(name, tmp_path / name)
    for path in (tmp_path / name).iterdir():
        code = path.read_bytes()[32:]
        if sys.platform.startswith("linux"):
            # ELF, and its architecture.
            assert code[:4] == b"\x7fELF"
            assert int.from_bytes(code[18:20], "little") == {"aarch64": 183, "x86-64-v4": 62}[name]
    assert loaded(tmp_path / name, tmp_path / "empty")[0] == len(KERNELS)


def test_levels_are_lists_of_what_their_processors_have() -> None:
    assert LEVELS["x86-64-v3"].instructions < LEVELS["x86-64-v4"].instructions
    assert list(LEVELS).index("x86-64-v4") < list(LEVELS).index("x86-64-v3")
    for level in LEVELS.values():
        kernels = warmup.every_kernel(Target.of(level.instructions).vector_bytes)
        assert set(KERNELS) <= set(kernels)


def test_a_level_that_there_is_not() -> None:
    with pytest.raises(fi.FastIndexError, match="no target is called 'x86-64-v9'; kernels are compiled for aarch64, "):
        level_of("x86-64-v9")
