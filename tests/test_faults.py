"""The command `tests/faults/campaign.py` finds what is planted, and nothing where nothing is.

Its parts run for long in `.ci/run` and by hand; here each kind of check is shown to be one.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from tests.cases.hangs import HANG_SECONDS
from tests.faults import campaign, checkpoints, file_jobs, hlo_pieces, layouts, stores, texts, valgrind
from tests.faults.tally import Row, Tally, read
from tests.faults.valgrind import accesses_of_kernels

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.in_turn(seconds=4)
def test_a_short_run(tmp_path: Path) -> None:
    totals = tmp_path / "totals.json"
    options = ["--minutes", "0.03", "--only", "texts", "--totals", str(totals)]
    command = [sys.executable, "-m", "tests.faults.campaign", *options]
    runs = 0
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "| texts of shapes, layouts and shardings, damaged |" in done.stdout
        rows = json.loads(totals.read_text())["rows"]
        # How many fit into two seconds is the machine's business; that there are some, and that they add up, is not.
        assert rows["texts of shapes"]["runs"] > runs
        runs = rows["texts of shapes"]["runs"]
        assert rows["texts of shapes"]["findings"] == 0


def test_runs_at_the_same_time_add_up(tmp_path: Path) -> None:
    totals = [campaign.Totals(tmp_path / "totals.json") for _ in range(4)]

    def add(one: campaign.Totals) -> None:
        for _ in range(20):
            one.add({"row": Row(3, 1)}, {"row": 2}, 30.0)

    threads = [threading.Thread(target=add, args=(one,)) for one in totals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = json.loads((tmp_path / "totals.json").read_text())
    assert content["rows"] == {"row": {"runs": 240, "refused": 80, "findings": 160}}
    assert content["minutes"] == pytest.approx(40)
    assert "| row | 240 | 80 | 160 |" in campaign.markdown(content)


def test_the_table_has_a_line_for_every_row() -> None:
    """Rows are named in the parts; a name that no line knows would stand on the page as it is."""
    parts = [path for path in (ROOT / "tests" / "faults").glob("*.py") if path.stem != "campaign"]
    source = "".join(path.stem + path.read_text() for path in parts)
    for line, beginnings in campaign.LINES.items():
        for beginning in beginnings:
            assert campaign.line_of(beginning) == line
            # Parts put some names together from pieces.
            assert all(word in source for word in beginning.split() if not word.startswith("SIG"))
    counts = {name: {"runs": 1000, "refused": 1, "findings": 2} for name in ("texts of a", "texts of b", "others")}
    content = {"rows": counts, "minutes": 59.7, "last": "2026-01-02", "machine": "a machine"}
    page = f"before\n{campaign.BEGIN}\nold\n{campaign.END}\nafter\n"
    found = campaign.with_table(page, content)
    assert campaign.with_table(found, content) == found
    assert found.startswith(
        f"before\n{campaign.BEGIN}\n\nIn 60 minutes of one process, until 2026-01-02, on a machine:\n"
    )
    assert (
        "\n| texts of shapes, layouts and shardings, damaged | 2,000 | 2 | 4 |\n| others | 1,000 | 1 | 2 |\n" in found
    )
    assert campaign.BEGIN in (ROOT / "docs" / "reliability.md").read_text()


def test_turns_share_the_time() -> None:
    """Half an hour of two processes, a part at a time; and a minute, in which every part has a turn."""
    seconds: Counter[str] = Counter()
    first = next(iter(campaign.PARTS))
    for turn in campaign.turns(30, None, 0, 2):
        if turn.part == first and len(seconds) == len(campaign.PARTS):
            break
        seconds[turn.part] += turn.seconds
        assert 4 <= turn.seconds <= 300
    assert set(seconds) == set(campaign.PARTS)
    assert sum(seconds.values()) == pytest.approx(3600, 0.02)
    short = [*itertools.islice(campaign.turns(1, None, 0, 1), len(campaign.PARTS))]
    assert {turn.part for turn in short} == set(campaign.PARTS)
    assert min(turn.seconds for turn in short) == 4
    assert [turn.part for turn in campaign.turns(0, None, 0, 2)] == [*campaign.PARTS], (
        "where loading takes all the time"
    )
    assert {turn.part for turn in itertools.islice(campaign.turns(1, ["texts", "disks"], 0, 1), 9)} == {
        "texts",
        "disks",
    }


@pytest.mark.in_turn(seconds=0.3)
@pytest.mark.parametrize("part", ["stores", "workers", "valgrind"])
def test_what_is_missing_is_said(part: str) -> None:
    """Without their libraries, tools or time these parts say so, and that is no finding."""
    program = f"""
