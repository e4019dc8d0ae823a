"""A record of text that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass

from fastindex.show.spelling import visible


@dataclass(frozen=True, slots=True)
class Problem:
    """A location in a text that cannot be read, with the reason.

    Attributes
    ----------
    line : int
        1-based line number; 0 for a whole file.
    message : str
        The reason.
    text : str
        The beginning of the line.
    source : str
        File name, or "".
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
