"""What compiled kernels are kept by covers all that they are made of: else an edit would run old machine code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fastindex.runtime.machine_code import kernel_sources

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fastindex"
#: What kernels are compiled with, and not made of.
NO_PART = {"errors.py", "first_use.py", "terminal.py", "machine_code.py", "first_answer.py"}


def imports_of(path: Path) -> set[Path]:
    """The modules of this package that a module imports, wherever it does so."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fastindex":
            place = ROOT / node.module.replace(".", "/")
            for alias in node.names:
                # A submodule, or a name of a module or of a package.
                files = (place / f"{alias.name}.py", place.with_suffix(".py"), place / "__init__.py")
                found.add(next(filter(Path.exists, files)))
    return found


def covered(with_gpu: bool) -> set[Path]:
    return {PACKAGE / path for path in kernel_sources(with_gpu)}


def reached(start: set[Path]) -> set[Path]:
    """All modules that some modules import, directly or not, and themselves."""
    found, new = set[Path](), set(start)
    while new:
        found |= new
        new = {other for path in new if path.name not in NO_PART for other in imports_of(path)} - found
    return {path for path in found if path.name not in NO_PART}


def decorated() -> set[Path]:
    """The modules that define kernels, or functions for them, by their decorators."""
    names = ("@kernel", "@unrolled_kernel", "@subroutine(", "@instructions(", "@device_function")
    return {path for path in PACKAGE.rglob("*.py") if any(f"\n{name}" in path.read_text() for name in names)}


@pytest.mark.parametrize("with_gpu", [False, True])
def test_all_that_kernels_are_made_of_is_in_the_digest(with_gpu: bool) -> None:
    kernels = {path for path in decorated() if with_gpu or PACKAGE / "cuda" not in path.parents}
    assert len(kernels) > (20 if with_gpu else 15)
    assert reached(kernels) - covered(with_gpu) == set()


def test_kernels_of_processors_are_kept_when_the_gpus_are_edited() -> None:
    assert {path.relative_to(PACKAGE).parts[0] for path in covered(True) - covered(False)} == {"cuda"}


def test_a_module_that_is_not_covered_shows() -> None:
    assert reached({PACKAGE / "moving/choice.py"}) - covered(True) != set()