import sys
from pathlib import Path
sys.modules["zarr"] = sys.modules["dask"] = None
import importlib.util, shutil
importlib.util.find_spec = lambda name: None
shutil.which = lambda name: None
from tests.faults import {part}
from tests.faults.tally import Row, Tally, read
{part}.run(Tally(Path("tally"), 1000.0, 1))
print(read(Path("tally")).skipped, read(Path("tally")).findings)
"""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS
        )
    assert "not installed []" in done.stdout, done.stderr


def test_kernels_that_take_too_long_for_valgrind_are_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling goes on in the next run; that takes minutes on a busy machine."""

    def run(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", run)
    valgrind.run(Tally(tmp_path / "tally", 100.0, 1))
    saved = read(tmp_path / "tally")
    assert "not compiled in 100 seconds" in saved.skipped
    assert saved.findings == []


def test_a_part_that_dies_is_a_finding() -> None:
    saved = campaign.Turn("no_such_part", 1, 1).run()
    assert not saved.rows
    assert len(saved.findings) == 1
    assert "ended with 1" in saved.findings[0]


def tally_of(tmp_path: Path, part: Any) -> list[str]:
    tally = Tally(tmp_path / "tally", 2.0, 1)
    part.run(tally)
    return read(tmp_path / "tally").findings


def test_a_wrong_text_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts.fi.Layout, "__str__", lambda layout: "{0}")
    assert any("reads back as" in finding for finding in tally_of(tmp_path, texts))


def test_an_error_of_another_kind_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hlo_pieces.fi.hlo, "report", lambda *arguments, **options: [][1])
    assert any("IndexError" in finding for finding in tally_of(tmp_path, hlo_pieces))


def test_what_takes_too_long_is_found(tmp_path: Path) -> None:
    tally = Tally(tmp_path / "tally", 1.0, 1)
    with tally.in_time("row", "a case", 0.05):
        while True:
            pass
    assert tally.findings == ["row: more than 0.05 s for a case"]


def test_wrong_bytes_and_bytes_outside_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(layouts.RelayoutPlan):
        def __call__(self, buffer: np.ndarray, out: np.ndarray, threads: int) -> None:
            super().__call__(buffer, out=out, threads=threads)
            out.view(np.uint8)[-1] ^= 1

    monkeypatch.setattr(layouts, "RelayoutPlan", Wrong)
    assert any("1 are wrong" in finding for finding in tally_of(tmp_path, layouts))


def test_bytes_beside_an_array_are_found() -> None:
    memory = layouts.FencedMemory(layouts.Random(1))
    for _ in range(10):
        array = memory(100)
        assert memory.is_intact()
        inside = memory(100)
        address = inside.__array_interface__["data"][0]
        at = address - 1 if address % 4096 else address + 100
        ctypes.c_uint8.from_address(at).value ^= 1
        assert not memory.is_intact()
        del array


@pytest.mark.in_turn(seconds=0.6)
@pytest.mark.parametrize("at_end", [False, True])
def test_pages_beside_arrays_kill(at_end: bool) -> None:
    program = f"""
import ctypes
from random import Random
from tests.faults.layouts import FencedMemory
memory = FencedMemory(Random(1))
while True:
    address = memory(100).__array_interface__["data"][0]
    if bool(address % 4096) == {at_end}:
        ctypes.c_uint8.from_address(address + 100 if {at_end} else address - 1).value
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=HANG_SECONDS)
    assert done.returncode < 0


def test_each_thing_that_can_be_wrong_with_a_target(tmp_path: Path) -> None:
    job = file_jobs.Job("a", (), (".bin", ".bin"), b"source", b"expected")
    folder = tmp_path / "folder"

    def wrong(before: bytes | None, after: bytes | None, status: int, message: str = "", **options: bool) -> str:
        file_jobs.prepare_files(job, folder, after)
        return file_jobs.what_is_wrong(job, folder, before, status, message, **options)

    line = "fastindex: no room\n"
    assert wrong(None, b"expected", 0) == wrong(b"old", b"old", 1, line) == wrong(None, None, 1, line) == ""
    assert wrong(None, None, -9, killed=True) == wrong(b"old", b"expected", -15, ended=True) == ""
    assert "neither" in wrong(None, b"expec", 1, line)
    assert "absent" in wrong(b"old", None, 1, line)
    assert "without a result" in wrong(b"old", b"old", 0)
    assert "Traceback" in wrong(None, None, 1, "Traceback\n  line\n")
    assert "internal error" in wrong(None, None, 1, "fastindex: internal error at x.py:3: KeyError: 1\n")
    assert "status -7" in wrong(None, None, -7)
    file_jobs.prepare_files(job, folder, None)
    for name, killed, expected in ((".t.bin.0123abcd.partial", True, ""), (".t.bin.0123abcd.partial", False, "left")):
        (folder / name).touch()
        found = file_jobs.what_is_wrong(job, folder, None, -9 if killed else -15, "", killed, not killed)
        assert found.startswith(expected)
        assert bool(found) == bool(expected)


def test_accesses_of_kernels_are_distinguished_from_others() -> None:
    log = """==7== Memcheck, a memory error detector
