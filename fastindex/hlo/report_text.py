"""Print a report as text: totals, notes, and a table of shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastindex.core.integers import counted
from fastindex.hlo.presentation import Number, text_table
from fastindex.hlo.rows import ModuleUse, Peak, Place, ShapeUse, SortKey, Uses
from fastindex.show.padding import Change
from fastindex.show.spelling import bytes_text, visible

if TYPE_CHECKING:
    from rich.console import Console

#: Names from ``xla/layout.h``; other numbers are device-specific.
_MEMORY_SPACES = {0: "default", 1: "fast", 5: "host"}
#: Columns of numbers in a terminal; pages have all of `numbers_of`.
_COLUMNS = ("wasted", "ratio", "count", "bytes each")
#: Default limits on the instructions listed per row, and on the modules listed per report.
_NAMED_INSTRUCTIONS, _NAMED_MODULES = 2, 10


def summary(uses: Uses) -> str:
    """Return the totals in a few lines."""
    lines: list[str] = []
    for module in uses.modules[:_NAMED_MODULES]:
        lines += _module_lines(module, several=len(uses.modules) > 1)
    if len(uses.modules) > _NAMED_MODULES:
        lines.append(f"{counted(len(uses.modules) - _NAMED_MODULES, 'more module')}")
    lines += uses.notes
    total = uses.total_nbytes
    parts = f"{bytes_text(total)}{_padding_text(total, uses.total_logical_nbytes)}"
    if uses.table_nbytes:
        parts += f", {bytes_text(uses.table_nbytes)} for the index tables of tuples"
    shapes = counted(len(uses.uses), "distinct shape")
    if uses.counted == "buffers":
        lines.append(f"{counted(uses.buffer_count, 'buffer')}, {shapes}; all of them together, shared memory or not:")
        lines.append(f"  {parts}")
    else:
        instructions = counted(uses.instruction_count, "instruction")
        lines.append(f"instruction results: {instructions}, {counted(uses.buffer_count, 'result')}, {shapes}")
        lines.append(f"  {parts}; not the memory in use")
    spaces = uses.memory_spaces
    if len(spaces) > 1:
        for space in spaces:
            known = _MEMORY_SPACES.get(space.memory_space)
            name = f"S({space.memory_space})" + (f", {known}" if known else "")
            padding = _padding_text(space.nbytes, space.logical_nbytes)
            peak = f"; peak {bytes_text(space.peak_nbytes)}" if space.memory_space and space.peak_nbytes else ""
            lines.append(f"  memory space {name}: {bytes_text(space.nbytes)}{padding}{peak}")
    return "\n".join(lines)


def _padding_text(nbytes: int, logical_nbytes: int) -> str:
    """Return a text on the share of padding; "" if there is none."""
    wasted = nbytes - logical_nbytes
    return f", {bytes_text(wasted)} of it padding ({wasted / nbytes:.0%})" if wasted else ""


def _module_lines(module: ModuleUse, several: bool) -> list[str]:
    name = f"module {module.label}" if module.label else "module without a name"
    if module.instruction_count == 0:
        name = module.label
    details = [module.stage] if module.stage else []
    if module.partition_count > 1:
        whole = module.division is not None and not module.division.is_partitioned
        sizes = "sizes are those of whole arrays" if whole else "sizes are those of one device"
        details.append(f"one of {module.partition_count} partitions: {sizes}")
    lines = [": ".join((name, ", ".join(details)))] if details else [name]
    if several:
        total = f"{bytes_text(module.nbytes)}{_padding_text(module.nbytes, module.logical_nbytes)}"
        lines.append(f"  {counted(module.buffer_count, 'buffer')}, {total}")
    if module.peak is not None:
        lines += [f"  {line}" for line in peak_lines(module.peak)]
    return lines + [f"  {note}" for note in module.notes]


def peak_lines(peak: Peak) -> list[str]:
    """Return the lines on a module's peak, and on the memory that XLA assigned."""
    basis = "estimated" if peak.basis == "estimate" else f"XLA's {peak.basis}"
    if peak.basis == "memory usage report":
        basis += ", with the scratch memory of threads"
    where = f", at {peak.instruction} in {peak.computation}" if peak.instruction else ""
    padding = _padding_text(peak.nbytes, peak.logical_nbytes)
    lines = [f"peak {bytes_text(peak.nbytes)} ({basis}){padding}{where}"]
    if peak.estimate_nbytes:
        lines.append(f"estimated from live ranges: {bytes_text(peak.estimate_nbytes)}")
    assigned = peak.assigned
    if assigned is not None:
        parts = [
            f"arguments {bytes_text(assigned.arguments)}",
            f"outputs {bytes_text(assigned.outputs)}",
            f"temporaries {bytes_text(assigned.temporaries)}",
            f"constants {bytes_text(assigned.constants)}",
        ]
        lines.append(f"{', '.join(parts)}; {bytes_text(assigned.aliased)} of the outputs in arguments")
    return lines


