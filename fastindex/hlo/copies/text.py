"""Print a table of copies as text: sums, notes, rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastindex.hlo.copies.rows import CopyRow, CopySum
from fastindex.hlo.copies.table import CopyTable
from fastindex.hlo.report_text import count_text
from fastindex.show.spelling import bytes_text, duration_text, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
        lines[0] += f" and {count_text(len(table.modules) - _NAMED_MODULES, 'more')}"
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
        lines.append(f"{count_text(len(table.moves), 'plain move')} between memory spaces{listed}: {bytes_text(moved)}")
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


def copies_table(table: CopyTable, top: int | None, all_moves: bool) -> Table:
    """Return the rows as a table for a terminal."""
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    is_measured = any(row.measured_nanoseconds is not None for row in table.rows(all_moves))
    for title in ("moved", *(("measured",) if is_measured else ()), "trips", "cycles"):
        shown.add_column(title, justify="right", no_wrap=True)
    shown.add_column("kind", no_wrap=True)
    shown.add_column("instruction, layouts, cause and source", overflow="fold")
    for row in table.rows(all_moves, top):
        trips = "a trip" if row.trips is None else f"{row.trips:,}"
        cycles = "" if row.estimated_cycles is None else f"{row.estimated_cycles:,}"
        took = "" if row.measured_nanoseconds is None else duration_text(row.measured_nanoseconds)
        numbers = (bytes_text(row.moved_nbytes), *((took,) if is_measured else ()), trips, cycles)
        shown.add_row(*numbers, row.kind, _details(row, len(table.modules) > 1))
    return shown


def _details(row: CopyRow, several: bool) -> str:
    from rich.markup import escape

    where = f"{row.instruction} in {row.computation}" + (f", part of {row.fusion}" if row.fusion else "")
    read = f"reads {bytes_text(row.nbytes_read)}, writes {bytes_text(row.nbytes_written)}"
    lines = [f"[bold]{escape(where)}[/bold]: {read}", escape(f"{row.source} -> {row.result}")]
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
        console.print(copies_table(table, top, all_moves))
    if top is not None and top < len(rows):
        console.print(count_text(len(rows) - top, "more row"), highlight=False)
