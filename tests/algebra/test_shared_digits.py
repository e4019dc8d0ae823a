"""Coordinates that both sides share, and the sums of their digits, against the slow reference.

Tests of: algebra.shared_digits.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest

import fastindex as fi
from fastindex.algebra.shared_digits import Strides, shared_digits
from tests.cases import strategies
from tests.oracles import reference


def dimensions_of(key: Hashable) -> list[int]:
    """The dimensions that a coordinate counts, from major to minor."""
    if isinstance(key, int):
        return [key]
    assert isinstance(key, tuple)
    return [dimension for part in key for dimension in dimensions_of(part)]


def value_of(key: Hashable, multi_index: Sequence[int], sizes: Sequence[int]) -> int:
    value = 0
    for dimension in dimensions_of(key):
        value = value * sizes[dimension] + multi_index[dimension]
    return value


def test_sums_of_digits_are_the_slots_of_the_definition() -> None:
    joined = merged = 0
    for seed in strategies.seeds(120):
        pair = strategies.random_pair(seed)
        for system, (variables, left, right) in enumerate(shared_digits(*(fi.Shape.parse(str(one)) for one in pair))):
            sizes = pair[0].dimensions
            counted = sorted(dimension for v in variables for dimension in dimensions_of(v.key))
            if 0 not in sizes:
                # What has one value needs no coordinate.
                assert set(range(len(sizes))) - set(counted) <= {d for d, size in enumerate(sizes) if size == 1}
            assert len(counted) == len(set(counted))
            for shape, digits in zip(pair, (left, right), strict=True):
                for multi_index, slot in reference.linear_indices(shape).items():
                    values = {v: value_of(v.key, multi_index, sizes) for v in variables}
                    assert sum(d.value_of(values[d.variable]) for d in digits) == slot, (seed, system, multi_index)
            joined += any(len(dimensions_of(v.key)) > 1 for v in variables)
            merged += system
    assert joined > 10 or strategies.OTHER_SEEDS
    assert merged > 0 or strategies.OTHER_SEEDS


@pytest.mark.parametrize(
    ("source", "destination", "extents"),
    [
        # Height and width of images count on from one to the other.
        ("f32[31,67,109,113]", "f32[31,67,109,113]{3,2,1,0:T(16,1,1)}", [31, 67, 109 * 113]),
        ("f32[31,67,109,113]", "f32[31,67,109,113]{1,3,2,0}", [31, 67, 109 * 113]),
        ("f32[31,67,109,113]{0,1,2,3}", "f32[31,67,109,113]{0,1,2,3}", [31 * 67 * 109 * 113]),
        # Nothing is joined across padding, across a tile, or in one side's order alone.
        ("f32[31,67,109,113]", "f32[31,67,109,113]{3,2,1,0:T(8,128)}", [31 * 67, 109, 113]),
        ("f32[6,10,15]", "f32[6,10,15]{2,1,0:T(4)}", [60, 15]),
        ("f32[6,10,16]", "f32[6,10,16]{2,1,0:T(4)}", [960]),
        ("f32[6,10,15]", "f32[6,10,15]{0,1,2}", [6, 10, 15]),
    ],
)
def test_dimensions_that_continue_each_other_are_one_coordinate(
    source: str, destination: str, extents: list[int]
) -> None:
    variables, _, _ = shared_digits(fi.Shape.parse(source), fi.Shape.parse(destination))[0]
    assert sorted(v.extent for v in variables) == sorted(extents)


def test_strides_are_joined_as_layouts_are() -> None:
    shape = fi.Shape.parse("f32[4,5,6]")
    cases = (((-30, -6, -1), [120], [-1]), ((30, 6, 2), [6, 20], [2, 6]), ((0, 0, 1), [4, 5, 6], [1]))
    for strides, extents, weights in cases:
        variables, left, _ = shared_digits(Strides((4, 5, 6), strides), shape)[0]
        assert sorted(v.extent for v in variables) == extents
        assert sorted(d.weight for d in left) == weights
