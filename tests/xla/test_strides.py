"""Strides: against the slots of the reference, and by hand.

Tests of: core.digits.
"""

from __future__ import annotations

import operator
from collections import Counter

import pytest

import fastindex as fi
from fastindex import Shape, xla
from tests.cases.strategies import OTHER_SEEDS, random_shape, seeds
from tests.oracles import reference


@pytest.mark.in_turn(seconds=0.9)
def test_strides_are_those_of_every_element() -> None:
    found: Counter[bool] = Counter()
    for seed in seeds(500):
        expected = random_shape(seed)
        shape = Shape.parse(str(expected))
        slots = reference.linear_indices(expected)
        units = [slots.get(tuple(int(i == d) for i in range(shape.rank)), 0) for d in range(shape.rank)]
        linear = all(sum(map(operator.mul, index, units)) == slot for index, slot in slots.items())
        strides = xla.slot_strides(shape)
        assert (strides is not None) == linear, expected
        found[linear] += 1
        if strides is None or not slots:
            continue
        for i, size in enumerate(shape.dimensions):
            assert size == 1 or strides[i] == units[i], expected
            assert xla.dimension_stride(shape, i) == strides[i]
    assert min(found.values()) > 50 or OTHER_SEEDS, found


@pytest.mark.parametrize(
    ("text", "strides", "in_bytes", "unpacked"),
    [
        ("f32[3,5]{1,0}", (5, 1), (20, 4), (20, 4)),
        ("f32[3,5]{0,1}", (1, 3), (4, 12), (4, 12)),
        ("f32[]", (), (), ()),
        ("s4[3,5]{1,0:E(4)}", (5, 1), None, (5, 1)),
        ("s4[3,5]{1,0}", (5, 1), (5, 1), (5, 1)),
        ("pred[3,5]{1,0:E(32)}", (5, 1), (20, 4), (5, 1)),
        ("f32[3,5]{1,0:PAD(4,8)}", (8, 1), (32, 4), (32, 4)),
        ("f32[3,100]{1,0:T(8,128)}", (128, 1), (512, 4), (512, 4)),
        ("f32[3,200]{1,0:T(8,128)}", None, None, None),
        ("f32[3,1,5]{2,1,0}", (5, 5, 1), (20, 20, 4), (20, 20, 4)),
        ("f32[3,0,5]{2,1,0}", (0, 5, 1), (0, 20, 4), (0, 20, 4)),
    ],
)
def test_strides_by_hand(
    text: str, strides: tuple[int, ...] | None, in_bytes: tuple[int, ...] | None, unpacked: tuple[int, ...] | None
) -> None:
    shape = Shape.parse(text)
    assert xla.slot_strides(shape) == strides
    assert shape.byte_strides == in_bytes
    assert xla.byte_strides(text) == in_bytes
    assert xla.unpacked_byte_strides(shape) == unpacked


def test_a_dimension_without_a_stride() -> None:
    with pytest.raises(fi.UnsupportedError, match="has no strides: tiles reorder its elements; use linear_index"):
        xla.dimension_stride(Shape.parse("f32[3,5]{1,0:T(2,2)}"), 0)
    with pytest.raises(fi.OutOfBoundsError):
        xla.dimension_stride(Shape.parse("f32[3,5]"), 2)
