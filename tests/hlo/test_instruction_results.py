"""The scanner, and the view of all instruction results: against XLA's reading, by hand, and on damaged text.

Tests of: hlo.attributes, hlo.computations, hlo.grammar, hlo.modules, hlo.module_uses,
hlo.grammar, hlo.presentation, hlo.reports, hlo.report_views, hlo.rows, hlo.scanner, hlo.shape_table, hlo.totals,
hlo.read.sources.
"""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fastindex as fi
import fastindex.hlo.scanner as scanner_module
from fastindex.hlo.computations import Computation
from fastindex.hlo.modules import Module, ModuleReader
from fastindex.hlo.scanner import HloScanner
from fastindex.show.padding import padding_steps
from tests.oracles import reference

TESTS = Path(__file__).resolve().parents[1]
MODULES = sorted((TESTS / "data" / "hlo").glob("*.txt"))
FIRST_LINE = "HloModule m\n"


def results(source: Any) -> fi.hlo.Report:
    return fi.hlo.report(source, instruction_results=True)


def counted(report: fi.hlo.Report) -> dict[str, int]:
    return {str(use.shape): use.count for use in report.uses}


def module(*lines: str) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule m\n\nENTRY %main (p: f32[2]) -> f32[2] {{\n{body}\n}}\n"


def scan(text: bytes, chunk: int) -> Module:
    modules: list[Module] = []
    reader = ModuleReader(modules.append)
    scanner = HloScanner(reader)
    for i in range(0, len(text), chunk):
        scanner.feed(text[i : i + chunk])
    scanner.close()
    reader.finish()
    (module,) = modules
    return module


def of_instruction(computation: Computation, place: int) -> tuple[int, int, int, list[int]]:
    numbers = computation.shape(place), computation.metadata(place), computation.line(place)
    return *numbers, list(computation.operands(place))


def contents(module: Module) -> Any:
    """All that was read, for comparisons."""
    computations = [
        (c.name, c.root, c.opcodes, list(c.names()), c.details, [of_instruction(c, place) for place in range(len(c))])
        for c in module.computations.values()
    ]
    tables = module.shapes, module.counts, module.first_lines, module.metadata, module.tables
    return module.name, module.header, computations, tables


@pytest.mark.in_turn(seconds=0.3)
@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_counts_and_bytes_are_those_of_xla(path: Path) -> None:
    pytest.importorskip("jaxlib")
    command = [sys.executable, str(TESTS / "oracles" / "hlo_instructions.py"), str(path)]
    expected = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    counts = Counter(dict(expected["counts"]))
    total = sum(count * bytes_by_definition(text) for text, count in counts.items())
    logical = sum(count * logical_bytes_by_definition(text) for text, count in counts.items())

    report = results(path)

    assert counted(report) == counts
    assert report.instruction_count == expected["instructions"]
    assert (report.total_nbytes, report.total_logical_nbytes) == (total, logical)
    assert report.problems == ()


def without_memory_space(text: str) -> reference.ReferenceShape:
    for space in range(1, 10):
        text = text.replace(f"S({space})", "")
    return reference.parse(text.replace("{:}", ""))


def bytes_by_definition(text: str) -> int:
    return reference.nbytes(without_memory_space(text))


def logical_bytes_by_definition(text: str) -> int:
    return reference.logical_nbytes(without_memory_space(text))


def test_there_are_three_modules_with_tiles() -> None:
    assert sum(b":T(8,128)" in path.read_bytes() for path in MODULES) >= 3


def test_by_hand() -> None:
    """Counted with a pencil in centred_v5e.txt: 18 instructions, one of them a tuple of three.

    f32[] takes a tile of 128 elements, 512 bytes; f32[3] too; f32[1000,3]{0,1:T(4,128)} is 8 tiles of 4 x 128
    elements, 16384 bytes, for 12000 bytes of elements.
    """
    report = results(TESTS / "data" / "hlo" / "centred_v5e.txt")
    assert report.instruction_count == 18
    assert counted(report) == {
        "f32[1000,3]{0,1:T(4,128)}": 5,
        "f32[1000,3]{0,1:T(4,128)S(1)}": 3,
        "f32[]{:T(128)}": 5,
        "f32[3]{0:T(128)S(1)}": 5,
        "f32[3]{0:T(128)}": 1,
        "u32[]{:S(2)}": 1,
    }
    assert report.total_nbytes == 8 * 16384 + 5 * 512 + 6 * 512 + 4
    assert report.total_logical_nbytes == 8 * 12000 + 5 * 4 + 6 * 12 + 4
    assert [(space.memory_space, space.count) for space in report.memory_spaces] == [(0, 11), (1, 8), (2, 1)]


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 1000, 100_000])
def test_chunks_do_not_matter(chunk: int) -> None:
    text = (TESTS / "data" / "hlo" / "quantised_v6e.txt").read_bytes()[: 3000 if chunk < 7 else None]
    assert contents(scan(text, chunk)) == contents(scan(text, len(text)))


