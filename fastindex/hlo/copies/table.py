"""A table of copies: rows, sums, JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastindex.hlo.copies.rows import CopyRow, CopyTotals, totals_of
from fastindex.hlo.problems import Problem


@dataclass(frozen=True)
class CopyTable:
    """The rows of a table of copies.

    Attributes
    ----------
    copies : tuple of CopyRow
        Most bytes first.
    moves : tuple of CopyRow
        Plain moves between memory spaces, unrelated to layouts.
    modules : tuple of str
        The labels of the modules.
    problems : tuple of Problem
        Lines and files that could not be read; the table covers the others.
    notes : tuple of str
        Remarks for the reader.
    """

    copies: tuple[CopyRow, ...]
    moves: tuple[CopyRow, ...] = ()
    modules: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def totals(self) -> CopyTotals:
        """Sums of `copies`: in total, by kind, by source line and by argument."""
        return totals_of(self.copies)

    @property
    def avoidable(self) -> tuple[CopyRow, ...]:
        """Those of `copies` that another layout could avoid; `fastindex.hlo.try_layouts` counts these."""
        return tuple(row for row in self.copies if row.is_avoidable)

    def rows(self, all_moves: bool = False, top: int | None = None) -> tuple[CopyRow, ...]:
        """Return the first `top` rows, most bytes first; with `all_moves`, `moves` are included."""
        if not all_moves:
            return self.copies[:top]
        return tuple(sorted((*self.copies, *self.moves), key=most_bytes_first))[:top]

    def to_json(self, top: int | None = None, all_moves: bool = False) -> dict[str, Any]:
        """Return the table for JSON; the totals cover all of `copies`, whatever `top` is."""
        return {
            "copies": [row.to_json() for row in self.rows(all_moves, top)],
            "totals": self.totals.to_json(),
            "modules": list(self.modules),
            "notes": list(self.notes),
            "problems": [
                {"source": item.source, "line": item.line, "message": item.message, "text": item.text}
                for item in self.problems
            ],
        }


def most_bytes_first(row: CopyRow) -> tuple[int, int]:
    """Return the sort key of a row."""
    return -row.moved_nbytes, row.step
