"""Changes as lines of JAX: what they make, asked of JAX itself; and what they cost.

Tests of: hlo.rows.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import fastindex as fi
from fastindex.hlo.rows import jax_lines
from fastindex.show.padding import cheapest_change
from tests.hlo.test_buffers import TILED, entry

SHAPES = (
    "f32[100000,3]{1,0:T(8,128)}",
    "f32[64,4,128]{2,1,0:T(8,128)}",
    "f32[1000,5,7]{2,1,0:T(8,128)}",
    "f32[64,100,3]{2,1,0:T(8,128)}",
    "bf16[2,129,384]{1,2,0:T(8,128)(2,1)}",
    "f32[7,9]{1,0:T(8,128)}",
    "bf16[]{:T(512)(2,1)}",
    "f32[5]{0:L(128)}",
)

JAX = """
import json, sys
import jax, jax.numpy as jnp
from jax.experimental.layout import Format, Layout
sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
answers = []
for kind, dimensions, line in json.load(sys.stdin):
    x = jax.ShapeDtypeStruct(dimensions, kind)
    f = lambda x: x
    changed = jax.jit(lambda x: eval(line[4:])) if line.startswith("x = ") else eval(line)
    lowered = changed.lower(x)
    header = lowered.compile().as_text().split(chr(10))[0] if line.startswith("jax.jit") else ""
    answers.append([list(jax.eval_shape(changed, x).shape), header, lowered.as_text()])
print(json.dumps(answers))
"""


@pytest.mark.in_turn(seconds=2)
def test_lines_are_what_jax_takes() -> None:
    """Arguments and results get the order of the change, or its dimensions; a processor's compiler has no tiles."""
    pytest.importorskip("jax")
    asked = []
    for text in SHAPES:
        shape = fi.Shape.parse(text)
        change = cheapest_change(shape)
        assert change is not None
        kind = {"f32": "float32", "bf16": "bfloat16"}[str(shape.element_type)]
        for role in ("argument", "output", "temporary"):
            asked += [(shape, change, role, kind, line) for line in jax_lines(shape, change, [role])]
    assert len(asked) >= 14
    assert {role for _, _, role, _, _ in asked} == {"argument", "output"}
    questions = [(kind, shape.dimensions, line) for shape, _, _, kind, line in asked]
    run = subprocess.run(
        [sys.executable, "-c", JAX], input=json.dumps(questions), capture_output=True, text=True, check=True
    )
    for (_, change, role, _, line), (dimensions, header, _) in zip(asked, json.loads(run.stdout), strict=True):
        after = change.shape
        if "reshape" in line:
            assert tuple(dimensions) == after.dimensions
        else:
            layouts = re.search(r"entry_computation_layout=\{\((\S*)\)->(\S+?)\}(?:,|$)", header)
            assert layouts is not None, header
            compiled = fi.Shape.parse(layouts.group(1 if role == "argument" else 2))
            assert compiled.equals(after, ignore=("tiles",))


def test_what_a_change_costs() -> None:
    back = "f32[1000,3]{0,1:T(4,128)}"
    alone = fi.hlo.report(entry(f"%p = {TILED} parameter(0)", f"ROOT %r = {TILED} negate(%p)")).uses[0]
    assert "not known" in alone.change_cost
    assert "500.0 KiB" in alone.change_cost
    copied = fi.hlo.report(entry(f"%p = {TILED} parameter(0)", f"ROOT %turned = {back} copy(%p)"))
    (use,) = [use for use in copied.uses if str(use.shape) == TILED]
    assert use.change_cost == "no longer needed: turned, which now copies it into this layout"
    row = copied.to_json()["shapes"][0]
    assert row["change"]["jax"]
    assert row["change"]["cost"] == use.change_cost
    text = "f32[64,4,128]{2,1,0:T(8,128)}"
    (use,) = fi.hlo.report(entry(f"ROOT %p = {text} parameter(0)")).uses
    assert "as before" in use.change_cost


def test_no_line_where_jax_has_none() -> None:
    shape = fi.Shape.parse("f32[64,4,128]{2,1,0:T(8,128)}")
    change = cheapest_change(shape)
    assert change is not None
    assert jax_lines(shape, change, ["temporary"]) == ()
    assert jax_lines(shape, change, ["output"]) == ("jax.jit(f, out_shardings=Format(Layout((0, 1, 2)), sharding))",)


@pytest.mark.parametrize("text", ["f32[256,5]{1,0:T(1,4)}", "s4[1000,3]{1,0:T(8,128)(8,1)}"])
def test_no_line_for_tiles_that_are_not_the_compilers(text: str) -> None:
    """JAX would give the order, but not these tiles, or packed elements."""
    shape = fi.Shape.parse(text)
    change = cheapest_change(shape)
    assert change is not None
    assert change.description == "swap the two minor dimensions"
    assert jax_lines(shape, change, ["argument"]) == ()


def test_values_inside_a_program_are_the_compilers() -> None:
    """The change is named, but not as a saving, and with no line of JAX: only compiling again shows what it does."""
    other = "f32[500,3]{1,0:T(8,128)}"
    report = fi.hlo.report(
        entry(
            f"%p = {TILED} parameter(0)",
            f"%s = {other} slice(%p), slice={{[0:500], [0:3]}}",
            "ROOT %r = f32[1500]{0:T(1024)} reshape(%s)",
        )
    )
    outside, inside = (next(use for use in report.uses if str(use.shape) == text) for text in (TILED, other))
    assert (outside.is_inside, inside.is_inside) == (False, True)
    assert outside.jax_lines
    assert inside.jax_lines == ()
    assert "the compiler chooses its layout" in inside.change_cost
    text = " ".join(report.text(width=1000).split())
    # f32[500,3] takes 504 * 128 elements in tiles of (8,128), and 4 * 512 with its dimensions swapped, in T(4,128).
    saved = 4 * (504 * 128 - 4 * 512)
    assert inside.change is not None
    assert inside.change.saved_nbytes == saved
    smaller = "swap the two minor dimensions and use T(4,128): f32[500,3]{0,1:T(4,128)}"
    assert f"{smaller} would take {saved / 1024:.1f} KiB less" in text
    assert "swapaxes" not in text


def test_nothing_is_advised_for_the_memory_of_the_core() -> None:
    fast = f"{TILED[:-1]}S(1)}}"
    report = fi.hlo.report(entry(f"%p = {fast} parameter(0)", f"ROOT %n = {fast} negate(%p)"))
    assert [use.change for use in report.uses] == [None]
    assert report.uses[0].cause is not None


def test_less_than_5_percent_of_padding_is_left_alone() -> None:
    assert cheapest_change(fi.Shape.parse("bf16[1024,1000]{1,0:T(8,128)(2,1)}")) is None
    assert cheapest_change(fi.Shape.parse("bf16[1024,960]{1,0:T(8,128)(2,1)}")) is not None
