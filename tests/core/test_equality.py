"""Equality but for some parts.

Tests of: core.shape, core.layout_fields.
"""

from __future__ import annotations

from typing import Any

import pytest

import fastindex as fi
from fastindex import Layout, Shape
from fastindex.core.layout_fields import LAYOUT_PARTS
from fastindex.core.shape import SHAPE_PARTS

#: field: two layouts that differ in it alone
FIELDS = {
    "tiles": ("{1,0:T(2)}", "{1,0:T(4)}"),
    "padded_dimensions": ("{1,0:PAD(9,9)}", "{1,0}"),
    "padding_value": ("{1,0:PV(one)}", "{1,0}"),
    "element_size_in_bits": ("{1,0:E(32)}", "{1,0}"),
    "memory_space": ("{1,0:S(1)}", "{1,0:S(2)}"),
    "tail_padding_alignment_in_elements": ("{1,0:L(2)}", "{1,0:L(3)}"),
    "split_configs": ("{1,0:SC(0:1)}", "{1,0:SC(0:2)}"),
    "dimension_levels": ("{1,0:D(D,C)}", "{1,0}"),
    "index_primitive_type": ("{1,0:#(u32)}", "{1,0}"),
    "pointer_primitive_type": ("{1,0:*(u16)}", "{1,0:*(u32)}"),
}


def test_every_field_can_be_ignored() -> None:
    assert set(FIELDS) == LAYOUT_PARTS


@pytest.mark.parametrize("field", FIELDS)
def test_layouts_equal(field: str) -> None:
    a, b = map(Layout.parse, FIELDS[field])
    assert a.equals(b, [field])
    assert a.equals(b, LAYOUT_PARTS)
    assert not a.equals(b)
    assert not a.equals(b, LAYOUT_PARTS - {field})
    assert not Layout((0, 1)).equals(Layout((1, 0)), LAYOUT_PARTS)
    left, right = (Shape("f32", (8, 8), layout) for layout in (a, b))
    for wrap in (lambda s: s, lambda s: Shape.tuple([Shape.token(), Shape.tuple([s])]), Shape.buffer):
        assert wrap(left).equals(wrap(right), [field])
        assert wrap(left).equals(wrap(right), ["layout"])
        assert not wrap(left).equals(wrap(right))


@pytest.mark.parametrize(
    ("a", "b", "field"),
    [
        ("f32[2]", "s32[2]", "element_type"),
        ("f32[2]", "bf16[2]", "element_type"),
        ("f32[2]", "bf16[2]", "fp_precision"),
        ("f32[2]", "f32[<=2]", "dynamic_dimensions"),
        ("f32[2]", "f32[?]", "dynamic_dimensions"),
        ("f32[2]", "f32[3]", "dimensions"),
        ("f32[2]", "b(f32[2])", "buffer"),
        ("(f32[2], token[])", "(s8[2], token[])", "element_type"),
    ],
)
def test_shapes_equal(a: str, b: str, field: str) -> None:
    left, right = Shape.parse(a), Shape.parse(b)
    for one, other in ((left, right), (right, left)):
        assert one.equals(other, [field])
        assert not one.equals(other)
        assert one.equals(one)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("f32[2]", "f32[2,1]"),
        ("f32[2]", "token[]"),
        ("token[]", "opaque[]"),
        ("(f32[2])", "f32[2]"),
        ("()", "token[]"),
        ("(f32[2])", "(f32[2], f32[2])"),
        ("((f32[2]), ())", "((), (f32[2]))"),
    ],
)
def test_what_nothing_makes_equal(a: str, b: str) -> None:
    assert not Shape.parse(a).equals(Shape.parse(b), LAYOUT_PARTS | SHAPE_PARTS)


def test_precision_is_of_floating_point_only() -> None:
    assert not Shape("s8", (2,)).equals(Shape("s16", (2,)), ["fp_precision"])
    assert not Shape("f32", (2,)).equals(Shape("s32", (2,)), ["fp_precision"])
    assert not Shape("c64", (2,)).equals(Shape("c128", (2,)), ["fp_precision"])


def test_text_is_taken() -> None:
    assert Shape("f32", (2,)).equals("f32[2]{0:T(2)}", ["tiles"])
    assert Layout((0,)).equals("{0:T(2)}", ["tiles"])
    with pytest.raises(fi.ParseError):
        Shape("f32", (2,)).equals("f32[2")
    with pytest.raises(fi.ArgumentTypeError, match="a shape must be a Shape or its text"):
        Shape("f32", (2,)).equals(3)


@pytest.mark.parametrize("ignore", [["tile"], ["layout"], [["tiles"]]])
def test_unknown_fields(ignore: list[str]) -> None:
    with pytest.raises(fi.FastIndexError, match="cannot ignore"):
        Layout().equals(Layout(), ignore)


@pytest.mark.parametrize("ignore", ["tiles", None, 1, iter(["tiles"])])
def test_names_that_are_no_collection(ignore: Any) -> None:
    with pytest.raises(fi.ArgumentTypeError, match="a collection of names"):
        Layout().equals(Layout(), ignore)
