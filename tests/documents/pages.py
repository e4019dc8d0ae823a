"""The pages of the documentation, and the fenced blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: A comment on the line before a block: who runs it if not the tests of this folder, or which libraries it needs.
_COMMENT = re.compile(r"<!-- (run by|needs): (.*) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text and first line, who runs it if not these tests, and the libraries it needs."""

    language: str
    text: str
    line: int
    run_by: str | None = None
    needs: tuple[str, ...] = ()


def name_of(page: Path) -> str:
    """Return the name of a page for messages and test ids."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found = []
    language: str | None = None
    text: list[str] = []
    first, before = 0, ""
    said: dict[str, str] = {}
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            if language is None:
                language, text, first = line[3:].strip(), [], number + 1
                said = dict(_COMMENT.findall(before))
            else:
                needs = tuple(said.get("needs", "").split())
                found.append(Block(language, "\n".join(text), first, said.get("run by"), needs))
                language = None
        elif language is not None:
            text.append(line)
        before = line
    assert language is None, f"{name_of(page)}: a block is not closed"
    return found
