"""Files that people have: compressed texts, protos, profiles, and what is no HLO at all.

``tests/data/hlo/files`` has a program as XLA dumps it, in text and as a proto, and a profile of four runs of it on two
devices; ``record.py`` there makes them again.

Tests of: hlo.read.opening, hlo.read.kinds, hlo.read.protos, hlo.read.printing, hlo.read.helper.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import itertools
import json
import lzma
import pickle
import quopri
import random
import re
import shutil
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fastindex as fi
from fastindex.cli.commands import main
from fastindex.core.wire import Fields, bytes_field, int_field
from fastindex.hlo.copies.rows import CopyRow
from fastindex.hlo.read import helper, kinds, printing
from fastindex.hlo.read.kinds import decompressed
from fastindex.hlo.read.protos import Measured, form_of, modules_of_profile

FILES = Path(__file__).resolve().parents[2] / "data" / "hlo" / "files"
TEXT = FILES / "module_0001.jit_program.cpu_after_optimizations.txt"
PROTO = FILES / "module_0001.jit_program.cpu_after_optimizations.hlo.pb.gz"
ASSIGNMENT = FILES / "module_0001.jit_program.cpu_after_optimizations-buffer-assignment.txt"
PROFILE = FILES / "recorded.xplane.pb.xz"
needs_jaxlib = pytest.mark.skipif(find_spec("jaxlib") is None, reason="needs jaxlib")


def profile() -> bytes:
    return lzma.decompress(PROFILE.read_bytes())


def proto() -> bytes:
    return gzip.decompress(PROTO.read_bytes())


def zstd() -> Callable[[bytes], bytes]:
    """Return what compresses with zstd, of what is installed."""
    if find_spec("compression") is not None:
        from compression.zstd import compress
    elif find_spec("backports") is not None and find_spec("backports.zstd") is not None:
        from backports.zstd import compress
    elif find_spec("zstandard") is not None:
        from zstandard import compress
    else:
        pytest.skip("nothing here compresses with zstd")
    return compress


def answers(source: Any) -> tuple[object, ...]:
    """Return what a program has to say that does not depend on how it is written down."""
    report, copies = fi.hlo.report(source), fi.hlo.layout_copies(source)
    shapes = {(str(use.shape), use.count, use.nbytes, use.peak_count) for use in report.uses}
    rows = [
        (row.instruction, row.computation, row.kind, row.nbytes_read, row.nbytes_written, row.trips, row.origin)
        for row in copies.copies
    ]
    module = report.modules[0]
    return report.total_nbytes, report.peak_nbytes, module.partition_count, module.peak, shapes, rows


@pytest.mark.parametrize("ending", ["gz", "xz", "zst"])
def test_compressed_texts_are_those_texts(ending: str, tmp_path: Path) -> None:
    compress = {"gz": gzip.compress, "xz": lzma.compress}.get(ending) or zstd()
    file = tmp_path / f"{TEXT.name}.{ending}"
    file.write_bytes(compress(TEXT.read_bytes()))
    shutil.copy(ASSIGNMENT, tmp_path)
    assert answers(file) == answers(TEXT)
    # The assignment beside it may be compressed, too, and so is a dump as a whole.
    (tmp_path / f"{ASSIGNMENT.name}.{ending}").write_bytes(compress(ASSIGNMENT.read_bytes()))
    (tmp_path / ASSIGNMENT.name).unlink()
    assert answers(tmp_path) == answers(TEXT)
    assert fi.hlo.report(tmp_path).modules[0].stage == "cpu_after_optimizations"
    assert (
        fi.hlo.report([file, tmp_path / f"{ASSIGNMENT.name}.{ending}"]).peak_nbytes == fi.hlo.report(TEXT).peak_nbytes
    )
    with file.open("rb") as stream:
        assert fi.hlo.report(stream).total_nbytes == fi.hlo.report(TEXT).total_nbytes


def test_bytes_of_another_encoding_in_a_comment(tmp_path: Path) -> None:
    plain, file = tmp_path / "plain.txt", tmp_path / "coded.txt"
    plain.write_bytes(TEXT.read_bytes())
    file.write_bytes(TEXT.read_bytes() + "// gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n\n".encode("latin-1"))
    assert answers(file) == answers(plain)


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
        lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
        lambda text: quopri.encodestring(text.encode()),
        lambda text: codecs.BOM_UTF8 + text.encode() + codecs.BOM_UTF8,
    ],
    ids=["UTF-16, little-endian", "UTF-16, big-endian", "quoted-printable", "UTF-8, with marks"],
)
def test_texts_in_other_encodings_are_those_texts(encode: Callable[[str], bytes], tmp_path: Path) -> None:
    plain, file = tmp_path / "plain.txt", tmp_path / "coded.txt"
    text = TEXT.read_text() + "// \N{MUSICAL SYMBOL G CLEF}\n"
    plain.write_text(text)
    coded = encode(text)
    for data in (coded, gzip.compress(coded)):
        file.write_bytes(data)
        assert answers(file) == answers(plain)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
@pytest.mark.parametrize("length", [1, 7, 4096, 1 << 20])
def test_streams_after_each_other_are_one(compress: Callable[[bytes], bytes], length: int) -> None:
    text = random.Random(1).randbytes(3000) + bytes(2 << 20)
    data = compress(text) + compress(b"") + compress(b"HloModule") + bytes(8)
    name = "gzip" if compress is gzip.compress else "xz"
    chunks = (data[begin : begin + length] for begin in range(0, len(data), length))
    assert b"".join(decompressed(chunks, name, "")) == text + b"HloModule"


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_damaged_compression_is_said(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    data = compress(TEXT.read_bytes())
    for damaged, words in (
        (data[: len(data) // 2], "cut short"),
        (data[:-3], "cut short"),
        (data[:100] + b"xxxxxxxxxxxx" + data[112:], "damaged"),
        (data + b"no padding", "damaged"),
        (compress(data), "compressed twice"),
    ):
        file = tmp_path / "m.txt.z"
        file.write_bytes(damaged)
        with pytest.raises(fi.FastIndexError, match=words) as raised:
            fi.hlo.report(file)
        assert str(file) in str(raised.value)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_UNSUSPICIOUS", 1 << 20)
    instruction = b"  p = f32[2]{0} parameter(0)\n" * 1000
    deflate = zlib.compressobj(9, wbits=31)
    bomb = deflate.compress(b"HloModule m\nENTRY e {\n") + b"".join(deflate.compress(instruction) for _ in range(400))
    bomb += deflate.flush()
    # xz shrinks it a thousand times, which gzip cannot.
    bomb = lzma.compress(gzip.decompress(bomb), preset=9)
    with pytest.raises(fi.FastIndexError, match="times its size"):
        fi.hlo.report(bomb)
    assert len(next(decompressed(iter([bomb]), "xz", ""))) <= 1 << 20


def test_xz_takes_bounded_memory() -> None:
    data = bytearray(lzma.compress(TEXT.read_bytes(), lzma.FORMAT_XZ, preset=0))
    # The size of the dictionary in the header of the block, then its checksum.
    assert data[14:16] == b"\x21\x01"
    data[16] = 35
    data[20:24] = zlib.crc32(data[12:20]).to_bytes(4, "little")
    with pytest.raises(fi.FastIndexError, match="xz cannot be decompressed: Memory usage limit"):
        fi.hlo.report(bytes(data))


def test_zstd_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compression", "compression.zstd", "backports", "backports.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(fi.FastIndexError, match=re.escape("pip install 'fastindex[zstd]'")):
        fi.hlo.report(b"\x28\xb5\x2f\xfd\x24\x00\x01\x00\x00")


@needs_jaxlib
def test_a_proto_is_its_text(tmp_path: Path) -> None:
    assert answers(PROTO) == answers(TEXT)
    assert fi.hlo.report(PROTO).modules[0].stage == "cpu_after_optimizations"
    plain = tmp_path / "m.hlo.pb"
    plain.write_bytes(proto())
    # Its buffer assignment comes with it.
    assert answers(plain) == answers(TEXT)
    assert fi.hlo.report(TEXT).modules[0].partition_count == 2
    # The module alone, and a snapshot of one with its arguments.
    module = Fields(proto(), "HloProto").message(1)
    assert module is not None
    assert fi.hlo.report(module).total_nbytes == fi.hlo.report(TEXT).total_nbytes
    assert answers(bytes_field(1, proto()) + bytes_field(2, b"")) == answers(TEXT)
    assert fi.hlo.report(io.BytesIO(module)).uses == fi.hlo.report(module).uses


@needs_jaxlib
def test_a_folder_takes_a_stage_once(tmp_path: Path) -> None:
    for file in (TEXT, PROTO, PROFILE):
        shutil.copy(file, tmp_path)
    found = fi.hlo.report(tmp_path)
    names = [Path(module.source).name for module in found.modules if module.label.startswith("jit_program")]
    assert names == [TEXT.name, PROFILE.name]
    (tmp_path / TEXT.name).unlink()
    assert fi.hlo.report(tmp_path).total_nbytes == found.total_nbytes
    # XProf writes the modules of a profile beside it.
    (tmp_path / "jit_program(1).hlo_proto.pb").write_bytes(proto())
    assert fi.hlo.report(tmp_path).total_nbytes == found.total_nbytes
    (tmp_path / PROFILE.name).unlink()
    assert len(fi.hlo.report(tmp_path).modules) == 2


#: Adds up the events of instructions as jaxlib's reader of profiles has them.
SUMS = """
import json, sys
from jaxlib._profile_data import ProfileData
sums = {}
for plane in ProfileData.from_serialized_xspace(sys.stdin.buffer.read()).planes:
    for line in plane.lines:
        for event in line.events:
            stats = dict(event.stats)
            if stats.get("hlo_module") == "jit_program":
                item = sums.setdefault(stats["hlo_op"], [0, 0, []])
                item[0] += event.duration_ns
                item[1] += 1
                item[2].append([stats["device_ordinal"], stats["run_id"]])