@pytest.mark.parametrize("name", ["centred_v5e", "quantised_v6e", "nearest_neighbours_v5e"])
def test_lines_are_read_as_tokens_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text laid out as XLA prints it is matched by lines, other text by tokens; both say the same."""
    whole = (TESTS / "data" / "hlo" / f"{name}.txt").read_bytes()
    texts = [whole.replace(old, new) for old, new in RESTYLED]
    by_lines = [read_all(text) for text in texts]
    monkeypatch.setattr(scanner_module, "match_heading", lambda text, begin: None)
    monkeypatch.setattr(scanner_module, "match_block", lambda text, begin, limit: ([], begin))
    monkeypatch.setattr(scanner_module, "match_rows", lambda text, begin, limit: ([], begin))
    monkeypatch.setattr(scanner_module, "match_closing", lambda text, begin: -1)
    assert by_lines == [read_all(text) for text in texts]


#: What other printers do, some of it in every line.
RESTYLED = (
    (b"", b""),
    (b"%", b""),
    (b"\n  ", b"\n"),
    (b"\n}\n", b"\n  }\n"),
    (b"\n", b"\r\n"),
    (b", metadata", b",\n      metadata"),
    (b", metadata", b"\n      , metadata"),
    (b", metadata", b', note="a } // b", metadata'),
    (b", metadata", b', note={"\\"}", /*c = d*/ }, metadata'),
    (b" -> ", b" /*index=5*/ -> "),
    (b'op_name="', b'op_name="a}b/'),
)


def read_all(text: bytes) -> Any:
    modules: list[Module] = []
    reader = ModuleReader(modules.append)
    scanner = HloScanner(reader)
    scanner.feed(text)
    scanner.close()
    reader.finish()
    return [contents(module) for module in modules], scanner.problems, scanner.instruction_count


def test_what_does_not_count() -> None:
    report = results(
        """HloModule m, entry_computation_layout={(s8[1])->s8[2]}, frontend_attributes={a={b = s8[3] add(c)}}
// c = s8[4]{0} add(a)
/* d = s8[5]{0} add(a)
   e = s8[5]{0} add(a) */
