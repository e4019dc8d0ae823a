"""A place in a text that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass

from fastindex.show.spelling import visible


@dataclass(frozen=True, slots=True)
class Problem:
    """A place in the text that cannot be read.

    Attributes
    ----------
    line : int
        1-based line number; 0 for a whole file.
    message : str
        What is wrong there.
    text : str
        The beginning of the line.
    source : str
        The file, or "".
    """

    line: int
    message: str
    text: str
    source: str = ""

    def __str__(self) -> str:
        where = self.source
        if self.line:
            where = f"{self.source}:{self.line}" if self.source else f"line {self.line}"
        parts = (where, self.message, self.text)
        return visible(": ".join(part for part in parts if part))