print(json.dumps(sums))
"""


@needs_jaxlib
def test_times_are_those_of_the_profile() -> None:
    ran = subprocess.run([sys.executable, "-c", SUMS], input=profile(), capture_output=True, check=True)
    sums = json.loads(ran.stdout)
    modules = modules_of_profile(profile())
    measured = [module.profile for module in modules if module.profile is not None and module.profile.instructions]
    assert len(modules) == 4
    assert len(measured) == 1
    runs = {tuple(run) for _, _, events in sums.values() for run in events}
    # Four, on two devices.
    assert measured[0].runs == len(runs) == 8
    assert {name: (item.picoseconds, item.events) for name, item in measured[0].instructions.items()} == {
        name: (round(nanoseconds * 1000), count) for name, (nanoseconds, count, _) in sums.items()
    }
    rows: dict[str, CopyRow] = {row.instruction: row for row in fi.hlo.layout_copies(PROFILE).copies}
    # One of a loop, one that a fusion is for, and one within a fusion that does more.
    for row in rows.values():
        name = row.fusion or row.instruction
        expected = round(sums[name][0] / len(runs)) if row.is_alone and name in sums else None
        assert row.measured_nanoseconds == expected
    measured_rows = [row for row in rows.values() if row.measured_nanoseconds is not None]
    assert any(row.trips == 5 for row in measured_rows)
    assert any(row.fusion for row in measured_rows)
    assert any(row.measured_nanoseconds is None and not row.is_alone for row in rows.values())


@needs_jaxlib
def test_measured_times_are_shown() -> None:
    found = fi.hlo.layout_copies(PROFILE)
    assert "jit_program: times are measured, means of 8 runs in the profile" in found.notes
    text = found.text()
    assert "measured" in text.split("moved")[1].split("trips")[0]
    row = max(found.copies, key=lambda row: row.measured_nanoseconds or 0)
    assert row.measured_nanoseconds is not None
    assert f"{row.measured_nanoseconds / 1000:.2f} us" in text
    assert f">{row.measured_nanoseconds / 1000:.2f} us<" in found.html()
    alone = [row.measured_nanoseconds or 0 for row in found.copies if row.is_alone]
    assert found.to_json()["totals"]["all"]["measured_nanoseconds"] == sum(alone)
    # Without a profile there is no empty column.
    assert "measured" not in fi.hlo.layout_copies(TEXT).text()
    assert "measured" not in fi.hlo.layout_copies(TEXT).html()
    assert fi.hlo.layout_copies(TEXT).totals.all.measured_nanoseconds is None


TPU_TEXT = """HloModule m, is_scheduled=true

