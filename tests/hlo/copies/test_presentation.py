"""Copies in text and HTML, and the command that prints them.

Tests of: hlo.copies.layout_copies, hlo.presentation.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import fastindex as fi
from fastindex.cli.commands import main
from tests.hlo.copies.recorded import recorded


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br", "line", "circle", "rect", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "br", "line", "circle", "rect", "path"):
            assert self.open.pop() == tag


@pytest.fixture(autouse=True)
def no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as in a file, whatever COLUMNS is here."""
    monkeypatch.delenv("COLUMNS", raising=False)


def test_the_page_has_a_mark_for_each_copy_and_loads_nothing() -> None:
    table = fi.hlo.layout_copies(recorded("branches_v4"))
    page = table.html()
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert page.count("<circle") == len(table.copies)
    assert page.count("<tr>") == 1 + len(table.copies)
    assert "By line of the program" in page
    assert "By argument" in page
    assert not re.search(r"https?://|src=", page)


def test_the_scale_has_whole_numbers() -> None:
    page = fi.hlo.layout_copies(recorded("decoder_cache_v5e")).html()
    assert re.findall(r'text-anchor="end">([\d.]+ [KMG]?i?B)</text>', page)[:6] == [
        "256 B", "4.0 KiB", "64.0 KiB", "1.0 MiB", "16.0 MiB", "256.0 MiB",
    ]  # fmt: skip


def test_names_of_the_text_do_not_become_markup() -> None:
    text = recorded("branches_v4").replace('op_name="x"', 'op_name="<b>[red]x"')
    page, shown = fi.hlo.layout_copies(text).html(), fi.hlo.layout_copies(text).text()
    assert "<b>" not in page
    assert "[red]x" in shown


def test_the_summary_adds_up() -> None:
    summary = fi.hlo.layout_copies(recorded("embedding_v4")).summary()
    assert "4 layout copies: 52.4 MiB read, 52.4 MiB written" in summary
    assert "by argument: argument 0, table 50.4 MiB; argument 2, updates 2.1 MiB" in summary
    assert "no data moves because of layouts" in fi.hlo.layout_copies(recorded("int4_weights_v6e")).summary()
    assert "counted for one trip of a loop" in fi.hlo.layout_copies(recorded("unknown_trips_v5p")).summary()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "points.txt"
    path.write_text(recorded("points_v5e"))
    return str(path)


@pytest.mark.parametrize("forced", [None, "1"])
def test_the_table_in_the_terminal(file: str, forced: str | None) -> None:
    run = CliRunner().invoke(
        main, ["copies", file, "--top", "1"], env={"FORCE_COLOR": forced, "NO_COLOR": None, "TERM": "xterm"}
    )
    assert run.exit_code == 0
    assert (click.unstyle(run.output) != run.output) == (forced is not None)
    assert "copy.10 in main.6: reads 64.0 KiB, writes 2.0 MiB" in click.unstyle(run.output)
    assert "more rows" in run.output


def test_the_command(file: str, tmp_path: Path) -> None:
    run = CliRunner().invoke(main, ["copies", file, "--json"])
    found = json.loads(run.output)
    assert not [row for row in found["copies"] if row["kind"] == "memory space"]
    everything = json.loads(CliRunner().invoke(main, ["copies", file, "--json", "--all"]).output)
    assert [row["instruction"] for row in everything["copies"] if row["kind"] == "memory space"] == ["copy-start"]
    page = tmp_path / "out.html"
    assert CliRunner().invoke(main, ["copies", file, "--html", str(page)]).exit_code == 0
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["missing.txt"], 1, "No such file"),
        (["-", "-"], 2, "stdin"),
        (["x.txt", "--html", "out.svg"], 2, "--html writes HTML"),
    ],
)
def test_what_the_command_refuses(arguments: list[str], status: int, message: str) -> None:
    run = CliRunner().invoke(main, ["copies", *arguments])
    assert run.exit_code == status
    assert message in run.output
