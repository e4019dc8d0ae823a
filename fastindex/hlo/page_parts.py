"""Shared parts of HTML pages about a program: colours, sortable tables, the page frame.

The colours are Okabe and Ito's, which are distinguishable with colour blindness. Pages load nothing, and follow the
reader's light or dark scheme.
"""

from __future__ import annotations

from html import escape

#: Style for a fragment in an element of the class `fi-report`.
STYLE = """
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


def script_of(number: str) -> str:
    """Return the script that makes the first table in the element with the given id sortable."""
    return f"<script>{_SCRIPT.replace('ID', number)}</script>"


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
