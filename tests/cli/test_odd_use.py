"""Every command where streams are closed, full or without a reader, and where files are not what they should be.

Something that fails ends with one line and a status that is not 0, leaves no file behind, and says where it was.

Tests of: cli.process, cli.group, terminal.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import fastindex as fi
from fastindex.cli.commands import main
from tests.cli.test_targets import MODULE, ROOT, SHAPE, WRITING

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks, which make hundreds of processes cheap")

#: Commands that print.
PRINTING = {
    "--help": "--help",
    "--version": "--version",
    "pack --help": "pack --help",
    "info": f"info {SHAPE}",
    "info --json": f"info {SHAPE} --json",
    "show": f"show {SHAPE}",
    "index": f"index {SHAPE} 1 2",
    "index of a window to stdout": f"index {SHAPE} : 1:",
    "index --runs": f"index {SHAPE} --runs : 1:",
    "index --tile": f"index {SHAPE} --tile 0 1 2",
    "index --linear to stdout": f"index {SHAPE} --linear 3",
    "index --sharding": "index f32[64,64] --sharding {devices=[2,4]<=[8]} 40 9",
    "shard to stdout": "shard f32[4] {replicated} --devices 2",
    "shard --json": "shard f32[4] {replicated} --devices 2 --json",
    "paged": "paged bf16[num_blocks=8,2,kv_heads=4,block_size=16,head_dim=64] --blocks 3,7 0 16",
    "report to stdout": "report module",
    "report --json": "report module --json",
    "copies to stdout": "copies module",
    "copies --json": "copies module --json",
    "completion": "completion bash",
    "convert --dry-run": "convert in.safetensors converted --rules rules.json --dry-run",
    "verify": "verify packed",
    "info of a checkpoint": "info packed",
}
#: What they read is IN.
READING = {
    **{name: line.replace(" in ", " IN ").replace("in.npy", "IN") for name, line in WRITING.items() if " in" in line},
    "report": "report IN --html OUT.html",
    "copies": "copies IN --html OUT.html",
    "verify": "verify IN",
}
FROM_STDIN = {"report -": "report -", "copies -": "copies - --json"}
WRONG = {"no shape": ("info f32[", 1), "no argument": ("info", 2), "no option": ("pack in OUT --nonsense", 2)}
#: These compute for seconds, or for ever.
LEFT_OUT = {"demo", "warmup", "explore"}


@dataclass
class Case:
    """A command line, how its streams are, and what it has to end with."""

    name: str
    line: str
    streams: str
    status: int
    message: str = ""
    by_modes: bool = False

    @property
    def words(self) -> list[str]:
        return [word.replace("OUT", "out") for word in self.line.split()]


def stream_cases() -> Iterator[Case]:
    said = {"closed": "Bad file descriptor", "full": "No space left on device"}
    for name, line in {**PRINTING, **WRITING}.items():
        prints = name in PRINTING
        for how, why in said.items():
            message = f"fastindex: stdout: {why}\n" if prints else ""
            yield Case(name, line, f"stdout {how}", int(prints), message)
            yield Case(name, line, f"stderr {how}", 0)
        # As the shell counts SIGPIPE.
        yield Case(name, line, "stdout unread", 141 if prints else 0)
        yield Case(name, line, "stdin closed", 0)
        yield Case(name, line, "all closed", int(prints))
    for name, line in FROM_STDIN.items():
        yield Case(name, line, "stdin closed", 1, "fastindex: <stdin>: Bad file descriptor\n")
        yield Case(name, line, "stdin full", 1, "fastindex: <stdin>: not HLO text: binary data")
    for name, (line, status) in WRONG.items():
        for how in ("stdout closed", "stdout full", "stdin closed"):
            yield Case(name, line, how, status, "")
        for how in ("stderr closed", "stderr full", "all closed"):
            yield Case(name, line, how, status)


def file_cases() -> Iterator[Case]:
    reasons = {
        "missing": "No such file or directory",
        "folder": "Is a directory",
        "in/file": "Not a directory",
        "loop": "Too many levels of symbolic links",
        "secret": "Permission denied",
        "hidden/in": "Permission denied",
    }
    for name, line in READING.items():
        for path, reason in reasons.items():
            message = f"fastindex: {path}: {reason}\n"
            if path == "folder" and name in ("report", "copies"):
                message = "fastindex: no HLO text in folder: "
            if name == "verify":
                message = "fastindex: folder holds no complete" if path == "folder" else f"fastindex: {path}"
            yield Case(name, line.replace("IN", path), "", 1, message, by_modes=True)
    reasons = {
        "missing/OUT": "No such file or directory",
        "in/OUT": "Not a directory",
        "locked/OUT": "Permission denied",
        "hidden/OUT": "Permission denied",
        "folder": "Is a directory",
    }
    for name, line in WRITING.items():
        for path, reason in reasons.items():
            if path == "folder":
                target = next(word for word in line.split() if "OUT" in word).replace("OUT", "folder")
            else:
                target = next(word for word in line.split() if "OUT" in word).replace("OUT", path.replace("OUT", "out"))
            words = [target if "OUT" in word else word for word in line.split()]
            yield Case(name, " ".join(words), "", 1, f"fastindex: {target}: {reason}\n", by_modes=True)


#: Runs each command once, so that all is loaded, and then every case in a child, which ends as a process does.
PROGRAM = """
import gc, json, os, signal, sys
from click.testing import CliRunner
import fastindex.__main__
from fastindex.cli.commands import main
from tests.modes import obey_modes
cases, log, lines = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
for words in lines:
    CliRunner().invoke(main, words, input="")
