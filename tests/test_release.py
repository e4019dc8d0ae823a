"""What is uploaded: one version everywhere; a source distribution that holds what its tests read, and nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import fastindex

ROOT = Path(__file__).resolve().parent.parent


def project() -> dict[str, Any]:
    """Return `pyproject.toml`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_one_version() -> None:
    version = project()["project"]["version"]
    assert fastindex.__version__ == version
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"(?m)^version: (.*)$", citation)[1] == version  # type: ignore[index]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"(?m)^## (\S+):", changes)[1] == version  # type: ignore[index]


def test_changelog_of_a_first_version_says_what_there_is() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^## (.*)$", changes)[0].startswith("0.1.0"), "of later versions, this test says nothing"
    assert re.findall(r"(?m)^### (.*)$", changes) == ["Added"]
    assert not re.search(r"\bbefore and\b|used to", changes)


def test_source_distribution_holds_what_its_tests_read() -> None:
    included = project()["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    # A name without a slash is one in any folder: `tests` took those of every library in `.venv313`.
    assert all(path.startswith("/") and (ROOT / path[1:]).exists() for path in included)
    named = {path[1:] for path in included}
    # pytest reads `conftest.py` beside `pyproject.toml`, and collects these; tests read the others.
    assert named >= {"conftest.py", "README.md", "docs", "fastindex", "tests", "benchmarks", "mkdocs.yml"}
    assert named >= {path.name for path in ROOT.glob("*.md")} | {path.name for path in ROOT.glob("*.cff")}
    assert set(project()["tool"]["pytest"]["ini_options"]["testpaths"]) <= named
