"""What every command that writes a file does with one that is there already.

Tests of: cli.group, jobs.writing.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from safetensors.numpy import save_file

import fastindex as fi
from fastindex.cli.commands import main
from fastindex.cli.group import OUT_PATH
from tests.commands import run_command

ROOT = Path(__file__).resolve().parents[2]
SHAPE = "f32[4,6]{1,0:T(2,3)}"
MODULE = """HloModule m

ENTRY e {
  p = f32[1000,3]{1,0:T(8,128)} parameter(0)
  ROOT n = f32[1000,3]{0,1:T(8,128)} copy(p)
}
"""
#: Every way to write a file; OUT is the file.
WRITING = {
    "pack": f"pack in OUT --shape {SHAPE}",
    "unpack": f"unpack in OUT --shape {SHAPE}",
    "unpack --name": "unpack packed OUT --name a",
    "relayout": f"relayout in OUT --from {SHAPE} --to {SHAPE}",
    "repack": "repack in OUT --from plain --to awq --shape 4x24 --bits 4",
    "index --input": f"index {SHAPE} --input in.npy --output OUT",
    "index --linear": f"index {SHAPE} --linear --input in.npy --output OUT",
    "index of a window": f"index {SHAPE} 1: : --output OUT",
    "show --svg": f"show {SHAPE} --svg OUT.svg",
    "show --html": f"show {SHAPE} --html OUT.html",
    "shard": "shard f32[4] {replicated} --devices 2 --svg OUT.svg",
    "report": "report module --html OUT.html",
    "copies": "copies module --html OUT.html",
}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that everybody reaches, with what the commands read."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    (path / "in").write_bytes(bytes(96))
    np.save(path / "in.npy", np.zeros((2, 3), np.int64))
    (path / "module").write_text(MODULE)
    save_file({"a": np.zeros((2, 3), np.float32)}, path / "in.safetensors")
    fi.weights.pack_checkpoint(path / "in.safetensors", path / "packed")
    (path / "in.safetensors").unlink()
    monkeypatch.chdir(path)
    yield path
    shutil.rmtree(path)


def command(name: str) -> tuple[list[str], Path]:
    """Return a command line and the file that it writes."""
    words = WRITING[name].split()
    return [word.replace("OUT", "out") for word in words], Path(next(w for w in words if "OUT" in w).lower())


def run(arguments: list[str]) -> Result:
    return run_command(arguments)


def test_these_are_all_commands_that_write() -> None:
    """Each file that is written, of each command, and each of these commands knows --force.

    What convert writes is a folder that is new: see weights/test_converting.py.
    """
    written = {
        (name, parameter.opts[-1])
        for name, one in main.commands.items()
        for parameter in one.params
        if (name, parameter.name) != ("convert", "folder")
        if parameter.type is OUT_PATH or "rite" in str(getattr(parameter, "help", ""))
    }
    tried = {
        (words[0], words[at - 1] if words[at - 1].startswith("--") else "target")
        for words in map(str.split, WRITING.values())
        for at, word in enumerate(words)
        if "OUT" in word
    }
    assert written == tried
    for name, _ in written:
        assert "--force" in [option for parameter in main.commands[name].params for option in parameter.opts]


@pytest.mark.parametrize("name", WRITING)
def test_a_read_only_target_is_refused(folder: Path, name: str) -> None:
    """root could write it, and whoever may write into its folder could replace it."""
    arguments, out = command(name)
    assert run(arguments).exit_code == 0
    # Pages number what is in them.
    made = out.read_bytes()[:15]
    before = sorted(os.listdir())
    for mode in (0o444, 0o400, 0o000):
        out.write_bytes(b"before")
        out.chmod(mode)
        refused = run(arguments)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr == f"fastindex: {out}: it is read-only; --force replaces it all the same\n"
        assert (out.read_bytes(), stat.S_IMODE(out.stat().st_mode)) == (b"before", mode)
        assert run([*arguments, "--force"]).exit_code == 0
        assert (out.read_bytes()[:15], stat.S_IMODE(out.stat().st_mode)) == (made, mode)
        out.chmod(0o644)
    assert sorted(os.listdir()) == before


BY_MODES = """
import os
from tests.cli.test_targets import WRITING, command, run
from tests.modes import obey_modes
obey_modes()
for name in WRITING:
    arguments, out = command(name)
    out.touch()
    out.chmod(0o222)
    before = out.stat().st_ino
    result = run(arguments)
    assert (result.exit_code, result.stderr) == (0, ""), (name, result.output, result.exception)
    assert out.stat().st_ino != before and out.stat().st_size, name
    assert out.stat().st_mode & 0o777 == 0o222, name
    out.unlink()
"""


@pytest.mark.in_turn(seconds=0.8)
@pytest.mark.skipif(os.name == "nt", reason="modes mean little there")
def test_a_target_that_may_only_be_written(folder: Path) -> None:
    """Without root's rights, also where root runs the tests: the replaced file is not read."""
    done = subprocess.run(
        [sys.executable, "-c", BY_MODES],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir()) == ["in", "in.npy", "module", "packed"]


def test_the_written_file_is_the_answer(folder: Path) -> None:
    """What one that was read-only is replaced by."""
    arguments, out = command("index of a window")
    out.touch(0o400)
    run([*arguments, "--force"])
    assert np.fromfile(out, np.int64).tolist() == fi.linear_index(SHAPE, np.s_[1:, :]).reshape(-1).tolist()
