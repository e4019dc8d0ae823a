"""Links to other sites, in pages and docstrings: well-formed, and on the list that says when each was last seen."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tests.documents.pages import PAGES, ROOT, name_of

LIST = Path(__file__).with_name("external_links.txt")
#: Addresses of the server that the explorer starts, and names that are no addresses of pages.
NOT_PAGES = re.compile(r"https?://(127\.0\.0\.1|localhost|\{|www\.w3\.org/2000/svg)")
FILES = [
    *PAGES,
    *sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")),
    *sorted((ROOT / "fastindex").rglob("*.py")),
    *(ROOT / name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "pyproject.toml")),
    ROOT / "mkdocs.yml",
    ROOT / "benchmarks" / "README.md",
]


def text_of(path: Path) -> str:
    """Return the text of a file; of a notebook, what its authors wrote, not what its cells printed."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return text


def links_in(text: str) -> Iterator[str]:
    """Yield the addresses of pages; in Markdown, a parenthesis ends one."""
    for link in re.findall(r"https?://[^\s<>\"'`\])]+", text):
        if not NOT_PAGES.match(link):
            yield link


def listed() -> dict[str, str]:
    """Return the links on the list, and the day of each or "not-seen"."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return {link: day for day, link in (line.split() for line in lines if not line.startswith("#"))}


def test_links_are_well_formed_and_listed() -> None:
    found = {link: name_of(path) for path in FILES for link in links_in(text_of(path))}
    for link, page in found.items():
        assert link.startswith("https://"), f"{page}: {link} is not https"
        assert link[-1] not in ".,;:!?", f"{page}: {link} ends in punctuation; end the sentence elsewhere"
    assert set(found) == set(listed())


def test_days_are_days() -> None:
    for day in listed().values():
        assert day == "not-seen" or datetime.date.fromisoformat(day)
