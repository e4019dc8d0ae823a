"""Questions about the order of dimensions."""

from __future__ import annotations

import itertools

import pytest

import fastindex as fi
from fastindex import Layout, Shape, xla

ORDERS = [order for rank in range(5) for order in itertools.permutations(range(rank))]


@pytest.mark.parametrize("order", ORDERS)
def test_physical_numbers(order: tuple[int, ...]) -> None:
    shape = Shape("f32", (2,) * len(order), Layout(order))
    physical = xla.logical_to_physical(shape)
    assert [physical[dimension] for dimension in order[::-1]] == list(range(len(order)))
    assert xla.is_monotonic_with_dim0_minor(shape) == (order == tuple(sorted(order)))
    assert xla.is_monotonic_with_dim0_major(shape) == (order[::-1] == tuple(sorted(order)))


def test_what_has_no_order() -> None:
    with pytest.raises(fi.OutOfBoundsError, match="dimension 2"):
        xla.are_dimensions_consecutive("f32[3,5]", (2,))
    with pytest.raises(fi.UnsupportedError, match="only arrays"):
        xla.logical_to_physical("token[]")


@pytest.mark.parametrize(
    ("dimensions", "expected"),
    [
        ((), True),
        ((2,), True),
        ((3, 1), True),
        ((1, 3, 0), True),
        ((3, 0), False),
        ((2, 1), False),
        ((0, 2, 3, 1), True),
    ],
)
def test_consecutive_dimensions(dimensions: tuple[int, ...], expected: bool) -> None:
    assert xla.are_dimensions_consecutive("f32[2,3,4,5]{3,1,0,2}", dimensions) == expected


def test_custom_element_sizes() -> None:
    assert xla.has_custom_element_size(Shape.parse("(f32[2], (f32[2]{0:E(32)}))"))
    assert not xla.has_custom_element_size(Shape.parse("(f32[2], (token[]))"))


@pytest.mark.parametrize(
    ("strides", "dimensions", "expected"),
    [
        # The examples of XLA's own tests.
        ((3960, 440, 44, 4), (8, 9, 10, 11), True),
        ((1880, 220, 22, 2), (8, 9, 10, 11), False),
        ((1880, 440, 44, 4), (8, 9, 10, 11), False),
        ((), (), True),
    ],
)
def test_byte_strides_that_are_major_to_minor(
    strides: tuple[int, ...], dimensions: tuple[int, ...], expected: bool
) -> None:
    shape = Shape("f32", dimensions)
    assert xla.byte_strides_are_major_to_minor(shape, strides) == expected
    with pytest.raises(fi.LayoutError, match="one stride per dimension"):
        xla.byte_strides_are_major_to_minor(shape, (*strides, 1))
