"""The page of a report and its piece in a notebook: whole, self-contained, escaped, sortable.

Tests of: hlo.report_views.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
import rich.console

import fastindex as fi
from tests.cases.hangs import HANG_SECONDS
from tests.hlo.test_buffers import BYTES, TILED, entry

TESTS = Path(__file__).resolve().parents[1]
VOID = {"meta", "br", "line"}


class Reader(HTMLParser):
    """Checks that elements close in order, and collects the cells and what is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.loaded += [f"{tag} {name}" for name in ("src", "href", "srcset") if values.get(name)]
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append(values["data-value"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    return reader


def chain() -> str:
    metadata = 'metadata={op_name="jit(<f>)/a&b" source_file="<script>.py" source_line=3}'
    return entry(
        f"%p = {TILED} parameter(0), {metadata}",
        f"%a = {TILED} reverse(%p), dimensions={{0}}",
        "%b = f32[64,128]{1,0:T(8,128)} custom-call(%a)",
        f"ROOT %r = {TILED} custom-call(%b)",
    )


def test_a_page_is_whole_and_loads_nothing() -> None:
    page = fi.hlo.report(chain()).html()
    reader = read(page)
    assert page.startswith("<!doctype html>")
    assert reader.loaded == []
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    assert "<script>.py" not in page
    assert "&lt;script&gt;.py:3" in page
    assert "prefers-color-scheme: dark" in page


def test_the_table_has_every_number_of_the_rows() -> None:
    report = fi.hlo.report(chain())
    rows = [row for row in read(report.html()).rows if row]
    found = [(int(row[0]), int(row[1]), int(row[3]), int(row[4]), row[5]) for row in rows]
    expected = [
        (use.wasted_nbytes, use.peak_count * use.nbytes, use.count, use.nbytes, str(use.shape))
        for use in report.sorted_uses()
    ]
    assert found == expected


def test_the_timeline_is_that_of_the_peak() -> None:
    """The chain by hand: argument and output throughout, a in steps 1 and 2, b in 2 and 3."""
    report = fi.hlo.report(chain())
    assert report.peak is not None
    assert [nbytes for _, nbytes, _ in report.peak.timeline] == [
        2 * BYTES,
        3 * BYTES,
        3 * BYTES + 32768,
        2 * BYTES + 32768,
    ]
    page = report.html()
    path = re.findall(r'class="padding" d="M([^"]*)Z"', page)[0].split("L")
    heights = sorted({float(point.split(",")[1]) for point in path})
    # The picture is 220 high, with 18 above and 24 below: the padding lies between all and the elements.
    elements = min(logical for _, _, logical in report.peak.timeline)
    assert heights[0] == 18.0
    assert heights[-1] == pytest.approx(196 - 178 * elements / (3 * BYTES + 32768), abs=0.1)
    assert "peak 1.5 MiB at step 2, b" in page


def test_a_notebook_shows_it_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where rich believes to be in a notebook, text and HTML are returned, and nothing is displayed."""
    shown: list[object] = []
    display = ModuleType("IPython.display")
    display.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    report = fi.hlo.report(chain())
    assert str(report) == repr(report) == report.text()
    assert "<table>" in report._repr_html_()
    assert capsys.readouterr() == ("", "")
    assert shown == []


def test_two_reports_in_a_notebook_do_not_meet() -> None:
    report = fi.hlo.report(chain())
    first, second = report._repr_html_(), report._repr_html_()
    assert set(re.findall(r'id="([^"]*)"', first)).isdisjoint(re.findall(r'id="([^"]*)"', second))


def test_every_memory_space_has_a_timeline() -> None:
    page = fi.hlo.report(TESTS / "data" / "hlo" / "convolutions_v4.txt").html()
    assert set(re.findall(r"memory space (\d), estimated", page)) == {"0", "3"}


SORTED = """
<script>
function column() {
  var rows = document.querySelectorAll("tbody tr"), values = [];
  rows.forEach(function (row) { values.push(row.cells[4].dataset.value); });
  return values.join(" ");
}
var button = document.querySelectorAll("th button")[4], seen = [];
button.click(); seen.push(column());
button.click(); seen.push(column());
document.title = seen.join("|");
</script>
"""


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_click_sorts(tmp_path: Path) -> None:
    report = fi.hlo.report(chain())
    page = tmp_path / "page.html"
    page.write_text(report.html().replace("</body>", SORTED + "</body>"))
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--dump-dom",
    ]
    dom = subprocess.run(
        [*command, page.as_uri()], capture_output=True, text=True, check=True, timeout=HANG_SECONDS
    ).stdout
    sizes = sorted(use.nbytes for use in report.uses)
    ascending = " ".join(map(str, sizes))
    descending = " ".join(map(str, sizes[::-1]))
    assert f"<title>{descending}|{ascending}</title>" in dom
