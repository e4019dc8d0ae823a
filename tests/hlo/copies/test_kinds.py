"""What a copy, a reshape or a transpose moves, by the slots that the formula of the counter gives its elements.

Tests of: hlo.copies.rows, hlo.copies.calls.
"""

from __future__ import annotations

import itertools

import pytest

import fastindex as fi
from fastindex.hlo.copies.rows import copy_kind
from tests.oracles.hlo_copies import parse, stays

SHAPES = (
    "f32[16,256]{1,0:T(8,128)}", "f32[16,256]{0,1:T(8,128)}", "f32[256,16]{0,1:T(8,128)}", "f32[256,16]{1,0:T(8,128)}",
    "f32[2,8,256]{2,1,0:T(8,128)}", "f32[4096]{0:T(1024)}", "f32[4096]{0}", "f32[16,2,128]{2,1,0:T(8,128)}",
    "f32[16,256]{1,0:T(4,128)}", "f32[2,8,2,128]{3,1,2,0:T(8,128)}", "f32[1,16,256]{2,1,0:T(8,128)S(1)}",
    "f32[16,1,256]{2,0,1:T(8,128)}", "f32[16,256]{1,0}",
)  # fmt: skip


def test_reshapes_move_what_the_slots_say() -> None:
    for a, b in itertools.product(SHAPES, SHAPES):
        kind = copy_kind("reshape", fi.Shape.parse(a), fi.Shape.parse(b))
        assert (kind == "reshape") == (not stays(parse(a), parse(b), None)), (a, b)


def test_transposes_move_what_the_slots_say() -> None:
    for a, b in itertools.product(SHAPES, SHAPES):
        before, after = fi.Shape.parse(a), fi.Shape.parse(b)
        for order in itertools.permutations(range(before.rank)):
            if before.rank == after.rank and tuple(before.dimensions[d] for d in order) == after.dimensions:
                kind = copy_kind("transpose", before, after, order)
                assert (kind == "transpose") == (not stays(parse(a), parse(b), order)), (a, b, order)


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("f32[16,256]{1,0:T(8,128)}", "f32[16,256]{0,1:T(8,128)}", "layout"),
        ("f32[16,256]{1,0:T(8,128)}", "f32[16,256]{1,0:T(4,128)}", "layout"),
        ("s4[16,256]{1,0:T(8,128)}", "s4[16,256]{1,0:T(8,128)E(4)}", "layout"),
        ("f32[16,256]{1,0:T(8,128)}", "f32[16,256]{1,0:T(8,128)S(1)}", "memory space"),
        ("f32[16,256]{1,0:T(8,128)}", "f32[16,256]{0,1:T(8,128)S(1)}", "layout"),
        ("f32[16,256]{1,0:T(8,128)}", "f32[16,256]{1,0:T(8,128)}", "same layout"),
        # Of size 1, a dimension has no order; but tiles pad it.
        ("f32[1,16,256]{2,1,0:T(8,128)}", "f32[1,16,256]{2,0,1:T(8,128)}", "layout"),
        ("f32[1,16,256]{2,1,0:T(8,128)}", "f32[1,16,256]{2,1,0:T(8,128)}", "same layout"),
        ("f32[16,1,256]{2,1,0}", "f32[16,1,256]{2,0,1}", "same layout"),
        ("f32[16,256]{1,0:T(8,128)}", "bf16[16,256]{1,0:T(8,128)(2,1)}", "element type"),
        ("token[]", "token[]", None),
        ("f32[?,256]", "f32[?,256]", None),
    ],
)
def test_kinds_of_copies(before: str, after: str, kind: str | None) -> None:
    assert copy_kind("copy", fi.Shape.parse(before), fi.Shape.parse(after)) == kind