for name in os.listdir():
    if name.startswith("out"):
        os.unlink(name)

def arrange(streams):
    # As the shell does, and then as Python does.
    nothing = os.open(os.devnull, os.O_RDWR)
    errors = os.open("errors", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for number, file in enumerate((nothing, nothing, errors)):
        os.dup2(file, number)
    os.close(nothing)
    os.close(errors)
    which, _, how = streams.partition(" ")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if which not in (name, "all"):
            pass
        elif how == "closed":
            os.close(number)
        elif how == "full":
            os.dup2(os.open("/dev/zero" if number == 0 else "/dev/full", os.O_RDWR), number)
        elif how == "unread":
            ends = os.pipe()
            os.dup2(ends[1], number)
            os.close(ends[0])
            os.close(ends[1])
        is_closed = which in (name, "all") and how == "closed"
        stream = None if is_closed else open(number, "rww"[number], (-1, -1, 1)[number], closefd=False)
        if number == 0 and stream is not None:
            stream.buffer.raw.name = "<stdin>"
        setattr(sys, name, stream)

found = []
# Children end without looking at every object.
gc.collect()
gc.freeze()
for words, streams, by_modes in cases:
    before = sorted(os.listdir())
    child = os.fork()
    if child == 0:
        arrange(streams)
        if by_modes:
            obey_modes()
        signal.alarm(3600)
        sys.argv = ["fastindex", *words]
        fastindex.__main__.main()
        sys.exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open("errors") as file:
        errors = file.read()
    os.unlink("errors")
    made = sorted(set(os.listdir()) - set(before))
    sizes = {name: os.path.getsize(name) for name in made}
    for name in made:
        os.unlink(name)
    found.append((status, errors, sizes))
with open(log, "w") as file:
    json.dump(found, file)
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    (path / "in").write_bytes(bytes(96))
    (path / "secret").write_bytes(bytes(96))
    np.save(path / "in.npy", np.zeros((2, 3), np.int64))
    save_file({"a": np.zeros((2, 3), np.float32)}, path / "in.safetensors")
    fi.weights.pack_checkpoint(path / "in.safetensors", path / "packed", [])
    (path / "module").write_text(MODULE)
    (path / "rules.json").write_text('[{"names": "a", "outputs": [{"name": "b"}]}]')
    for name in ("folder", "folder.html", "folder.svg", "locked", "hidden"):
        (path / name).mkdir()
    (path / "hidden" / "in").write_bytes(bytes(96))
    (path / "loop").symlink_to("loop")
    # All may write here: what is refused is refused by the files below.
    for name, mode in (("", 0o777), ("secret", 0), ("locked", 0o555), ("hidden", 0)):
        (path / name).chmod(mode)
    yield path
    for name in ("locked", "hidden"):
        (path / name).chmod(0o700)
    shutil.rmtree(path)


def ended(cases: list[Case], folder: Path) -> list[Any]:
    """Return how each case ends: status, stderr, and the sizes of the files that it has made."""
    lines = [line.replace("OUT", "out").replace("IN", "in").split() for line in (PRINTING | WRITING | READING).values()]
    with tempfile.TemporaryDirectory() as elsewhere:
        log = Path(elsewhere) / "log"
        arguments = [(case.words, case.streams, case.by_modes) for case in cases]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", PROGRAM, json.dumps(arguments), str(log), json.dumps(lines)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(log.read_text())


def check(case: Case, status: int, errors: str, sizes: dict[str, int]) -> None:
    what = f"{case.name}, {case.streams or case.line}: {status}, {errors!r}, {sizes}"
    assert status == case.status, what
    assert "Traceback" not in errors, what
    assert "internal error" not in errors, what
    if case.name in WRONG:
        assert bool(errors) == (not case.streams.startswith(("stderr", "all"))), what
    elif case.message.endswith("\n") or not case.message:
        assert errors == case.message, what
    else:
        assert errors.startswith(case.message), what
        assert errors.count("\n") == 1, what
    target = [word for word in case.words if word.startswith("out")] if case.name in WRITING and not status else []
    assert [*sizes] == target, what
    assert all(sizes.values()), what


def test_every_command_is_tried() -> None:
    tried = {line.split()[0] for line in (PRINTING | WRITING).values()}
    assert tried - {"--help", "--version"} == set(main.commands) - LEFT_OUT


@pytest.mark.in_turn(seconds=4.5)
@pytest.mark.parametrize("part", range(4))
def test_streams(part: int, folder: Path) -> None:
    cases = [*stream_cases()][part::4]
    for case, found in zip(cases, ended(cases, folder), strict=True):
        check(case, *found)


@pytest.mark.in_turn(seconds=3)
@pytest.mark.parametrize("part", range(4))
def test_files(part: int, folder: Path) -> None:
    """Without root's rights, so that modes matter."""
    cases = [*file_cases()][part::4]
    for case, found in zip(cases, ended(cases, folder), strict=True):
        check(case, *found)
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0
    assert (folder / "in").read_bytes() == bytes(96)
    assert [*(folder / "locked").iterdir()] == []


@pytest.mark.in_turn(seconds=0.2)
@pytest.mark.parametrize("line", ["info f32[3]", "report -", "--help"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_the_shell_closes(line: str, unbuffered: str) -> None:
    """The same with separate processes, for a few."""
    command = ["sh", "-c", '"$@" <&- >&-', "sh", sys.executable, "-m", "fastindex", *line.split()]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    stream = "<stdin>" if line.endswith("-") else "stdout"
    assert (done.returncode, done.stderr) == (1, f"fastindex: {stream}: Bad file descriptor\n")
