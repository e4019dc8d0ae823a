"""The pages as a site: links, the reference, and what `docs/site/hooks.py` puts in."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import fastindex as fi
from tests.documents.pages import PAGES, ROOT, blocks, name_of

NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
DOCUMENTS = [*PAGES, *NOTEBOOKS, ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs" / "site"))
    try:
        import hooks
    finally:
        sys.path.pop(0)
    return hooks


def markdown_of(path: Path) -> str:
    """Return the text of a page, or of the text cells of a notebook, without blocks of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", markdown_of(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", markdown_of(page)):
        if re.match(r"https?://", target):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{name_of(page)}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{name_of(page)}: {target}#{anchor}"


def test_every_public_name_is_in_the_reference_once() -> None:
    pages = sorted((ROOT / "docs" / "reference").glob("*.md"))
    found = Counter(re.findall(r"^::: (\S+)$", "\n".join(page.read_text() for page in pages), re.MULTILINE))
    submodules = {name for name in dir(fi) if not name.startswith("__")} - {*fi.__all__}
    modules = [fi, *(getattr(fi, name) for name in sorted(submodules))]
    assert found == Counter(f"{module.__name__}.{name}" for module in modules for name in module.__all__)


def test_pictures_are_of_shapes(hooks: ModuleType) -> None:
    drawn = [block for page in PAGES for block in blocks(page) if block.language in ("layout", "sharding")]
    assert len(drawn) > 10
    for block in drawn:
        svg, html = hooks.picture(block.language, block.text)
        assert svg.startswith("<svg")
        assert (html is None) == (block.language == "sharding")
    names = {hooks.picture_name(block.language, block.text) for block in drawn}
    assert len(names) == len({(block.language, block.text) for block in drawn})


def test_figures_come_from_the_tables_of_the_benchmarks(hooks: ModuleType) -> None:
    table = (ROOT / "benchmarks" / "README.md").read_text()
    (block,) = (block for block in blocks(ROOT / "docs" / "performance.md") if block.language == "figures")
    lines = hooks.figures(block.text.splitlines()).splitlines()
    assert len(lines) == 2 + len(block.text.splitlines())
    for line in lines[2:]:
        name, ours, best, of_copy = (cell.strip() for cell in line.strip("|").split("|"))
        cells = [
            cell.strip() for cell in next(row for row in table.splitlines() if row.startswith(f"| {name} |")).split("|")
        ]
        assert cells[2] == ours
        assert of_copy in cells
        # The fastest of the columns between ours and the copy.
        copy = cells.index(of_copy) - 1
        assert best == max((cell for cell in cells[3:copy] if cell), key=float)
    with pytest.raises(KeyError):
        hooks.figures(["no such row"])


@pytest.mark.parametrize(
    ("link", "source", "expected"),
    [
        ("../benchmarks/README.md", "docs/performance.md", "benchmarks.md"),
        ("../../ARCHITECTURE.md#the-folders", "docs/how-to/moving.md", "../architecture.md#the-folders"),
        ("../benchmarks/results/a.svg", "docs/performance.md", "benchmarks/results/a.svg"),
        ("docs/how-to/moving.md#gpu", "ARCHITECTURE.md", "how-to/moving.md#gpu"),
        ("tutorials/a.ipynb", "docs/index.md", "tutorials/a.md"),
        ("https://openxla.org/a.ipynb", "docs/index.md", "https://openxla.org/a.ipynb"),
    ],
)
def test_links_on_the_site(hooks: ModuleType, link: str, source: str, expected: str) -> None:
    assert hooks.site_links(f"[a]({link})", source) == f"[a]({expected})"


def test_help_is_that_of_the_commands(hooks: ModuleType) -> None:
    text = hooks.help_texts(["fastindex", "fastindex index"])
    assert "### fastindex index" in text
    assert "--mark-padding" in text
    assert "Usage: fastindex index" in text


@pytest.mark.in_turn(seconds=1.1)
def test_every_format_is_on_the_page_of_its_family_with_pictures(hooks: ModuleType) -> None:
    """The pages are written from the tables of formats and of families, and all of them are on the site."""
    pages = hooks.pages_of_formats()
    index, families = pages.pop("reference/formats.md"), "\n".join(pages.values())
    assert len(pages) == 6
    assert all(f": {uri}\n" in (ROOT / "mkdocs.yml").read_text() for uri in pages)
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^#|\Z)", families, re.MULTILINE | re.DOTALL))
    for name, place in re.findall(r"^\| \[(\w+)\]\((\S+)\) ", index, re.MULTILINE):
        uri, _, anchor = place.partition("#")
        assert f"## {anchor}\n" in pages[f"reference/{uri}"], name
    for one in fi.weights.formats():
        if one["refused"] is not None:
            assert f"`{one['name']}`: {one['refused']}" in index
            continue
        section = sections[one["name"]]
        assert all(f"`{text}`" in section for text in one["layouts"]), one["name"]
        assert all(f"`{name}={default!r}`" in section for name, default in one["parameters"].items() if default)
        pictures = re.findall(r"```layout\n(.*?)\n```", section)
        assert len(pictures) >= max(len(one["layouts"]), 1)
        for text in pictures:
            assert 1 < fi.Shape.parse(text).slot_count <= 1 << 16, text
            assert hooks.picture("layout", text)[0].startswith("<svg")
    # Nibble i of a word of AWQ holds column 0, 2, 4, 6, 1, 3, 5, 7.
    assert "memory begins with (K, N) = (0,0), (0,2), (0,4), (0,6), (0,1), (0,3), (0,5), (0,7)." in sections["awq"]
    assert (
        "With M=128, K=4 memory begins with (M, K) = (0,0), (0,1), (0,2), (0,3), (32,0)," in sections["blocked_scales"]
    )
