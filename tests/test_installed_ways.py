"""The package as it may be installed: compiled files without sources, a zip archive, or without what it can do without.

Each gives the answers that the sources give. `tests/runtime/test_first_answer.py` says what needs Numba.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.cases.hangs import HANG_SECONDS

ROOT = Path(__file__).resolve().parent.parent

#: Small questions of many kinds, of a file of the package and of the command line.
QUESTIONS = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
import numpy as np
import fastindex as fi
shape = "f32[3,5]{1,0:T(2,2)}"
array = np.arange(15, dtype=np.float32).reshape(3, 5)
packed = fi.pack(array, shape)
print(packed, fi.unpack(packed, shape), fi.relayout(packed, shape, "f32[3,5]{0,1}"))
print(fi.linear_index(shape, (2, 4)), fi.multi_index(shape, 7), fi.runs(shape, np.s_[1:, :]))
print(fi.explain(shape), fi.draw(shape).text(), fi.draw(shape).html())
print(fi.rearrange(array, "a b -> b a"), fi.plan_relayout(shape, "f32[3,5]{0,1}"))
print(fi.hlo.report("HloModule m\\n\\nENTRY e {\\n  ROOT p = f32[3,5]{1,0} parameter(0)\\n}\\n"))
print(fi.__file__, sys.modules.get("numba"), file=sys.stderr)
from fastindex.cli.commands import main
main(["info", shape])
"""
#: Enough bytes for a kernel to move them: one that compiles fast.
BY_A_KERNEL = """
import sys
import numpy as np
import fastindex as fi
array = np.arange(1 << 21, dtype=np.uint8)
assert (fi.pack(array, "u8[2097152]{0:T(1024)}") == array).all()
print(fi.__file__, "numba" in sys.modules, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return where the package is, by how it is installed."""
    folder = tmp_path_factory.mktemp("compiled")
    shutil.copytree(ROOT / "fastindex", folder / "fastindex", ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(folder, quiet=1, legacy=True)
    for path in folder.rglob("*.py"):
        path.unlink()
    archive = tmp_path_factory.mktemp("archive") / "fastindex.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted((folder / "fastindex").rglob("*")):
            file.write(path, path.relative_to(folder))
    return {"sources": ROOT, "compiled": folder, "zip": archive}


def run(place: Path, program: str, *missing: str, **environment: str) -> tuple[str, list[str]]:
    """Return what a program prints with the package of a place; on stderr, where it was and whether it loaded Numba."""
    found = subprocess.run(
        [sys.executable, "-P", "-c", program, *missing],
        env={**os.environ, "PYTHONPATH": str(place), **environment},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout, found.stderr.split()


@pytest.mark.in_turn(seconds=4)
def test_small_questions_however_it_is_installed(places: dict[str, Path]) -> None:
    expected, where = run(places["sources"], QUESTIONS)
    assert where == [str(ROOT / "fastindex" / "__init__.py"), "None"]
    for name in ("compiled", "zip"):
        printed, where = run(places[name], QUESTIONS)
        assert printed == expected, name
        assert where == [str(places[name] / "fastindex" / "__init__.pyc"), "None"]


@pytest.mark.in_turn(seconds=2)
def test_small_questions_without_what_is_not_needed_for_them() -> None:
    expected, _ = run(ROOT, QUESTIONS)
    assert "tile" in expected
    assert run(ROOT, QUESTIONS, "numba", "llvmlite", "jax", "jaxlib", "torch", "google.protobuf")[0] == expected
    assert run(ROOT, QUESTIONS, FASTINDEX_DISABLE_JIT="1")[0] == expected


@pytest.mark.in_turn(seconds=20)
@pytest.mark.parametrize("name", ["compiled", "zip"])
def test_kernels_compile_without_sources(name: str, places: dict[str, Path], tmp_path: Path) -> None:
    for compiles in ("True", "False"):
        _, where = run(places[name], BY_A_KERNEL, NUMBA_CACHE_DIR=str(tmp_path))
        assert where == [str(places[name] / "fastindex" / "__init__.pyc"), compiles]
