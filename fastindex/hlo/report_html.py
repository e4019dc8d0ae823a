"""Render a report as HTML: a self-contained page, or a fragment for a notebook."""

from __future__ import annotations

from html import escape

from fastindex.hlo.presentation import fragment_of, new_id, page_of, row_of, table_of, text_cell
from fastindex.hlo.report_text import numbers_of, place_lines, saved_text, summary
from fastindex.hlo.rows import Peak, ShapeUse, SortKey, Uses
from fastindex.show.spelling import bytes_text

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 900, 220, 78, 24, 18
_MOST_PLACES, _MOST_TIMELINES = 50, 20
_NUMBERS = ("wasted", "at the peak", "ratio", "count", "bytes each")


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
    rest = len(uses.uses) - len(rows)
    parts = [
        f"<pre>{escape(summary(uses))}</pre>",
        *[
            _timeline(module.label, space, peak, f"{number}-{place}")
            for place, (module, space, peak) in enumerate(peaks[:_MOST_TIMELINES])
        ],
        table_of(_NUMBERS, ("shape, cause and change", "source"), [_row(use, len(uses.modules) > 1) for use in rows]),
        f'<p class="dim">{rest:,} more shapes</p>' if rest else "",
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
