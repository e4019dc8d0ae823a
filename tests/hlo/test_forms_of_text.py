"""HLO text as people, tests and other printers write it: whatever jaxlib accepts is read as jaxlib means it.

Tests of: hlo.exact_text, hlo.inferred_shapes, hlo.modules, hlo.grammar, hlo.scanner.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import fastindex as fi

FORMS = Path(__file__).resolve().parents[1] / "data" / "hlo" / "forms"

#: Of each text: the bytes of all buffers, the peak, and the number of copies.
EXPECTED: dict[str, tuple[int, int | None, int]] = {
    "00-reference": (48000, 36000, 2),
    "01-header-debug-attributes": (48000, 36000, 2),
    "03-header-wrapped-layout": (48000, 36000, 2),
    "04-call-start": (81924, 65536, 2),
    "04-transpose-start": (49156, 49156, 1),
    "05-dynamic-update-slice-start": (411660, 411660, 0),
    "06-body-on-its-own-line": (8001, 8001, 2),
    "08-space-after-equals": (8001, 8001, 2),
    "09-layout-in-heading": (8000, 8000, 0),
    "10-percent-on-some-names": (40000, 32000, 0),
    "11-instruction-as-operand": (896, 672, 0),
    "12-computation-in-braces": (5600, None, 0),
    "13-no-shape": (448, 448, 0),
    "14-no-space-after-shape": (448, 448, 0),
    "14-space-before-parenthesis": (232, 232, 0),
    "15-mlir-in-a-comment": (448, None, 0),
    "16-single-device-sharding": (8192, None, 0),
    "17-operands-bound-by-update": (8008, 8008, 0),
}


def answers(text: str) -> tuple[int, int | None, int]:
    report = fi.hlo.report(text)
    assert report.problems == ()
    return report.total_nbytes, report.peak_nbytes, len(fi.hlo.layout_copies(text).copies)


@pytest.mark.parametrize("name", EXPECTED)
def test_forms(name: str) -> None:
    text = (FORMS / f"{name}.hlo").read_text()
    assert answers(text) == EXPECTED[name]
    # A value on the line after its "=", and line ends that were converted twice.
    assert answers(text.replace("calls=", "calls=\n").replace("\n", "\r\r\n")) == EXPECTED[name]
    reference = FORMS / f"{name}.reference.hlo"
    if reference.exists() and "update" not in name:
        assert answers(reference.read_text()) == EXPECTED[name]


def test_strings_in_a_header_say_nothing_of_the_module() -> None:
    text = "HloModule m, ENTRY e {\n  p = f32[8]{0} parameter(0)\n  ROOT n = f32[8]{0} negate(p)\n}\n"
    header = 'frontend_attributes={a="is_scheduled=true, num_partitions=7, input_output_alias={ {}: (0, {}) }"}\n'
    assert answers(text.replace("ENTRY", header + "ENTRY")) == (64, None, 0)


def test_integer_types_of_sparse_arrays() -> None:
    """XLA reads and prints them; of a dense array they say nothing. Without tiles, a TPU has units of 1,024."""
    text = "HloModule m, is_scheduled=true\nENTRY e {\n  p = f32[2,3]{1,0:T(2,128)#(u32)*(u16)} parameter(0)\n"
    assert answers(text + "  ROOT n = f32[2,3]{1,0:#(u32)} negate(p)\n}\n") == (1024 + 4096, 1024 + 4096, 0)


def test_every_opcode_and_attribute() -> None:
    report = fi.hlo.report((FORMS / "20-every-attribute.hlo").read_text())
    assert report.problems == ()
    assert report.instruction_count == 98
    copies = fi.hlo.layout_copies(FORMS / "20-every-attribute.hlo").copies
    assert sorted((row.instruction, row.kind, row.trips) for row in copies) == [
        ("cs", "same layout", 1), ("k", "layout", 10), ("t", "transpose", 1), ("w", "layout", 10),
    ]  # fmt: skip


def test_nothing_is_dropped_in_silence() -> None:
    """What XLA would not read is named, on its line, and the rest is kept."""
    good = "  p = f32[8]{0} parameter(0)\n", "  ROOT r = f32[8]{0} negate(p)\n"
    for line in (
        "n = f32[8]{0} negate(p) and more", "n = f32[8]{0} negate(p), metadata", "n = f32[8]{0} negate(p",
        "n = negate p", "n = f32[8]{0} while(p), condition =c, body=b", "n = foo(p)", "f32[8]{0} n = negate(p)",
        "n = f32[8]{0} ,negate(p)", "n = f32[8]{0} negate(p) }", "n := f32[8]{0} negate(p)",
        "p = f32[8]{0} negate(p)",
        "n = f32[8]{0} negate(p) /* a */ m = f32/* b */[8]{0} foo[](p)",
        "n = f32[8]{0} fusion(p), calls={ m = f32[8]{0} parameter(0) ",
    ):  # fmt: skip
        report = fi.hlo.report(
            "HloModule m, is_scheduled=true\nENTRY e {\n" + good[0] + "  " + line + "\n" + good[1] + "}\n"
        )
        assert report.problems, line
        assert report.problems[0].line in (4, 5, 6), line
        assert report.instruction_count >= 2, line


def test_a_sharding_on_a_single_device() -> None:
    text = (FORMS / "16-single-device-sharding.hlo").read_text()
    old = text.replace("single_device", "maximal_mesh")
    for each in (text, old):
        (module,) = fi.hlo.report(each).modules
        assert module.division is not None
        assert [str(array.sharding) for array in module.division.arrays] == ["{single_device[device_id=1]}"]
        assert module.division.problems == ()


@pytest.mark.in_turn(seconds=3)
@pytest.mark.parametrize("width", [1, 40])
def test_a_module_on_one_line_crosses_chunks(width: int) -> None:
    """Instructions after each other on one line, longer than what is read at once."""
    names = [f"n{number}" for number in range(40_000)]
    first = " p = f32[8]{0} parameter(0)"
    rows = [f" {name} = f32[8]{{0}} negate(p)" for name in names]
    text = "HloModule m ENTRY e {" + first + ("\n" if width > 1 else " ") + " ".join(rows) + " }"
    assert answers(text)[0] == 32 * 40_001


def test_the_next_instruction_without_a_space_after_its_equals_sign() -> None:
    text = "HloModule m, is_scheduled=true\nENTRY e {\n  p = f32[8]{0} parameter(0)\n"
    text += "  n = f32[8]{0} slice(p), slice={[0:8]}  ROOT %r =f32[8]{0} negate(n)\n}\n"
    # The result is written over n.
    assert answers(text) == (96, 64, 0)


_PLAIN = """HloModule m, is_scheduled=true

