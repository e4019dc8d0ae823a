"""Kernels that another machine compiled: for a level of instructions, loaded where a processor has them.

Tests of: runtime.machine_code.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import fastindex as fi
from fastindex.moving import warmup
from fastindex.runtime import first_answer, machine_code
from fastindex.runtime.machine import Target
from fastindex.runtime.machine_code import LEVELS, level_of
from tests.cases.hangs import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
#: What a copy, a transpose, an index conversion and a cast run; casts and shuffles depend on instructions.
KERNELS = ("run_plain", "run_passes", "copy 1 0", "transpose 4 0", "run_program", "cast 1 0", "swap digits 16 1")
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


#: Calls of a user, each too large for NumPy; says what they compiled.
FIRST_CALLS = """
import json, sys
import numpy as np
import fastindex as fi
values = np.arange(1 << 20, dtype=np.uint32).reshape(1024, 1024)
packed = fi.pack(values, "u32[1024,1024]{1,0:T(8,128)}", threads=1)
tiles = values.reshape(128, 8, 8, 128).transpose(0, 2, 1, 3)
is_exact = np.array_equal(packed, tiles.reshape(-1))
turned = fi.relayout(values.reshape(-1), "u32[1024,1024]", "u32[1024,1024]{0,1}", threads=1)
is_exact &= np.array_equal(turned, values.T.reshape(-1))
places = values.reshape(-1).astype(np.int64)
slots = fi.linear_index("u32[1024,1024]{0,1}", np.divmod(places, 1024), threads=1)
is_exact &= np.array_equal(slots, places % 1024 * 1024 + places // 1024)
from fastindex.runtime.machine_code import compiled_kernels, loaded_kernels
assert len(loaded_kernels()) > 3
compiled = [kernel.function for kernel in compiled_kernels()]
print(json.dumps([fi.__file__, compiled, "numba" in sys.modules, bool(is_exact)]))
"""

of_v3 = pytest.mark.skipif(
    not LEVELS["x86-64-v3"].runs_on(machine_code.target()[0].partition("-")[0], machine_code.features()),
    reason="this processor has fewer instructions than x86-64-v3",
)


@pytest.fixture(scope="module")
def v3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with kernels for x86-64-v3."""
    folder = tmp_path_factory.mktemp("level") / "v3"
    compiled_for("x86-64-v3", folder)
    return folder


@of_v3
@pytest.mark.in_turn(seconds=5)
def test_a_wheel_takes_kernels_along_and_compiles_nothing(v3: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="which builds the wheel")
    sources, site = tmp_path / "sources", tmp_path / "site"
    shutil.copytree(ROOT / "fastindex", sources / "fastindex", ignore=shutil.ignore_patterns("__pycache__", "compiled"))
    shutil.copytree(v3, sources / "fastindex" / "compiled")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, sources)
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-P", "-c", build, str(tmp_path)], cwd=sources, check=True, timeout=HANG_SECONDS)
    # Installed: a wheel without scripts and data is what it unpacks to.
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    done = subprocess.run(
        [sys.executable, "-P", "-c", FIRST_CALLS],
        env={**os.environ, "PYTHONPATH": str(site), "NUMBA_CACHE_DIR": str(tmp_path / "empty")},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == [str(site / "fastindex" / "__init__.py"), [], False, True]


@of_v3
@pytest.mark.in_turn(seconds=15)
def test_a_process_that_finds_kernels_of_its_level_compiles_nothing(v3: Path, tmp_path: Path) -> None:
    assert loaded(v3, tmp_path / "empty") == [0, False, True]
    # What is damaged is ignored: nothing else is there, so it is compiled.
    shutil.copytree(v3, tmp_path / "v3")
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


@pytest.mark.parametrize(
    ("instructions", "architecture", "best"),
    [
        (LEVELS["x86-64-v4"].instructions | {"avx512vbmi"}, "x86_64", b"x86-64-v4"),
        (LEVELS["x86-64-v4"].instructions - {"avx512bw"}, "x86_64", b"x86-64-v3"),
        (LEVELS["x86-64-v3"].instructions - {"movbe"}, "x86_64", None),
        ({"neon", "sve"}, "arm64", b"aarch64"),
    ],
)
def test_the_best_level_that_a_processor_has_is_loaded(
    instructions: set[str], architecture: str, best: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = machine_code.CALLED["close"]
    for name, level in LEVELS.items():
        machine_code.write_kernel(tmp_path, kernel, name.encode(), level.target)
    monkeypatch.setattr(first_answer, "COMPILED_FOLDER", tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr(machine_code, "features", lambda: frozenset(instructions))
    monkeypatch.setattr(machine_code, "target", lambda: (f"{architecture}-linux", "a processor", ""))
    machine_code._targets.cache_clear()
    try:
        assert machine_code._kept(kernel) == best
    finally:
        machine_code._targets.cache_clear()


def test_levels_are_lists_of_what_their_processors_have() -> None:
    assert LEVELS["x86-64-v3"].instructions < LEVELS["x86-64-v4"].instructions
    assert list(LEVELS).index("x86-64-v4") < list(LEVELS).index("x86-64-v3")
    for level in LEVELS.values():
        kernels = warmup.every_kernel(Target.of(level.instructions).vector_bytes)
        assert set(KERNELS) <= set(kernels)


def test_a_level_that_there_is_not() -> None:
    with pytest.raises(fi.FastIndexError, match="no target is called 'x86-64-v9'; kernels are compiled for aarch64, "):
        level_of("x86-64-v9")