ENTRY e {
  p = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  copy-start.1 = (f32[1024,1024]{1,0:T(8,128)S(1)}, f32[1024,1024]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(p)
  copy-done.1 = f32[1024,1024]{1,0:T(8,128)S(1)} copy-done(copy-start.1)
  copy.2 = f32[1024,1024]{0,1:T(8,128)} copy(p)
  ROOT n = f32[1024,1024]{0,1:T(8,128)} add(copy.2, copy-done.1)
}
"""
PROTO_OF_TEXT = """
import sys
try:
    from jaxlib import _hlo as classes
except ImportError:
    from jaxlib import _jax as classes
sys.stdout.buffer.write(classes.hlo_module_from_text(sys.stdin.read()).as_serialized_hlo_module_proto())
"""


def tpu_profile(module: bytes, is_counted: bool = True) -> bytes:
    """Return a profile as a TPU's: two runs, with the numbers of statistics, events and lines that one had."""
    program = 12190760917235803885
    named = {10: "run_id", 17: "device_offset_ps", 18: "device_duration_ps", 22: "hlo_op", 34: "program_id"}

    def entry(number: int, message: bytes) -> bytes:
        return int_field(1, number) + bytes_field(2, message)

    def plane(name: str, lines: list[bytes], events: dict[int, bytes]) -> bytes:
        parts = [int_field(1, 2), bytes_field(2, name.encode()), *[bytes_field(3, line) for line in lines]]
        parts += [bytes_field(4, entry(number, event)) for number, event in events.items()]
        parts += [
            bytes_field(5, entry(number, int_field(1, number) + bytes_field(2, text.encode())))
            for number, text in (named | {4: "Hlo Proto"}).items()
        ]
        return bytes_field(1, b"".join(parts))

    def line(name: str, events: list[bytes]) -> bytes:
        return int_field(1, 2) + bytes_field(2, name.encode()) + b"".join(bytes_field(4, event) for event in events)

    def event(number: int, nanoseconds: int, stats: bytes = b"") -> bytes:
        return int_field(1, number) + int_field(2, 17) + int_field(3, nanoseconds * 1000) + stats

    of_program = bytes_field(5, int_field(1, 34) + int_field(3, program))
    metadata = {
        1: bytes_field(2, b"m(%d)" % program),
        18: bytes_field(2, b"%copy.2 = f32[1024,1024]{0,1:T(8,128)} copy(f32[1024,1024]{1,0:T(8,128)} %p)")
        + of_program,
        22: bytes_field(2, b"%copy-start.1 = (f32[1024,1024]...") + of_program,
        32: bytes_field(2, b"%copy-start.1 = (f32[1024,1024]...") + bytes_field(4, b"async-copy") + of_program,
        40: bytes_field(2, b"%copy.2 = of another program") + bytes_field(5, int_field(1, 34) + int_field(3, 7)),
    }
    on_device = bytes_field(4, int_field(1, 18) + int_field(4, 3_000_000))
    lines = [
        line("XLA Modules", [event(1, 900), event(1, 900)] if is_counted else []),
        line("Steps", [event(18, 5000)]),
        line("XLA Ops", [event(18, 1000), event(22, 10), event(18, 999, on_device), event(22, 10), event(40, 8)]),
        line("Async XLA Ops", [event(32, 400), event(32, 600)]),
    ]
    stats = bytes_field(5, int_field(1, 4) + bytes_field(6, bytes_field(1, module))) + of_program
    hlo = {3: int_field(1, 3) + bytes_field(2, b"m(%d)" % program) + stats}
    return plane("/device:TPU:0", lines, metadata) + plane("/host:metadata", [], hlo) + plane("/host:CPU", [], {})


@needs_jaxlib
def test_times_of_a_tpu() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROTO_OF_TEXT], input=TPU_TEXT.encode(), capture_output=True, check=True
    )
    data = tpu_profile(run.stdout)
    assert form_of(data) == "profile"
    found = fi.hlo.layout_copies(data)
    # The device's own duration counts, where there is one.
    assert [(row.instruction, row.measured_nanoseconds) for row in found.copies] == [("copy.2", 2000)]
    # From start to done, not the time of the instruction that starts it.
    assert [(row.instruction, row.measured_nanoseconds) for row in found.moves] == [("copy-start.1", 500)]
    (module,) = modules_of_profile(data)
    assert module.profile is not None
    assert module.profile.runs == 2
    # Without a count of runs, by the trips of the loop.
    (uncounted,) = modules_of_profile(tpu_profile(run.stdout, is_counted=False))
    assert uncounted.profile is not None
    assert uncounted.profile.instructions["copy.2"] == Measured(4_000_000, 2)
    assert uncounted.profile.nanoseconds("copy.2", 5) == 10_000
    assert uncounted.profile.nanoseconds("copy.2", None) == 2000
    assert uncounted.profile.nanoseconds("copy.3", 1) is None
    assert "events in the profile" in fi.hlo.layout_copies(tpu_profile(run.stdout, is_counted=False)).notes[-1]