ENTRY %e (p: f32[9,100]) -> f32[9,100] {
  %p = f32[9,100]{1,0:T(8,128)} parameter(0)
  %t = (f32[9,100]{1,0:T(8,128)S(1)}, f32[9,100]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%p)
  ROOT %d = f32[9,100]{1,0:T(8,128)S(1)} copy-done(%t)
}
"""


@pytest.mark.parametrize(
    ("tight", "loose"),
    [(":T(", ": T("), (":T(", ":T ("), (":T(", ":/*all*/T("), ("]{", "] {"), ("S(1)", " S( 1)"), (", f32", " ,f32")],
)
def test_spaces_within_shapes_mean_nothing(tight: str, loose: str) -> None:
    assert answers(_PLAIN.replace(tight, loose)) == answers(_PLAIN)


@pytest.mark.parametrize("operands", ["x, y", ",x,,y,", "x, f32[9] , , y,", "\n,x, f32[9]{0}, %y", "negate(x),,y"])
def test_commas_around_operands(operands: str) -> None:
    text = "HloModule m, is_scheduled=true\nENTRY T (x: f32[9]) -> f32[9] {\n  x = f32[9] parameter(0)\n"
    text += f"  y = f32[9]\n negate(x)\n  ROOT r = f32[9] add({operands})\n}}\n"
    count = 4 if "negate" in operands else 3
    assert answers(text) == (36 * count, 36 * count - 36, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%c = f32[9,20]{0,1} copy(f32[9,20]{1,0} %p)", (1440, 1440, 1)),
        ("f32[9,20]{0,1} copy(f32[9,20]{1,0} p) // as its canonical print", (1440, 1440, 1)),
        ("ROOT c = multiply(f32[9] p, f32[9]{0} %p), metadata={}\n", (72, 72, 0)),
        (
            "f32[9,20] fusion(f32[9,20] p, f32[] q), kind=kLoop, calls={ x = f32[9,20] parameter(0) y = f32[] "
            "parameter(1) c = f32[9,20]{0,1} copy(f32[9,20] x) b = f32[9,20] broadcast(y) ROOT r = add(b, c) }",
            (1444, 1444, 1),
        ),
        # XLA does not read these: an operand without a shape, and two instructions.
        ("%c = f32[9,20]{0,1} copy(%p)", (720, None, 0)),
        ("%n = f32[9] negate(f32[9] %p)\n%m = f32[9] negate(%n)", (72, None, 0)),
    ],
)  # fmt: skip
def test_an_instruction_alone(text: str, expected: tuple[int, int | None, int]) -> None:
    """Its operands are parameters of the program."""
    assert answers(text) == expected


_NAMED = r"""HloModule m, is_scheduled=true

FileNames
1 "/h/\303\251.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

ENTRY %e (p: f32[9,100]) -> f32[9,100] {
  %p = f32[9,100]{1,0:T(8,128)} parameter(0), sharding={replicated metadata={op_name="} q"}}
  %n = f32[9,100]{1,0:T(8,128)} custom-call(%p), custom_call_target="ConcatBitcast", metadata={op_name="sharding={"}
  ROOT %c = f32[9,100]{0,1:T(8,128)} copy(%n), metadata={op_name="a\303\251\n\"" stack_frame_id=1}
}
"""


@pytest.mark.parametrize(
    ("plain", "other"),
    [
        ("", ""), (r"a\303\251", "a\u00e9"), (r"a\303\251", r"\141\u00e9"), ("{op_name=", "{ /* } */ op_name=\n"),
        ("{op_name=", "{op_type='x' op_name="), ("line=7 ", "/* } */ line= 7 // }\n"), ("line=7 ", "line= /*a*/ 7 "),
        ('"ConcatBitcast"', "'ConcatBitcast'"), (", metadata={op_name=", ",metadata={op_name="),
        ("copy(%n)", 'copy(%n), sharding={replicated metadata={op_name="x"}}'),
        (' stack_frame_id=1}', ' stack_frame_id=1}, sharding={replicated metadata={op_name="x"}}'),
    ],
)  # fmt: skip
def test_words_of_the_program(plain: str, other: str) -> None:
    """Operations and files, with characters beyond ASCII as XLA prints them, and other metadata before their own."""
    text = _NAMED.replace(plain, other) if plain else _NAMED
    (row,) = fi.hlo.layout_copies(text).copies
    assert (row.op_name, row.source_file, row.source_line, row.argument) == ('a\u00e9\n"', "/h/\u00e9.py", 7, 0)
    (module,) = fi.hlo.report(text).modules
    assert module.division is not None
    assert [str(array.sharding) for array in module.division.arrays] == ["{replicated}"]
