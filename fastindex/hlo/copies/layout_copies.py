"""List a program's copies: the instructions that move data because of layouts, with cause and cost.

As text: sums, notes and rows. As an HTML page: also a timeline and bars.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape

from fastindex.core.integers import counted
from fastindex.hlo.attributes import FACT_READERS
from fastindex.hlo.copies.finding import module_copies
from fastindex.hlo.copies.rows import CopyRow, CopySum, CopyTable, Kinds, most_bytes_first
from fastindex.hlo.modules import Module
from fastindex.hlo.presentation import (
    Number,
    Printed,
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
from fastindex.hlo.read.opening import Advance, SourceReader
from fastindex.hlo.read.sources import HloSource, TextSource, identified, refuse
from fastindex.hlo.shape_table import ShapeTable
from fastindex.show.spelling import bytes_text, duration_text, visible

_BEFORE_LAYOUTS = (
    "before layout assignment: there are no layouts yet, so what will be copied cannot be seen; compile the program, "
    "or dump it with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text' and read DIR"
)
_NAMED_MODULES, _NAMED_SUMS = 10, 3
_PLURALS = {"layout": "layout copies", "element type": "copies to another element type"}
_PLURALS |= {"same layout": "copies within one layout", "reshape": "reshapes", "transpose": "transposes"}
_SINGULARS = {"layout": "layout copy", "element type": "copy to another element type"}
_SINGULARS |= {"same layout": "copy within one layout", "reshape": "reshape", "transpose": "transpose"}
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 900, 200, 78, 24, 18
_MOST_TIMELINES, _MOST_LINES, _MOST_MARKS = 20, 20, 2000
#: Okabe and Ito's colours; fused copies are also dashed.
_COLOURS = {
    "layout": "#d55e00", "reshape": "#0072b2", "transpose": "#cc79a7", "element type": "#009e73",
    "same layout": "#8c8c8c", "memory space": "#8c8c8c",
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class LayoutCopies(Printed, CopyTable):
    """Table of the instructions of one or more HLO modules that move data because of layouts.

    Made by `layout_copies`. See `copies` (most bytes first), `totals` and `problems`.

    Examples
    --------
    >>> import fastindex as fi
    >>> hlo = '''HloModule m, is_scheduled=true
    ... ENTRY e {
    ...   p = f32[1000,3]{0,1} parameter(0)
    ...   ROOT c = f32[1000,3]{1,0} copy(p)
    ... }'''
    >>> table = fi.hlo.layout_copies(hlo)
    >>> table.modules, [row.instruction for row in table.avoidable]
    (('m',), ['c'])
    """

    def summary(self) -> str:
        """Return the totals in a few lines."""
        return summary(self)

    def text(self, top: int | None = 20, width: int = 110, all_moves: bool = False) -> str:
        """Return the summary and the table as plain text.

        Parameters
        ----------
        top : int or None
            Maximum number of rows; None for all.
        width : int
            Line width, in characters.
        all_moves : bool
            Also list plain moves between memory spaces.
        """
        return copies_text(self, top, width, all_moves)

    def html(self, top: int | None = 500, all_moves: bool = False) -> str:
        """Return an offline HTML page: the copies on the program's timeline, by source line and in a table."""
        return page(self, top, all_moves)

    def _repr_html_(self) -> str:
        return fragment(self, top=50)


