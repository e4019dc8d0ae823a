"""Equality that overlooks what it is told to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import fastindex as fi
from fastindex import Layout, Shape
from fastindex.xla.equality import LAYOUT_FIELDS, SHAPE_FIELDS

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
}


def test_every_field_can_be_ignored() -> None:
    assert set(FIELDS) == LAYOUT_FIELDS


@pytest.mark.parametrize("field", FIELDS)
def test_layouts_equal(field: str) -> None:
    a, b = map(Layout.parse, FIELDS[field])
    assert fi.layouts_equal(a, b, [field])
    assert fi.layouts_equal(a, b, LAYOUT_FIELDS)
    assert not fi.layouts_equal(a, b)
    assert not fi.layouts_equal(a, b, LAYOUT_FIELDS - {field})
    assert not fi.layouts_equal(Layout((0, 1)), Layout((1, 0)), LAYOUT_FIELDS)
    left, right = (Shape("f32", (8, 8), layout) for layout in (a, b))
    for wrap in (lambda s: s, lambda s: Shape.tuple([Shape.token(), Shape.tuple([s])]), Shape.buffer):
        assert fi.shapes_equal(wrap(left), wrap(right), [field])
        assert fi.shapes_equal(wrap(left), wrap(right), ["layout"])
        assert not fi.shapes_equal(wrap(left), wrap(right))


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
        assert fi.shapes_equal(one, other, [field])
        assert not fi.shapes_equal(one, other)
        assert fi.shapes_equal(one, one)


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
    assert not fi.shapes_equal(Shape.parse(a), Shape.parse(b), LAYOUT_FIELDS | SHAPE_FIELDS)


def test_precision_is_of_floating_point_only() -> None:
    assert not fi.shapes_equal(Shape("s8", (2,)), Shape("s16", (2,)), ["fp_precision"])
    assert not fi.shapes_equal(Shape("f32", (2,)), Shape("s32", (2,)), ["fp_precision"])
    assert not fi.shapes_equal(Shape("c64", (2,)), Shape("c128", (2,)), ["fp_precision"])


@pytest.mark.parametrize("ignore", [["tile"], ["layout"], "tiles"])
def test_unknown_fields(ignore: list[str]) -> None:
    with pytest.raises(fi.FastIndexError, match="cannot ignore"):
        fi.layouts_equal(Layout(), Layout(), ignore)


A = "(f32[2,3]{0,1:T(2)}, s8[4], token[])"
#: other shape: what holds of it and A
KINDS: dict[str, set[Callable[[Shape, Shape], bool]]] = {
    "(f32[<=2,3]{1,0}, s8[?], token[])": {
        fi.compatible,
        fi.compatible_ignoring_element_type,
        fi.compatible_ignoring_fp_precision,
        fi.compatible_kind,
        fi.equal_structure,
    },
    "(bf16[2,3], s8[4], token[])": {
        fi.compatible_ignoring_element_type,
        fi.compatible_ignoring_fp_precision,
        fi.compatible_kind,
        fi.equal_structure,
    },
    "(s32[2,3]{0,1:T(2)}, s16[4], token[])": {
        fi.compatible_ignoring_element_type,
        fi.compatible_kind,
        fi.equal_structure,
        fi.layouts_in_shapes_equal,
    },
    "(f32[5,6]{0,1:T(2)}, s8[7], token[])": {fi.compatible_kind, fi.equal_structure, fi.layouts_in_shapes_equal},
    "(f32[2], s8[4], token[])": {fi.equal_structure},
    "(token[], token[], opaque[])": {fi.equal_structure},
    "(f32[2,3]{0,1:T(2)}, s8[4])": set(),
}


@pytest.mark.parametrize("text", KINDS)
def test_kinds_of_compatibility(text: str) -> None:
    a, b = Shape.parse(A), Shape.parse(text)
    everything = set().union(*KINDS.values())
    assert {question for question in everything if question(a, b)} == KINDS[text]
    assert {question for question in everything if question(b, a)} == KINDS[text]
    assert all(question(a, a) for question in everything)


def test_same_parts() -> None:
    a, b = Shape.parse("f32[2,3]"), Shape.parse("s8[2,?]")
    assert fi.same_rank(a, b)
    assert fi.same_dimensions(a, b)
    assert not fi.same_element_type(a, b)
    assert not fi.same_dimensions(a, Shape.parse("f32[2,4]"))
    assert not fi.same_rank(a, Shape.parse("f32[2]"))
    assert fi.layouts_in_shapes_equal(Shape.parse("f32[2]{0:T(2)}"), Shape.parse("f32[2]"), ["tiles"])
