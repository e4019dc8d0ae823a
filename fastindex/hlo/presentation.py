"""What reports and tables of copies share: JSON, problems, tables in a terminal, and HTML pages.

The colours of pages are Okabe and Ito's, which are distinguishable with colour blindness. Pages load nothing, and
follow the reader's light or dark scheme.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar, Literal

from fastindex.show.spelling import visible
from fastindex.terminal import ShownInNotebooks

#: A number in a table: its sort key, and its text.
Number = tuple[object, str]
Style = Literal["", "bold", "green"]
#: The cells of a row, and the lines of its last column, each with its style.
TableRow = tuple[Sequence[str], Sequence[tuple[Style, str]]]
_CODES = {"bold": "\x1b[1m", "green": "\x1b[32m"}
#: Least width of the last column of a table, in a narrow terminal.
_NARROWEST = 20
_PLAIN = frozenset((str, int, bool, type(None)))


class Record:
    """Base class of dataclasses whose fields are their JSON."""

    __slots__ = ()
    #: Fields that are None in JSON if they are empty or 0.
    _optional: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        found = {}
        # A large report has hundreds of thousands of records, nearly all fields of which are plain.
        for name in self.__dataclass_fields__:  # type: ignore[attr-defined]
            value = getattr(self, name)
            found[name] = value if type(value) in _PLAIN else json_of(value)
        for name in self._optional:
            found[name] = found[name] or None
        return found


def json_of(value: Any) -> Any:
    """Return a value for JSON: a tuple as a list, a record by its `to_json`, a shape as text.

    Examples
    --------
    >>> json_of((1, None, Problem(7, "no shape", "f32[")))
    [1, None, {'line': 7, 'message': 'no shape', 'text': 'f32[', 'source': ''}]
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, tuple):
        return [json_of(item) for item in value]
    return value.to_json() if hasattr(value, "to_json") else str(value)


@dataclass(frozen=True, slots=True)
class Problem(Record):
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


class Printed(ShownInNotebooks):
    """A result that is shown as text, and in notebooks as HTML."""

    def text(self) -> str:
        """Return the result as plain text."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()


def text_table(
    titles: Sequence[str], alignments: str, rows: Iterable[TableRow], width: int, colours: bool = False
) -> list[str]:
    """Return a table for a terminal as lines, the first of which is empty.

    Parameters
    ----------
    titles : sequence of str
    alignments : str
        "<" or ">" for each column but the last, whose lines fold.
    rows : iterable of TableRow
    width : int
        Width of the table, in characters.
    colours : bool
        Whether styles are shown.

    Examples
    --------
    >>> row = (["7"], [("bold", "f32[2]"), ("", "is padded to 4 by the tile")])
    >>> print(*text_table(["count", "shape"], ">", [row], width=34)[1:], sep="\\n")
     count   shape
     ────────────────────────────────
         7   f32[2]
             is padded to 4 by the
             tile
    """
    shown = [
        (cells, [(style, part) for style, text in last for part in visible(text).split("\n")]) for cells, last in rows
    ]
    columns = zip(titles[:-1], *(cells for cells, _ in shown), strict=True)
    sizes = [max(map(len, column)) for column in columns]
    indent = 1 + sum(size + 3 for size in sizes)
    longest = max([len(titles[-1]), *(len(text) for _, last in shown for _, text in last)])
    room = min(longest, max(width - 1 - indent, _NARROWEST))

    def row_lines(cells: Sequence[str], last: Iterable[tuple[Style, str]]) -> Iterator[str]:
        pairs = zip(cells, alignments, sizes, strict=True)
        begin = " " + "".join(f"{cell:{side}{size}}   " for cell, side, size in pairs)
        for style, text in last:
            for line in _parts(text, room):
                yield begin + (f"{_CODES[style]}{line}\x1b[0m" if style and colours else line)
                begin = " " * indent

    heads = row_lines(titles[:-1], [("", titles[-1])])
    return ["", *heads, " " + "─" * (indent + room - 1), *(line for row in shown for line in row_lines(*row))]


def folded(text: str, width: int) -> str:
    r"""Fold the lines of a text at a width, with an indent for what continues a line.

    Examples
    --------
    >>> print(folded("module m\n  peak 7.8 KiB (estimated), at fusion.3 in main", width=32))
    module m
      peak 7.8 KiB (estimated), at
        fusion.3 in main
    """
    lines = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        room = max(width - indent - 2, _NARROWEST)
        first, *others = _parts(line[indent:], room if len(line) > width else width)
        lines += [" " * indent + first, *(" " * (indent + 2) + part for part in others)]
    return "\n".join(lines)


def _parts(text: str, room: int) -> list[str]:
    """Return a text in parts of at most some characters, divided at spaces if possible, not between number and unit."""
    if len(text) <= room:
        return [text.rstrip()]
    end = r"(?:\s+(?!\s|[KMGTP]?i?B\b)|$)"
    return [part.rstrip() for part in re.findall(rf".{{1,{room}}}{end}|.{{{room}}}", text)]


#: Style for a fragment in an element of the class `fi-report`.
_STYLE = """
.fi-report { --fg: #1b1b1b; --bg: #ffffff; --dim: #595959; --line: #c8c8c8; --elements: #0072b2; --padding: #d55e00;
  color: var(--fg); background: var(--bg); font: 14px/1.45 system-ui, sans-serif; padding: 12px; }
