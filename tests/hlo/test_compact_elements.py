"""Elements of tuples that operands name, as jaxlib 0.12 and later print them: what XLA's parser makes of them.

Tests of: hlo.computations.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import fastindex as fi
from fastindex.hlo.computations import element_shapes
from fastindex.hlo.modules import Module, ModuleReader
from fastindex.hlo.scanner import HloScanner

COMPACT = """HloModule m, is_scheduled=true

%body (t.1: (s32[], (f32[2,3], pred[4]))) -> (s32[], (f32[2,3], pred[4])) {
  %t.1 = (s32[], (f32[2,3]{1,0:T(8,128)}, /*index=1*/pred[4]{0})) parameter(0)
  %a = f32[2,3]{1,0:T(8,128)} negate(%t.1#1#0)
  %b = s32[] negate(%t.1#0)
  %c = f32[2,3]{1,0:T(8,128)} add(%t.1#1#0, /*index=1*/%a)
  %inner = (f32[2,3]{1,0:T(8,128)}, pred[4]{0}) tuple(%c, %t.1 # 1 # 1)
  ROOT %t.2 = (s32[], (f32[2,3]{1,0:T(8,128)}, pred[4]{0})) tuple(%b, %inner)
}

ENTRY %main (p: (s32[], f32[2,3], pred[4])) -> pred[4] {
  p = (s32[], f32[2,3]{1,0:T(8,128)}, pred[4]{0}) parameter(0)
  q = (f32[2,3]{1,0:T(8,128)}, pred[4]{0}) tuple(p#1, p#2)
  r = (s32[], (f32[2,3]{1,0:T(8,128)}, pred[4]{0})) tuple(p#0, q)
  ROOT s = pred[4]{0} not(pred[4]{0} p#2), metadata={op_name="a#0"}
}
"""

#: What `hlo_module_from_text(COMPACT).to_string()` of jaxlib 0.12.0.1 printed on 2026-11-23.
EXPANDED = """HloModule m, is_scheduled=true

%body (t.1: (s32[], (f32[2,3], pred[4]))) -> (s32[], (f32[2,3], pred[4])) {
  %t.1 = (s32[], (f32[2,3]{1,0:T(8,128)}, pred[4]{0})) parameter(0)
  %t.1_1 = (f32[2,3]{1,0:T(8,128)}, pred[4]{0}) get-tuple-element(%t.1), index=1
  %t.1_1_0 = f32[2,3]{1,0:T(8,128)} get-tuple-element(%t.1_1), index=0
  %a = f32[2,3]{1,0:T(8,128)} negate(%t.1_1_0)
  %t.1_0 = s32[] get-tuple-element(%t.1), index=0
  %b = s32[] negate(%t.1_0)
  %c = f32[2,3]{1,0:T(8,128)} add(%t.1_1_0, %a)
  %t.1_1_1 = pred[4]{0} get-tuple-element(%t.1_1), index=1
  %inner = (f32[2,3]{1,0:T(8,128)}, pred[4]{0}) tuple(%c, %t.1_1_1)
  ROOT %t.2 = (s32[], (f32[2,3]{1,0:T(8,128)}, pred[4]{0})) tuple(%b, %inner)
}

ENTRY %main (p: (s32[], f32[2,3], pred[4])) -> pred[4] {
  %p = (s32[], f32[2,3]{1,0:T(8,128)}, pred[4]{0}) parameter(0)
  %p_1 = f32[2,3]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %p_2 = pred[4]{0} get-tuple-element(%p), index=2
  %q = (f32[2,3]{1,0:T(8,128)}, pred[4]{0}) tuple(%p_1, %p_2)
  %p_0 = s32[] get-tuple-element(%p), index=0
  %r = (s32[], (f32[2,3]{1,0:T(8,128)}, pred[4]{0})) tuple(%p_0, %q)
  ROOT %s = pred[4]{0} not(%p_2), metadata={op_name="a#0"}
}
"""


def read(text: str) -> Module:
    modules: list[Module] = []
    reader = ModuleReader(modules.append)
    scanner = HloScanner(reader)
    for begin in range(0, len(text), 37):
        scanner.feed(text[begin : begin + 37].encode())
    scanner.close()
    reader.finish()
    return modules[0]


def structure(text: str) -> dict[str, list[tuple[str, str, bytes, int, list[int]]]]:
    """Of each computation, the names, opcodes, shapes, indices and operands of its instructions."""
    module = read(text)
    shapes = [re.sub(rb"/\*.*?\*/", b"", shape) for shape in module.shapes]
    return {
        name: [
            (
                label,
                one.opcodes[k],
                shapes[one.shape(k)],
                one.details[k].number,
                [*one.operands(k)],
            )
            for k, label in enumerate(one.names())
        ]
        for name, one in module.computations.items()
    }


def xla_prints(text: str) -> str | None:
    """What XLA prints of a text; None where this jaxlib does not know such operands."""
    program = (
        "import json, sys\nfrom jaxlib import _hlo\n"
        "print(json.dumps(_hlo.hlo_module_from_text(json.load(sys.stdin)).to_string()))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=json.dumps(text), capture_output=True, text=True)
    if "cannot parse as an instruction name" in done.stderr or "expects ')'" in done.stderr:
        return None
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout))


def test_they_are_what_xla_makes_of_them() -> None:
    assert structure(COMPACT) == structure(EXPANDED)
    assert read(COMPACT).instruction_count == read(EXPANDED).instruction_count == 17


def test_the_recorded_expansion_is_that_of_this_jaxlib() -> None:
    pytest.importorskip("jaxlib")
    printed = xla_prints(COMPACT)
    if printed is None:
        pytest.skip("this jaxlib does not know elements in operands")
    assert structure(printed) == structure(EXPANDED)


def test_a_report_is_that_of_the_long_text() -> None:
    short, long = fi.hlo.report(COMPACT), fi.hlo.report(EXPANDED)
    assert (short.total_nbytes, short.problems) == (long.total_nbytes, ())
    assert [(use.shape, use.count, use.nbytes) for use in short.uses] == [
        (use.shape, use.count, use.nbytes) for use in long.uses
    ]
    assert short.peak == long.peak


@pytest.mark.parametrize("operand", ["p#3", "p#0#0", "x#0", "p#" + "9" * 5000, "p#", "p##1", "#1", "p#-1"])
def test_what_leads_nowhere_is_an_operand_that_is_not_known(operand: str) -> None:
    text = f"HloModule m\n\nENTRY e {{\n  p = (s32[], pred[4]) parameter(0)\n  ROOT s = pred[4] not({operand})\n}}\n"
    rows = structure(text)["e"]
    assert [row[0] for row in rows][-1] == "s"
    fi.hlo.report(text)
    fi.hlo.layout_copies(text)


def test_an_element_keeps_a_name_that_another_instruction_has() -> None:
    text = (
        "HloModule m\n\nENTRY e {\n  p_1 = s32[] parameter(1)\n  p = (s32[], pred[4]) parameter(0)\n"
        "  ROOT s = (pred[4], s32[]) tuple(p#1, p_1)\n}\n"
    )
    assert structure(text)["e"][-1][-1] == [2, 0]


def test_many_elements_of_one_tuple_are_read_in_proportion() -> None:
    count = 20_000
    shape = f"({', '.join(['s32[]'] * count)})"
    text = (
        f"HloModule m\n\nENTRY e {{\n  p = {shape} parameter(0)\n"
        f"  ROOT s = {shape} tuple({', '.join(f'p#{k}' for k in range(count))})\n}}\n"
    )
    assert read(text).instruction_count == count + 2


@pytest.mark.parametrize("text", [b"f32[2]", b"", b"(", b"()", b"(f32[2]", b"( )"])
def test_other_shapes_have_no_elements(text: bytes) -> None:
    assert element_shapes(text) == []