def outcome(file: Path) -> str:
    """Return the error of a report, or "" for none."""
    try:
        fi.hlo.report(file)
    except fi.FastIndexError as error:
        return str(error)
    return ""


@needs_jaxlib
@pytest.mark.parametrize("data", [proto(), profile()], ids=["proto", "profile"])
def test_damaged_protos_are_said(data: bytes, tmp_path: Path) -> None:
    source = random.Random(3)
    file = tmp_path / "m.pb"
    said = []
    for number in range(10):
        damaged = bytearray(data)
        if number < 4:
            del damaged[source.randrange(100, len(data)) :]
        else:
            for _ in range(20):
                damaged[source.randrange(60, len(data))] = source.randrange(256)
        file.write_bytes(damaged)
        # What is damaged can be without meaning, as a name is.
        error = outcome(file)
        said.append(error)
        assert not error or str(file) in error
    assert all(said[:4]), said
    assert len({error.partition(": ")[2][:40] for error in said}) > 1


@needs_jaxlib
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.abort()", "ended with SIGABRT"),
        ("import sys; sys.exit('Check failed: x')", r"ended with status 1 \(Check failed: x\)"),
        ("import sys; sys.stdout.buffer.write(bytes((1, 200, 0, 0, 0, 0, 0, 0, 0)) + b'HloModule m')", "status 0"),
    ],
)
def test_the_end_of_the_child_is_said(code: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copy(PROTO, tmp_path)
    shutil.copy(TEXT, tmp_path / "other.txt")
    with monkeypatch.context() as patched:
        patched.setattr(printing, "_COMMAND", [sys.executable, "-c", code])
        with pytest.raises(fi.FastIndexError, match=words) as raised:
            fi.hlo.report(tmp_path / PROTO.name)
        assert PROTO.name in str(raised.value)
        assert "the file is damaged; print it where it was written" in str(raised.value)
        # Others are read all the same.
        found = fi.hlo.layout_copies([tmp_path / PROTO.name, tmp_path / "other.txt"])
        assert found.modules == ("jit_program",)
        assert PROTO.name in str(found.problems[0])
    assert fi.hlo.report(tmp_path / PROTO.name).modules


def test_jaxlib_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "_has_jaxlib", lambda: False)
    with pytest.raises(fi.FastIndexError, match=re.escape("pip install 'fastindex[jax]'")):
        fi.hlo.report(PROTO)


