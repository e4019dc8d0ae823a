"""Notebooks as pages of the site: executed when the site is built, so that what they show is never old."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

#: Stands in Markdown for an output until the page is HTML, so that nothing in it is read as Markdown.
MARK = "fastindex-output-"
#: A cell may compile, on a machine that does much else.
_HANG_SECONDS = 3600


def executed(path: Path) -> Any:
    """Return a notebook with its outputs; an error in a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    # The kernel warns of its TCP sockets, which others on the machine can read; there is nothing secret on a page.
    quiet = ["--log-level=ERROR"]
    NotebookClient(
        notebook, timeout=_HANG_SECONDS, startup_timeout=_HANG_SECONDS, resources=resources, extra_arguments=quiet
    ).execute()
    return notebook


def page_of(notebook: Any) -> tuple[str, dict[str, str]]:
    """Return the page as Markdown, and by mark the HTML of each output."""
    parts, outputs = [], {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.get("outputs", []):
            html = output_html(output)
            if html:
                mark = f"{MARK}{len(outputs)}-"
                outputs[mark] = html
                parts.append(mark)
    return "\n\n".join(parts) + "\n", outputs


def output_html(output: Any) -> str:
    """Return an output of a cell as HTML: its own, or its text."""
    if output.output_type == "stream":
        return f'<pre class="cell-output">{escape(output.text)}</pre>' if output.name == "stdout" else ""
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="cell-output">{data["text/html"]}</div>'
    return f'<pre class="cell-output">{escape(data.get("text/plain", ""))}</pre>'


def with_outputs(html: str, outputs: dict[str, str]) -> str:
    """Return a page with its outputs in place of their marks."""
    for mark, output in outputs.items():
        html = html.replace(f"<p>{mark}</p>", output)
    return html
