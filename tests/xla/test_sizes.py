"""Sizes in XLA's own way, and the data size by the definition."""

from __future__ import annotations

import pytest

import fastindex as fi
from fastindex import Shape, xla
from tests.cases.strategies import random_shape, seeds
from tests.oracles import reference


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bf16[]{:T(512)(2,1)}", 1024),
        ("bf16[1024,1000]{1,0:T(8,128)(2,1)}", 2 * 1024 * 1024),
        ("f32[3,5]{1,0}", 60),
        # Without tiles the alignment and the splits count for nothing.
        ("f32[10]{0:L(16)}", 40),
        ("f32[10]{0:SC(0:6)}", 40),
        ("f32[10]{0:T(4)L(16)}", 64),
        ("f32[10]{0:T(4)SC(0:6)}", 32),
        ("f32[10,3]{1,0:T(2,4)SC(0:3,4)}", 6 * 4 * 4),
        ("s4[3,5]{1,0:T(2,4)E(4)}", 16),
        # A tile longer than the rank.
        ("f32[5]{0:T(2,4)}", 2 * 8 * 4),
        # "*" takes its size from the second tile, or packs to 32 bits.
        ("bf16[7,5]{1,0:T(*,4)(4,1)}", 8 * 8 * 2),
        ("bf16[7,5]{1,0:T(*,4)}", 8 * 8 * 2),
        ("f32[7,5]{1,0:T(*,4)}", 7 * 8 * 4),
    ],
)
def test_xla_array_size(text: str, expected: int) -> None:
    assert fi.xla.xla_array_size(Shape.parse(text)) == expected


def test_xla_array_size_is_the_reference_s() -> None:
    for seed in seeds(300):
        expected = random_shape(seed)
        if not expected.tiles or reference.STAR not in expected.tiles[0]:
            assert fi.xla.xla_array_size(Shape.parse(str(expected))) == reference.xla_array_size(expected), expected


def test_xla_array_size_where_star_has_no_size() -> None:
    with pytest.raises(fi.UnsupportedError, match=r"needs a tile size for \*"):
        fi.xla.xla_array_size(Shape.parse("f32[3,5]{1,0:T(*,4)(*,2)}"))


@pytest.mark.parametrize("text", ["token[]", "(f32[2])", "f32[?]{0}", "f32[?]{0:T(8)}"])
def test_what_has_no_array_size(text: str) -> None:
    for function in (fi.xla.xla_array_size, xla.array_data_size, xla.max_elements_per_split):
        with pytest.raises(fi.UnsupportedError):
            function(Shape.parse(text))


def test_array_data_size_ends_at_the_last_element() -> None:
    for seed in seeds(200):
        expected = random_shape(seed)
        bits = reference.element_bits(expected)
        last = [size - 1 for size in expected.dimensions]
        slots = reference.linear_index(expected, last) + 1 if 0 not in expected.dimensions else 0
        assert xla.array_data_size(Shape.parse(str(expected))) == -(-slots * bits // 8), expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[3,5]{1,0:T(2,2)}", 60),
        ("s4[3]{0:E(4)}", 2),
        ("token[]", 0),
        ("opaque[]", 4),
        ("()", 0),
        ("(f32[100], (f32[2]), token[])", 12),
        ("b(f32[3])", 12),
    ],
)
def test_byte_size_of(text: str, expected: int) -> None:
    assert xla.byte_size_of(Shape.parse(text), pointer_size=4) == expected


def test_byte_size_of_needs_a_pointer_size() -> None:
    with pytest.raises(fi.LayoutError, match="at least 1"):
        xla.byte_size_of(Shape.tuple(), 0)


def test_splits() -> None:
    # The example of XLA's own test.
    shape = Shape.parse("f32[150,200,100]{0,1,2:SC(0:30)(1:40,130)}")
    assert [xla.max_split_size(shape, i) for i in (0, 1, 2, -1)] == [150, 90, 70, 70]
    assert xla.max_elements_per_split(shape) == 150 * 90 * 70
    assert xla.split_config(Shape.parse("f32[8]{0:SC(0:4)}")) == fi.xla.SplitConfig(0, (4,))
    assert xla.split_config(Shape.parse("f32[8]{0}")) is None
    with pytest.raises(fi.UnsupportedError, match="2 split configs"):
        xla.split_config(shape)
    with pytest.raises(fi.OutOfBoundsError):
        xla.max_split_size(shape, 3)


def test_elements_of_tuples() -> None:
    assert xla.element_count_recursive(Shape.parse("(f32[2,3], (s8[], ()))")) == 7
    with pytest.raises(fi.UnsupportedError):
        xla.element_count_recursive(Shape.parse("(f32[2], token[])"))