==7==
==7== Invalid read of size 8
==7==    at 0x4023C6C: strncmp (strcmp-sse2.S:160)
==7==
==7== Invalid write of size 1
==7==    at 0xA10C3B4: ???
==7==    by 0xA0FF1: ???
==7==  Address 0x1 is 0 bytes after a block of size 7 alloc'd
==7==
"""
    found = accesses_of_kernels(log)
    assert len(found) == 1
    assert found[0].startswith("Invalid write of size 1; at 0xA10C3B4: ???")


@pytest.mark.in_turn(seconds=8)
def test_every_file_job_works(tmp_path: Path) -> None:
    """The expected files are made without the package; each job has to agree with them."""
    # Jobs are forks, and this process may have threads of other libraries.
    source = f"""
from pathlib import Path
from tests.faults import file_jobs
for job in file_jobs.file_jobs():
    assert file_jobs.seconds_of(job, Path({str(tmp_path)!r}) / job.name.replace(" ", "_")) > 0
    print(job.arguments[0])
"""
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"pack", "unpack", "relayout", "index"}


@pytest.mark.in_turn(seconds=2)
def test_no_row_is_read_beyond_the_source() -> None:
    """The last columns of halves of bytes read a row that only their neighbours need: it lies after the source."""
    source = """
from random import Random
import fastindex as fi
import fastindex.moving.compiled_passes
from tests.faults.layouts import FencedMemory
left, right = (fi.Shape.parse("s4[256,64]" + layout) for layout in ("{1,0:E(4)}", "{0,1:T(7,5)L(64)E(4)}"))
plan, memory = fi.plan_relayout(left, right), FencedMemory(Random(1))
for _ in range(20):
    read, written = memory(left.nbytes), memory(right.nbytes)
    read[:] = 0x77
    plan(read, out=written)
    assert memory.is_intact()
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(name="zarr")
def zarr_python() -> Any:
    return pytest.importorskip("zarr", reason="zarr is not installed; pip install 'fastindex[zarr]'")


def test_each_thing_that_can_be_wrong_with_a_store(zarr: Any, tmp_path: Path) -> None:
    job = stores.store_jobs()[0]
    expected = np.frombuffer(job.expected, np.uint8)

    def wrong(target: bytes | None, status: int, ended_by: Any = None, message: str = "", litter: str = "") -> str:
        (tmp_path / "source.zarr").mkdir(exist_ok=True)
        if target is not None:
            path = str(tmp_path / "target.zarr")
            zarr.create_array(path, shape=(len(target),), dtype=np.uint8)[...] = np.frombuffer(target, np.uint8)
        if litter:
            (tmp_path / litter).mkdir()
        found = stores.what_is_wrong(job, tmp_path, status, message, ended_by)
        assert [path.name for path in tmp_path.iterdir()] == ["source.zarr"]
        return found

    kill, end = stores.signal.SIGKILL, stores.signal.SIGTERM
    assert wrong(expected.tobytes(), 0) == wrong(None, 1, message="fastindex: no room\n") == wrong(None, -9, kill) == ""
    assert wrong(None, -9, kill, litter=".target.zarr.01234567.partial") == wrong(expected.tobytes(), 143, end) == ""
    assert "left" in wrong(None, 143, end, litter=".target.zarr.01234567.partial")
    assert "left" in wrong(None, -9, kill, litter="other")
    assert "something else" in wrong(expected[:-1].tobytes(), -9, kill)
    assert "without a result" in wrong(None, 0)
    assert "status 1" in wrong(None, 1, end)
    assert "Traceback" in wrong(None, 1, message="Traceback\n  line\n")
    (tmp_path / "target.zarr").mkdir()
    assert "FileNotFoundError" in stores.what_is_wrong(job, tmp_path, -9, "", kill)


