"""Render a table of copies as HTML: a timeline of the program, sums by source line, and a table of all copies."""

from __future__ import annotations

import itertools
import math
from html import escape

from fastindex.hlo.copies.rows import CopyRow, CopySum
from fastindex.hlo.copies.table import CopyTable
from fastindex.hlo.copies.text import summary
from fastindex.hlo.page_parts import STYLE, page_of, script_of
from fastindex.show.spelling import bytes_text, duration_text

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 900, 200, 78, 24, 18
_MOST_TIMELINES, _MOST_LINES, _MOST_MARKS = 20, 20, 2000
_NUMBERS = itertools.count(1)
#: Okabe and Ito's colours; fused copies are also dashed.
_COLOURS = {
    "layout": "#d55e00", "reshape": "#0072b2", "transpose": "#cc79a7", "element type": "#009e73",
    "same layout": "#8c8c8c", "memory space": "#8c8c8c",
}  # fmt: skip


def page(table: CopyTable, top: int | None, all_moves: bool) -> str:
    """Return a table of copies as an HTML page."""
    return page_of("Layout copies", fragment(table, top, all_moves))


def fragment(table: CopyTable, top: int | None = 50, all_moves: bool = False) -> str:
    """Return a table of copies as an HTML fragment with its own style and script."""
    number = f"fi-copies-{next(_NUMBERS)}"
    rows = table.rows(all_moves)
    shown = rows if top is None else rows[:top]
    modules = [name for name in table.modules if any(row.module == name for row in rows)]
    parts = [
        f'<div class="fi-report" id="{number}">',
        f"<style>{STYLE}</style>",
        f"<pre>{escape(summary(table))}</pre>",
        *[_timeline(name, [row for row in rows if row.module == name]) for name in modules[:_MOST_TIMELINES]],
        _bars("By line of the program", table.totals.by_line),
        _bars("By argument", table.totals.by_argument),
        _table(shown, len(table.modules) > 1) if shown else "",
        f'<p class="dim">{len(rows) - len(shown):,} more rows</p>' if len(rows) > len(shown) else "",
        script_of(number),
        "</div>",
    ]
    return "\n".join(part for part in parts if part)


def _height(nbytes: int) -> float:
    """Return the logarithm of a byte count to base 16, so that 4 KiB, 64 KiB and 1 MiB are whole numbers."""
    return math.log2(nbytes) / 4


def _timeline(module: str, rows: list[CopyRow]) -> str:
    """Draw a stem for each copy at its schedule step; the height is the logarithm of the bytes moved."""
    rows = [row for row in rows if row.moved_nbytes][:_MOST_MARKS]
    if not rows:
        return ""
    steps = max(row.steps for row in rows) or 1
    low = math.floor(_height(min(row.moved_nbytes for row in rows)))
    high = max(math.ceil(_height(max(row.moved_nbytes for row in rows))), low + 1)
    floor = _HEIGHT - _BOTTOM
    parts = []
    for power in range(low, high + 1):
        y = floor - (floor - _TOP) * (power - low) / (high - low)
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - 6}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{bytes_text(16**power)}</text>')
    for row in rows:
        x = _LEFT + (_WIDTH - 6 - _LEFT) * (row.step + 0.5) / steps
        y = floor - (floor - _TOP) * (_height(row.moved_nbytes) - low) / (high - low)
        words = escape(f"{row.instruction}, {row.kind}: {bytes_text(row.moved_nbytes)}, step {row.step:,}")
        colour = _COLOURS[row.kind]
        dashes = ' stroke-dasharray="3 3"' if not row.is_alone else ""
        parts.append(
            f'<g><title>{words}</title><line x1="{x:.1f}" x2="{x:.1f}" y1="{floor}" y2="{y:.1f}" stroke="{colour}" '
            f'stroke-width="2"{dashes}/><circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/></g>'
        )
    title = f"Copies over the schedule of {module}" if module else "Copies over the schedule"
    kinds = dict.fromkeys(row.kind for row in rows)
    swatches = "".join(
        f'<span class="swatch" style="background: {_COLOURS[kind]}"></span>{escape(kind)}' for kind in kinds
    )
    return (
        f'<h2>{escape(title)} <span class="dim">(bytes read and written, on a logarithmic scale; dashed: part of '
        f"a fusion)</span></h2>\n<div>{swatches}</div>\n"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}: {len(rows):,} copies">'
        f'{"".join(parts)}<text x="{_LEFT}" y="{_HEIGHT - 6}">step 0</text>'
        f'<text x="{_WIDTH - 6}" y="{_HEIGHT - 6}" text-anchor="end">{steps - 1:,}</text></svg>'
    )


