"""Untrusted texts, protos and files: they run nothing, and take time and memory by their length alone.

What `SECURITY.md` promises.

Tests of: hlo.grammar.
"""

from __future__ import annotations

import ast
import contextlib
import math
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.hlo import Report
from fastindex.jobs.input_files import open_input
from fastindex.jobs.writing import write_file
from tests.cases import strategies
from tests.cases.hangs import HANG_SECONDS
from tests.counted_work import Work, work_of

ROOT = Path(__file__).resolve().parents[1]

#: Asks questions on a text of 16,000 parts; prints how many mebibytes there were at the most. What a process has from
#: the start, threads of a library for each processor among it, does not count against the limit.
MEASURE = r"""
import re, resource, sys
import fastindex as fi
from tests.test_untrusted_input import BOMBS
has = int(re.search(r"VmSize:\s*(\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (has + (3 << 30),) * 2)
for name in sys.argv[1:]:
    try:
        BOMBS[name](16000)
    except fi.FastIndexError:
        pass
    # `ru_maxrss` begins with what the process that started this one had.
    peak = int(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1])
    print(name, peak >> 10, sep="|")
"""


def varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded, value = encoded + bytes([value & 127 | 128]), value >> 7
    return encoded + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def nested_proto(count: int) -> bytes:
    content = b"\x10\x0b"
    for _ in range(count // 20):
        content = b"\x10\x0d" + field(4, content)
    return content


def ask_everything(text: str) -> None:
    """Ask a shape what people ask first; any of it may be refused."""
    shape = fi.Shape.parse(text)
    questions: tuple[Callable[[], Any], ...] = (
        lambda: str(shape),
        lambda: fi.Shape.from_proto(shape.to_proto()),
        lambda: shape.nbytes,
        lambda: fi.explain(shape),
        lambda: fi.layouts.steps(shape),
        lambda: fi.layouts.suggest_tiles(shape),
        lambda: fi.linear_index(shape, [0] * shape.rank),
        lambda: fi.plan_relayout(shape, shape),
    )
    for question in questions:
        try:
            question()
        except fi.FastIndexError:
            continue


def ask_sharding(text: str) -> None:
    sharding = fi.sharding.Sharding.parse(text)
    for question in (
        lambda: sharding.devices,
        lambda: fi.explain("f32[64,64]", sharding),
        lambda: fi.sharding.shards("f32[64,64]", sharding),
        lambda: fi.sharding.shard_index("f32[64,64]", sharding, ([1], [2])),
    ):
        try:
            question()
        except fi.FastIndexError:
            continue


def names(count: int) -> str:
    return ",".join(f"'a{k}'" for k in range(count))


def module(*lines: str, head: str = "") -> str:
    return "\n".join([f"HloModule m, is_scheduled=true{head}", "ENTRY e {", *lines, "}"])


def calls(count: int) -> str:
    """Computations that each call the one before twice: two to the power of `count` calls, if they were followed."""
    parts = ["HloModule m, is_scheduled=true", "c0 {\n ROOT p = f32[4]{0} parameter(0)\n}"]
    for k in range(1, count // 10):
        body = f" a = f32[4]{{0}} call(p), to_apply=c{k - 1}\n ROOT b = f32[4]{{0}} call(a), to_apply=c{k - 1}"
        parts.append(f"c{k} {{\n p = f32[4]{{0}} parameter(0)\n{body}\n}}")
    return (
        "\n".join(parts)
        + f"\nENTRY e {{\n p = f32[4]{{0}} parameter(0)\n ROOT r = f32[4]{{0}} call(p), to_apply=c{k}\n}}"
    )


def chain(count: int) -> list[str]:
    return [" a0 = f32[4]{0} parameter(0)", *(f" a{k} = f32[4]{{0}} negate(a{k - 1})" for k in range(1, count))]


def nested_line(count: int) -> str:
    return " ROOT p = " + "(" * count + "f32[2]{0}" + ")" * count + " parameter(0)"


def aliases(count: int) -> str:
    return ", input_output_alias={ " + ", ".join(["{0}: (0, {}, may-alias)"] * count) + " }"


def allocations(count: int) -> str:
    value = "value: <1 a @0> (size=16,offset=0): f32[4]{0}"
    parts = [f"allocation {k}: size 16, preallocated-temp:\n {value}\n" for k in range(count // 2)]
    return "BufferAssignment:\n" + "".join(parts) + "Total bytes used: 16 (16B)\n"


def transposed(count: int) -> str:
    order = ",".join(map(str, range(count, -1, -1)))
    return "{devices=[1024]<=[" + "1," * count + f"1024]T({order})}}"


P = " p = f32[4]{0} parameter(0)"
OUT_OF_MEMORY = (
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.00G of 15.48G hbm. Exceeded hbm capacity by "
    "5.00G.\n\n  Largest program allocations in hbm:\n\n"
)

#: What grows with a number: each has to take time in proportion, and little memory.
BOMBS: dict[str, Callable[[int], Any]] = {
    "tuples nested in a text": lambda n: ask_everything("(" * n + "f32[2]" + ")" * n),
    "tuples nested in a proto": lambda n: fi.Shape.from_proto(nested_proto(n)),
    "tuples left open": lambda n: fi.Shape.parse("(" * n),
    "a wide tuple": lambda n: ask_everything("(" + ",".join(["f32[2]"] * n) + ")"),
    "dimensions": lambda n: ask_everything("f32[" + ",".join(["1"] * n) + "]"),
    "dimensions of a proto": lambda n: fi.Shape.from_proto(b"\x10\x0b" + field(3, b"\1" * n)),
    "layouts repeated in a proto": lambda n: fi.Shape.from_proto(b"\x10\x0b" + field(5, b"\n\1\0") * n),
    "a million dimensions": lambda n: fi.Shape.parse("f32[" + "1," * 60 * n + "1]"),
    "the most dimensions": lambda n: ask_everything("f32[" + ",".join(["1"] * 60 + ["2"] * 4) + "]"),
    "tiles": lambda n: ask_everything("f32[4]{0:T" + "(2)" * n + "}"),
    "the most tiles": lambda n: ask_everything("f32[4]{0:T" + ("(" + "1," * 63 + "1)") * 32 + "}"),
    "the most tiles of dimensions": lambda n: ask_everything(
        f"f32[{'2,' * 19}2]{{{','.join(map(str, range(20)))}:T" + ("(" + "2," * 19 + "2)") * 32 + "}"
    ),
    "a long tile": lambda n: ask_everything("f32[4]{0:T(" + "*," * n + "2)}"),
    "splits": lambda n: fi.Shape.parse("f32[4]{0:SC" + "(0:1)" * n + "}"),
    "levels": lambda n: fi.Shape.parse("f32[4]{0:D(" + ",".join(["D"] * n) + ")}"),
    "digits": lambda n: fi.Shape.parse("f32[" + "9" * n + "]"),
    "comments": lambda n: fi.Shape.parse("f32[4]" + "/**/" * n),
    "a comment left open": lambda n: fi.Shape.parse("f32[4]" + "/*" * n),
    "devices counted": lambda n: ask_sharding(f"{{devices=[{1 << 30},{1 << 30}]<=[{1 << 60}]}}"),
    "devices listed": lambda n: ask_sharding(f"{{devices=[{n}]{','.join(str(k * 7919 % n) for k in range(n))}}}"),
    "dimensions of devices": lambda n: ask_sharding("{devices=[" + "1," * n + "2]<=[2]}"),
    "devices transposed": lambda n: ask_sharding(transposed(n)),
    "shardings in a tuple": lambda n: fi.sharding.Sharding.parse("{" + ",".join(["{replicated}"] * n) + "}"),
    "axes of a mesh": lambda n: ask_sharding("{mesh[" + names(n).replace("',", "'=1,") + f"=1], [{{{names(n)}}}]}}"),
    "devices of a mesh": lambda n: ask_sharding("{mesh['a'=1073741824,'b'=1073741824], [{'b'}]}"),
    "metadata": lambda n: fi.sharding.Sharding.parse("{replicated metadata={" + 'op_name="a" ' * n + "}}"),
    "computations that call": lambda n: fi.hlo.report(calls(n)),
    "instructions in a chain": lambda n: fi.hlo.report(module(*chain(n))),
    "operands": lambda n: fi.hlo.report(module(P, f" ROOT t = f32[4]{{0}} custom-call({', '.join(['p'] * n)})")),
    "one name for all": lambda n: fi.hlo.report(module(*[P] * n)),
    "aliases": lambda n: fi.hlo.report(module(P, head=aliases(n))),
    "braces": lambda n: fi.hlo.report(module(P + ", backend_config=" + "{" * n + "}" * n)),
    "braces left open": lambda n: fi.hlo.report(module(P + ", backend_config=" + "{" * n)),
    "quotes": lambda n: fi.hlo.report(module(P + ', metadata={op_name="' + '\\"' * n + '"}')),
    "a tuple nested in HLO": lambda n: fi.hlo.report(module(nested_line(n))),
    "lines that cannot be read": lambda n: fi.hlo.report(module(P, *[" q = f32[{0} add("] * n)),
    "a log": lambda n: fi.hlo.report(OUT_OF_MEMORY + "a line of a log\n" * n),
    "messages": lambda n: fi.hlo.report((OUT_OF_MEMORY + "  1. Size: 10.00G\n     Shape: f32[8]{0}\n") * (n // 4)),
    "allocations": lambda n: fi.hlo.report(allocations(n)),
}  # fmt: skip


#: As long for every number: limits end them.
OF_ONE_LENGTH = {"the most dimensions", "the most tiles", "the most tiles of dimensions"}
#: Each level's text is put together from that of the level within, a copy of some bytes.
COPIES_LEVELS = {"tuples nested in a text"}


def ask(name: str, count: int) -> None:
    with contextlib.suppress(fi.FastIndexError):
        BOMBS[name](count)


def work(name: str, count: int) -> Work:
    return work_of(lambda: ask(name, count))


@pytest.mark.parametrize("name", [*strategies.rotating(name for name in BOMBS if name not in OF_ONE_LENGTH)])
def test_work_is_that_of_the_length(name: str) -> None:
    """Four times the length: at most some five times the lines that run, and the bytes that they ask for."""
    # What is loaded once, kernels among it, is no part of it.
    ask(name, 50)
    short, long = work(name, 100), work(name, 400)
    assert long.lines < max(5 * short.lines, 10_000)
    if name not in COPIES_LEVELS:
        assert long.asked_bytes < max(5 * short.asked_bytes, 1 << 18)


@pytest.mark.in_turn(seconds=2)
def test_work_by_the_square_is_noticed() -> None:
    def products(count: int) -> None:
        sizes = [1] * count
        assert [math.prod(sizes[d:]) for d in range(count)] == sizes

    def pairs(count: int) -> None:
        for _ in range(count):
            for _ in range(count):
                pass

    assert work_of(lambda: products(400)).asked_bytes > max(5 * work_of(lambda: products(100)).asked_bytes, 1 << 18)
    assert work_of(lambda: pairs(400)).lines > max(5 * work_of(lambda: pairs(100)).lines, 10_000)


@pytest.mark.in_turn(seconds=3)
@pytest.mark.parametrize("part", range(3))
def test_long_texts_take_little_memory(part: int) -> None:
    """Less than 900 MiB with the interpreter and its libraries, which have some 150; time does not change it."""
    command = [sys.executable, "-c", MEASURE, *[*BOMBS][part::3]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert int(line.split("|")[1]) < 900, line
    assert len(done.stdout.splitlines()) == len([*BOMBS][part::3])


def test_limits_say_what_they_are() -> None:
    for text, message in (
        ("f32[" + "1," * 64 + "1]", "at most 64 dimensions here, not 65"),
        ("f32[2]{0:T" + "(2)" * 33 + "}", "at most 32 tiles here, not 33"),
        ("f32[2]{0:T(" + "1," * 64 + "1)}", "at most 64 entries here, not 65"),
    ):
        with pytest.raises(fi.ParseError, match=message):
            fi.Shape.parse(text)
    assert fi.Shape.parse("f32[" + "1," * 63 + "1]").rank == 64
    with pytest.raises(fi.LayoutError, match="at most 256 axes"):
        fi.sharding.Sharding.parse("{mesh[" + ",".join(f"'a{k}'=1" for k in range(257)) + "], [{}]}")
    many = fi.sharding.Sharding.parse(f"{{devices=[{1 << 22}]<=[{1 << 22}]}}")
    with pytest.raises(fi.UnsupportedError, match="4194304 devices are too many to list"):
        assert many.devices
    with pytest.raises(fi.UnsupportedError, match="at most 64 dimensions"):
        assert fi.sharding.Sharding.parse("{devices=[" + "1," * 64 + "2]<=[2]}").devices


def npy(fields: str, version: int = 1, length: int | None = None) -> bytes:
    size = len(fields) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + fields.encode()


@pytest.mark.parametrize(
    "header",
    [
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-4, -4), }"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 1" + "0" * 400 + "), }"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1" + "0" * 5000 + ",), }"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 3000 + "), }"),
        npy("{'descr': 'V0', 'fortran_order': False, 'shape': (99999999999999999999,), }"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }"),
        npy("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (2,), }"),
        npy("__import__('os').system('echo run by a header > run')"),
        npy("(" * 9000),
        npy("-" * 9000 + "1"),
        npy("[" * 150 + "]" * 150),
        npy("x", 2, 0xFFFFFFFF),
        npy("x", 9),
    ],
)
def test_headers_of_numpy_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.npy").write_bytes(header + bytes(64))
    if header[6] == 2:
        os.truncate(tmp_path / "a.npy", 6 << 30)
    with pytest.raises(fi.FastIndexError) as caught:
        open_input("a.npy")
    assert len(str(caught.value)) < 10_000
    assert not (tmp_path / "run").exists()


@pytest.mark.in_turn(seconds=4)
def test_nothing_is_unpickled_or_evaluated() -> None:
    """But kernels that are written from numbers and names, what Dask sends to workers, and a process of this one."""
    allowed = {
        "cuda/kernels/device.py": {"exec"},
        "cuda/kernels/index_kernel.py": {"exec"},
        "dask/chunks.py": {"pickle"},
        "hlo/read/helper.py": {"pickle"},
    }
    for path in sorted((ROOT / "fastindex").rglob("*.py")):
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.func if isinstance(node, ast.Call) else None
            if isinstance(name, ast.Name) and name.id in ("eval", "exec", "__import__"):
                found.add(name.id)
            if isinstance(name, ast.Attribute) and ast.unparse(name) in ("np.load", "numpy.load", "os.system"):
                found.add(ast.unparse(name))
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names} & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
        inside = str(path.relative_to(ROOT / "fastindex"))
        assert found <= allowed.get(inside, set()), inside


