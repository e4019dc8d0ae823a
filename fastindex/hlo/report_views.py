"""A report as text, with totals, notes and a table of shapes, and as an HTML page with a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fastindex.core.integers import counted
from fastindex.hlo.presentation import (
    Number,
    Style,
    TableRow,
    folded,
    fragment_of,
    new_id,
    page_of,
    row_of,
    table_of,
    text_cell,
    text_table,
)
from fastindex.hlo.rows import Place, ShapeUse
from fastindex.hlo.totals import ModuleUse, Peak, SortKey, Uses
from fastindex.show.padding import Change
from fastindex.show.spelling import bytes_text, visible

#: Names from ``xla/layout.h``; other numbers are device-specific.
_MEMORY_SPACES = {0: "default", 1: "fast", 5: "host"}
#: Columns of numbers in a terminal and in pages.
_IN_TERMINAL = ("wasted", "ratio", "count", "bytes each")
_IN_PAGES = ("wasted", "at the peak", "ratio", "count", "bytes each")
#: Default limits on the instructions listed per row, and on the modules listed per report.
_NAMED_INSTRUCTIONS, _NAMED_MODULES = 2, 10
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 900, 220, 78, 24, 18
_MOST_PLACES, _MOST_TIMELINES = 50, 20


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


def report_text(uses: Uses, sort: SortKey, top: int | None, width: int, all_names: bool, colours: bool = False) -> str:
    """Return the totals and the table of shapes."""
    titles = (*_IN_TERMINAL, "shape, cause, cheapest change and source")
    rows = [_text_row(use, len(uses.modules) > 1, all_names) for use in uses.sorted_uses(sort, top)]
    lines = [folded(visible(summary(uses)), width)]
    if rows:
        lines += [*text_table(titles, ">" * len(_IN_TERMINAL), rows, width, colours), ""]
    if len(rows) < len(uses.uses):
        lines.append(counted(len(uses.uses) - len(rows), "more shape"))
    return "\n".join(lines)


def _text_row(use: ShapeUse, several: bool, all_names: bool) -> TableRow:
    lines: list[tuple[Style, str]] = [("bold", str(use.shape)), ("", use.cause_text)]
    change = use.change
    if change is not None:
        saved = saved_text(use, change)
        if use.peak_count and use.peak_count < use.count:
            saved += f", {bytes_text(change.saved_nbytes * use.peak_count)} at the peak"
        lines.append(("green", f"{change.description}: {change.shape} {saved}"))
        lines += [("green", line) for line in use.jax_lines]
        lines.append(("", use.change_cost))
    if several and use.module:
        lines.append(("", f"module {use.module}"))
    if use.peak_count:
        lines.append(("", f"{use.peak_count:,} of {use.count:,} at the peak"))
    shown = use.places if all_names else use.places[:_NAMED_INSTRUCTIONS]
    lines += [("", line) for line in place_lines(shown)]
    if len(use.places) > len(shown):
        lines.append(("", counted(len(use.places) - len(shown), "more instruction")))
    numbers = numbers_of(use)
    return [numbers[title][1] for title in _IN_TERMINAL], [line for line in lines if line[1]]


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


def page(uses: Uses, sort: SortKey = "waste", top: int | None = 500) -> str:
    """Return a report as an HTML page."""
    return page_of("Memory report", fragment(uses, sort, top))


def fragment(uses: Uses, sort: SortKey = "waste", top: int | None = 50) -> str:
    """Return a report as an HTML fragment with its own style and script."""
    number = new_id("report")
    peaks = [
        (module, space, peak)
        for module in uses.modules
        for space, peak in ((0, module.peak), *module.space_peaks)
        if peak is not None and peak.timeline
    ]
    rows = uses.sorted_uses(sort, top)
    hidden = len(uses.uses) - len(rows)
    parts = [
        f"<pre>{escape(summary(uses))}</pre>",
        *[
            _timeline(module.label, space, peak, f"{number}-{place}")
            for place, (module, space, peak) in enumerate(peaks[:_MOST_TIMELINES])
        ],
        table_of(_IN_PAGES, ("shape, cause and change", "source"), [_row(use, len(uses.modules) > 1) for use in rows]),
        f'<p class="dim">{hidden:,} more shapes</p>' if hidden else "",
    ]
    return fragment_of(number, parts)


def _row(use: ShapeUse, several: bool) -> str:
    first = use.places[0].source_text or use.places[0].instruction if use.places else ""
    words = text_cell(str(use.shape), _explanation(use, several)), text_cell(first, _sources(use))
    return row_of(numbers_of(use).values(), words)


def _explanation(use: ShapeUse, several: bool) -> str:
    lines = [f"<code>{escape(str(use.shape))}</code>"]
    if several and use.module:
        lines.append(f'<span class="dim">module {escape(use.module)}</span>')
    if use.cause_text:
        lines.append(escape(use.cause_text))
    change = use.change
    if change is not None:
        what = f"{escape(change.description)}: <code>{escape(str(change.shape))}</code>"
        lines.append(f"{what} {saved_text(use, change)}")
        lines += [f"<code>{escape(line)}</code>" for line in use.jax_lines]
        lines.append(f'<span class="dim">{escape(use.change_cost)}</span>')
    return "<br>".join(lines)


def _sources(use: ShapeUse) -> str:
    lines = [escape(line) for line in place_lines(use.places[:_MOST_PLACES])]
    if len(use.places) > _MOST_PLACES:
        lines.append(f"{len(use.places) - _MOST_PLACES:,} more")
    if len(lines) <= 2:
        return "<br>".join(lines)
    return f"{lines[0]}<details><summary>{len(use.places) - 1:,} more</summary>{'<br>'.join(lines[1:])}</details>"


def _timeline(label: str, space: int, peak: Peak, number: str) -> str:
    """Draw the memory in use over the schedule: elements, padding stacked on them, and the peak."""
    highest = max(nbytes for _, nbytes, _ in peak.timeline) or 1
    elements = _area([(0, logical) for _, _, logical in peak.timeline], peak, highest)
    padding = _area([(logical, nbytes) for _, nbytes, logical in peak.timeline], peak, highest)
    x, right = _x(peak.step + 0.5, peak), _WIDTH - 6
    anchor = "end" if x > _WIDTH / 2 else "start"
    title = f"Memory over the schedule of {label}" if label else "Memory over the schedule"
    words = f"{bytes_text(highest)} at step {peak.step:,}" + (f", {peak.instruction}" if peak.instruction else "")
    return (
        f'<h2>{escape(title)} <span class="dim">(memory space {space}, estimated from live ranges)</span></h2>\n'
        f'<div><span class="swatch" style="background: var(--elements)"></span>elements'
        f'<span class="swatch" style="background: var(--padding)"></span>padding</div>\n'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}: peak {escape(words)}">'
        f'<defs><pattern id="{number}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>'
        f'{_grid(highest)}<path class="elements" d="{elements}"/><path class="padding" d="{padding}"/>'
        f'<path fill="url(#{number}-hatch)" d="{padding}"/>'
        f'<line class="peak" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{_HEIGHT - _BOTTOM}"/>'
        f'<text x="{x:.1f}" y="{_TOP - 6}" text-anchor="{anchor}">peak {escape(words)}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">step 0</text>'
        f'<text x="{right}" y="{_HEIGHT - 6}" text-anchor="end">{max(peak.steps - 1, 0):,}</text></svg>'
    )


def _grid(highest: int) -> str:
    lines = []
    for part in range(5):
        nbytes = highest * part / 4
        y = _y(nbytes, highest)
        lines.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - 6}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{bytes_text(round(nbytes))}</text>')
    return "".join(lines)


def _x(step: float, peak: Peak) -> float:
    return _LEFT + (_WIDTH - 6 - _LEFT) * step / max(peak.steps, 1)


def _y(nbytes: float, highest: int) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * nbytes / highest


def _area(bands: list[tuple[int, int]], peak: Peak, highest: int) -> str:
    """Return the SVG path of a band; each entry covers an equal interval of the schedule."""
    edges = [_x(peak.steps * place / len(bands), peak) for place in range(len(bands) + 1)]
    upper, lower = [], []
    for place, (low, high) in enumerate(bands):
        left, right = edges[place], edges[place + 1]
        upper += [f"{left:.1f},{_y(high, highest):.1f}", f"{right:.1f},{_y(high, highest):.1f}"]
        lower += [f"{left:.1f},{_y(low, highest):.1f}", f"{right:.1f},{_y(low, highest):.1f}"]
    return f"M{'L'.join(upper + lower[::-1])}Z"