def test_a_profile_without_modules_is_said() -> None:
    plane = bytes_field(1, int_field(1, 1) + bytes_field(2, b"/host:CPU"))
    assert form_of(plane) == "profile"
    with pytest.raises(fi.FastIndexError, match="a profile without HLO modules"):
        fi.hlo.layout_copies(plane)


def tarred() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(TEXT, "m.txt")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"ML\xefR\x0dStableHLO_v1.0.0\0", "MLIR bytecode"),
        (b"PK\x03\x04\x14\0", "zip archive; unpack"),
        (tarred(), "tar archive; unpack"),
        (bz2.compress(b"HloModule m"), "bzip2; decompress"),
        (b"{\\rtf1\\ansi HloModule m}", "rich text"),
        (b"Content-Transfer-Encoding: base64\n\nSGxvTW9kdWxlIG0=\n", "mail in base64"),
        (b"\x7fELF\x02\x01\0\0\0\0", "machine code"),
        (pickle.dumps({"a": 1}), "Python pickle"),
        (b"SQLite format 3\0abc", "SQLite.*xplane"),
        (b"; ModuleID = 'kernel'\nsource_filename = \"x\"\n", "LLVM IR.*after_optimizations"),
        (b"//\n// Generated by LLVM NVPTX Back-End\n//\n\n.version 8.0\n.target sm_90a\n", "PTX of a kernel"),
        (b'{"displayTimeUnit":"ns","traceEvents":[{"args":{}}]}', "trace in Chrome's format.*xplane"),
        (bytes_field(3, b"\x08\x01") + int_field(9, 4), "binary data of another kind"),
        (b"\x00\x01\x02\x03" * 100, "binary data of another kind"),
    ],
)
def test_what_a_file_is_is_said(data: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "what"
    file.write_bytes(data)
    for read in (fi.hlo.report, fi.hlo.layout_copies):
        with pytest.raises(fi.FastIndexError, match=words) as raised:
            read(file)
        assert str(file) in str(raised.value)
        assert "\n" not in str(raised.value)
    ran = CliRunner().invoke(main, ["copies", str(file)])
    assert ran.exit_code == 1


def test_texts_are_no_protos() -> None:
    for text in (
        b"",
        b"\n",
        b"\nHloModule m\n",
        b"\n\n\n",
        b"\n\x0a(abc)",
        b"HloModule m\x12\x1a",
        b"\n!abcdefghijklmnopqrstuvwxyz123456(",
    ):
        assert form_of(text) is None
    source = random.Random(5)
    for _ in range(2000):
        text = b"\n" + bytes(source.choices(b"\n \t!#abcxyz()=%{}[],.0123456789", k=source.randrange(60)))
        assert form_of(text) is None
    assert form_of(proto()) == "hlo"
    assert form_of(profile()) == "profile"


@pytest.mark.parametrize("ends", ["well", "early"])
def test_a_second_process_reads_some_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """The answers are those of one process, also if the second one does not come to its end."""
    for number in range(5):
        shutil.copy(TEXT, tmp_path / f"{number}.txt")
    (tmp_path / "4.txt").write_bytes(b"nothing\n" * 100)
    files = sorted(tmp_path.iterdir())

    def answers(least: int) -> list[Any]:
        monkeypatch.setattr(helper, "_LEAST_NBYTES", least)
        report, copies = fi.hlo.report(files), fi.hlo.layout_copies(files)
        assert (len(report.modules), len(report.problems)) == (4, 1)
        assert str(report.problems[0]).count("4.txt") == 1
        return [report.to_json(), report.uses, copies.to_json(), copies.copies, copies.moves]

    alone = answers(1 << 30)
    # Neither process imports what lies in the current folder.
    current = tmp_path / "current"
    current.mkdir()
    (current / "pickle.py").write_text("import os; os.mkdir('imported')")
    monkeypatch.chdir(current)
    started = []
    command = subprocess.Popen

    def counted(arguments: list[str], **others: Any) -> Any:
        started.append(arguments)
        return command(arguments if ends == "well" else [sys.executable, "-c", ""], **others)

    monkeypatch.setattr(helper, "usable_processors", lambda: 2)
    monkeypatch.setattr(subprocess, "Popen", counted)
    # Leave all but the first file to the second process, whichever is faster.
    own = helper.Helper.own
    monkeypatch.setattr(helper.Helper, "own", lambda self: itertools.islice(own(self), 1))
    assert answers(1) == alone
    assert len(started) == 2
    assert not (current / "imported").exists()
    # A file is read here, however long it is.
    fi.hlo.report(files[0])
    assert len(started) == 2