def _bars(title: str, sums: tuple[CopySum, ...]) -> str:
    """Draw sums as a bar chart, largest first."""
    sums = tuple(item for item in sums if item.moved_nbytes)[:_MOST_LINES]
    if not sums:
        return ""
    most = sums[0].moved_nbytes
    height = 20 * len(sums)
    parts = []
    for place, item in enumerate(sums):
        width = 430 * item.moved_nbytes / most
        y = 20 * place
        parts.append(
            f'<rect class="elements" x="360" y="{y + 3}" width="{width:.1f}" height="14"/>'
            f'<text x="352" y="{y + 14}" text-anchor="end">{escape(_shortened(item.label))}</text>'
            f'<text x="{360 + width + 6:.1f}" y="{y + 14}">{bytes_text(item.moved_nbytes)}</text>'
        )
    words = f"{title}: {len(sums):,} rows, at most {bytes_text(most)}"
    return (
        f"<h2>{escape(title)}</h2>\n"
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(words)}">{"".join(parts)}</svg>'
    )


def _shortened(label: str) -> str:
    return label if len(label) <= 48 else "..." + label[-45:]


_COLUMNS = (
    ("moved", True), ("read", True), ("written", True), ("measured", True), ("trips", True), ("cycles", True),
    ("kind", False),
    ("instruction, layouts and cause", False), ("source", False),
)  # fmt: skip


def _table(rows: tuple[CopyRow, ...], several: bool) -> str:
    is_measured = any(row.measured_nanoseconds is not None for row in rows)
    heads = "".join(
        f'<th scope="col"{" class=number" if number else ""}><button type="button">{title}</button></th>'
        for title, number in _COLUMNS
        if is_measured or title != "measured"
    )
    body = "\n".join(_row(row, several, is_measured) for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def _row(row: CopyRow, several: bool, is_measured: bool) -> str:
    took = row.measured_nanoseconds
    numbers = [
        (row.moved_nbytes, bytes_text(row.moved_nbytes)),
        (row.nbytes_read, bytes_text(row.nbytes_read)),
        (row.nbytes_written, bytes_text(row.nbytes_written)),
        *([(-1 if took is None else took, "" if took is None else duration_text(took))] if is_measured else ()),
        (-1 if row.trips is None else row.trips, "a trip" if row.trips is None else f"{row.trips:,}"),
        (row.estimated_cycles or -1, "" if row.estimated_cycles is None else f"{row.estimated_cycles:,}"),
    ]
    cells = "".join(f'<td class="number" data-value="{value}">{escape(text)}</td>' for value, text in numbers)
    where = f"{row.instruction} in {row.computation}" + (f", part of {row.fusion}" if row.fusion else "")
    lines = [
        escape(where),
        f"<code>{escape(str(row.source))}</code> to <code>{escape(str(row.result))}</code>",
        escape(f"{row.origin}; {row.wanted_by}"),
    ]
    if several and row.module:
        lines.append(f'<span class="dim">module {escape(row.module)}</span>')
    sources = [escape(part) for part in (row.source_text, row.op_name) if part]
    return (
        f'<tr>{cells}<td data-value="{escape(row.kind)}">{escape(row.kind)}</td>'
        f'<td class="text" data-value="{escape(row.instruction)}">{"<br>".join(lines)}</td>'
        f'<td class="text" data-value="{escape(row.source_text)}">{"<br>".join(sources)}</td></tr>'
    )
