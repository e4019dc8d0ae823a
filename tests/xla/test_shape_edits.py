"""Shapes made from shapes, by hand.

Tests of: xla.shape_edits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fastindex as fi
from fastindex import Shape, xla

EDITS: list[tuple[Callable[[Shape], Shape], str, str]] = [
    (xla.with_default_layout, "(f32[2,3]{0,1:T(2)S(1)}, (token[]))", "(f32[2,3]{1,0}, (token[]))"),
    (xla.with_default_layout, "b(f32[2,3]{0,1:T(2)})", "b(f32[2,3]{1,0})"),
    (xla.clear_tiles, "(f32[2,3]{0,1:T(2)(2)L(4)S(1)})", "(f32[2,3]{0,1:L(4)S(1)})"),
    (
        xla.device_shape_to_host_shape,
        "(s4[<=2,3]{0,1:T(2)L(4)E(4)S(1)SC(0:1)M(8)}, s4[])",
        "(s4[<=2,3]{0,1:SC(0:1)}, s4[])",
    ),
    (lambda s: xla.update_element_size(s, pack=True), "(s4[2], u2[2]{0:E(8)}, pred[2]{0:E(1)})",
     "(s4[2]{0:E(4)}, u2[2]{0:E(2)}, pred[2]{0})"),
    (lambda s: xla.update_element_size(s, pack=False), "(s4[2]{0:E(4)}, f32[2])", "(s4[2]{0}, f32[2]{0})"),
    (lambda s: xla.change_element_type(s, "f32"), "(s4[<=2]{0:T(2)E(4)}, token[])", "(f32[<=2]{0:T(2)}, token[])"),
    (lambda s: xla.change_element_type(s, "u4"), "s4[2]{0:T(2)E(4)}", "u4[2]{0:T(2)E(4)}"),
    (xla.static_shape, "(f32[<=2,3]{0,1:M(8)})", "(f32[2,3]{0,1})"),
    (lambda s: xla.append_major_dimension(s, 7), "f32[2,<=3]{0,1:T(2)}", "f32[2,<=3,7]{0,1,2:T(2)}"),
    (lambda s: xla.append_major_dimension(s, 7), "f32[2,3]{0,1:PAD(4,5)SC(0:1)}",
     "f32[2,3,7]{0,1,2:PAD(4,5,7)SC(1:1)}"),
    (lambda s: xla.prepend_major_dimension(s, 7), "f32[<=2,3]{0,1:T(2)}", "f32[7,<=2,3]{1,2,0:T(2)}"),
    (lambda s: xla.append_minor_dimension(s, 7), "f32[2,3]{0,1:SC(0:1)}", "f32[2,3,7]{2,0,1:SC(0:1)}"),
    (lambda s: xla.append_major_dimension(s, 7), "f32[]", "f32[7]{0}"),
    (lambda s: xla.insert_dimensions(s, 1, (7,)), "f32[2,<=3]{0,1:T(2)}", "f32[2,7,<=3]{0,2,1}"),
    (lambda s: xla.insert_dimensions(s, 0, (7, 8)), "f32[2,3]{1,0}", "f32[7,8,2,3]{3,2,1,0}"),
    (lambda s: xla.insert_dimensions(s, 2, (7, 8)), "f32[2,3]{0,1}", "f32[2,3,7,8]{3,2,0,1}"),
    (lambda s: xla.insert_dimensions(s, 0, (7,)), "f32[]", "f32[7]{0}"),
    (lambda s: xla.delete_dimensions(s, (0, -1)), "f32[2,<=3,5]{0,2,1:T(2)}", "f32[<=3]{0:T(2)}"),
    (lambda s: xla.delete_dimensions(s, ()), "f32[2,3]{0,1}", "f32[2,3]{0,1}"),
    (lambda s: xla.delete_dimensions(s, (1,)), "f32[2,3,5]{0,1,2:PAD(4,5,6)SC(0:1)(1:1)(2:1)}",
     "f32[2,5]{0,1:PAD(4,6)SC(0:1)(1:1)}"),
    (lambda s: xla.filter_dimensions(s, lambda i: i == 2), "f32[2,3,5]{0,2,1}", "f32[5]{0}"),
    (xla.drop_degenerate_dimensions, "f32[1,3,1,5]{0,3,2,1}", "f32[3,5]{1,0}"),
    (xla.descending_with_same_physical_layout, "f32[2,<=3,5]{0,2,1:T(2)L(4)E(32)S(3)}",
     "f32[<=3,5,2]{2,1,0:T(2)L(4)E(32)S(3)}"),
    (lambda s: xla.permute_dimensions_ignoring_layout(s, (2, 0, 1)), "f32[2,<=3,5]{2,1,0}", "f32[5,2,<=3]{2,1,0}"),
    (lambda s: xla.move_dimension_to_major(s, -1), "f32[2,3,5]{2,1,0:T(2)SC(0:1)}", "f32[2,3,5]{1,0,2:T(2)SC(1:1)}"),
    (lambda s: xla.move_dimension_to_minor(s, 0), "f32[2,3,5]{2,1,0:T(2)}", "f32[2,3,5]{0,2,1:T(2)}"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "before", "after"), EDITS)
def test_edits(edit: Callable[[Shape], Shape], before: str, after: str) -> None:
    assert str(edit(Shape.parse(before))) == after


REFUSALS: list[tuple[Callable[[Shape], Any], str, type[Exception]]] = [
    (lambda s: xla.change_element_type(s, "token"), "f32[2]", fi.LayoutError),
    (xla.static_shape, "f32[?]", fi.LayoutError),
    (lambda s: xla.append_major_dimension(s, -1), "f32[2]", fi.LayoutError),
    (lambda s: xla.append_major_dimension(s, 2**62), "f32[2]", fi.LayoutError),
    (lambda s: xla.append_major_dimension(s, 1), "token[]", fi.UnsupportedError),
    (lambda s: xla.append_major_dimension(s, 1), "f32[2]{0:D(C)}", fi.UnsupportedError),
    (lambda s: xla.insert_dimensions(s, 3, (1,)), "f32[2,3]", fi.OutOfBoundsError),
    (lambda s: xla.insert_dimensions(s, -1, (1,)), "f32[2,3]", fi.OutOfBoundsError),
    (lambda s: xla.delete_dimensions(s, (2,)), "f32[2,3]", fi.OutOfBoundsError),
    (lambda s: xla.copy_layouts(s, Shape.parse("(f32[2], f32[2])")), "(f32[2])", fi.LayoutError),
    (lambda s: xla.copy_layouts(s, Shape.parse("(f32[2])")), "(f32[2,3])", fi.LayoutError),
    (lambda s: xla.copy_layouts(s, Shape.parse("(f32[2])")), "(token[])", fi.LayoutError),
]


@pytest.mark.parametrize(("edit", "text", "kind"), REFUSALS)
def test_refusals(edit: Callable[[Shape], Any], text: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        edit(Shape.parse(text))


def test_copied_layouts() -> None:
    source = Shape.parse("(f32[2,3]{0,1:T(2)}, (token[], s8[4]{0:S(1)}))")
    assert str(xla.copy_layouts(source, Shape.parse("(u8[5,6], (token[], f64[9]))"))) == (
        "(u8[5,6]{0,1:T(2)}, (token[], f64[9]{0:S(1)}))"
    )
