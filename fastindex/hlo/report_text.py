"""The report of an HLO module for people: sums, and a table of shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastindex.advice.spelling import bytes_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fastindex.hlo.module_report import Report, ShapeUse, SortKey

#: Names of ``xla/layout.h``; the others belong to the device.
_MEMORY_SPACES = {0: "default", 1: "fast", 5: "host"}


def summary(report: Report) -> str:
    """Say the sums in a few lines."""
    total, wasted = report.total_nbytes, report.wasted_nbytes
    share = f" ({wasted / total:.0%})" if total else ""
    lines = [
        f"{report.instruction_count:,} instructions, {report.buffer_count:,} results, "
        f"{len(report.uses):,} distinct shapes",
        f"{bytes_text(total)} in all results, {bytes_text(report.total_logical_nbytes)} of elements, "
        f"{bytes_text(wasted)} of padding{share}",
    ]
    spaces = report.memory_spaces
    if len(spaces) > 1:
        for space in spaces:
            known = _MEMORY_SPACES.get(space.memory_space)
            name = f"S({space.memory_space})" + (f", {known}" if known else "")
            padding = bytes_text(space.nbytes - space.logical_nbytes)
            lines.append(f"  memory space {name}: {bytes_text(space.nbytes)}, {padding} of padding")
    return "\n".join(lines)


def shapes_table(report: Report, sort: SortKey, top: int | None) -> Table:
    """Give the shapes as a table for a terminal."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("wasted", "ratio", "count", "bytes each"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("shape, cause and cheapest change", overflow="fold")
    for use in report.sorted_uses(sort, top):
        numbers = bytes_text(use.wasted_nbytes), f"{use.padding_ratio:.2f}", f"{use.count:,}"
        table.add_row(*numbers, bytes_text(use.nbytes), _details(use))
    return table


def print_report(report: Report, console: Console, sort: SortKey, top: int | None) -> None:
    """Print the sums and the table of shapes."""
    console.print(summary(report), highlight=False, markup=False)
    console.print(shapes_table(report, sort, top))
    if top is not None and top < len(report.uses):
        console.print(f"{len(report.uses) - top:,} more shapes", highlight=False)


def _details(use: ShapeUse) -> str:
    from rich.markup import escape

    lines = [f"[bold]{escape(str(use.shape))}[/bold]"]
    if use.cause_text:
        lines.append(escape(use.cause_text))
    change = use.change
    if change is not None:
        what = escape(f"{change.description}: {change.shape}")
        lines.append(f"[green]{what} saves {bytes_text(change.saved_nbytes * use.count)}[/green]")
    return "\n".join(lines)