HOSTILE = """HloModule m\x1b[2J, is_scheduled=true
ENTRY e {
  p = f32[1000,3]{1,0:T(8,128)} parameter(0), metadata={op_name="a\x1b]0;title\x07" source_file="x\x1b[31m.py"}
  bad\x1b[2J = f32[3{ add(
  ROOT r\x9b5m = f32[1000,3]{1,0:T(8,128)} negate(p), metadata={op_name="[red]<script>alert(1)</script>"}
}
"""


@pytest.mark.in_turn(seconds=0.9)
def test_names_send_nothing_to_terminals(tmp_path: Path) -> None:
    """Escape sequences in names could clear the screen, set the title, write to the clipboard."""
    report: Report = fi.hlo.report(HOSTILE)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", report.text(all_names=True))
    assert "[red]" in report.text(all_names=True)
    assert "x\\x1b[31m.py" in report.text(all_names=True)
    (tmp_path / "m.hlo").write_text(HOSTILE)
    for arguments in (["report", "m.hlo", "--names"], ["report", "m.hlo", "--all"], ["info", "f32[2]\x1b[2J"]):
        command = [sys.executable, "-m", "fastindex", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=HANG_SECONDS)
        assert b"\x1b" not in done.stdout + done.stderr


def test_names_add_nothing_to_pages() -> None:
    assert "<script>alert" not in fi.hlo.report(HOSTILE).html("waste", 50)


