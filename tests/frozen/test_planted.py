"""Every planted bug that is recorded is still planted; what tests replace is there, and something reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frozen import planted
from tests.frozen.walk import Package

CONTRACT = '[[tool.importlinter.contracts]]\nid = "layers"\nlayers = ["moves", "tables"]\n'
MODULES = {
    "tables": "LEAST = 1\nclass Table:\n    scratch = None\ndef made():\n    return LEAST\ndef unread(): ...\n",
    "moves": "from fastindex import tables\nfrom fastindex.tables import unread\nx = tables.made(), tables.x.scratch\n",
}
TESTS = '''
from fastindex import tables
from fastindex.tables import Table

PROGRAM = """
from fastindex import tables
tables.made = None
"""

def test_a_wrong_table_shows(monkeypatch):
    monkeypatch.setattr(tables, "LEAST", 2)
    monkeypatch.setattr("fastindex.tables.Table.scratch", 3)

def test_with_a_planted_bug():
    run(PROGRAM)

def test_spoiled_data_is_noticed(): ...

def test_what_moved_is_found(monkeypatch):
    monkeypatch.setattr(tables, "unread", 2)
    monkeypatch.setattr(Table, "moved", 2)
    monkeypatch.setattr("fastindex.tables.inner.gone", 2)

def test_right(monkeypatch):
    monkeypatch.setattr(os, "fsync", 2)
'''


@pytest.mark.in_turn(seconds=10)
def test_no_planted_bug_is_lost() -> None:
    """One that is taken out, or has another name, is recorded with ``python -m tests.frozen.planted --write``."""
    bugs, replaced = planted.everything()
    recorded = {line.split()[0] for line in planted.FILE.read_text().splitlines()}
    assert recorded - {bug.id for bug in bugs} == set()
    assert planted.lost(planted.this_package(), replaced) == []
    assert len(replaced) > 100


def test_bugs_and_names_that_nothing_reads(tmp_path: Path) -> None:
    (tmp_path / "fastindex").mkdir()
    (tmp_path / "pyproject.toml").write_text(CONTRACT)
    for name, text in MODULES.items():
        (tmp_path / "fastindex" / f"{name}.py").write_text(text)
    (tmp_path / "test_tables.py").write_text(TESTS)
    package = Package(tmp_path)
    bugs, replaced = planted.found_in(package, tmp_path / "test_tables.py")
    assert [str(bug).split() for bug in bugs] == [
        ["test_tables.test_a_wrong_table_shows", "tables.LEAST", "tables.Table.scratch"],
        ["test_tables.test_with_a_planted_bug", "tables.made"],
        ["test_tables.test_spoiled_data_is_noticed", "-"],
        ["test_tables.test_what_moved_is_found", "tables.Table.moved", "tables.inner.gone", "tables.unread"],
    ]
    assert planted.lost(package, replaced) == [
        "test_tables.test_what_moved_is_found replaces tables.unread, which nothing reads",
        "test_tables.test_what_moved_is_found replaces tables.Table.moved, which is not there",
        "test_tables.test_what_moved_is_found replaces tables.inner.gone, which is not there",
    ]
