"""Every block of code in the documentation runs, and prints what the page says.

``pycon`` blocks are doctests, which pytest collects itself. Here run the ``console`` blocks: lines that begin with
``$`` are commands, the lines below them what they print; a line ``...`` stands for any lines. The commands of a page
run in one folder, in which ``tests`` is that of the repository.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cases.hangs import HANG_SECONDS
from tests.documents.pages import PAGES, ROOT, Block, blocks, name_of

#: What a block may be: run as a doctest, run here, drawn or filled in by `docs/site/hooks.py`, or text.
LANGUAGES = {"pycon", "console", "sh", "layout", "sharding", "figures", "help", "text"}
#: Who runs what does not run here.
RUNNERS = {".ci/run", "a machine with a GPU"}
CONSOLE_PAGES = [page for page in PAGES if any(block.language == "console" for block in blocks(page))]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Return the commands of a block, with the input that follows ``<<'END'``, and the lines that each shall print."""
    command: str | None = None
    expected: list[str] = []
    end: str | None = None
    for line in text.splitlines():
        if end is not None:
            command = f"{command}\n{line}"
            end = None if line == end else end
        elif line.startswith("$ "):
            if command is not None:
                yield command, expected
            command, expected = line[2:], []
            word = re.search(r"<<'(\w+)'", command)
            end = word[1] if word else None
        else:
            assert command is not None, f"a console block begins with a command, not {line!r}"
            expected.append(line)
    if command is not None:
        yield command, expected


def has_what_it_needs(block: Block) -> bool:
    """Whether the libraries that a block needs are installed; where the documentation is checked they must be."""
    missing = [library for library in block.needs if find_spec(library) is None]
    assert not missing or "documentation" not in os.environ.get("FASTINDEX_REQUIRE", ""), missing
    return not missing


def matches(printed: list[str], expected: list[str]) -> bool:
    """Whether the lines are the expected ones, of which ``...`` stands for any."""
    pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line.rstrip()) + r"\n" for line in expected)
    return re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in printed)) is not None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the commands of a page, with `fastindex` and `python` of this environment on the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in {"fastindex": "-m fastindex", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # What fits the column of a page.
    monkeypatch.setenv("COLUMNS", "98")
    work = tmp_path / "work"
    work.mkdir()
    (work / "tests").symlink_to(ROOT / "tests")
    return work


def serve(command: str, folder: Path) -> None:
    """Start a command that serves a page, open the address that it prints, and end it with Ctrl-C."""
    if find_spec("uvicorn") is None:
        return
    with subprocess.Popen(shlex.split(command), cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            address = next(word for word in server.stdout.readline().split() if word.startswith("http://"))
            with urllib.request.urlopen(address, timeout=HANG_SECONDS) as page:
                assert b"<html" in page.read()
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(HANG_SECONDS) in (0, 130)


@pytest.mark.in_turn(seconds=1.1)
@pytest.mark.parametrize("page", CONSOLE_PAGES, ids=name_of)
def test_commands_print_what_the_page_says(page: Path, folder: Path) -> None:
    for block in blocks(page):
        if block.language != "console" or block.run_by or not has_what_it_needs(block):
            continue
        for command, expected in commands(block.text):
            where = f"{name_of(page)}, line {block.line}: {command}"
            if command.startswith("fastindex explore"):
                serve(command, folder)
                continue
            run = subprocess.run(
                ["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS
            )
            assert run.returncode == 0, f"{where}\n{run.stderr}"
            assert matches(run.stdout.splitlines(), expected), f"{where}\nprinted\n{run.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_of_a_kind_that_runs(page: Path) -> None:
    for block in blocks(page):
        where = f"{name_of(page)}, line {block.line}"
        assert block.language in LANGUAGES, where
        assert block.run_by is None or block.run_by in RUNNERS, where
        if block.language == "sh" and page.name != "README.md":
            assert block.run_by, f"{where}: a shell block is a console block, or says who runs it"
        if block.language == "text":
            assert not re.search(r"^(\$|>>>) ", block.text, re.MULTILINE), f"{where}: this looks like code"


def test_first_two_shell_blocks_of_the_readme_are_demo_and_tests() -> None:
    shell = [block for block in blocks(ROOT / "README.md") if block.language in ("sh", "bash", "shell", "console")]
    assert shell[0].text.splitlines()[-1] == ".venv/bin/fastindex demo"
    assert shell[1].text.splitlines()[-1] == ".venv/bin/python -m pytest"


def test_lines_that_are_left_out_match_any() -> None:
    assert matches(["a", "b", "c"], ["a", "...", "c"])
    assert matches(["a", "c "], ["a", "...", "c"])
    assert not matches(["a", "b"], ["a"])
    assert not matches(["a"], ["a", "b"])
    assert list(commands("$ a\nb\n$ c")) == [("a", ["b"]), ("c", [])]
    assert list(commands("$ a <<'END'\n$ b\nEND\nc")) == [("a <<'END'\n$ b\nEND", ["c"])]


def test_blocks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\na\n```\n<!-- run by: someone -->\n```console\n$ b\n```\n\n<!-- needs: c d -->\n```text\n```\n"
    )
    assert blocks(page) == [
        Block("sh", "a", 2),
        Block("console", "$ b", 6, "someone"),
        Block("text", "", 11, None, ("c", "d")),
    ]


def test_every_command_is_in_the_reference() -> None:
    from fastindex.cli.commands import main

    (listed,) = (block for block in blocks(ROOT / "docs/reference/command-line.md") if block.language == "help")
    assert sorted(listed.text.splitlines()) == ["fastindex", *sorted(f"fastindex {name}" for name in main.commands)]
