"""Questions about the order of dimensions."""

from __future__ import annotations

import itertools

import pytest

import fastindex as fi
from fastindex import Layout, Shape

ORDERS = [order for rank in range(5) for order in itertools.permutations(range(rank))]


@pytest.mark.parametrize("order", ORDERS)
def test_majors_minors_and_their_inverse(order: tuple[int, ...]) -> None:
    layout = Layout(order)
    rank = len(order)
    assert tuple(fi.minor(layout, i) for i in range(rank)) == order
    assert tuple(fi.major(layout, i) for i in range(rank)) == order[::-1]
    physical = fi.logical_to_physical(layout)
    assert all(fi.major(layout, physical[dimension]) == dimension for dimension in range(rank))
    assert fi.is_monotonic_with_dim0_minor(layout) == (order == tuple(sorted(order)))
    assert fi.is_monotonic_with_dim0_major(layout) == (order[::-1] == tuple(sorted(order)))


def test_numbers_out_of_bounds() -> None:
    layout = Layout((1, 0))
    for function in (fi.major, fi.minor):
        for number in (-1, 2):
            with pytest.raises(fi.OutOfBoundsError, match=f"physical dimension {number}"):
                function(layout, number)
    with pytest.raises(fi.OutOfBoundsError, match="dimension 2"):
        fi.are_dimensions_consecutive(layout, (2,))


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
    assert fi.are_dimensions_consecutive(Layout((3, 1, 0, 2)), dimensions) == expected


def test_custom_element_sizes() -> None:
    assert fi.has_custom_element_size(Shape.parse("(f32[2], (f32[2]{0:E(32)}))"))
    assert not fi.has_custom_element_size(Shape.parse("(f32[2], (token[]))"))


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
    assert fi.byte_strides_are_major_to_minor(strides, dimensions, "f32") == expected
    with pytest.raises(fi.LayoutError, match="one stride per dimension"):
        fi.byte_strides_are_major_to_minor((*strides, 1), dimensions, "f32")
