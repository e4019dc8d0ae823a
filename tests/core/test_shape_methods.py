"""The shapes that `Shape` makes of itself; strides are tested in ``tests/xla/test_strides.py``.

Tests of: core.integers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import ml_dtypes
import pytest

import fastindex as fi
from fastindex import Layout, Shape
from tests.cases.strategies import random_shape, seeds
from tests.oracles import reference

EDITS: list[tuple[Callable[[Shape], Shape], str, str]] = [
    (lambda s: s.with_layout(Layout((0, 1))), "f32[<=2,3]{1,0:T(2)}", "f32[<=2,3]{0,1}"),
    (lambda s: s.with_layout("{0,1:T(8,128)}"), "f32[<=2,3]", "f32[<=2,3]{0,1:T(8,128)}"),
    (lambda s: s.with_element_type("f32"), "s4[<=2]{0:T(2)E(4)}", "f32[<=2]{0:T(2)}"),
    (lambda s: s.with_element_type(ml_dtypes.uint4), "s4[2]{0:T(2)E(4)}", "u4[2]{0:T(2)E(4)}"),
    (lambda s: s.transposed((2, 0, 1)), "f32[2,<=3,5]{2,1,0:PAD(4,5,6)T(2)SC(0:1)}",
     "f32[5,2,<=3]{0,2,1:PAD(6,4,5)T(2)SC(0:1)}"),
    (lambda s: s.transposed(()), "f32[]", "f32[]"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "before", "after"), EDITS)
def test_edits(edit: Callable[[Shape], Shape], before: str, after: str) -> None:
    assert str(edit(Shape.parse(before))) == after


REFUSALS: list[tuple[Callable[[Shape], Any], str, type[Exception]]] = [
    (lambda s: s.with_layout(Layout((0,))), "f32[2,3]", fi.LayoutError),
    (lambda s: s.with_layout("{0,1"), "f32[2,3]", fi.ParseError),
    (lambda s: s.with_layout((0, 1)), "f32[2,3]", fi.ArgumentTypeError),
    (lambda s: s.with_layout(Layout()), "token[]", fi.UnsupportedError),
    (lambda s: s.with_element_type("token"), "f32[2]", fi.LayoutError),
    (lambda s: s.with_element_type("s8"), "(f32[2])", fi.UnsupportedError),
    (lambda s: s.transposed((0,)), "f32[2,3]", fi.LayoutError),
    (lambda s: s.transposed((0, 2)), "f32[2,3]", fi.LayoutError),
    (lambda s: s.transposed(()), "()", fi.UnsupportedError),
]


@pytest.mark.parametrize(("edit", "text", "kind"), REFUSALS)
def test_refusals(edit: Callable[[Shape], Any], text: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        edit(Shape.parse(text))


def test_transposed_shapes_keep_every_slot() -> None:
    for seed in seeds(150):
        expected = random_shape(seed)
        order = random.Random(seed).sample(range(len(expected.dimensions)), len(expected.dimensions))
        moved = Shape.parse(str(expected)).transposed(order)
        slots = reference.linear_indices(reference.parse(str(moved)))
        for index, slot in reference.linear_indices(expected).items():
            assert slots[tuple(index[i] for i in order)] == slot, (expected, order)
