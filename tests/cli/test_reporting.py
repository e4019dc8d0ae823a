"""The command `report`: its views, its page, and what it says of files that are no HLO."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fastindex.cli.commands import main
from tests.cli.test_cli import fails, run
from tests.hlo.test_out_of_memory import MESSAGES, message

FUSED = """HloModule m, is_scheduled=true

%fused (q: f32[1000,3]) -> f32[1000,3] {
  %q = f32[1000,3]{1,0:T(8,128)} parameter(0)
  ROOT %x = f32[1000,3]{1,0:T(8,128)} exponential(%q)
}

ENTRY %e (p: f32[1000,3]) -> f32[1000,3] {
  %p = f32[1000,3]{1,0:T(8,128)} parameter(0)
  %a = f32[1000,3]{1,0:T(8,128)} negate(%p)
  ROOT %b = f32[1000,3]{1,0:T(8,128)} fusion(%a), kind=kLoop, calls=%fused, metadata={source_file="t.py" source_line=9}
}
"""


def test_buffers_or_all_results(tmp_path: Path) -> None:
    file = tmp_path / "m.txt"
    file.write_text(FUSED)
    assert json.loads(run("report", file, "--json").stdout)["buffer_count"] == 3
    everything = json.loads(run("report", file, "--json", "--all").stdout)
    assert (everything["buffer_count"], everything["counted"]) == (5, "instruction results")
    assert "instruction results" in run("report", file, "--all").stdout
    assert "t.py:9" not in run("report", file).stdout
    assert "t.py:9" in run("report", file, "--names").stdout


@pytest.mark.parametrize(("columns", "widest"), [("66", 66), ("wide", 110), (None, 110)])
def test_tables_are_as_wide_as_the_environment_says(columns: str | None, widest: int, tmp_path: Path) -> None:
    file = tmp_path / "module.txt"
    file.write_text(FUSED)
    printed = CliRunner(env={"COLUMNS": columns}).invoke(main, ["report", str(file)]).stdout
    (rule,) = [line for line in printed.splitlines() if "───" in line]
    # The last column remains free, as some terminals break a line that fills it.
    assert len(rule) == widest - 1
    assert max(map(len, printed.partition("\n\n")[0].splitlines())) <= widest


def test_a_page(tmp_path: Path) -> None:
    file, page = tmp_path / "m.txt", tmp_path / "page.html"
    file.write_text(FUSED)
    assert run("report", file, "--html", page).stdout == ""
    assert page.read_text().startswith("<!doctype html>")
    both = run("report", file, "--html", page, "--json")
    assert json.loads(both.stdout)["peak_nbytes"] == 3 * 512000
    assert "the name must end in .html" in run("report", file, "--html", tmp_path / "page.txt", status=2).stderr


def test_from_a_log_to_the_line(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\n" * 1000 + message(MESSAGES[1]))
    text = run("report", log).stdout
    for part in ("t.py:6", "15.5 GiB", "dimension 4 (size 4) is padded to 128", "would take 15.5 GiB less"):
        assert part in text
    # An allocation of the program's own: its layout is the compiler's choice, and nothing is promised.
    assert "saves" not in text
    assert "fastindex.hlo.try_layouts" in " ".join(text.split())
    assert run("report", "-", stdin=log.read_text()).stdout == text


def test_what_cannot_be_reported(tmp_path: Path) -> None:
    values = tmp_path / "m-buffer-assignment-values.txt"
    values.write_text("\nTotal bytes used: 524368 (512.1KiB)\n\nUsed values:\n<9 constant.4 @0>\n positions:\n")
    assert "report the module" in fails("report", values)
    assert "No such file" in fails("report", tmp_path / "missing")


def test_long_tables_say_what_they_leave_out(tmp_path: Path) -> None:
    file = tmp_path / "m.txt"
    lines = [f"  c{n} = f32[{n}]{{0}} copy(f32[{n}]{{0:T(128)}} parameter({n - 1}))" for n in range(1, 71)]
    file.write_text("\n".join(["HloModule m", "ENTRY e {", *lines, "}"]))
    for command, name, total in (("report", "shapes", 140), ("copies", "rows", 70)):
        printed = run(command, file).stdout
        assert printed.endswith(f"\n{total - 64} more {name}; --top {total} prints all, --json has all\n")
        assert printed.count("f32[") < run(command, file, "--top", str(total)).stdout.count("f32[")
        assert run(command, file, "--top", str(total - 1)).stdout.endswith(f"\n1 more {name[:-1]}\n")