%f (p: s8[6]) -> (s8[7], s8[8]) {
  %p = f32[2]{0} parameter(0), metadata={op_name="g = s8[9]{0} add(a)" source_file="a\\"b = s8[9] c("}
  ROOT %q = f32[2]{0} add(s8[10] %p, s8[9] %p), backend_config={"x":{"y = s8[11] z(":["{"]}}, x="h = s8[] b("
}
"""
    )
    assert counted(report) == {"f32[2]{0}": 2}
    assert report.problems == ()


def test_strings_over_several_lines() -> None:
    text = module('p = f32[2] parameter(0), backend_config="', "q = s8[3] add(p)", '", a="b"', "r = f32[2] add(p)")
    report = results(text)
    assert counted(report) == {"f32[2]{0}": 2}
    assert report.problems == ()


@pytest.mark.parametrize(
    "text",
    [
        "ENTRY e { p = f32[2] parameter(0) ROOT n = f32[2]{0} negate(p) }",
        "ENTRY e {\n  p =\n f32 [ 2 ] {0}\n parameter(0)\n ROOT n = f32[2]{0}\n  negate(\n  p)\n}",
        "ENTRY e {\n  p = f32[2] parameter(0)\n  ROOT n = f32[2] add(f32[2]\n   %p, f32[2]\n   %p)\n}",
        "%p = f32[2]{0} parameter(0)\r\n%n = f32[2]{0} negate(%p)\r\n",
        "I0000 1 hlo.cc:1]   %p = f32[2]{0} parameter(0)\nI0000 1 hlo.cc:1]   %n = f32[2]{0} negate(%p)",
    ],
    ids=["one line", "many lines", "operands on lines", "no computation", "log prefix"],
)
def test_ways_to_write_a_module(text: str) -> None:
    report = results(FIRST_LINE + text)
    assert counted(report) == {"f32[2]{0}": 2}
    assert report.problems == ()


def test_nested_tuples_tokens_buffers_and_comments_in_tuples() -> None:
    report = results(
        module(
            "a = (f32[2]{0}, (token[], s8[3]{0}), f32[2]{0}, /*index=3*/s4[], /*a(*/pred[]) custom-call()",
            "b = () tuple()",
            "c = b(f32[2]{0:T(4)}) custom-call(a)",
            "d = opaque[] custom-call(a)",
        )
    )
    assert counted(report) == {
        "f32[2]{0}": 2, "token[]": 1, "s8[3]{0}": 1, "s4[]": 1, "pred[]": 1, "opaque[]": 1,
        "b(f32[2]{0:T(4)})": 1,
    }  # fmt: skip
    assert report.instruction_count == 4
    assert report.total_nbytes == 2 * 8 + 3 + 1 + 1 + 16


def test_nested_computation_bodies() -> None:
    text = module("%p = f32[2]{0} parameter(0)", "ROOT %r = f32[2]{0} map(%p), to_apply=", "{") + (
        "    %a = s8[] parameter(0)\n    ROOT %n = s8[] negate(%a)\n  }\n}\n"
    )
    assert counted(results(text)) == {"f32[2]{0}": 2, "s8[]": 2}


BROKEN_LINES = [
    "%b = f32[2,3{1,0} add(%p, %p)",
    "%b = f32[2,3]{1,0 add(%p, %p)",
    "%b = f32[2,3]{1,5} add(%p, %p)",
    "%b = f33[2,3]{1,0} add(%p, %p)",
    "%b = f32[2,3]{1,0:T(0)} add(%p, %p)",
    "%b = (f32[2], f32[3] tuple(%p, %p)",
    "%b = f32[2]{0}",
    "%b = f32[2]{0} add",
    "%b f32[2]{0} add(%p, %p)",
    "ROOT f32[2]{0} add(%p, %p)",
    "%b = f32[99999999999999999999]{0} add(%p)",
    "ÿÿ garbage }{ ]]",
    '%b = f32[2,{0} add(%p), metadata={op_name="no end}',
    '%b = f32[2,{0} add(%p), backend_config={"a":{"b":1}',
]


@pytest.mark.parametrize("line", BROKEN_LINES)
def test_a_broken_line_is_named_and_the_rest_is_kept(line: str) -> None:
    good = [f'%q.{number} = s8[3]{{0}} add(%p, %p), metadata={{op_name="a"}}' for number in range(3)]
    report = results(module("%p = f32[4]{0} parameter(0)", line, *good, "ROOT %r = f32[4]{0} add(%p, %p)"))
    assert {problem.line for problem in report.problems} == {5}
    assert counted(report) == {"f32[4]{0}": 2, "s8[3]{0}": 3}


@pytest.mark.in_turn(seconds=1.1)
def test_random_damage_never_raises_anything_else() -> None:
    text = (TESTS / "data" / "hlo" / "nearest_neighbours_v5e.txt").read_bytes()[:8000]
    for seed in range(300):
        source = random.Random(seed)
        damaged = bytearray(text)
        for _ in range(source.randint(1, 20)):
            damaged[source.randrange(len(damaged))] = source.choice(b'{}()[]"=/*\n\\ ,%x0')
        report = results(bytes(damaged))
        assert report.instruction_count > 0
        assert all(1 <= problem.line <= damaged.count(b"\n") + 1 for problem in report.problems)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_truncated_text_is_noticed(path: Path) -> None:
    text = path.read_bytes()
    first = text.index(b" = f32")
    for cut in (first + 200, len(text) // 2, len(text) - 3):
        problems = results(text[:cut]).problems
        assert problems, cut
        assert problems[-1].line == text[:cut].rstrip().count(b"\n") + 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "empty"),
        ("# a readme\n\nwith words\n", "no HLO instruction"),
        ("x = 5\ny = foo(x)\n", "no HLO instruction"),
        ("HloModule m\n", "no HLO instruction"),
        ("module @jit_f {\n  func.func public @main() {\n", "MLIR"),
        (b"\x7fELF\x02\x01\0\0\0\0", "machine code"),
        (b"\xff\xfe\x80abc", "binary"),
        (b"\x1f\x8b\x08\0abc", "gzip"),
    ],
)
def test_what_is_not_hlo(source: str | bytes, message: str) -> None:
    with pytest.raises(fi.FastIndexError, match=message):
        results(source)


def test_a_path_as_text_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(module("p = f32[2] parameter(0)"))
    with pytest.raises(fi.FastIndexError, match="pathlib"):
        results(str(file))
    assert results(file).instruction_count == 1
    with pytest.raises(OSError, match=r"m\.txt"):
        results(tmp_path / "m.txt")


#: Prints the least memory that three reports of 8 MB took, after one that imports modules and makes the tables that are
#: kept. In a separate process: what other tests have left takes memory, too.
MEMORY = """
import io, sys, tracemalloc
import fastindex as fi

with open(sys.argv[1], "rb") as file:
    text = file.read()
text *= 8_000_000 // len(text)
fi.hlo.report(io.BytesIO(text))
peaks = []
for _ in range(3):
    stream = io.BytesIO(text)
    tracemalloc.start()
    fi.hlo.report(stream)
    peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
print(min(peaks))
"""


class EndlessLine(io.RawIOBase):
    """A gibibyte without a line break, made as it is read."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.left = 1 << 30

    def read(self, size: int = -1) -> bytes:
        size = min(size, self.left)
        self.left -= size
        return (self.text * (size // len(self.text) + 1))[:size]


@pytest.mark.in_turn(seconds=0.2)
@pytest.mark.parametrize("text", [b"a", b" ", b"{", b'"', b"x = (", pytest.param(b"= ", marks=pytest.mark.sweep)])
def test_an_endless_line_is_refused_early(text: bytes) -> None:
    stream = EndlessLine(text)
    with pytest.raises(fi.FastIndexError, match="not HLO text"):
        results(stream)
    assert stream.left > 1000 << 20


@pytest.mark.in_turn(seconds=5)
def test_an_endless_line_after_a_header_is_refused() -> None:
    stream = EndlessLine(b"HloModule m, " + b"a" * (1 << 20))
    with pytest.raises(fi.FastIndexError, match="no HLO instruction in the first 32"):
        results(stream)
    assert stream.left > 900 << 20


@pytest.mark.in_turn(seconds=5)
def test_memory_is_less_than_the_text() -> None:
    """100 MB of HLO in less than 100 MB: what stays is a place for each buffer."""
    path = TESTS / "data" / "hlo" / "convolutions_v4.txt"
    done = subprocess.run([sys.executable, "-c", MEMORY, path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 6 << 20


@pytest.mark.in_turn(seconds=4)
def test_a_long_tuple_and_a_long_string_cross_chunks() -> None:
    shapes = ", ".join(f"f32[{i},2]{{1,0}}" for i in range(1, 50_000))
    text = module(f'%t = ({shapes}) custom-call(), backend_config="{"x" * (5 << 20)}"', "%p = s8[] parameter(0)")
    report = results(text)
    assert report.buffer_count == 50_000
    assert report.problems == ()


def test_unbounded_shapes_have_no_size_and_are_named() -> None:
    report = results(module("%p = f32[?,4]{1,0} parameter(0)", "%q = f32[<=5,4]{1,0} parameter(1)"))
    assert counted(report) == {"f32[<=5,4]{1,0}": 1}
    (problem,) = report.problems
    assert problem.line == 4
    assert "f32[?,4]" in problem.text
    assert "unbounded" in problem.message


def test_the_reason_and_the_cheapest_change() -> None:
    report = results(module(*[f"%p.{i} = f32[100000,3]{{1,0:T(8,128)}} parameter({i})" for i in range(4)]))
    (use,) = report.uses
    assert use.padding_ratio == pytest.approx(128 / 3)
    assert use.cause_text == "dimension 1 (size 3) is padded to 128 by the tile (8,128), 42.7 times its size"
    assert use.change is not None
    assert use.change.description == "swap the two minor dimensions and use T(4,128)"
    assert str(use.change.shape) == "f32[100000,3]{0,1:T(4,128)}"
    # 100000 rounded up to 782 tiles of 128, times 4 sublanes, times 4 bytes
    assert use.change.saved_nbytes == 100000 * 128 * 4 - 782 * 128 * 4 * 4
    assert report.to_json()["shapes"][0]["change"]["saved_nbytes"] == 4 * use.change.saved_nbytes


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("f32[64,4,128]{2,1,0:T(8,128)}", "use T(4,128)"),
        ("f32[64,100,3]{2,1,0:T(8,128)}", "swap the two minor dimensions and use T(4,128)"),
        ("f32[64,100,5]{2,1,0:T(8,128)}", "swap the two minor dimensions"),
        ("f32[256,5]{1,0:T(1,4)}", "swap the two minor dimensions"),
        ("u2[1000,16]{1,0:T(16,128)(16,1)E(2)}", "swap the two minor dimensions"),
        ("f32[1000,5,7]{2,1,0:T(8,128)}", "use the order {0,2,1}"),
        ("f32[7,9]{1,0:T(8,128)}", "fold dimension 1 into 0"),
        ("bf16[]{:T(512)(2,1)}", "use T(256)"),
        ("f32[5]{0:L(128)}", "drop L(128)"),
        ("f32[3,5]{1,0:PAD(4,8)}", "drop padded_dimensions"),
        ("f32[3,5]{1,0:T(2,2)}", None),
        ("f32[8,128]{1,0:T(8,128)}", None),
    ],
)
def test_changes(text: str, description: str | None) -> None:
    (use,) = results(module(f"%p = {text} parameter(0)")).uses
    if description is None:
        assert use.change is None
        return
    assert use.change is not None
    assert use.change.description == description
    saved = use.shape.nbytes - use.change.shape.nbytes
    assert use.change.saved_nbytes == saved > 0
    assert use.change.shape.element_count == use.shape.element_count


def test_the_cause_is_the_step_that_pads_most() -> None:
    (use,) = results(module("%p = f32[7,9]{1,0:T(8,128)} parameter(0)")).uses
    assert use.cause is not None
    assert (use.cause.dimensions, use.cause.size, use.cause.padded_size) == ((1,), 9, 128)


def test_padding_steps_multiply_to_the_padding() -> None:
    for path in MODULES:
        for use in results(path).uses:
            ratio = use.shape.slot_count / use.shape.element_count
            product = 1.0
            for step in padding_steps(use.shape):
                product *= step.ratio
            assert product == pytest.approx(ratio)


def test_json_order_and_top() -> None:
    report = results(MODULES[0])
    found = report.to_json(top=3)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["total_nbytes"] - found["total_logical_nbytes"] == found["wasted_nbytes"]
    assert len(found["shapes"]) == 3
    waste = [use.wasted_nbytes for use in report.uses]
    assert waste == sorted(waste, reverse=True)
    everything = report.to_json()["shapes"]
    assert sum(row["count"] * row["nbytes"] for row in everything) == report.total_nbytes
    counts = [use.count for use in report.sorted_uses("count")]
    assert counts == sorted(counts, reverse=True)
    with pytest.raises(fi.FastIndexError, match="sort must be one of"):
        report.sorted_uses("size")  # type: ignore[arg-type]


def test_text_has_every_number_of_the_row() -> None:
    report = results(module("%p = f32[100000,3]{1,0:T(8,128)} parameter(0)"))
    text = report.text()
    for part in (
        "f32[100000,3]{1,0:T(8,128)}",
        "42.67",
        "47.7 MiB",
        "48.8 MiB",
        "swap the two minor dimensions",
    ):
        assert part in text
    assert str(report) == text


def test_a_dump_folder(tmp_path: Path) -> None:
    before, after = module("p = f32[1] parameter(0)"), module("p = f32[2] parameter(0)")
    for name, text in {
        "module_0001.jit_f.before_optimizations.txt": before,
        "module_0001.jit_f.cpu_after_optimizations.txt": after,
        "module_0001.jit_f.0003.dce.after_cse.before_dce.txt": before,
        "module_0001.jit_f.cpu_after_optimizations-buffer-assignment.txt": "BufferAssignment:\n",
        "module_0001.jit_f.thunk_sequence.txt": "000: kernel",
        "module_0002.jit_g.before_optimizations.txt": module("p = f32[3] parameter(0)"),
        "other.hlo": "// a comment first\n" + module("p = f32[4] parameter(0)"),
        "module_0001.jit_f.ir.ll": "; llvm",
    }.items():
        (tmp_path / name).write_text(text)
    report = results(tmp_path)
    assert counted(report) == {"f32[2]{0}": 1, "f32[3]{0}": 1, "f32[4]{0}": 1}
    assert len(report.sources) == 3
    several = results([tmp_path / "other.hlo", tmp_path / "module_0002.jit_g.before_optimizations.txt"])
    assert counted(several) == {"f32[3]{0}": 1, "f32[4]{0}": 1}


def test_problems_name_their_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text(module("p = f32[2] parameter(0)"))
    bad.write_text(module("p = f32[2] parameter(0)", "%q = f32[2 add(p)"))
    (problem,) = results([good, bad]).problems
    assert (problem.source, problem.line) == (str(bad), 5)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(fi.FastIndexError, match="no HLO text"):
        results(tmp_path)
    with pytest.raises(fi.FastIndexError, match="no HLO file"):
        results([])


def test_import_stays_light() -> None:
    command = f"import fastindex as fi, sys; fi.hlo.report({module('p = f32[2] parameter(0)')!r}); "
    command += "print(sorted({'numba', 'numpy', 'jax'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