def test_digits_beyond_what_python_reads() -> None:
    """Python refuses to read an integer of more than 4300 digits, with its own error."""
    for digits in ("9" * 400, "9" * 5000):
        metadata = f'metadata={{op_name="a" source_line={digits} stack_frame_id={digits}}}'
        head = f", num_partitions={digits}, input_output_alias={{ {{{digits}}}: ({digits}, {{}}) }}"
        line = f" p = f32[4]{{0}} parameter({digits}), {metadata}"
        assert fi.hlo.report(module(line)).total_nbytes == 16
        fi.hlo.report(module(line, head=head))
        with pytest.raises(fi.FastIndexError):
            fi.layouts.named_layout(f"nChw{digits}c", "f32[2,3,4,5]")
    usage = (
        "Memory Space: default (color=0)\nTotal bytes: 9 (9B)\n   1KiB(100%);   156.2156.2KiB;    0;    1; f32[2,2]\n"
    )
    with contextlib.suppress(fi.FastIndexError):
        fi.hlo.report(usage)


def test_targets_beside_what_is_named_stay(tmp_path: Path) -> None:
    """A link under the target's name is followed, as the shell's `>` does; its neighbours and its folder stay."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside / "named")
    write_file(str(inside / "link"), b"written")
    assert (outside / "named").read_bytes() == b"written"
    assert (outside / "kept").read_bytes() == b"kept"
    assert sorted(path.name for path in outside.iterdir()) == ["kept", "named"]
    (inside / "folder").symlink_to(outside)
    with pytest.raises(IsADirectoryError):
        write_file(str(inside / "folder"), b"x")
    (inside / "loop").symlink_to(inside / "loop")
    with pytest.raises(OSError):  # noqa: PT011
        write_file(str(inside / "loop"), b"x")
    assert np.fromfile(outside / "kept", np.uint8).tobytes() == b"kept"


def test_halves_of_characters() -> None:
    """A text of Python may have them; UTF-8, and so a proto, may not."""
    for text in ('{replicated metadata={op_name="a\ud800"}}', "{mesh['\ud800'=2], [{'\ud800'}]}"):
        sharding = fi.sharding.Sharding.parse(text)
        assert fi.sharding.Sharding.from_proto(sharding.to_proto()) == sharding