@media (prefers-color-scheme: dark) { .fi-report { --fg: #ececec; --bg: #161616; --dim: #a8a8a8; --line: #4a4a4a;
  --elements: #56b4e9; --padding: #e69f00; } }
.fi-report pre { font: 13px/1.45 ui-monospace, monospace; white-space: pre-wrap; margin: 0 0 12px; }
.fi-report h2 { font-size: 15px; margin: 12px 0 4px; }
.fi-report svg { max-width: 100%; height: auto; display: block; }
.fi-report svg text { fill: var(--fg); font: 12px system-ui, sans-serif; }
.fi-report .elements { fill: var(--elements); } .fi-report .padding { fill: var(--padding); }
.fi-report .axis { stroke: var(--line); } .fi-report .peak { stroke: var(--fg); stroke-dasharray: 4 3; }
.fi-report .hatch { stroke: var(--bg); stroke-width: 1.5; }
.fi-report table { border-collapse: collapse; width: 100%; margin-top: 8px; }
.fi-report th, .fi-report td { text-align: left; vertical-align: top; padding: 4px 10px 4px 0;
  border-bottom: 1px solid var(--line); color: var(--fg); background: var(--bg); }
.fi-report td.number, .fi-report th.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.fi-report td.text { min-width: 20em; width: 50%; overflow-wrap: anywhere; }
.fi-report th button { all: unset; cursor: pointer; font-weight: 600; }
.fi-report th button:focus-visible { outline: 2px solid var(--elements); }
.fi-report th[aria-sort=descending] button::after { content: " \\25bc"; }
.fi-report th[aria-sort=ascending] button::after { content: " \\25b2"; }
.fi-report code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
.fi-report .dim, .fi-report summary { color: var(--dim); }
.fi-report .swatch { display: inline-block; width: 1em; height: 1em; vertical-align: -0.15em; margin: 0 0.3em 0 1em; }
"""

#: Makes the first table in the element with the given id sortable.
_SCRIPT = """
(function () {
  var root = document.getElementById("ID");
  if (!root) return;
  var body = root.querySelector("tbody"), heads = root.querySelectorAll("th");
  heads.forEach(function (head, column) {
    head.querySelector("button").addEventListener("click", function () {
      var down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      var rows = Array.prototype.slice.call(body.rows);
      rows.sort(function (a, b) {
        var x = a.cells[column].dataset.value, y = b.cells[column].dataset.value;
        var order = isNaN(x - y) ? x.localeCompare(y) : x - y;
        return down ? -order : order;
      });
      rows.forEach(function (row) { body.appendChild(row); });
    });
  });
})();
"""

_NUMBERS = itertools.count(1)


def new_id(kind: str) -> str:
    """Return an id for the element of a fragment."""
    return f"fi-{kind}-{next(_NUMBERS)}"


def fragment_of(number: str, parts: Iterable[str]) -> str:
    """Return an HTML fragment of the given id, with its own style and a script that makes its first table sortable."""
    begin = f'<div class="fi-report" id="{number}">\n<style>{_STYLE}</style>'
    end = f"<script>{_SCRIPT.replace('ID', number)}</script>\n</div>"
    return "\n".join(part for part in (begin, *parts, end) if part)


def table_of(numbers: Iterable[str], words: Iterable[str], rows: Iterable[str]) -> str:
    """Return a sortable HTML table: columns of numbers and of words by their titles, and the rows."""
    heads = [f'<th scope="col" class=number><button type="button">{title}</button></th>' for title in numbers]
    heads += [f'<th scope="col"><button type="button">{title}</button></th>' for title in words]
    body = "\n".join(rows)
    return f"<table><thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def row_of(numbers: Iterable[Number], words: Iterable[str]) -> str:
    """Return a row of an HTML table: numbers, and the cells of words."""
    cells = [f'<td class="number" data-value="{key}">{escape(text)}</td>' for key, text in numbers]
    return f"<tr>{''.join((*cells, *words))}</tr>"


def text_cell(key: str, html: str) -> str:
    """Return a cell of words, which are sorted by the key."""
    return f'<td class="text" data-value="{escape(key)}">{html}</td>'


def page_of(title: str, fragment: str) -> str:
    """Return a complete page that contains a fragment."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{escape(title)}</title>\n'
        "<style>body { margin: 0; background: #ffffff; }\n"
        "@media (prefers-color-scheme: dark) { body { background: #161616; } }</style>\n</head>\n<body>\n"
        f"{fragment}\n</body>\n</html>\n"
    )