def numbers_of(use: ShapeUse) -> dict[str, Number]:
    """Return the numbers in the columns of a row, by their titles."""
    at_peak = use.peak_count * use.nbytes
    ratio = f"{use.padding_ratio:.2f}"
    return {
        "wasted": (use.wasted_nbytes, bytes_text(use.wasted_nbytes)),
        "at the peak": (at_peak, bytes_text(at_peak)),
        "ratio": (ratio if use.logical_nbytes else 1e9, ratio),
        "count": (use.count, f"{use.count:,}"),
        "bytes each": (use.nbytes, bytes_text(use.nbytes)),
    }


def print_report(uses: Uses, console: Console, sort: SortKey, top: int | None, all_names: bool) -> None:
    """Print the totals and the table of shapes."""
    console.print(visible(summary(uses)), highlight=False, markup=False)
    table = text_table(_COLUMNS, ("shape, cause, cheapest change and source",))
    for use in uses.sorted_uses(sort, top):
        numbers = numbers_of(use)
        table.add_row(*(numbers[title][1] for title in _COLUMNS), _details(use, len(uses.modules) > 1, all_names))
    console.print(table)
    if top is not None and top < len(uses.uses):
        console.print(counted(len(uses.uses) - top, "more shape"), highlight=False)


def _details(use: ShapeUse, several: bool, all_names: bool) -> str:
    from rich.markup import escape

    lines = [f"[bold]{escape(str(use.shape))}[/bold]"]
    if use.cause_text:
        lines.append(escape(use.cause_text))
    change = use.change
    if change is not None:
        what = escape(f"{change.description}: {change.shape}")
        saved = saved_text(use, change)
        if use.peak_count and use.peak_count < use.count:
            saved += f", {bytes_text(change.saved_nbytes * use.peak_count)} at the peak"
        lines.append(f"[green]{what} {saved}[/green]")
        lines += [f"[green]{escape(line)}[/green]" for line in use.jax_lines]
        lines.append(escape(use.change_cost))
    if several and use.module:
        lines.append(escape(f"module {use.module}"))
    if use.peak_count:
        lines.append(f"{use.peak_count:,} of {use.count:,} at the peak")
    shown = use.places if all_names else use.places[:_NAMED_INSTRUCTIONS]
    lines += [escape(line) for line in place_lines(shown)]
    if len(use.places) > len(shown):
        lines.append(counted(len(use.places) - len(shown), "more instruction"))
    return visible("\n".join(lines))


def saved_text(use: ShapeUse, change: Change) -> str:
    """Return what a change saves over all buffers of a row."""
    nbytes = bytes_text(change.saved_nbytes * use.count)
    return f"would take {nbytes} less" if use.is_inside else f"saves {nbytes}"


def place_lines(places: Sequence[Place]) -> list[str]:
    """Return the origins of buffers, one line each."""
    lines = []
    for place in places:
        where = f"{place.instruction} in {place.computation}" if place.computation else place.instruction
        sharding = f"sharding={place.sharding}" if place.sharding else ""
        known = [part for part in (place.source_text, place.op_name, sharding) if part]
        lines.append(": ".join((where, ", ".join(known))) if known else where)
    return lines
