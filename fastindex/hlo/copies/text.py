"""Print a table of copies as text: sums, notes, rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastindex.core.integers import counted
from fastindex.hlo.copies.rows import CopyRow, CopySum, CopyTable
from fastindex.hlo.presentation import Number, text_table
from fastindex.show.spelling import bytes_text, duration_text, visible

if TYPE_CHECKING:
    from rich.console import Console

_NAMED_MODULES, _NAMED_SUMS = 10, 3
_PLURALS = {"layout": "layout copies", "element type": "copies to another element type"}
_PLURALS |= {"same layout": "copies within one layout", "reshape": "reshapes", "transpose": "transposes"}
_SINGULARS = {"layout": "layout copy", "element type": "copy to another element type"}
_SINGULARS |= {"same layout": "copy within one layout", "reshape": "reshape", "transpose": "transpose"}


def summary(table: CopyTable, all_moves: bool = False) -> str:
    """Return the totals in a few lines."""
    named = [name or "module without a name" for name in table.modules[:_NAMED_MODULES]]
    lines = [f"module {', '.join(named)}" if table.modules else "no module"]
    if len(table.modules) > _NAMED_MODULES:
        lines[0] += f" and {counted(len(table.modules) - _NAMED_MODULES, 'more')}"
    lines += table.notes
    totals = table.totals
    if not table.copies and not table.notes:
        lines.append("no data moves because of layouts")
    for item in totals.by_kind:
        lines.append(f"{_count_of(item)}{_moved_text(item)}")
    count, avoidable = len(table.copies), totals.avoidable
    if avoidable.count != count:
        which = f"{avoidable.count:,} of these {count:,}" if avoidable.count else "none of these"
        nbytes = f": {bytes_text(avoidable.moved_nbytes)} read and written" if avoidable.count else ""
        lines.append(f"{which} could be avoided by another layout{nbytes}")
    for title, sums in (("by line", totals.by_line), ("by argument", totals.by_argument)):
        shown = [item for item in sums[:_NAMED_SUMS] if item.moved_nbytes]
        if shown:
            lines.append(f"{title}: " + "; ".join(f"{item.label} {bytes_text(item.moved_nbytes)}" for item in shown))
    if table.moves:
        moved = sum(row.moved_nbytes for row in table.moves)
        listed = "" if all_moves else ", not listed"
        lines.append(f"{counted(len(table.moves), 'plain move')} between memory spaces{listed}: {bytes_text(moved)}")
    return "\n".join(lines)


def _count_of(item: CopySum) -> str:
    count = item.count + item.fused_count
    return f"{count:,} {(_SINGULARS if count == 1 else _PLURALS)[item.label]}"


def _moved_text(item: CopySum) -> str:
    parts = []
    if item.count:
        took = "" if item.measured_nanoseconds is None else f" in {duration_text(item.measured_nanoseconds)}"
        parts.append(f"{bytes_text(item.nbytes_read)} read, {bytes_text(item.nbytes_written)} written{took}")
    if item.fused_count:
        parts.append(f"{item.fused_count:,} inside fusions, not added up")
    if item.unknown_trips_count:
        parts.append(f"{item.unknown_trips_count:,} counted for one trip of a loop")
    return ": " + "; ".join(parts)


def numbers_of(row: CopyRow) -> dict[str, Number]:
    """Return the numbers in the columns of a row, by their titles."""
    took, trips, cycles = row.measured_nanoseconds, row.trips, row.estimated_cycles
    return {
        "moved": (row.moved_nbytes, bytes_text(row.moved_nbytes)),
        "read": (row.nbytes_read, bytes_text(row.nbytes_read)),
        "written": (row.nbytes_written, bytes_text(row.nbytes_written)),
        "measured": (-1, "") if took is None else (took, duration_text(took)),
        "trips": (-1, "a trip") if trips is None else (trips, f"{trips:,}"),
        "cycles": (cycles or -1, "" if cycles is None else f"{cycles:,}"),
    }


def columns_of(rows: Iterable[CopyRow], titles: Iterable[str]) -> list[str]:
    """Return the titles of those columns that the rows fill: "measured" only if a time was measured."""
    is_measured = any(row.measured_nanoseconds is not None for row in rows)
    return [title for title in titles if is_measured or title != "measured"]


def _details(row: CopyRow, several: bool) -> str:
    from rich.markup import escape

    read = f"reads {bytes_text(row.nbytes_read)}, writes {bytes_text(row.nbytes_written)}"
    lines = [f"[bold]{escape(row.where)}[/bold]: {read}", escape(f"{row.source} -> {row.result}")]
    lines.append(escape(f"{row.origin}; {row.wanted_by}"))
    if several and row.module:
        lines.append(escape(f"module {row.module}"))
    known = [part for part in (row.source_text, row.op_name) if part]
    if known:
        lines.append(escape(", ".join(known)))
    return visible("\n".join(lines))


def print_copies(table: CopyTable, console: Console, top: int | None, all_moves: bool) -> None:
    """Print the totals and the rows."""
    console.print(visible(summary(table, all_moves)), highlight=False, markup=False)
    rows = table.rows(all_moves)
    if rows:
        columns = columns_of(rows, ("moved", "measured", "trips", "cycles"))
        shown = text_table(columns, ("kind", "instruction, layouts, cause and source"))
        for row in rows[:top]:
            numbers = numbers_of(row)
            shown.add_row(*(numbers[title][1] for title in columns), row.kind, _details(row, len(table.modules) > 1))
        console.print(shown)
    if top is not None and top < len(rows):
        console.print(counted(len(rows) - top, "more row"), highlight=False)