def layout_copies(source: HloSource, *, show_progress: bool = False) -> LayoutCopies:
    """List every instruction of a compiled program that moves data because of layouts, with its cost and its cause.

    The rows are copies to another layout, and reshapes and transposes that move elements, in every computation that
    runs and inside fusions. Each row names the producer that decides the operand's layout and the consumers of the
    result.

    Parameters
    ----------
    source : str, bytes, path, binary file, iterable of paths, or jax.stages.Compiled
        HLO text as ``--xla_dump_to`` and JAX print it, ``*.hlo.pb``, or a profile (``*.xplane.pb``), whose rows contain
        the measured time. All may be compressed. A path is a file or a folder of dumps; of a folder, the last stage of
        each module is read. JAX compiles a function with ``jax.jit(f).lower(*arguments).compile()``.
    show_progress : bool
        Show a progress bar on stderr if that is a terminal.

    Returns
    -------
    LayoutCopies

    Raises
    ------
    FastIndexError
        No HLO module was found. Broken lines, and unreadable files among others, do not raise; see
        `LayoutCopies.problems`.
    ArgumentTypeError
        The argument is a function that is not compiled, or not a program at all.
    OSError
        A file cannot be read.

    Notes
    -----
    A reshape or transpose is proved to move nothing by comparing the digits of the slots:
    `fastindex.xla.reshape_is_bitcast`, `fastindex.xla.transpose_is_bitcast`. Trip counts come from XLA's
    ``known_trip_count``, or else from the loop's condition.

    Examples
    --------
    >>> import fastindex as fi
    >>> hlo = '''HloModule m, is_scheduled=true
    ... ENTRY e {
    ...   p = f32[1000,3]{0,1:T(4,128)} parameter(0), metadata={op_name="points"}
    ...   c = f32[1000,3]{1,0:T(8,128)} copy(p)
    ...   ROOT n = f32[1000,3]{1,0:T(8,128)} negate(c)
    ... }'''
    >>> (row,) = fi.hlo.layout_copies(hlo).copies
    >>> row.kind, row.nbytes_read, row.nbytes_written
    ('layout', 16384, 512000)
    >>> row.origin, row.wanted_by
    ('argument 0, points, is {0,1:T(4,128)}', 'n needs {1,0:T(8,128)}')
    """
    reader = _Reader()
    reader.read_all(source, show_progress)
    rows = sorted(reader.rows, key=most_bytes_first)
    before, labels = reader.before_layouts, reader.labels
    notes = [f"{label}: {_BEFORE_LAYOUTS}" for label in before]
    if before and len(before) == len(labels):
        notes = [_BEFORE_LAYOUTS]
    return LayoutCopies(
        tuple(row for row in rows if row.kind != "memory space"),
        tuple(row for row in rows if row.kind == "memory space"),
        tuple(labels),
        reader.sorted_problems(),
        (*notes, *(f"{label}: {note}" for label, note in reader.notes)),
    )


class _Reader(SourceReader):
    """Collects the copies of modules.

    Attributes
    ----------
    rows : list of CopyRow
    labels, before_layouts : list of str
        Labels of all modules, and of those that have no layouts yet.
    notes : list of (str, str)
        Labels of modules, and what is said of them.
    """

    _working = ("_source", "_kinds")

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[CopyRow] = []
        self.labels: list[str] = []
        self.before_layouts: list[str] = []
        self.notes: list[tuple[str, str]] = []
        self._kinds = Kinds(ShapeTable())

    def add_all(self, other: _Reader, labels: Mapping[str, str]) -> None:
        """Add what another reader collected; see `SourceReader.add_all`."""
        self.rows += [replace(row, module=labels[row.module]) for row in other.rows]
        self.labels += [labels[label] for label in other.labels]
        self.before_layouts += [labels[label] for label in other.before_layouts]
        self.notes += [(labels[label], note) for label, note in other.notes]

    def read(self, source: TextSource, advance: Advance) -> None:
        """Read the modules of one text; see `SourceReader.read`."""
        kind, whole = identified(source)
        if kind in ("buffer assignment", "memory usage report"):
            refuse(source.name, f"a {kind} has no instructions, so no copies; give the module beside it")
        self.read_modules(whole, advance, FACT_READERS)

    def add_module(self, module: Module) -> None:
        """Add the copies of one module."""
        label = self.label(module.name)
        self.labels.append(label)
        if module.is_before_layouts:
            self.before_layouts.append(label)
        rows = module_copies(module, self._kinds, label, self._source, self.problems)
        self.rows += rows
        profile = self._source.profile
        if profile is not None and any(row.measured_nanoseconds is not None for row in rows):
            how = f"means of {counted(profile.runs, 'run')}" if profile.runs else "means of its instructions' events"
            self.notes.append((label, f"times are measured, {how} in the profile"))