def test_every_job_on_stores_works(zarr: Any, tmp_path: Path) -> None:
    """The expected bytes are made without the package; each job has to agree with them."""
    program = f"""
from pathlib import Path
from tests.faults import stores
for number, job in enumerate(stores.store_jobs()):
    folder = Path({str(tmp_path)!r}) / str(number)
    folder.mkdir()
    stores.make_source(job, job.job.files(folder)[0])
    stores._seconds_of(job, folder)
    print(job.job.arguments[0])
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["pack", "unpack", "pack", "unpack", "relayout"]


def test_damaged_metadata_that_is_another_error_is_found(
    zarr: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastindex.jobs.zarr_arrays.open_stored", lambda path: [][1])
    tally = Tally(tmp_path / "tally", 2.0, 1)
    stores._damage(tally, tmp_path, {"shape": [3]})
    assert "IndexError" in tally.findings[0]


def test_what_is_wrong_with_a_checkpoint(tmp_path: Path) -> None:
    case = checkpoints.made_case(tmp_path)
    out = tmp_path / "out"
    fi.weights.pack_checkpoint(case.source, out, checkpoints._RULES)
    assert checkpoints.what_is_wrong(case, out) == ""
    numbers = {"00000.bin": (out / "00000.bin").stat().st_ino + 1}
    assert "was written again" in checkpoints.what_is_wrong(case, out, numbers)
    (out / "more").touch()
    assert "holds ['more']" in checkpoints.what_is_wrong(case, out)
    content = bytearray((out / "00003.bin").read_bytes())
    content[5] ^= 1
    (out / "00003.bin").write_bytes(content)
    assert "00003.bin is half" in checkpoints.what_is_wrong(case, out)
    assert "manifest that is refused" in checkpoints.what_is_wrong(case, out)


_KILLED = """
import sys
from pathlib import Path
from tests.faults import checkpoints
from tests.faults.tally import Row, Tally
folder = Path(sys.argv[1])
part = Tally(folder / "tally", 600, 3)
case = checkpoints.made_case(folder)
if sys.argv[3] == "convert":
    case = checkpoints.made_conversion(case)
calls = checkpoints._calls_of(case, folder / "first")
if sys.argv[2] == "planted":
    # Files that have their names before they have their bytes.
    from fastindex.jobs import writing
    writing._unnamed_file = lambda parent: None
    writing.name_beside = lambda target: target
    writing.OutputFile._replace = lambda self: None
is_full = sys.argv[2] == "full"
row = checkpoints._FULL if is_full else checkpoints._KILLS
while part.rows.get(row, Row()).runs < 20 and not part.findings:
    checkpoints.stop_until_whole(part, case, folder / "out", calls, is_full)
part.save()
"""


@pytest.mark.in_turn(seconds=2)
@pytest.mark.parametrize("job", ["pack", "convert"])
@pytest.mark.parametrize("kind", ["right", "full", "planted"])
def test_kills_of_checkpoint_jobs(tmp_path: Path, kind: str, job: str) -> None:
    """Twenty kills, or full disks, at random calls: the job ends as if there had been none; a bug is found out."""
    command = [sys.executable, "-c", _KILLED, str(tmp_path), kind, job]
    subprocess.run(command, cwd=ROOT, check=True, timeout=HANG_SECONDS)
    saved = read(tmp_path / "tally")
    if kind == "planted":
        # Seen at once, or when the next job finds that file in its way: which one is a race between two writers.
        signs = ("is half", "could not", "ended without a manifest")
        assert any(sign in finding for finding in saved.findings for sign in signs), saved.findings
        return
    assert saved.findings == []
    row = "full disks under checkpoint jobs" if kind == "full" else "SIGKILL at calls of checkpoint jobs"
    assert saved.rows[row].runs >= 20
