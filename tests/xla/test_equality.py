"""Compatibility of shapes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastindex import Shape, xla

A = "(f32[2,3]{0,1:T(2)}, s8[4], token[])"
#: other shape: what holds of it and A
KINDS: dict[str, set[Callable[[Shape, Shape], bool]]] = {
    "(f32[<=2,3]{1,0}, s8[?], token[])": {
        xla.compatible,
        xla.compatible_ignoring_element_type,
        xla.compatible_ignoring_fp_precision,
        xla.compatible_kind,
        xla.equal_structure,
    },
    "(bf16[2,3], s8[4], token[])": {
        xla.compatible_ignoring_element_type,
        xla.compatible_ignoring_fp_precision,
        xla.compatible_kind,
        xla.equal_structure,
    },
    "(s32[2,3]{0,1:T(2)}, s16[4], token[])": {
        xla.compatible_ignoring_element_type,
        xla.compatible_kind,
        xla.equal_structure,
        xla.layouts_in_shapes_equal,
    },
    "(f32[5,6]{0,1:T(2)}, s8[7], token[])": {
        xla.compatible_kind,
        xla.equal_structure,
        xla.layouts_in_shapes_equal,
    },
    "(f32[2], s8[4], token[])": {xla.equal_structure},
    "(token[], token[], opaque[])": {xla.equal_structure},
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
    assert xla.same_dimensions(a, b)
    assert not xla.same_dimensions(a, Shape.parse("f32[2,4]"))
    assert xla.layouts_in_shapes_equal(Shape.parse("f32[2]{0:T(2)}"), Shape.parse("f32[2]"), ["tiles"])