def summary(table: CopyTable, all_moves: bool = False) -> str:
    """Return the totals in a few lines."""
    named = [name or "module without a name" for name in table.modules[:_NAMED_MODULES]]
    lines = [f"module {', '.join(named)}" if table.modules else "no module"]
    if len(table.modules) > _NAMED_MODULES:
        lines[0] += f" and {len(table.modules) - _NAMED_MODULES:,} more"
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


def copies_text(table: CopyTable, top: int | None, width: int, all_moves: bool, colours: bool = False) -> str:
    """Return the totals and the table of rows."""
    lines = [folded(visible(summary(table, all_moves)), width)]
    rows = table.rows(all_moves)
    columns = columns_of(rows, ("moved", "measured", "trips", "cycles"))
    if rows:
        titles = (*columns, "kind", "instruction, layouts, cause and source")
        shown = [_text_row(row, columns, len(table.modules) > 1) for row in rows[:top]]
        lines += [*text_table(titles, ">" * len(columns) + "<", shown, width, colours), ""]
    if top is not None and top < len(rows):
        lines.append(counted(len(rows) - top, "more row"))
    return "\n".join(lines)


def _text_row(row: CopyRow, columns: Iterable[str], several: bool) -> TableRow:
    numbers = numbers_of(row)
    first = f"{row.where}: reads {bytes_text(row.nbytes_read)}, writes {bytes_text(row.nbytes_written)}"
    lines = [
        f"{row.source} -> {row.result}",
        f"{row.origin}; {row.wanted_by}",
        f"module {row.module}" if several and row.module else "",
        ", ".join(part for part in (row.source_text, row.op_name) if part),
    ]
    cells = [*(numbers[title][1] for title in columns), row.kind]
    return cells, [("bold", first), *(("", line) for line in lines if line)]


def page(table: CopyTable, top: int | None, all_moves: bool) -> str:
    """Return a table of copies as an HTML page."""
    return page_of("Layout copies", fragment(table, top, all_moves))


def fragment(table: CopyTable, top: int | None = 50, all_moves: bool = False) -> str:
    """Return a table of copies as an HTML fragment with its own style and script."""
    rows = table.rows(all_moves)
    shown = rows if top is None else rows[:top]
    modules = [name for name in table.modules if any(row.module == name for row in rows)]
    parts = [
        f"<pre>{escape(summary(table))}</pre>",
        *[_timeline(name, [row for row in rows if row.module == name]) for name in modules[:_MOST_TIMELINES]],
        _bars("By line of the program", table.totals.by_line),
        _bars("By argument", table.totals.by_argument),
        _table(shown, len(table.modules) > 1) if shown else "",
        f'<p class="dim">{len(rows) - len(shown):,} more rows</p>' if len(rows) > len(shown) else "",
    ]
    return fragment_of(new_id("copies"), parts)


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


def _table(rows: tuple[CopyRow, ...], several: bool) -> str:
    columns = columns_of(rows, numbers_of(rows[0]))
    words = "kind", "instruction, layouts and cause", "source"
    return table_of(columns, words, [_row(row, columns, several) for row in rows])


def _row(row: CopyRow, columns: list[str], several: bool) -> str:
    numbers = numbers_of(row)
    lines = [
        escape(row.where),
        f"<code>{escape(str(row.source))}</code> to <code>{escape(str(row.result))}</code>",
        escape(f"{row.origin}; {row.wanted_by}"),
    ]
    if several and row.module:
        lines.append(f'<span class="dim">module {escape(row.module)}</span>')
    sources = [escape(part) for part in (row.source_text, row.op_name) if part]
    words = (
        f'<td data-value="{escape(row.kind)}">{escape(row.kind)}</td>',
        text_cell(row.instruction, "<br>".join(lines)),
        text_cell(row.source_text, "<br>".join(sources)),
    )
    return row_of((numbers[title] for title in columns), words)
