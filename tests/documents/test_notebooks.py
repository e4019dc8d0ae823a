"""The tutorial notebooks run, here without Jupyter and where it is installed in a kernel, and show what they should."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.documents.pages import ROOT, name_of

NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
REQUIRED = "documentation" in os.environ.get("FASTINDEX_REQUIRE", "")


def code_of(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_there_are_five() -> None:
    assert len(NOTEBOOKS) == 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_cells_run(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each cell runs, and its last expression has something to show."""
    monkeypatch.chdir(path.parent)
    names: dict[str, Any] = {}
    for source in code_of(path):
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name_of(path), "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), name_of(path), "eval"), names)
            assert shown is not None or capsys.readouterr().out, source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_committed_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_in_a_kernel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter runs it, and shows values, pictures, reports and plans as HTML."""
    if not REQUIRED:
        pytest.importorskip("nbclient", reason="nbclient is not installed; pip install '.[docs]'")
        pytest.importorskip("ipykernel", reason="ipykernel is not installed; pip install '.[docs]'")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    from notebook_pages import executed, page_of, with_outputs

    notebook = executed(path)
    last_of = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "execute_result":
                last_of[cell.source.splitlines()[-1]] = output.data
    expected = {
        "reading-a-layout": {"shape": "<svg", "shape.layout": "<table>"},
        "chasing-padding": {"report": "fi-report", "worst.shape": "<svg"},
        "decoding-a-buffer": {"shape": "<svg", "plan": "<svg", "reshard": "<table>", "reshard.target": "<table>"},
        "why-a-copy": {"copies": "layout copies"},
        "moving-a-cache": {"heads_first": "<svg"},
    }[path.stem]
    for source, part in expected.items():
        assert part in last_of[source]["text/html"], source
        assert last_of[source]["text/plain"]
    markdown, outputs = page_of(notebook)
    page = with_outputs("\n".join(f"<p>{mark}</p>" for mark in outputs), outputs)
    assert all(html in page for html in outputs.values())
    assert markdown.count("```python") == len(code_of(path))


def test_outputs_are_not_read_as_markdown() -> None:
    sys.path.insert(0, str(ROOT / "docs" / "site"))
    try:
        from notebook_pages import output_html
    finally:
        sys.path.pop(0)
    from types import SimpleNamespace

    stream = SimpleNamespace(output_type="stream", name="stdout", text="a < b *c*")
    assert output_html(stream) == '<pre class="cell-output">a &lt; b *c*</pre>'
    stream.name = "stderr"
    assert output_html(stream) == ""
